"""One trainer at a time holds a model directory.

    with held("/models/tiny"):
        ...                 # another process that tries gets a UserError that names this one

The lock is the operating system's, on the file `.trainer` in the directory, so it ends with its
holder, however that ends. The file stays, and says who held it last. A directory that is not local,
or on a file system without locks, is not locked.
"""

import contextlib
import datetime
import errno
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from t0.errors import UserError
from t0.files.untrusted import parsed_json

FILE = ".trainer"
_HELD = (errno.EACCES, errno.EAGAIN)


@contextlib.contextmanager
def held(model_dir: str) -> Iterator[None]:
    """Holds the directory while the context is open.

    Raises:
      UserError: if another process trains in it; the message says which.
    """
    try:
        import fcntl
    except ImportError:  # not on Unix
        yield
        return
    if "://" in model_dir:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            Path(model_dir).mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((Path(model_dir) / FILE).open("a+", encoding="utf-8"))
            # This kind of lock belongs to the process: processes that it forks do not hold it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD and not isinstance(error, PermissionError):
                raise _taken(model_dir) from error
            # A directory that cannot be written is reported by who writes the first checkpoint.
            yield
            return
        file.truncate(0)
        file.write(json.dumps(_this_process()) + "\n")
        file.flush()
        yield


def _this_process() -> dict[str, object]:
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": now}


def _taken(model_dir: str) -> UserError:
    try:
        found = parsed_json((Path(model_dir) / FILE).read_bytes())
        pid = int(found["pid"])
        who = f"process {pid} on {found['host']}, since {found['since']}"
        end = f"end it (kill -TERM {pid}: it saves first)"
    except (OSError, ValueError, KeyError, TypeError):
        who, end = "another process", "end it"
    return UserError(
        f"{model_dir} is being trained in by {who}: two trainers would overwrite each other's "
        f"checkpoints. Wait for it, {end}, or name another --model_dir"
    )
