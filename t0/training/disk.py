"""Tells a full disk from other errors of writing, and says so.

with full_disk_said("/models/tiny"):
    ...                     # UserError: the disk of /models/tiny is full. The last checkpoint, ...
"""

import contextlib
import errno
import os
from collections.abc import Iterator

from t0.checkpoints import checkpoint_files
from t0.compat import tf1 as tf
from t0.errors import UserError

WRITING = (OSError, tf.errors.OpError)
_FULL = ("No space left", "Disk quota exceeded", os.strerror(errno.ENOSPC), "File too large")


def reason(error: BaseException) -> str:
    """Returns why something could not be written, in a few words."""
    text = str(getattr(error, "message", None) or error).splitlines()[0]
    return "the disk is full" if any(words in text for words in _FULL) else text


def standing(model_dir: str) -> str:
    """Returns a sentence about the last checkpoint of `model_dir`, and what to do."""
    steps = checkpoint_files.steps(model_dir)
    last = checkpoint_files.checkpoint_path(model_dir, steps[-1]) if steps else None
    there = f"The last checkpoint, {last}, is intact" if last else "There is no checkpoint yet"
    return f"{there}; make room and start the same command again"


@contextlib.contextmanager
def full_disk_said(model_dir: str) -> Iterator[None]:
    """Turns errors of writing to a full disk into a UserError; others stay as they are."""
    try:
        yield
    except WRITING as error:
        if reason(error) != "the disk is full":
            raise
        raise UserError(f"the disk of {model_dir} is full. {standing(model_dir)}") from error
