"""Metrics that a run sends to an experiment tracker, with fake packages in place of the trackers."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import types

import pytest

from t0.errors import UserError
from t0.training import trackers
from t0.training.loop import PREEMPTED, LoopOptions, Stepping, TimeLimit
from t0.training.model_directory import Keep
from t0.training.recorder import Recorder, RunSize
from t0.training.trackers import Follower, State, unsent_lines
from tests.training import tiny_training as tiny

# A trackio that connects to a server for each line and waits for the answer.
WAITING = """
import os, pathlib, socket
def init(**settings): pathlib.Path(os.environ["FAKE_PID"]).write_text(str(os.getpid()))
def log(fields, step): socket.create_connection(("127.0.0.1", int(os.environ["FAKE_PORT"]))).recv(1)
def finish(): pass
"""


@pytest.fixture
def calls(monkeypatch):
    """Replaces the trackers' packages with fakes; the calls of their functions, in order."""
    made = []

    def fake(name, **functions):
        module = types.ModuleType(name)
        module.__spec__ = types.SimpleNamespace()
        for function in (*functions, "init", "log", "finish", "log_params", "end_run"):
            setattr(module, function, lambda *a, f=function, **kw: made.append((f, a, kw)))
        for function, answer in functions.items():
            setattr(module, function, answer)
        monkeypatch.setitem(sys.modules, name, module)

    def start_run(run_id, run_name):
        made.append(("start_run", (), {"run_id": run_id, "run_name": run_name}))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "m1"))

    def log_metrics(fields, step):
        made.append(("log", (fields,), {"step": step}))

    fake("trackio")
    fake("wandb")
    fake("mlflow", start_run=start_run, log_metrics=log_metrics)
    return made


def record(folder, steps, start=0):
    recorder = Recorder(str(folder), total=99, tokens=1, start=start, events=False)
    for step in steps:
        recorder.record(step, {"loss": 10.0 - step})
        if step % 2 == 0:
            recorder.note(step, {"best_by": "validation_loss", "best_step": step})
    recorder.close()


@pytest.mark.parametrize("tracker", ["trackio", "wandb", "mlflow"])
def test_steps_repeated_after_a_kill_reach_the_same_tracker_run_once(tmp_path, calls, tracker):
    (tmp_path / "configuration.json").write_text('{"run.batch_size": "8"}')
    record(tmp_path, [1, 2, 3])
    follower = Follower(tracker, str(tmp_path))
    follower.send()
    record(tmp_path, [4], start=3)
    follower.send()
    follower.send()  # without new lines
    record(tmp_path, [2, 3, 4, 5], start=1)  # the run was killed; its last checkpoint is step 1
    resumed = Follower(tracker, str(tmp_path))
    resumed.send()
    resumed.close()
    sent = [(kw["step"], *a[0].items()) for function, a, kw in calls if function == "log"]
    note = [(step, ("best_step", step)) for step in (2, 4)]
    losses = [(step, ("loss", 10.0 - step)) for step in range(1, 6)]
    assert sent == sorted(losses + note, key=lambda line: (line[0], line[1][0] == "best_step"))
    first, second = (kw for function, _, kw in calls if function in ("init", "start_run"))
    run = json.loads((tmp_path / "tracker.json").read_text())["run"]
    name = {"trackio": "name", "wandb": "id", "mlflow": "run_id"}[tracker]
    assert second[name] == run and (tracker == "mlflow" or first[name] == run)
    settings = [kw["config"] for _, _, kw in calls if "config" in kw]
    settings += [a[0] for function, a, _ in calls if function == "log_params"]
    assert settings[0] == {"run.batch_size": "8"}
    assert calls[-1][0] == ("end_run" if tracker == "mlflow" else "finish")


def test_lines_of_a_step_are_counted():
    lines = [{"step": 1, "a": 1}, {"step": 2, "a": 2}, {"step": 2, "b": 3}, {"step": 4, "a": True}]
    sent = list(unsent_lines(iter(lines), State("wandb", "r", step=2, lines=1)))
    assert sent == [(State("wandb", "r", 2, 2), {"b": 3}), (State("wandb", "r", 4, 1), {"a": True})]


def test_error_of_a_tracker_is_logged_without_credentials_and_sent_again(tmp_path, calls):
    record(tmp_path, [1, 2])
    follower = Follower("trackio", str(tmp_path))
    works, sys.modules["trackio"].log = sys.modules["trackio"].log, fail
    follower.send()
    sys.modules["trackio"].log = works
    follower.send()
    (line,) = (tmp_path / "tracker.log").read_text().splitlines()
    assert "ConnectionError: no answer of https://***@host" in line and "secret" not in line
    assert [kw["step"] for function, _, kw in calls if function == "log"] == [1, 2, 2]


def fail(fields, step):
    raise ConnectionError("no answer of https://me:secret@host\n token=secret")


def test_other_tracker_starts_a_run_of_its_own(tmp_path, calls):
    record(tmp_path, [1])
    for tracker in ("mlflow", "wandb"):
        Follower(tracker, str(tmp_path)).send()
    assert [kw["step"] for function, _, kw in calls if function == "log"] == [1, 1]


def test_missing_tracker_package_is_reported_with_its_install_command(tmp_path):
    with (
        pytest.raises(UserError, match="pip install wandb, or unset train_loop.report_to"),
        trackers.reporting("wandb", str(tmp_path)),
    ):
        pass


@pytest.fixture
def waiting(tmp_path, monkeypatch):
    """A trackio whose server accepts connections and never answers; the file of its process id."""
    package, pid = tmp_path / "packages", tmp_path / "pid"
    package.mkdir()
    (package / "trackio.py").write_text(WAITING)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("FAKE_PORT", str(server.getsockname()[1]))
        monkeypatch.setenv("FAKE_PID", str(pid))
        monkeypatch.syspath_prepend(str(package))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        yield pid


def test_tracker_without_answer_does_not_delay_a_run_that_is_stopped(tmp_path, waiting, capsys):
    taken = []

    def take(batch):
        taken.append(time.monotonic())
        if len(taken) == 30:  # the tracker has got none of these lines yet, and waits for the first
            deadline = time.monotonic() + 60
            while not waiting.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        if len(taken) == 60:
            os.kill(os.getpid(), signal.SIGTERM)
        names = ("loss", "z_loss", "tokens", "nll", "correct", "correct_before_eos")
        sums = ("tokens_before_eos", "gradient_square", "weight_square")
        return dict.fromkeys((*names, *sums), 1.0)

    engine = types.SimpleNamespace(
        take=take,
        size=RunSize(4, tiny.LENGTHS),
        keep=Keep(),
        checkpoint=lambda step: f"step {step}",
        max_over_processes=lambda number: number,
        evaluate=lambda step, last: {},
        save=lambda step, record, best: None,
        start_lines=lambda first, last: [],
        ideal_seconds=lambda: None,
        infinite_weights=list,
    )
    options = LoopOptions(10_000, log_every_steps=1, report_to="trackio")
    data = tiny.made_up_data()
    stepping = Stepping(
        engine, data, options, model_dir=str(tmp_path / "model"), save_every=None, prints=True
    )
    try:
        with pytest.raises(SystemExit) as stopped:
            stepping.begin(0)
            stepping.run(TimeLimit(None))
        assert stopped.value.code == PREEMPTED
        assert len(taken) == 60
        assert len((tmp_path / "model" / "metrics.jsonl").read_text().splitlines()) == 60
        assert "metrics are sent to trackio" in capsys.readouterr().out
        os.kill(int(waiting.read_text()), 0)  # it still waits
        assert json.loads((tmp_path / "model" / "tracker.json").read_text())["step"] == -1
    finally:
        os.kill(int(waiting.read_text()), signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(int(waiting.read_text()), 0)


def test_waiting_tracker_ends_after_the_run(tmp_path, waiting):
    record(tmp_path, [1])
    start = (
        "import sys; from t0.training import trackers; trackers._GRACE_SECONDS = 1; "
        "trackers.main(*sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", start, "trackio", str(tmp_path)], input=b"", timeout=60, check=False
    )
    assert done.returncode == 1 and waiting.exists()
