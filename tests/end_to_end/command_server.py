"""Runs many `t5_mesh_transformer` command lines for the price of one import of TensorFlow.

A child process imports what every command imports, then forks for each command line that it reads,
so that a command starts in milliseconds and still has a process of its own. The recipe's test runs
the installed commands themselves.

    python command_server.py        # {"argv": [...], "cwd": DIR, "out": FILE, "err": FILE}
                                    # -> {"pid": 123}, and {"pid": 123, "status": 0} at its end
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Finished:
    """What a command line came to."""

    status: int
    out: str
    err: str


class CommandServer:
    """The parent's side: starts the server, runs command lines through it."""

    def __init__(self, environment):
        self._folder = Path(tempfile.mkdtemp(prefix="t0_commands_"))
        self._count = 0
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv, cwd=None, interrupt_at=None, interrupt_by=signal.SIGINT):
        """Runs `t5_mesh_transformer ARGV`; sends Ctrl-C once its output holds `interrupt_at`."""
        self._count += 1
        out, err = (self._folder / f"{self._count}.{kind}" for kind in ("out", "err"))
        job = {"argv": argv, "cwd": str(cwd or self._folder), "out": str(out), "err": str(err)}
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        pid = json.loads(self._server.stdout.readline())["pid"]
        if interrupt_at:
            _interrupt(pid, out, interrupt_at, interrupt_by)
        status = json.loads(self._server.stdout.readline())["status"]
        return Finished(status, out.read_text(), err.read_text())

    def close(self):
        self._server.stdin.close()
        self._server.wait()


def _interrupt(pid, out, awaited, by):
    """Sends a signal to a command once it has printed `awaited`, unless it ends before."""
    while awaited not in out.read_text():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.kill(pid, by)


def _redirected(path, number):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)


def _command(job):
    _redirected(job["out"], 1)
    _redirected(job["err"], 2)
    os.chdir(job["cwd"])
    from t0.cli import mesh_transformer

    sys.argv = ["t5_mesh_transformer", *job["argv"]]
    mesh_transformer.console_entry_point()


def _serve():
    import t0.run.command
    import t0.scoring.evaluate
    import t0.seqio_tasks
    import t0.training.loop  # noqa: F401

    for line in sys.stdin:
        job = json.loads(line)
        Path(job["out"]).touch()
        pid = os.fork()
        if pid == 0:
            # The server's pipes are not the command's.
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            # A test run in the background of a shell has Ctrl-C ignored, and hands that on.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _command(job)
            os._exit(0)  # console_entry_point has exited; this line is not reached
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"pid": pid, "status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    _serve()
