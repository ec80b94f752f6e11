"""What a run prints and records: its first lines, its steps, and the hook of the estimator."""

import dataclasses
import json
import types

import pytest

from t0.errors import UserError
from t0.feeding.mixing import TaskShare
from t0.feeding.training_data import Filling
from t0.training import recorder
from t0.training.estimator import TrainingHook
from t0.training.loop import TimeLimit
from t0.training.recorder import Recorder, RunSize

import tensorflow.compat.v1 as tf  # isort: skip (after t0, which quietens it)


def train(folder, losses, *, total, start=0, interval=None, steps_of_a_run=1):
    """Runs the hook over `losses`, one for each session run of `steps_of_a_run` steps."""
    size = RunSize(4, {"inputs": 6, "targets": 2})
    hook = TrainingHook(str(folder), total, size, interval, TimeLimit(None))
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


def test_model_flops_utilization_is_recorded_if_peak_is_known(tmp_path):
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
    shown = recorder.line(total - 100, total, fields)
    assert len(shown) <= 80
    assert shown.startswith(f"step {total - 100:,}")
    assert shown.endswith("  loss 2.304  held-out 2.411  lr 0.0014  11.5k tok/s  2h56m left")


def test_metrics_lines_come_every_few_seconds_and_all_steps_are_recorded(tmp_path, capsys):
    for every_line, shown in ((False, ["step 1/9", "step 9/9"]), (True, None)):
        folder = tmp_path / str(every_line)
        recording = Recorder(str(folder), total=9, tokens=8, start=0, every_line=every_line)
        for step in range(1, 10):
            recording.progress(step, {"loss_per_token": 1.0})
        recording.close()
        steps = [f"step {step}/9" for step in range(1, 10)]
        printed = [text.split("  ")[0] for text in capsys.readouterr().out.splitlines()]
        assert printed == (shown or steps)
        assert [record["step"] for record in lines(folder)] == [*range(1, 10)]


def test_metrics_of_every_record_are_printed_if_verbose(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(recorder.logging, "get_verbosity", lambda: recorder.logging.INFO)
    recording = Recorder(str(tmp_path), total=9, tokens=8, start=0)
    for step in (1, 2):
        recording.progress(step, {"loss_per_token": 1.0, "z_loss": 0.5})
    recording.close()
    printed = capsys.readouterr().out.splitlines()
    assert [text.split("  ")[0] for text in printed[::2]] == ["step 1/9", "step 2/9"]
    assert all("z_loss 0.5" in text for text in printed[1::2])


def data(count, examples=200):
    shares = [
        TaskShare(f"task_{n}", rate=1 / count, examples=examples, served=0) for n in range(count)
    ]
    filling = Filling(rows=4, examples=10, filled={"inputs": 0.991, "targets": 0.287})
    return types.SimpleNamespace(filling=filling, shares=lambda: shares)


def start_lines(given):
    return recorder.start_lines(
        20,
        1_020,
        RunSize(16, {"inputs": 512, "targets": 192}, parameters=76_961_152),
        microbatches=2,
        data=given,
        notes=[recorder.memory_line(2**29, 3 * 2**29, devices=2)],
    )


def test_start_report_lines():
    assert "\n".join(start_lines(data(2))) == (
        "training from step 20 to 1,020: 16 sequences a step, inputs 512, targets 192\n"
        "  model: 76,961,152 parameters\n"
        "  memory: about 2.0 GiB on each of 2 device(s):\n"
        "    weights and optimizer 512.0 MiB, gradients and activations 1.5 GiB\n"
        "  1,000 steps of 11,264 tokens in 2 microbatch(es), 11,264,000 tokens in total\n"
        "  packing: 2.5 examples a sequence; filled: inputs 99.1%, targets 28.7%\n"
        "  data: 2 task(s); passes over each in these steps:\n"
        "    task_0: 100.00 passes (200 examples, 50.0% of the mixture)\n"
        "    task_1: 100.00 passes (200 examples, 50.0% of the mixture)"
    )


def test_start_report_fits_80_columns_and_never_splits_a_name():
    given = data(2)
    name = "a_dataset_with_a_very_long_name_and_a_prompt_with_an_even_longer_name_than_the_dataset"
    given.shares = lambda: [TaskShare(name, rate=1.0, examples=200, served=0)]
    found = start_lines(given)
    assert f"    {name}:" in found
    assert max(len(line) for line in found if name not in line) <= 80


def test_start_report_shows_unknown_tokens():
    given = data(2)
    given.filling = dataclasses.replace(given.filling, unknown=0.25)
    first, *_ = (line for line in start_lines(given) if line not in start_lines(data(2)))
    assert first.startswith("  unknown tokens: 25.0% of the first targets have some")


def test_start_report_lists_twelve_tasks_and_unknown_sizes():
    found = start_lines(data(14, examples=None))
    assert found[-1] == "    ... and 2 more"
    assert found[-2] == "    task_11: ? passes (unknown size, 7.1% of the mixture)"


def test_start_report_of_a_user_dataset_has_no_task_lines():
    filled = types.SimpleNamespace(filling=None, shares=list)
    assert len(start_lines(filled)) == 5
