"""New Python processes never search the working directory for modules before Python's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from t0 import child_processes

ROOT = Path(__file__).resolve().parents[1]
# Modules that Python or this package imports at a process's start.
NAMES = ("multiprocessing", "signal", "pickle", "runpy", "t0", "torch", "absl", "json", "pip")
SPAWNS = """
import sys
sys.path = [sys.argv[1], *filter(None, sys.path)]
from t0.child_processes import spawn_context
if __name__ == "__main__":
    worker = spawn_context().Process(target=print, args=("in the worker",))
    worker.start()
    worker.join()
"""


@pytest.fixture
def hostile(tmp_path):
    """A folder whose modules say that they were imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})")
    return folder


def test_a_command_searches_the_working_directory_for_no_module(hostile, tmp_path):
    command = child_processes.module_command("t0.cli.main", "--version")
    done = subprocess.run(command, cwd=hostile, capture_output=True, text=True)
    assert (done.returncode, done.stdout[:3]) == (0, "t0 "), done.stderr
    command = child_processes.module_command("json.tool", "--help")
    done = subprocess.run(command, cwd=hostile, capture_output=True, text=True)
    assert done.returncode == 0
    assert "usage" in done.stdout
    assert not (tmp_path / "ran").exists()


def test_workers_search_the_working_directory_for_no_module(hostile, tmp_path):
    script = tmp_path / "start.py"
    script.write_text(SPAWNS)
    command = [sys.executable, script, ROOT]
    done = subprocess.run(command, cwd=hostile, capture_output=True, text=True)
    assert not (tmp_path / "ran").exists(), done.stderr
    assert done.stdout == "in the worker\n", done.stderr


def test_the_search_path_of_an_environment_variable_is_kept(tmp_path):
    (tmp_path / "mine.py").write_text("print('mine')")
    command = child_processes.module_command("mine")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "mine\n", done.stderr
