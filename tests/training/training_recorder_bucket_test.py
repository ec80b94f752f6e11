"""Metrics and events of a model directory in a bucket: written at checkpoints and ends."""

import json

from t0.files import paths
from t0.training.recorder import Recorder


def test_metrics_recorder_in_a_bucket_writes_at_checkpoints(bucket):
    recording = Recorder("gs://b/recorded", total=30, tokens=64, start=0)
    for step in range(1, 31):
        recording.progress(step, {"loss": 1 / step})
        if step % 10 == 0:
            recording.flush()
    recording.close()
    lines = paths.read_text("gs://b/recorded/metrics.jsonl").splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 31))
    assert bucket.counts()["bytes"] <= 4
    again = Recorder("gs://b/recorded", total=30, tokens=64, start=20)
    again.close()
    lines = paths.read_text("gs://b/recorded/metrics.jsonl").splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 21))
