"""Faults under `torchrun`: signals, lost and hung processes, full disks, machines that differ.

Each ends all processes with one message, and the same command resumes from the last checkpoint.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.torch.engine_world import MODEL, losses

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

LONG = 100_000  # steps that no test waits for
LIMIT_SECONDS = 240
# As torchrun's program: the second process can write no file of more than 100 KB.
FULL_DISK = """
import os, resource, runpy
if os.environ["RANK"] == "1":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
runpy.run_module("t0.torch", run_name="__main__", alter_sys=True)
"""


class Started:
    """A command under `torchrun`, in a process group of its own, and what it printed."""

    def __init__(self, world, folder, *words, launch=("--max_restarts=0",)):
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *launch]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, *launcher, *map(str, words), "--device=cpu"],
                cwd=world.folder,
                env=world.environment,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def stdout(self):
        return self._out.read_text()

    @property
    def stderr(self):
        return self._err.read_text()

    def workers(self):
        """Rank -> process id of those that are there."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                words = (path / "environ").read_bytes().split(b"\0")
                rank = [word for word in words if word.startswith(b"RANK=")]
                if parent == self.process.pid and rank:
                    found[int(rank[0][5:])] = int(path.name)
        return found

    def until(self, true):
        """Waits until something is true of a command that still runs."""
        ended = time.monotonic() + LIMIT_SECONDS
        while not true():
            assert self.process.poll() is None, self.stderr
            assert time.monotonic() < ended, self.stdout + self.stderr
            time.sleep(0.1)

    def end(self):
        """Waits for the command; all its processes are gone."""
        self.returncode = self.process.wait(LIMIT_SECONDS)
        with pytest.raises(ProcessLookupError):
            os.killpg(self.process.pid, 0)


@pytest.fixture
def start(world, tmp_path):
    begun = []

    def begin(*words, **given):
        begun.append(Started(world, tmp_path, *words, **given))
        return begun[-1]

    yield begin
    for one in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()


@pytest.fixture
def run(world, tmp_path):
    """A specification of a long run that saves every other step, and its folder."""
    folder = tmp_path / "model"
    return world.specified(folder, LONG, save_checkpoints_steps=2), folder


def newest(folder):
    return max((int(path.name[11:]) for path in folder.glob("torch.ckpt-*")), default=-1)


def test_signal_sigkill_restarts_workers_and_sigterm_saves(world, start, run, tmp_path):
    spec, folder = run
    one = start("-m", "t0.torch", spec, launch=("--max_restarts=1",))
    one.until(lambda: newest(folder) >= 2)
    os.kill(one.workers()[1], signal.SIGKILL)
    one.until(lambda: "restored" in one.stdout)
    restored = int(re.search(r"torch\.ckpt-(\d+), step", one.stdout)[1])
    one.until(lambda: newest(folder) >= restored + 2)
    assert "process 0 waited for the others, and one does not answer" in message_of(one)
    one.process.send_signal(signal.SIGTERM)
    one.end()
    said = re.findall(r"stopped by SIGTERM at step (\S+) of", one.stdout)
    assert len(said) == 1
    step = int(said[0].replace(",", ""))
    assert newest(folder) == step
    assert not list(folder.glob(".saving*"))
    done = world.torch(world.specified(folder, step + 1))
    assert done.returncode == 0, done.stderr
    assert f"torch.ckpt-{step}, step" in done.stdout and newest(folder) == step + 1
    assert sorted(losses(folder)) == list(range(1, step + 2))


def test_ctrl_c_in_terminal_saves_one_checkpoint(start, run):
    spec, folder = run
    one = start("-m", "t0.torch", spec)
    one.until(lambda: newest(folder) >= 2)
    os.killpg(one.process.pid, signal.SIGINT)  # as a terminal sends it, to all
    one.end()
    assert one.stdout.count("Ctrl-C: saving after this step") == 1
    step = int(re.search(r"stopped by SIGINT at step (\S+) of", one.stdout)[1].replace(",", ""))
    assert newest(folder) == step


@pytest.mark.exhaustive
def test_hung_process_is_reported_after_time_limit(start, run):
    spec, folder = run
    one = start("-m", "t0.torch", spec, "--timeout_minutes=0.1", launch=("--shutdown_timeout=3",))
    one.until(lambda: newest(folder) >= 2)
    os.kill(one.workers()[1], signal.SIGSTOP)
    one.end()
    said = message_of(one)
    assert "process 0 waited for the others, and one does not answer" in said
    assert "Timed out" in said and "py-spy" in said


def test_full_disk_of_one_process_gives_one_message_and_no_restart(start, run, tmp_path):
    spec, folder = run
    program = tmp_path / "full.py"
    program.write_text(FULL_DISK)
    one = start(program, spec, launch=("--max_restarts=2",))
    one.end()
    assert one.returncode
    assert "torch.ckpt-0 cannot be saved: " in message_of(one)
    assert "Make room and start the same command again" in message_of(one)
    assert newest(folder) == -1


def test_cache_that_differs_between_processes_is_refused(world, run, tmp_path):
    import json

    spec = json.loads(run[0].read_text())
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        shutil.copytree(world.folder / "cache", folder / "cache")
    text = json.dumps(spec).replace(f"{world.folder}/cache", "cache")
    (tmp_path / "spec.json").write_text(text)
    changed = folders[1] / json.loads(text)["data"]["tasks"][0]["cache_files"][0]
    mark = changed.parent / "COMPLETED"
    mark.write_bytes(mark.read_bytes().replace(b'"sha256": "', b'"sha256": "0', 1))
    with contextlib.closing(socket.socket()) as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "t0.torch", tmp_path / "spec.json", "--device=cpu"],
            cwd=folder,
            env={**world.environment, **where, "RANK": str(rank), "LOCAL_RANK": "0"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, folder in enumerate(folders)
    ]
    said = "".join(one.communicate(timeout=LIMIT_SECONDS)[1] for one in both)
    assert all(one.returncode == 2 for one in both)
    assert said.count("t0.torch: ") == 1
    assert "the cache of process 1 differs from that of process 0" in said


@pytest.mark.exhaustive
def test_error_message_of_wrong_flags_is_printed_once(world, start, tmp_path):
    wrong = [*MODEL, "--gin_param=MIXTURE_NAME = 'nowhere'", f"--model_dir={tmp_path}/model"]
    one = start("-m", "t0.torch", *wrong, launch=("--max_restarts=2",))
    one.end()
    assert one.stderr.count("t5_mesh_transformer: ") == 1


def message_of(one):
    """The one line that our command prints about a fault."""
    lines = [line for line in one.stderr.splitlines() if line.startswith("t0.torch: ")]
    assert len(lines) == 1, one.stderr
    return lines[0]
