"""Holds the system calls by which a process tree changes the files of a folder.

    watched = Watched(folder)                  # before the fork
    ...                                        # in the child: watched.begin()
    watched.listen(kill_at=3, kill=os.kill)    # in the parent: kills whoever is at the third call
    watched.calls                              # ["write metrics.jsonl", "rename checkpoint", ...]

The kernel (seccomp's user notification) stops each thread of the child and of its descendants at a
write, rename, fsync or unlink, whether Python, TensorFlow or another library makes it, and waits
for the parent's answer. A process that is killed there has not made the call. Linux on x86-64 only.
"""

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import re
import select
import socket
import struct
from collections.abc import Callable
from pathlib import Path

# Name -> (number on x86-64, the argument that names the file, whether that is a descriptor).
_CALLS = {
    "write": (1, 0, True),
    "pwrite64": (18, 0, True),
    "writev": (20, 0, True),
    "sendfile": (40, 0, True),
    "fsync": (74, 0, True),
    "fdatasync": (75, 0, True),
    "ftruncate": (77, 0, True),
    "rename": (82, 1, False),
    "renameat": (264, 3, False),
    "renameat2": (316, 3, False),
    "unlink": (87, 0, False),
    "unlinkat": (263, 1, False),
    "copy_file_range": (326, 2, True),
}
_OF_NUMBER = {number: (name, *rest) for name, (number, *rest) in _CALLS.items()}
_SECCOMP, _NEW_LISTENER, _NO_NEW_PRIVILEGES = 317, 8, 38
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000
_RECEIVE, _SEND, _GO_ON = 0xC0502100, 0xC0182101, 1
# What differs from run to run in a name: tags of unfinished files, random parts, process ids.
_VARYING = re.compile(r"(\.[0-9a-f]{32})?\.incomplete-.*|[0-9a-f]{32}|(?<=tfevents\.).*")


def available() -> bool:
    """Whether this machine can hold system calls: a container may forbid its processes that."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError):
            _ask_parent()
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_ushort),
        ("if_true", ctypes.c_ubyte),
        ("if_false", ctypes.c_ubyte),
        ("value", ctypes.c_uint),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction))]


def _ask_parent() -> int:
    """Installs the filter in this process, for good; returns the descriptor of its listener."""
    numbers = list(_OF_NUMBER)
    load, equal, give_back = 0x20, 0x15, 0x06
    code = [_Instruction(load, 0, 0, 0)]
    code += [_Instruction(equal, len(numbers) - at, 0, n) for at, n in enumerate(numbers)]
    code += [_Instruction(give_back, 0, 0, answer) for answer in (_ALLOW, _ASK)]
    program = _Program(len(code), (_Instruction * len(code))(*code))
    system = ctypes.CDLL(None, use_errno=True)
    if system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    listener = system.syscall(_SECCOMP, 1, _NEW_LISTENER, ctypes.byref(program))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return listener


class Watched:
    """The calls of a process tree on the files of a folder.

    Args:
      folder: the folder; calls on other files go on at once and are not counted.

    Attributes:
      calls: kind and file of each call, in order.
    """

    def __init__(self, folder: Path) -> None:
        self.calls: list[str] = []
        self._folder = f"{folder}/"
        self._ours, self._theirs = socket.socketpair()

    def begin(self) -> None:
        """In the child: from now on its calls wait for the parent."""
        # Sent by a buffer that is ready: the call that sends it would wait already otherwise.
        listener = _ask_parent()
        socket.send_fds(self._theirs, [b"x"], [listener])
        os.close(listener)
        self._ours.close()
        self._theirs.close()

    def listen(self, kill_at: int | None, kill: Callable[[int], None]) -> None:
        """In the parent: answers until the last process of the tree is gone.

        Args:
          kill_at: the number of the call, from 1, at which `kill` is called; None lets all go on.
          kill: takes the id of the process that makes the call.
        """
        self._theirs.close()
        with self._ours, contextlib.suppress(EOFError):
            descriptors = array.array("i")
            _, found, _, _ = socket.recv_fds(self._ours, 1, 1)
            descriptors.extend(found)
            if found:
                self._answer(found[0], kill_at, kill)
                os.close(found[0])

    def _answer(self, listener: int, kill_at: int | None, kill: Callable[[int], None]) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        while True:
            if any(event & select.POLLHUP for _, event in poll.poll()):
                return
            request = bytearray(80)
            # The process may be gone meanwhile.
            with contextlib.suppress(FileNotFoundError):
                fcntl.ioctl(listener, _RECEIVE, request)
                number, process, _, call, _, _, *arguments = struct.unpack("<QIIiIQ6Q", request)
                name, argument, descriptor = _OF_NUMBER[call]
                path = _path(process, arguments[argument], descriptor)
                if path.startswith(self._folder):
                    shown = _VARYING.sub("*", path.removeprefix(self._folder))
                    self.calls.append(f"{name} {shown}")
                    if len(self.calls) == kill_at:
                        kill(_process_of(process))
                        continue
                fcntl.ioctl(listener, _SEND, bytearray(struct.pack("<QqiI", number, 0, 0, _GO_ON)))


def _process_of(thread: int) -> int:
    status = Path(f"/proc/{thread}/status").read_text()
    return int(re.search(r"^Tgid:\s+(\d+)", status, re.M)[1])


def _path(process: int, argument: int, descriptor: bool) -> str:
    with contextlib.suppress(OSError):
        if descriptor:
            return os.readlink(f"/proc/{process}/fd/{argument}")  # noqa: PTH115
        with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
            memory.seek(argument)
            path = os.fsdecode(memory.read(4096).partition(b"\0")[0])
        if not path.startswith("/"):
            return f"{os.readlink(f'/proc/{process}/cwd')}/{path}"  # noqa: PTH115
        return path
    return ""


def explained(error: OSError) -> str:
    """Returns why calls cannot be held here."""
    return f"system calls cannot be held here ({errno.errorcode.get(error.errno, error)})"
