"""Any SeqIO task: its source's shards are units of work, shared by workers, kept from a kill."""

import contextlib
import importlib
import io
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t0.caching import RecordOptions, Setup, parts, source_shards, work_plan, workers
from t0.caching.cache_plan import TaskSplit
from t0.caching.source_shards import ShardRun
from t0.errors import UserError
from t0.files import paths, publishing, tfrecord
from tests.helpers.processes import Killed

TASKS = ("toy_files", "toy_lines")


def content(root):
    """Path under root -> bytes, for everything in it but the modules of the process that cached."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "provenance.json"
    }


@pytest.fixture(scope="module")
def whole(toy, tmp_path_factory):
    """What an uninterrupted run in one process writes."""
    from t0.caching import CacheSelection, cache

    out = tmp_path_factory.mktemp("whole")
    setup = Setup(module_import=["tests.caching.toy_caching_tasks"])
    cache(
        CacheSelection(str(out), tasks=TASKS),
        RecordOptions(),
        setup,
        num_workers=0,
        file=io.StringIO(),
    )
    return content(out)


# As it is before a fixture puts another in its place.
EXECUTE = workers.execute


@pytest.fixture
def recorded(monkeypatch):
    """Lists the runs of shards that are done."""
    done = []

    def noted(job, make):
        done.append(job)
        return EXECUTE(job, make)

    monkeypatch.setattr("t0.caching.workers.execute", noted)
    return done


@pytest.fixture
def dying_run(cache_here, monkeypatch):
    """Caches until `jobs` jobs are done, then is gone."""

    def cache(out, jobs, *tasks):
        done = []

        def counted(job, make):
            if len(done) == jobs:
                raise Killed
            done.append(job)
            return EXECUTE(job, make)

        with monkeypatch.context() as patch:
            patch.setattr("t0.caching.workers.execute", counted)
            # A killed process removes nothing; and its process id is not ours.
            host = publishing.unfinished_tag().split("-", 1)[1].rsplit("-", 2)[0]
            tag = f"incomplete-{host}-{2**22 + 1}-1"
            # Builtins, because functions of this module would be part of the tasks' fingerprint.
            patch.setattr(paths, "remove", str)
            patch.setattr(publishing, "unfinished_tag", tag.__str__)
            with contextlib.suppress(Killed):
                cache_here(out, *tasks)
        return [job for job in done if isinstance(job, ShardRun)]

    return cache


def test_source_shards_are_grouped_into_contiguous_runs():
    assert source_shards.runs_of(1) == ((0, 1),)
    many = source_shards.runs_of(5000)
    assert len(many) == 1000
    assert [start for start, _ in many[1:]] == [stop for _, stop in many[:-1]]
    assert many[-1][1] == 5000


@pytest.mark.exhaustive
def test_source_shards_two_workers_share_a_split(
    whole, cache_here, tmp_path, monkeypatch, with_data
):
    monkeypatch.setenv("TOY_SECONDS_A_LINE", "0.02")
    cache_here(tmp_path, *TASKS, "toy_process", workers=2)
    (path,) = (tmp_path / "toy_process").glob("train.tfrecord-*")
    found = [
        tf.train.Example.FromString(record.numpy()).features.feature
        for record in tf.data.TFRecordDataset(str(path))
    ]
    lines = [features["targets_pretokenized"].bytes_list.value[0] for features in found]
    assert lines == [str(line).encode() for line in range(32)]
    processes = [features["process"].int64_list.value[0] for features in found]
    assert len(set(processes)) == 2
    # A shard is read by one process.
    assert all(len(set(processes[i : i + 4])) == 1 for i in range(0, 32, 4))
    assert {k: v for k, v in content(tmp_path).items() if "process" not in k} == whole


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [3, 11])
def test_source_shards_resume_repeats_only_unfinished_shards(
    whole, dying_run, recorded, cache_here, tmp_path, jobs
):
    # Eight shards of one task and their joining; three and one, joined, of the other.
    before = dying_run(tmp_path, jobs, *TASKS)
    cache_here(tmp_path, *TASKS)
    assert content(tmp_path) == whole
    after = [job for job in recorded if isinstance(job, ShardRun)]
    places = [(job.spec.split.task, job.spec.split.name, job.start) for job in before + after]
    assert len(places) == len(set(places)) == 12


@pytest.mark.slow
def test_source_shards_leftover_parts_are_removed_on_resume(whole, dying_run, cache_here, tmp_path):
    dying_run(tmp_path, 1000, *TASKS)  # all jobs: only the removal of the parts is missing
    assert list(tmp_path.glob("unfinished-parts.*/*.part"))
    cache_here(tmp_path, *TASKS)
    assert content(tmp_path) == whole
    assert not list(tmp_path.glob("unfinished-parts.*"))


def test_source_shards_without_files_restart_on_resume(dying_run, recorded, cache_here, tmp_path):
    dying_run(tmp_path, 1, "toy_function")
    cache_here(tmp_path, "toy_function")
    assert [str(job) for job in recorded if isinstance(job, ShardRun)] == [
        "toy_function split 'train'"
    ]


STEPS = """
import functools
import tensorflow as tf

def prepend(example, word):
    return {**example, "inputs": tf.strings.join([word, example["inputs"]])}

def prepending(word):
    # A preprocessor with a closure, and in it a `functools.partial`.
    step = functools.partial(prepend, word=word)
    return lambda dataset: dataset.map(step)
"""


def test_source_shards_part_key_depends_on_all_inputs(toy, tmp_path, monkeypatch):
    own = tmp_path / "own_steps_of_parts.py"
    own.write_text(STEPS)
    monkeypatch.syspath_prepend(tmp_path)
    prepending = importlib.import_module(own.stem).prepending
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("rain|snow\n")
    split = TaskSplit("toy_told", "train", str(tmp_path))

    def key(word="wet ", options=None, vocabulary=toy.VOCABULARY):
        source = seqio.TextLineDataSource({"train": str(tmp_path / "*.txt")})
        steps = [toy.split_line, prepending(word), *toy.TOKENISED]
        features = {name: seqio.Feature(vocabulary) for name in ("inputs", "targets")}
        task = seqio.Task("toy_told", source, output_features=features, preprocessors=steps)
        monkeypatch.setattr(seqio.TaskRegistry, "get", lambda name: task)
        opened, setup = work_plan.OpenedSplits(), Setup(["tests.caching.toy_caching_tasks"])
        planned = work_plan.plan_work(
            [split], options or RecordOptions(), str(tmp_path), opened, setup
        )
        return planned.specs[split].key

    same = key()
    assert key() == same
    assert key(options=RecordOptions(min_shards=5, max_dropped_share=0.5)) == same
    others = [
        key(word="dry "),
        key(options=RecordOptions(base_seed=4)),
        key(options=RecordOptions(enable_char_counts=True)),
        key(vocabulary=seqio.ByteVocabulary()),
    ]
    os.utime(tmp_path / "one.txt", (1, 1))
    others.append(key())
    own.write_text(STEPS + "# The code has changed.")
    others.append(key())
    assert len({same, *others}) == len(others) + 1


def test_source_shards_failing_shard_is_named_and_rest_skipped(cache_here, tmp_path, recorded):
    with pytest.raises(UserError) as error:
        cache_here(tmp_path, "toy_ten", "toy_function")
    told = str(error.value)
    assert "toy_ten split 'train': InvalidArgumentError" in told
    assert "(toy_ten split 'train', source shard 3 of 8)" in told
    assert sum(str(job).startswith("toy_ten") for job in recorded) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["toy_function"]


def test_source_shards_without_examples(cache_here, tmp_path):
    (outcome,) = cache_here(tmp_path, "toy_last")
    assert outcome.stats["examples"] == 1
    info = json.loads((tmp_path / "toy_last" / "info.train.json").read_text())
    assert set(info["features"]) >= {"inputs", "targets"}


def test_source_shards_part_records_and_counts(tmp_path):
    records = [b"x" * random.Random(i).randrange(9) for i in range(20)]
    frames = [tfrecord.framed(record) for record in records]
    with parts.PartWriter(str(tmp_path), "a.part") as part:
        part.append(frames[:7])
        part.append(frames[7:])
        info = part.finish({})
    assert (info["records"], info["bytes"]) == (20, sum(map(len, frames)))
    path = str(tmp_path / "a.part")
    assert parts.read_info(path) == info
    assert list(parts.read_records(path)) == records


def test_source_shards_truncated_part_has_no_counts(tmp_path):
    path = tmp_path / "a.part"
    with parts.PartWriter(str(tmp_path), path.name) as part:
        part.append([tfrecord.framed(b"a"), tfrecord.framed(b"b")])
        part.finish({"start": 0})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert parts.read_info(str(path)) is None


@pytest.mark.exhaustive
def test_source_shards_memory_does_not_grow_with_rows(toy_folder, command_environment, tmp_path):
    """Twenty times the rows, in as many more shards, through one worker and the joining."""
    lines = "".join(f"{'rain and snow ' * 30}{i}|sun\n" for i in range(1000))
    for number in range(21):
        (tmp_path / f"big-{number:02d}.txt").write_text(lines)
    script = tmp_path / "growth.py"
    script.write_text(GROWTH)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        env=command_environment,
    )
    assert done.returncode == 0, done.stderr
    first, last = map(int, done.stdout.split()[-2:])
    assert last < first + 40 * 1024, f"{first} KiB after 1 shard, {last} KiB after 21"


GROWTH = """
import os, sys
import seqio
from tests.caching import toy_caching_tasks as toy
from t0.caching import RecordOptions, Setup, source_shards, workers
from t0.caching.cache_plan import TaskSplit
from t0.caching.split_state import JoinParts, SplitSpec
folder = sys.argv[1]
source = seqio.TextLineDataSource({"train": f"{folder}/big-*.txt"})
toy.add("big", source=source, preprocessors=[toy.split_line, *toy.TOKENISED])
execute = workers.ShardRunWorker(RecordOptions(), Setup())()
split = TaskSplit("big", "train", f"{folder}/out")
spec = SplitSpec(split, "key", source_shards.runs_of(21))
os.makedirs(f"{folder}/parts")
def peak():
    (high,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    print(high.split()[1])
infos = []
for start in range(21):
    job = source_shards.ShardRun(spec, start, start + 1, 21, f"{folder}/parts")
    infos.append(execute(job, lambda told: None)["big"])
    if not start:
        peak()
paths = sorted(f"{folder}/parts/{name}" for name in os.listdir(f"{folder}/parts"))
merged = execute(JoinParts(spec, tuple(paths), tuple(infos), RecordOptions()), print)
assert merged.stats["examples"] == 21_000, merged
peak()
"""


def test_counter_takes_numeric_feature_that_tokenize_copied():
    vocabulary = seqio.PassThroughVocabulary(1000)
    counter = source_shards.ExampleCounter(
        {"aux": seqio.Feature(vocabulary, add_eos=False)}, char_counts=True
    )
    ids = np.array([1, 2, 3], np.int32)
    counter.add({"aux": ids, "aux_pretokenized": ids})
    assert (counter.examples, counter._tokens["aux"]) == (1, 3)
