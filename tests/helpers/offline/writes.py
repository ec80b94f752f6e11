"""Notes files that Python code writes outside the folders for temporary files.

conftest.py calls `watch()` for the process of the tests; sitecustomize.py does so for every Python
that a test starts. TensorFlow's own file operations are not seen.
"""

import os
import sys
import tempfile

from tests.helpers.offline import offline

_ALLOWED = (tempfile.gettempdir(), "/dev", "/proc", "/sys")
# Caches that Python and the tests' tools keep in a checkout.
_CACHES = ("__pycache__", ".pytest_cache", ".hypothesis", "_remote_module_non_scriptable")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Events of Python's audit hooks that make a path, and which argument names it.
_MAKES = {"os.mkdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1}


def watch() -> None:
    """Notes writes from now on, for the rest of this process."""
    sys.addaudithook(_note)


def _note(event, arguments):
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, int) or not flags & _WRITES:
            return
    elif event in _MAKES and arguments[-1] == -1:  # not within an open folder
        path = arguments[_MAKES[event]]
    else:
        return
    path = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
    if not path.startswith(_ALLOWED) and not any(cache in path for cache in _CACHES):
        offline.note(f"wrote {path}")
