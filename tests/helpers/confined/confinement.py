"""Confines the tests' process and its children to this machine and to temporary files.

`confine()` blocks every socket to another machine, and notes files that Python code writes outside
the folders for temporary files. (TensorFlow's own file operations are not seen.) conftest.py calls
it for the process of the tests; sitecustomize.py in this folder does so for every Python that a
test starts. What is forbidden is noted in a file, because a caller may swallow an exception, and
because a child's exception may never reach the test.
"""

import os
import socket
import sys
import tempfile

# The variable that names the file of notes.
NOTES = "T0_TESTS_NOTES"

_ALLOWED = (tempfile.gettempdir(), "/dev", "/proc", "/sys")
# Caches that Python and the tests' tools keep in a checkout.
_CACHES = ("__pycache__", ".pytest_cache", ".hypothesis", "_remote_module_non_scriptable")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Events of Python's audit hooks that make a path, and which argument names it.
_MAKES = {"os.mkdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1}

_LOCAL_NAMES = {"", "localhost", "ip6-localhost", "::1", "::", "0.0.0.0", socket.gethostname()}
_blocked = False
_allowed = False


class NetworkBlockedError(RuntimeError):
    """Raised instead of connecting; an OSError would be taken for a network that is down."""


def is_local(host: object) -> bool:
    """Returns whether a host name or address is this machine's."""
    if host is None:
        return True
    name = host.decode() if isinstance(host, bytes) else str(host)
    return name.lower() in _LOCAL_NAMES or name.startswith(("127.", "::ffff:127."))


def allow(allowed: bool) -> None:
    """Lets connections through (the tests marked `network`) or blocks them again."""
    global _allowed
    _allowed = allowed


def note(text: str) -> None:
    """Notes something that no test may do; the test that runs then fails."""
    if path := os.environ.get(NOTES):
        number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(number, f"{text}\n".encode())
        os.close(number)


def take_notes(path: str) -> list[str]:
    """Returns the notes in a file, and removes the file."""
    if not os.path.exists(path):  # noqa: PTH110
        return []
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    os.remove(path)  # noqa: PTH107
    return lines


def _check(host: object) -> None:
    if _allowed or is_local(host):
        return
    note(f"asked for {host}")
    raise NetworkBlockedError(f"a test asked for {host}: tests use no network but this machine's")


def _guarded(connect):
    def guard(self, address):
        # Other families (a socket file) have no host.
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _check(address[0])
        return connect(self, address)

    return guard


def confine() -> None:
    """Blocks the network and notes writes, for the rest of this process."""
    block()
    sys.addaudithook(_note_writes)


def block() -> None:
    """Replaces connect, connect_ex and the name look-up of `socket`, once."""
    global _blocked
    if _blocked:
        return
    _blocked = True
    look_up = socket.getaddrinfo

    def guarded_look_up(host, *args, **kwargs):
        _check(host)
        return look_up(host, *args, **kwargs)

    socket.socket.connect = _guarded(socket.socket.connect)
    socket.socket.connect_ex = _guarded(socket.socket.connect_ex)
    socket.getaddrinfo = guarded_look_up


# What is not Python (TensorFlow's gs:// reader) obeys these; nothing listens on port 9.
PROXIES = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9") | {
    "no_proxy": "localhost,127.0.0.1,::1"
}


def _note_writes(event, arguments):
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, int) or not flags & _WRITES:
            return
    elif event in _MAKES and arguments[-1] == -1:  # not within an open folder
        path = arguments[_MAKES[event]]
    else:
        return
    if not (notes := os.environ.get(NOTES)):
        return
    path = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
    # Commands of ours give their workers a folder for temporary files that is within the tests'.
    temporary = os.path.dirname(os.path.dirname(notes))  # noqa: PTH120
    if not path.startswith((temporary, *_ALLOWED)) and not any(cache in path for cache in _CACHES):
        note(f"wrote {path}")
