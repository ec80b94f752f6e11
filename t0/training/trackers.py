"""Sends a run's `metrics.jsonl` to an experiment tracker: trackio, Weights & Biases or MLflow.

    with reporting("mlflow", "/models/tiny"):     # train_loop.report_to
        ...                                       # the run appends to /models/tiny/metrics.jsonl

A separate process follows the file and calls the tracker's package. So the run never waits for
the tracker, whatever the tracker does. After the run, also after one that was killed, the process
has `_GRACE_SECONDS` to send the rest, and then it ends. `tracker.json` holds the tracker's run and
the last line that was sent:

- A resumed run continues the tracker's run.
- Lines of steps that a resumed run repeats are not sent again.
- Lines that were not sent in time are sent when the run is resumed.

Trackers use no network and no folder outside the model directory, unless their own environment
variables say so (`_DEFAULTS`). trackio always keeps its runs in its own folder. Errors of a tracker
are lines of `tracker.log`, with credentials masked.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import posixpath
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from t0.child_processes import module_command
from t0.config.plain_data import read_file
from t0.config.saved_config import mask_secrets
from t0.errors import UserError, printable, say
from t0.files import paths, write_whole
from t0.files.any_path import any_path, read_lines
from t0.files.untrusted import parsed_json
from t0.training.model_directory import CONFIGURATION_FILE
from t0.training.recorder import METRICS_FILE

Tracker = Literal["trackio", "wandb", "mlflow"]
STATE_FILE, LOG_FILE = "tracker.json", "tracker.log"
_GRACE_SECONDS = 60
_POLL_SECONDS, _REMOTE_POLL_SECONDS = 2, 60
# Tracker -> environment variable -> the default value in a local model directory.
_DEFAULTS = {
    "trackio": {},
    "wandb": {"WANDB_MODE": "offline", "WANDB_DIR": "{folder}"},
    "mlflow": {
        "MLFLOW_TRACKING_URI": "sqlite:///{folder}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    },
}
_Send = Callable[[int, Mapping[str, float]], None]


@dataclasses.dataclass(frozen=True)
class State:
    """The progress of a tracker, as in `tracker.json`.

    Attributes:
      tracker: the tracker's name.
      run: the identifier of the tracker's run.
      step: the last step that was sent.
      lines: the number of lines of this step that were sent.
    """

    tracker: str
    run: str
    step: int = -1
    lines: int = 0


def check_installed(tracker: str) -> None:
    """Checks that a tracker's package is installed.

    Raises:
      UserError: if it is not.
    """
    if importlib.util.find_spec(tracker) is None:
        raise UserError(
            f"train_loop.report_to = {tracker!r}, but the package {tracker} is not installed: "
            f"pip install {tracker}, or unset train_loop.report_to"
        )


@contextlib.contextmanager
def reporting(tracker: str | None, model_dir: str) -> Iterator[None]:
    """Sends the metrics of a run to a tracker while the context is open.

    Args:
      tracker: the tracker's name; None for no tracker.
      model_dir: the run's model directory.

    Raises:
      UserError: if the tracker's package is not installed.
    """
    if tracker is None:
        yield
        return
    check_installed(tracker)
    command = module_command("t0.training.trackers", tracker, model_dir)
    follower = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # its end tells the follower that this process has ended
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # without the Ctrl-C of the terminal
    )
    say(f"metrics are sent to {tracker}; its errors are in {posixpath.join(model_dir, LOG_FILE)}")
    try:
        yield
    finally:
        follower.stdin.close()


def _open_trackio(state: State, name: str, settings: Mapping[str, str]) -> tuple[str, _Send]:
    import trackio

    project = os.environ.get("TRACKIO_PROJECT", "t0")
    run = state.run or f"{name}-{os.urandom(4).hex()}"
    trackio.init(project=project, name=run, resume="allow", config=dict(settings))
    return run, lambda step, fields: trackio.log(dict(fields), step=step)


def _open_wandb(state: State, name: str, settings: Mapping[str, str]) -> tuple[str, _Send]:
    import wandb

    run = state.run or os.urandom(4).hex()
    # Without `project`, W&B reads its environment variable.
    project = {} if "WANDB_PROJECT" in os.environ else {"project": "t0"}
    wandb.init(id=run, name=name, resume="allow", config=dict(settings), **project)
    return run, lambda step, fields: wandb.log(dict(fields), step=step)


def _open_mlflow(state: State, name: str, settings: Mapping[str, str]) -> tuple[str, _Send]:
    import mlflow

    run = mlflow.start_run(run_id=state.run or None, run_name=None if state.run else name)
    if not state.run:  # parameters cannot be changed
        mlflow.log_params(dict(settings))
    return run.info.run_id, lambda step, fields: mlflow.log_metrics(dict(fields), step=step)


_OPENERS = {"trackio": _open_trackio, "wandb": _open_wandb, "mlflow": _open_mlflow}
_CLOSERS = {"trackio": "finish", "wandb": "finish", "mlflow": "end_run"}


def unsent_lines(
    lines: Iterator[Mapping[str, Any]], state: State
) -> Iterator[tuple[State, dict[str, float]]]:
    """Yields (the state after a line is sent, the numbers of the line) of lines not sent yet.

    Args:
      lines: the records of `metrics.jsonl`.
      state: the state before.
    """
    step, number = -1, 0
    for line in lines:
        number = number + 1 if line["step"] == step else 1
        step = line["step"]
        if (step, number) <= (state.step, state.lines):
            continue
        numbers = {k: v for k, v in line.items() if isinstance(v, int | float) and k != "step"}
        yield dataclasses.replace(state, step=step, lines=number), numbers


class Follower:
    """Sends the lines of a run's `metrics.jsonl` that were not sent yet.

    Args:
      tracker: the tracker's name.
      model_dir: the run's model directory.
    """

    def __init__(self, tracker: str, model_dir: str) -> None:
        self._model_dir = model_dir
        recorded = read_file(self._path(STATE_FILE), State, "Delete it to start a new tracker run.")
        is_same = recorded is not None and recorded.tracker == tracker
        self._state = recorded if is_same else State(tracker, "")
        self._send: _Send | None = None
        self._size = -1

    def _path(self, name: str) -> str:
        return posixpath.join(self._model_dir, name)

    def send(self) -> None:
        """Sends the lines that are new in the file. Writes errors of the tracker to its log."""
        try:
            file = any_path(self._path(METRICS_FILE))
            size = file.stat().st_size if file.exists() else 0
            if size not in (0, self._size):
                self._send_lines()
            self._size = size
        except Exception as error:  # noqa: BLE001 (any error of any tracker; sent again later)
            self._log(error)

    def _send_lines(self) -> None:
        if self._send is None:
            self._open()
        records = map(parsed_json, read_lines(self._path(METRICS_FILE)))
        for state, numbers in unsent_lines(records, self._state):
            if numbers:
                self._send(state.step, numbers)
            self._state = state
            if not paths.is_remote(self._model_dir):
                self._save()
        self._save()

    def _open(self) -> None:
        recorded = read_file(self._path(CONFIGURATION_FILE), Mapping[str, str], "") or {}
        name = posixpath.basename(self._model_dir.rstrip("/"))
        run, self._send = _OPENERS[self._state.tracker](self._state, name, recorded)
        self._state = dataclasses.replace(self._state, run=run)
        self._save()

    def _save(self) -> None:
        write_whole(self._path(STATE_FILE), json.dumps(dataclasses.asdict(self._state)) + "\n")

    def close(self) -> None:
        """Ends the tracker's run. Writes an error of the tracker to its log."""
        try:
            if self._send is not None:
                module = sys.modules[self._state.tracker]
                getattr(module, _CLOSERS[self._state.tracker])()
        except Exception as error:  # noqa: BLE001 (any error of any tracker)
            self._log(error)

    def _log(self, error: Exception) -> None:
        reason = mask_secrets(f"{type(error).__name__}: {error}".replace("\n", " "))
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(reason)}\n"
        with paths.opened(self._path(LOG_FILE), "a") as file:
            file.write(line)


def main(tracker: str, model_dir: str) -> None:
    """Follows a run until its process has ended, which closes this process's standard input."""
    ended = threading.Event()

    def wait_for_run() -> None:
        while os.read(0, 1024):
            pass
        ended.set()
        time.sleep(_GRACE_SECONDS)
        os._exit(1)  # also if the tracker never answers

    threading.Thread(target=wait_for_run, daemon=True).start()
    remote = paths.is_remote(model_dir)
    if not remote:
        folder = str(Path(model_dir).absolute())
        for name, value in _DEFAULTS[tracker].items():
            os.environ.setdefault(name, value.format(folder=folder))
    follower = Follower(tracker, model_dir)
    while not ended.wait(_REMOTE_POLL_SECONDS if remote else _POLL_SECONDS):
        follower.send()
    follower.send()
    follower.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
