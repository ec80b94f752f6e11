"""Event files as TensorFlow, and so TensorBoard, reads and writes them."""

import contextlib
import math
import re
import socket
import time

import numpy as np
import pytest

from t0.files import paths
from t0.training.recorder import EventFile

import tensorflow.compat.v1 as tf  # isort: skip (after t0, which quietens it)

VALUES = {"loss": 2.25, "steps": 7, "eval/é": np.float32(0.1), "zero": 0, "small": -1e-50}
ODD = {"nan": math.nan, "above": 1e39, "below": -1e300, "true": np.bool_(True)}


def theirs(folder, suffix=""):
    """The same events by TensorFlow's writer."""
    with tf.Graph().as_default():
        writer = tf.summary.FileWriter(str(folder), filename_suffix=suffix)
    writer.add_session_log(tf.SessionLog(status=tf.SessionLog.START), global_step=5)
    for step, values in ((5, VALUES), (0, ODD), (2**40, {})):
        values = [tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        writer.add_summary(tf.Summary(value=values), step)
    writer.close()


def ours(folder, suffix=""):
    with contextlib.closing(EventFile(str(folder), suffix=suffix, restarted_at=5)) as events:
        events.add(5, VALUES)
        events.add(0, ODD)
        events.add(2**40, {})


def read(folder):
    """The bytes of each event of a folder, without its time; and the time."""
    events, times = [], []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in tf.train.summary_iterator(str(path)):
            times.append(event.wall_time)
            event.ClearField("wall_time")
            event.ClearField("source_metadata")  # that of the first, which names the writer
            events.append(event.SerializeToString())
    return events, times


@pytest.mark.parametrize("suffix", ["", ".ranked.1000"])
def test_tensorboard_event_file_equals_tensorflows(tmp_path, suffix):
    theirs(tmp_path / "theirs", suffix)
    began = time.time()
    ours(tmp_path / "ours", suffix)
    wanted, _ = read(tmp_path / "theirs")
    events, times = read(tmp_path / "ours")
    assert events == wanted
    assert len(events) == 5
    assert began <= min(times) and times == sorted(times) and times[-1] <= time.time()
    names = [next((tmp_path / name).iterdir()).name for name in ("ours", "theirs")]
    pattern = rf"events\.out\.tfevents\.\d{{10}}\.{re.escape(socket.gethostname() + suffix)}"
    assert all(re.fullmatch(pattern, name) for name in names), names


def test_tensorboard_event_file_has_each_event_immediately(tmp_path):
    events = EventFile(str(tmp_path / "new" / "folder"))
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "folder"]
    assert not list((tmp_path / "new" / "folder").iterdir())
    for count in (1, 2):
        events.add(count, {"loss": 1.0})
        assert len(read(tmp_path / "new" / "folder")[0]) == 1 + count
    events.close()
    events.close()


def test_tensorboard_event_files_of_one_second_have_own_names(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.5)
    for step in (1, 2, 3):
        with contextlib.closing(EventFile(str(tmp_path))) as events:
            events.add(step, {"loss": 1.0})
    names = sorted(path.name.split(".")[3] for path in tmp_path.iterdir())
    assert names == ["1700000000", "1700000001", "1700000002"]
    assert len(read(tmp_path)[0]) == 6


def test_tensorboard_event_file_is_written_whole_to_a_bucket(bucket):
    with contextlib.closing(EventFile("gs://b/empty")):
        pass
    events = EventFile("gs://b/model/", restarted_at=11)
    assert paths.list_names("gs://b") == []
    events.publish()
    events.add(11, {"loss": 1.0})
    events.close()
    events.close()
    ((name, content),) = bucket.files("b").items()
    assert name.startswith("model/events.out.tfevents.")
    assert b"loss" in content
    assert bucket.counts()["bytes"] == 2
