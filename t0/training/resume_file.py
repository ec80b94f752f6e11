"""The resume state beside a checkpoint, `model.ckpt-100.resume.npz`, written and read.

    path = "/models/tiny/model.ckpt-100"
    write(path, {"began": 0, "seed": 0, "position": position, "own": [100]})
    record(path)["began"]            # 0; `record` is None for a checkpoint of another loop
    with opened(path) as content:
        record_in(content)           # the whole record, checked; content has the arrays, too

The record is JSON in a numpy archive:

    began      the step at which training began: that of the initial checkpoint, or 0
    seed       the seed of the data's order, dropout and initial weights
    position   the position in the data; None where the data is at its beginning
    own        the steps of the checkpoints that this run wrote, which it may delete
    seconds    the seconds that all starts have trained
    judge      the state of `stopping.BestEvaluation`
    evaluated  whether the evaluations that were due at this step have run

Beside it are arrays with what weights are wider in memory than in the checkpoint: none where the
checkpoint holds them in float32. Nothing that is read is trusted.
"""

import contextlib
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t0.checkpoints import checkpoint_files
from t0.errors import UserError
from t0.files import paths
from t0.files.any_path import any_path
from t0.files.untrusted import parsed_json

_ENDING = ".resume.npz"
_RECORD = {"began": int, "seed": int | None, "position": dict | None, "own": list}
# What numpy, zipfile, zlib and json raise for bytes that are not a resume file's.
_DAMAGED = (
    OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, SyntaxError,
    RuntimeError, MemoryError, OverflowError, struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip


def write(
    checkpoint: str, record: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
) -> None:
    """Writes the resume state of a checkpoint.

    Args:
      checkpoint: the checkpoint's path without its ending.
      record: the resume state.
      arrays: what weights are wider in memory than in the checkpoint.

    Raises:
      OSError: if it cannot be written.
    """
    content = io.BytesIO()
    np.savez(content, record=np.array(json.dumps(record)), **(arrays or {}))
    with paths.opened(checkpoint + _ENDING, "wb") as file:
        file.write(content.getvalue())


def record(checkpoint: str) -> dict[str, Any] | None:
    """Returns the resume state of `checkpoint`; None for a checkpoint of another loop.

    Of its fields, `began` alone is checked.

    Raises:
      UserError: if the file is damaged.
    """
    with opened(checkpoint) as content:
        return None if content is None else record_in(content, "began")


def record_in(content: Mapping[str, np.ndarray], *names: str) -> dict[str, Any]:
    """Returns the record of an open resume file.

    Args:
      content: what `opened` yields.
      names: the fields that must be there, and of the right type; none for all.

    Raises:
      ValueError, LookupError, TypeError: if it is not such a record.
    """
    resume = parsed_json(str(content["record"]))
    for name in names or _RECORD:
        if not isinstance(resume[name], _RECORD[name]):
            raise ValueError(f"its {name} is {resume[name]!r:.40}")
    return resume


@contextlib.contextmanager
def opened(checkpoint: str, *faults: type[Exception]) -> Iterator[Mapping[str, np.ndarray] | None]:
    """Yields the arrays of a checkpoint's resume file, which are read in the block; None without.

    Args:
      checkpoint: the checkpoint's path without its ending.
      faults: further errors that the block raises for a file that is damaged.

    Raises:
      UserError: if it is damaged, with the checkpoint that the run can go on from.
    """
    path = checkpoint + _ENDING
    if not any_path(path).exists():
        yield None
        return
    try:
        content = np.load(io.BytesIO(paths.read_bytes(path)))
        if not isinstance(content, np.lib.npyio.NpzFile):
            raise ValueError("it is not an archive of arrays")
        yield content
    except (*_DAMAGED, *faults) as error:
        reason = str(error).strip().splitlines() or [""]
        why = f"{type(error).__name__}: {reason[0]:.120}"
        raise UserError(f"{path} is damaged ({why}). {_way_back(checkpoint)}") from error


def _way_back(checkpoint: str) -> str:
    """Returns a sentence about the checkpoint before a damaged one, and what to do."""
    model_dir, step = os.path.dirname(checkpoint), int(checkpoint.rpartition("-")[2])  # noqa: PTH120
    for older in sorted(checkpoint_files.steps(model_dir), reverse=True):
        path = checkpoint_files.checkpoint_path(model_dir, older)
        if older < step and _is_resumable(path):
            name = os.path.basename(path)  # noqa: PTH119
            return (
                f"To go on from {path}, write into {os.path.join(model_dir, 'checkpoint')} this "  # noqa: PTH118
                f'line alone: model_checkpoint_path: "{name}"; then start the same command again'
            )
    return (
        f"No older checkpoint can be gone on from. To train on from these weights, with the data "
        f"from its beginning, remove {checkpoint}{_ENDING}"
    )


def _is_resumable(checkpoint: str) -> bool:
    try:
        with np.load(io.BytesIO(paths.read_bytes(checkpoint + _ENDING))) as content:
            for name in content.files:
                _ = content[name]
            record_in(content)
    except _DAMAGED:
        return False
    return True
