"""A run whose model directory is in a bucket: as on the disk, with few writes of each object."""

import json

import pytest

from t0.files import paths
from t0.files.any_path import any_path
from t0.training.mesh_session import LoopOptions, train
from t0.training.recorder import Recorder
from tests.helpers.processes import Killed
from tests.training import tiny_training as tiny


def run(folder, steps):
    options = LoopOptions(train_steps=steps, log_every_steps=1)
    train(tiny.training_spec(folder), options, lambda **_: tiny.made_up_data())


def losses(text):
    return {line["step"]: line["loss"] for line in map(json.loads, text.splitlines())}


def test_metrics_recorder_in_a_bucket_drops_later_steps(bucket):
    metrics = any_path("gs://b/model/metrics.jsonl")
    metrics.write_text('{"step": 4}\n{"step": 6}\n')
    recorder = Recorder("gs://b/model", total=8, tokens=144, start=4, events=False)
    recorder.record(5, {"loss": 2.0})
    recorder.close()
    steps = [json.loads(line)["step"] for line in paths.read_text(metrics).splitlines()]
    assert steps == [4, 5]


@pytest.mark.slow
def test_resume_of_a_killed_run_in_a_bucket(as_in_commands, bucket, tmp_path, monkeypatch):
    run(tmp_path, 8)
    folder = any_path("gs://b/model")
    progress = Recorder.progress

    def killed(self, step, fields):
        progress(self, step, fields)
        if step == 6:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Recorder, "progress", killed)
        run(folder, 8)
    run(folder, 8)
    there = paths.read_text(folder / "metrics.jsonl")
    assert losses(there) == losses((tmp_path / "metrics.jsonl").read_text())
    names = set(paths.list_names(folder))
    assert {"checkpoint", "model.ckpt-8.index", "model.ckpt-8.resume.npz"} <= names
