"""The weights agree with `t0 seen`: the steps that saw a token change its embedding."""

import itertools
import json
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from t0.cli.main import main
from t0.config.specification import DataSpec, FeatureSpec, TaskSpec
from t0.feeding.training_data import open_training_data
from t0.files import tf_examples, tfrecord
from t0.training.mesh_session import LoopOptions, train
from tests.training import tiny_training as tiny

RECORDS, STEPS, ROWS = 40, 40, 4
RARE = {50: 3, 51: 12, 52: 21, 53: 30, 54: 39}  # token -> the only record that has it
FEATURES = {"inputs": FeatureSpec(False), "targets": FeatureSpec(True)}


@pytest.fixture
def spec(tmp_path):
    rng = np.random.default_rng(0)
    frames = []
    for number in range(RECORDS):
        inputs = rng.integers(2, 50, rng.integers(3, 9)).tolist()
        inputs += [token for token, record in RARE.items() if record == number]
        entries = tf_examples.ints_entry("inputs", inputs)
        entries += tf_examples.ints_entry("targets", [*rng.integers(2, 50, 3).tolist(), 1])
        frames.append(tfrecord.framed(tf_examples.example(entries)))
    file = tmp_path / "train.tfrecord-00000-of-00001"
    file.write_bytes(b"".join(frames))
    task = TaskSpec("toy", 1.0, FEATURES, RECORDS, (str(file),))
    return DataSpec("toy", "train", (task,), tiny.LENGTHS, ("targets",), window_rows=30)


def run(spec, folder, steps):
    """Trains to a step; all checkpoints stay."""
    given = tiny.training_spec(
        folder, rows=ROWS, save_checkpoints_steps=1, keep_checkpoint_max=None
    )
    options = LoopOptions(train_steps=steps, activation_dtype="float32")
    train(given, options, lambda **_: open_training_data(spec))


def embedding(folder, step):
    reader = tf.train.load_checkpoint(str(folder / f"model.ckpt-{step}"))
    return reader.get_tensor("shared/embedding")


@pytest.mark.slow
def test_weights_agree_with_the_steps_that_saw_a_token(spec, tmp_path, capsys):
    folder = tmp_path / "model"
    run(spec, folder, 23)
    for step in (21, 22, 23):  # a kill after step 23, with the last checkpoint at step 20
        for path in folder.glob(f"model.ckpt-{step}.*"):
            path.unlink()
    run(spec, folder, STEPS)
    rows = [embedding(folder, step) for step in range(STEPS + 1)]
    changed = [np.flatnonzero((a != b).any(axis=1)) for a, b in itertools.pairwise(rows)]
    batches = itertools.islice(open_training_data(spec).batches(ROWS), STEPS)
    for tokens, (batch, _) in zip(changed, batches, strict=True):
        # The decoder reads the targets, moved by one place.
        segments = batch["targets_segmentation"]
        read = batch["targets"][:, :-1][segments[:, :-1] == segments[:, 1:]]
        expected = {*np.unique(batch["inputs"]).tolist(), *np.unique(read).tolist()}
        assert set(tokens.tolist()) - {0, 1} == expected - {0, 1}
    capsys.readouterr()
    for token, record in RARE.items():
        assert main(["seen", str(folder), "--find", str(token), "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {line["record"] for line in lines} == {record}
        steps = [n for n, tokens in enumerate(changed, start=1) if token in tokens]
        assert sorted({line["step"] for line in lines}) == steps
        assert len(steps) > 1
    shutil.rmtree(folder)
