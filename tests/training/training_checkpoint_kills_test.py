"""Saving a checkpoint in a bucket, killed between any two requests: what a reader meets."""

import io
import json
import re

import numpy as np
import pytest

from t0.checkpoints import checkpoint_files
from t0.errors import UserError
from t0.training.checkpointing import Checkpoints, Keep
from tests.helpers.buckets.faults import KilledAfter, no_faults
from tests.helpers.buckets.object_store import Bucket
from tests.training import tiny_training as tiny

MODEL = "gs://b/model"
ENDINGS = (".index", ".data-00000-of-00001", ".resume.npz")


@pytest.fixture(scope="module")
def steps():
    return tiny.Steps(tiny.training_spec())


def started(steps):
    """What a start has: the checkpoints, after it has restored the latest; and the step of that."""
    saver = Checkpoints(MODEL, steps.graph, steps.session, Keep(last=2))
    latest = checkpoint_files.latest(MODEL)
    if latest:
        assert saver.restore(latest) is not None
    return saver, int(latest.rpartition("-")[2]) if latest else 0


def save(steps, upto):
    saver, done = started(steps)
    for number in range(done + 1, upto + 1):
        saver.save(number, {"began": 0, "seed": 0, "position": None})


def content(name, stored):
    """An object's content, without the lists that say which checkpoints a start has met."""
    if name.endswith("/checkpoint"):
        return stored.splitlines()[0]
    if not name.endswith(".resume.npz"):
        return stored
    with np.load(io.BytesIO(stored)) as arrays:
        record = {**json.loads(str(arrays["record"])), "own": []}
        return {**{n: arrays[n].tobytes() for n in arrays.files}, "record": record}


def faults_seen(changes, whole, first=0):
    """What readers would have taken for a finished checkpoint that was not, from a change on."""
    there, found = {}, []
    for number, change in enumerate(changes):
        name = change.name.removeprefix("b/")
        there[name] = change.content
        if number < first:
            continue
        present = {n for n, stored in there.items() if stored is not None}
        seen = {n.removesuffix(".index") for n in present if n.endswith(".index")}
        if "model/checkpoint" in present:  # TensorFlow reads it, and takes what is named first
            seen.add("model/" + there["model/checkpoint"].decode().split('"')[1])
        for path in (prefix + ending for prefix in seen for ending in ENDINGS):
            if path not in present or content(path, there[path]) != whole[path]:
                found.append(f"{path} when {name} changed")
    return found


# All points take a minute.
@pytest.mark.parametrize(
    "every",
    [pytest.param(1, marks=pytest.mark.exhaustive), pytest.param(9, marks=pytest.mark.slow)],
)
def test_checkpoint_save_killed_at_any_request_stays_consistent(steps, bucket, monkeypatch, every):
    whole = {}
    for number in range(1, 5):
        save(steps, number)
        whole |= {name: content(name, stored) for name, stored in bucket.files("b").items()}
        if number == 2:
            before = bucket.files("b")
    last = {name: whole[name] for name in bucket.files("b")}
    assert not faults_seen(bucket.changes(), whole)
    killed = every // 2
    while True:
        bucket.reset({"b": Bucket()})
        for name, stored in sorted(before.items(), key=lambda item: item[0].endswith(".index")):
            bucket.put("b", name, stored)
        saver, done = started(steps)
        first = len(bucket.calls())
        bucket.set_faults(KilledAfter(killed))
        try:
            saver.save(done + 1, {"began": 0, "seed": 0, "position": None})
            ended = len(bucket.calls()) - first <= killed
        except UserError as error:
            assert re.search("cannot be (saved|removed)", str(error)) and "403" in str(error)
            ended = False
        bucket.set_faults(no_faults)
        save(steps, 4)
        found = {name: content(name, stored) for name, stored in bucket.files("b").items()}
        assert found == last, killed
        wrong = faults_seen(bucket.changes(), whole, first=len(before))
        assert not wrong, (killed, wrong)
        if ended:
            break
        killed += every
    assert killed >= 16
