"""The hook in a session of its own: a made-up loss, a step that counts."""

import contextlib
import json

import pytest
from absl import logging

from t0.errors import UserError
from t0.training import recorder
from t0.training.estimator import RecorderHook
from t0.training.recorder import Recorder, used_memory

import tensorflow.compat.v1 as tf  # isort: skip (after t0, which quietens it)


def train(folder, losses, *, total, start=0, interval=None, steps_of_a_run=1):
    """Runs the hook over `losses`, one for each session run of `steps_of_a_run` steps."""
    hook = RecorderHook(
        str(folder),
        total_steps=total,
        sequences=4,
        sequence_length={"inputs": 6, "targets": 2},
        interval=interval,
    )
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        loss = tf.placeholder(tf.float32, [])
        tf.losses.add_loss(loss)
        tf.summary.scalar("learning_rate", tf.constant(0.25))
        more = tf.assign_add(step, steps_of_a_run)
        begin = tf.assign(step, start)

        class Start(tf.train.SessionRunHook):
            def after_create_session(self, session, coord):
                session.run(begin)

        with tf.train.MonitoredSession(hooks=[Start(), hook]) as session:
            for value in losses:
                session.run(more, {loss: value})
    return hook


@contextlib.contextmanager
def verbosity(level):
    """Sets absl's verbosity, which `-v` sets, and restores it."""
    before = logging.get_verbosity()
    logging.set_verbosity(level)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").open()]


def test_metrics_recorder_writes_a_line_every_interval(tmp_path, capsys):
    hook = train(tmp_path, [3.0, 2.5, 2.25, 2.0, 1.5], total=5, interval=2)
    assert hook.last_step == 5
    first, *shown = capsys.readouterr().out.splitlines()
    assert first == "training from step 0 to 5: 4 sequences a step, inputs 6, targets 2"
    assert [line.split("  ")[:3] for line in shown] == [
        ["step 1/5", "T5 loss 3.000", "lr 0.25"],
        ["step 2/5", "T5 loss 2.500", "lr 0.25"],
        ["step 4/5", "T5 loss 2.000", "lr 0.25"],
        ["step 5/5", "T5 loss 1.500", "lr 0.25"],
    ]
    found = lines(tmp_path)
    assert [(line["step"], line["loss"]) for line in found] == [(1, 3), (2, 2.5), (4, 2), (5, 1.5)]
    assert "tokens_per_second" not in found[0]
    for line in found[1:]:
        assert line["learning_rate"] == 0.25
        assert line["tokens_per_second"] == pytest.approx(32 / line["seconds_per_step"])


def test_metrics_recorder_appends_after_resume(tmp_path, capsys):
    train(tmp_path, [3.0, 2.0], total=2)
    hook = train(tmp_path, [1.5, 1.0], total=4, start=2)
    assert hook.last_step == 4
    assert "training from step 2 to 4" in capsys.readouterr().out
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4]


def test_metrics_recorder_default_interval_is_a_hundredth(tmp_path):
    train(tmp_path, [1.0] * 20, total=1000)
    assert [line["step"] for line in lines(tmp_path)] == [1, 10, 20]


def test_metrics_recorder_with_several_steps_per_session_run(tmp_path):
    train(tmp_path, [1.0] * 6, total=42, interval=10, steps_of_a_run=7)
    assert [line["step"] for line in lines(tmp_path)] == [7, 14, 21, 35, 42]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_nan_loss_stops_the_run_and_is_not_recorded(tmp_path, loss):
    with pytest.raises(UserError, match=r"the loss is \w+ at step 3: training has diverged"):
        train(tmp_path, [2.0, 1.0, loss, 1.0], total=4)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_metrics_recorder_drops_damaged_lines(tmp_path):
    path, good = tmp_path / "metrics.jsonl", b'{"step": 1}\n{"step": 2, "loss": NaN}\n'
    path.write_bytes(
        good + b'{"step": "3"}\n[]\n{"step": null}\n' + b"[" * 9**5 + b'\n\xff\x00\n{"st'
    )
    Recorder(str(tmp_path), total=3, tokens=1, start=2, events=False)
    assert path.read_bytes() == good
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be read"):
        Recorder(str(tmp_path), total=3, tokens=1, start=2, events=False)


def test_used_memory_of_gpus_or_of_the_process():
    assert used_memory([2**30, 3 * 2**30]) == "3.0 GiB used on a GPU"
    assert used_memory([]).endswith("GiB used")


def test_model_flops_utilization_is_shown_if_peak_is_known(tmp_path, capsys):
    with verbosity(logging.INFO):
        recording = Recorder(str(tmp_path), total=4, tokens=8, start=0)
    recording.progress(1, {})
    recording.ideal_seconds = 1e-9
    recording.progress(2, {})
    recording.ideal_seconds = None
    recording.progress(3, {})
    recording.close()
    found = lines(tmp_path)
    assert found[1]["model_flops_utilization"] == 1e-9 / found[1]["seconds_per_step"]
    assert "model_flops_utilization" not in found[0].keys() | found[2].keys()
    shown = capsys.readouterr().out.splitlines()
    assert [" MFU 0% " in line for line in shown] == [False, True, False]


@pytest.mark.parametrize("total", [400, 12_200, 1_112_200])
def test_metrics_progress_line_fits_80_columns(total):
    fields = {
        "loss_per_token": 2.3041,
        "held_out": 2.411,
        "token_accuracy_without_eos": 0.4,
        "loss": 2.0,
        "learning_rate": 0.00144,
        "tokens_per_second": 11_480.0,
        "seconds_per_step": 10_572 / 100,
    }
    shown = recorder.line(total - 100, total, fields, detailed=False)
    assert len(shown) <= 80
    assert shown.startswith(f"step {total - 100:,}")
    assert shown.endswith("  loss 2.304  held-out 2.411  lr 0.0014  11.5k tok/s  2h56m left")
    assert "accuracy 40.0%  T5 loss 2.000" in recorder.line(
        total - 100, total, fields, detailed=True
    )


def test_metrics_lines_come_every_few_seconds_and_all_steps_are_recorded(tmp_path, capsys):
    for every_line, shown in ((False, ["step 1/9", "step 9/9"]), (True, None)):
        folder = tmp_path / str(every_line)
        with verbosity(logging.ERROR):
            recording = Recorder(str(folder), total=9, tokens=8, start=0, every_line=every_line)
        for step in range(1, 10):
            recording.progress(step, {"loss_per_token": 1.0})
        recording.close()
        steps = [f"step {step}/9" for step in range(1, 10)]
        printed = [text.split("  ")[0] for text in capsys.readouterr().out.splitlines()]
        assert printed == (shown or steps)
        assert [record["step"] for record in lines(folder)] == [*range(1, 10)]
