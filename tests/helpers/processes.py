"""Finds the processes that a test starts and leaves running.

before = running()
...
end_new(before)     # the command lines of this process's other descendants, which are killed
"""

import contextlib
import os
import signal
import time
from pathlib import Path

# They end with the process that started them.
_SERVERS = ("command_server", "multiprocessing.resource_tracker", "multiprocessing.forkserver")


class Killed(BaseException):
    """Simulates SIGKILL in a test. `except Exception` does not catch this class."""


def running():
    """The ids of all processes."""
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}  # noqa: PTH208


def end_new(before, mark):
    """Kills this process's descendants that are not in `before`, and returns their command lines.

    `mark` is an environment variable with its value, which only they have. It also finds those
    whose parent has ended.
    """
    lines = []
    for pid in running() - before:
        with contextlib.suppress(OSError):
            process = Path(f"/proc/{pid}")
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent != os.getpid() and mark.encode() not in (process / "environ").read_bytes():
                continue
            line = (process / "cmdline").read_text().replace("\0", " ")
            if line and not any(name in line for name in _SERVERS):  # a zombie has no line
                os.kill(pid, signal.SIGKILL)
                lines.append(line)
                while (process / "cmdline").read_bytes():
                    time.sleep(0.001)
    return lines
