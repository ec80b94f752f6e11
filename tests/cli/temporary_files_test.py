"""No command leaves temporary files, however it ends; the next removes what a killed one left."""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from t0.cli import cache_tasks, main, mesh_transformer


class Verb:
    """A verb of `t0` that does what a test wants."""

    def __init__(self, work):
        self._work = work

    def add_arguments(self, parser):
        """Has none."""

    def main(self, args):
        return self._work() or 0


def started(command, work):
    """Runs a command in a process of its own, its work being `work`; returns the process."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        if command == "t0":
            main.VERBS["work"] = ("work_of_a_test", "is done")
            sys.modules["work_of_a_test"] = Verb(work)
            status = main.main(["work"])
        else:
            module = {"t5_mesh_transformer": mesh_transformer, "seqio_cache_tasks": cache_tasks}
            module[command].main = lambda _: work()
            sys.argv = [command]
            status = module[command].console_entry_point() or 0
    except SystemExit as error:
        status = error.code
    finally:
        os._exit(status)


def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def written(folder):
    """The temporary file, once it is there."""
    while not (found := list(folder.glob("*/made"))):
        time.sleep(0.01)
    return found[0]


def make_and_wait():
    (Path(tempfile.gettempdir()) / "made").touch()
    time.sleep(60)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("command", ["t0", "t5_mesh_transformer", "seqio_cache_tasks"])
def test_temporary_files_are_removed_after_sigterm_and_sigkill(temporary, command):
    child = started(command, make_and_wait)
    written(temporary)
    os.kill(child, signal.SIGTERM)
    assert ended(child) == 128 + signal.SIGTERM
    assert not list(temporary.iterdir())
    child = started(command, make_and_wait)
    left = written(temporary)
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    assert left.exists()
    assert ended(started(command, lambda: None)) == 0
    assert not list(temporary.iterdir())


def test_temporary_files_folder_missing_is_one_line(tmp_path, monkeypatch, capfd):
    with monkeypatch.context() as changed:
        changed.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
        assert ended(started("t0", lambda: None)) == 2
    shown = capfd.readouterr().err
    assert shown.startswith("t0 work: there is no folder for temporary files: No such file")
    assert len(shown.splitlines()) == 1
