"""Writes and reads the resume state next to a checkpoint, `model.ckpt-100.resume.npz`.

    path = "/models/tiny/model.ckpt-100"
    write(path, {"began": 0, "seed": 0, "position": position, "own": [100]})
    record(path)["began"]            # 0; record() is None if another loop saved it
    with open_arrays(path) as content:
        record_in(content)           # the whole record; its fields are checked

The record is JSON in a numpy archive:

    began      the step at which training began: 0, or the step of the initial checkpoint
    seed       the seed of the data's order, dropout and initial weights
    position   the position in the data, the numbers of a window and a row; None at the beginning
    own        the steps of the checkpoints that this run wrote, which it may delete
    seconds    the training time in seconds, added up over all starts of the run
    judge      the state of `stepping.BestEvaluation`
    evaluated  whether the evaluations that were due at this step have run

A window is a group of examples that are packed together.

If a checkpoint stores weights with fewer bits than they have in memory (T5's published gin files
save bfloat16), the archive also has the missing bits of each weight. NAME/0, NAME/1, ... are the
slices of a weight, one for each device of the mesh. With one device there is only NAME/0.

    low/NAME/0    int16, the low halves of a weight that the checkpoint stores as bfloat16
    ties/NAME/0   int64, the indices of the numbers whose low half does not fit into int16
    wide/NAME/0   the whole weight, if the checkpoint holds another type

Every value that is read from the file is checked.
"""

import contextlib
import dataclasses
import io
import json
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.config.plain_data import Count, NotNegative, read_plain
from t0.errors import UserError
from t0.files import paths
from t0.files.any_path import any_path, binary
from t0.files.untrusted import parsed_json

_ENDING = ".resume.npz"
_REQUIRED = ("began", "seed", "position", "own")


@dataclasses.dataclass(frozen=True)
class JudgeState:
    """The state of `stepping.BestEvaluation`."""

    metric: str | None
    value: float
    step: Count
    since: Count
    mixture: str | None = None


# The types of the record's fields. The training data checks the content of the position.
FIELDS: Mapping[str, Any] = {
    "began": Count,
    "seed": Count | None,
    "position": Mapping[str, Any] | None,
    "own": Sequence[Count],
    "seconds": NotNegative,
    "judge": JudgeState | None,
    "evaluated": bool,
}
# Errors that numpy, zipfile, zlib and json raise if a file is damaged.
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
      arrays: name -> array with the bits of a weight that the checkpoint does not store.

    Raises:
      OSError: if the file cannot be written.
    """
    content = io.BytesIO()
    np.savez(content, record=np.array(json.dumps(record)), **(arrays or {}))
    with paths.opened(checkpoint + _ENDING, "wb") as file:
        file.write(content.getvalue())


def split_halves(wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the low halves of float32 weights: the bits that bfloat16 cannot store.

    Args:
      wide: float32 weights.

    Returns:
      two arrays. The first is int16. It holds, for each weight, its bit pattern minus the bit
      pattern of the nearest bfloat16 number, with ties rounded to even. The second is int64. It
      holds the indices of the ties that are rounded down, because their difference is 0x8000, which
      overflows int16.
    """
    bits = wide.view(np.uint32)
    ties = np.flatnonzero((bits & np.uint32(0x1FFFF)) == 0x8000)
    return bits.astype(np.uint16).view(np.int16), ties


def join_halves(nearest: np.ndarray, low: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Restores float32 weights from their rounded values and the result of `split_halves`."""
    difference = low.astype(np.int32)
    difference.reshape(-1)[ties] = 1 << 15
    return (nearest.view(np.int32) + difference).view(np.float32)


def low_halves(key: str, wide: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the resume file's arrays for a float32 slice that a checkpoint stores as bfloat16.

    Args:
      key: Mesh TensorFlow's name of the weight, "/", and the number of the slice.
      wide: the slice, float32.
    """
    low, ties = split_halves(wide)
    return {f"low/{key}": low, f"ties/{key}": ties}


def wide_slice(content: Mapping[str, np.ndarray], key: str, nearest: np.ndarray) -> np.ndarray:
    """Returns a slice of a weight in float32, with the bits that it had in memory.

    Args:
      content: the mapping that `open_arrays` yields.
      key: Mesh TensorFlow's name of the weight, "/", and the number of the slice. If the file does
        not have this slice, slice 0 is used. This is right for a checkpoint that was written on
        fewer devices, if each device held the whole weight.
      nearest: the slice as read from the checkpoint, converted to float32.

    Raises:
      ValueError, LookupError: if the file has neither this slice nor slice 0, or if the shape
        differs.
    """
    if f"low/{key}" not in content and f"wide/{key}" not in content:
        key = f"{key.rpartition('/')[0]}/0"
    low = f"low/{key}" in content
    array = content[f"low/{key}"] if low else content[f"wide/{key}"]
    if array.shape != nearest.shape:
        raise ValueError(
            f"{key} has the shape {array.shape}, not {nearest.shape}, as if of another mesh"
        )
    return join_halves(nearest, array, content[f"ties/{key}"]) if low else array


def wide_weight(
    content: Mapping[str, np.ndarray], name: str, nearest: np.ndarray
) -> np.ndarray | None:
    """Returns a weight in float32, with the bits that it had in memory; None if it is not stored.

    Args:
      content: the mapping that `open_arrays` yields.
      name: Mesh TensorFlow's name of the weight.
      nearest: the weight as read from the checkpoint, converted to float32.

    Raises:
      ValueError, LookupError: if the slices in the file are not whole weights, because a mesh split
        them.
    """
    has = any(f"{kind}/{name}/0" in content for kind in ("low", "wide"))
    return wide_slice(content, f"{name}/0", nearest) if has else None


def record(checkpoint: str) -> dict[str, Any] | None:
    """Returns the resume state of `checkpoint`; None if another loop wrote the checkpoint.

    Raises:
      UserError: if the file is damaged.
    """
    with open_arrays(checkpoint) as content:
        return None if content is None else record_in(content)


def record_in(content: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns the record of an open resume file.

    Args:
      content: the mapping that `open_arrays` yields.

    Raises:
      ValueError, LookupError, TypeError: if the file has no valid record.
    """
    resume = parsed_json(str(content["record"]))
    check_record(resume)
    return resume


def check_record(resume: Mapping[str, Any]) -> None:
    """Checks the fields of a resume state.

    Raises:
      ValueError, LookupError, TypeError: if a field is missing, has another type or is out of
        range.
    """
    for name in {**dict.fromkeys(_REQUIRED), **resume}:
        if name in FIELDS:
            read_plain(resume[name], FIELDS[name], f"its {name}")


@contextlib.contextmanager
def open_arrays(
    checkpoint: str, *faults: type[Exception]
) -> Iterator[Mapping[str, np.ndarray] | None]:
    """Yields the arrays of a checkpoint's resume file, or None if the checkpoint has no such file.

    Args:
      checkpoint: the checkpoint's path without its ending.
      faults: types of errors. If the caller's `with` block raises such an error, the file counts as
        damaged.

    Raises:
      UserError: if the file is damaged. The message describes two ways to continue.
    """
    path = checkpoint + _ENDING
    if not any_path(path).exists():
        yield None
        return
    try:
        # A local file stays on disk, so each process reads only the arrays that it uses.
        whole = paths.is_remote(path)
        source = io.BytesIO(paths.read_bytes(path, sys.maxsize)) if whole else binary(path)
        with source as file, zipfile.ZipFile(file) as archive:
            # `np.savez` does not compress. A compressed array of a few kilobytes could fill memory.
            if any(each.file_size != each.compress_size for each in archive.infolist()):
                raise ValueError("it is compressed")
            file.seek(0)
            with np.load(file) as content:
                yield content
    except (*_DAMAGED, *faults) as error:
        reason = str(error).strip().splitlines() or [""]
        reason_text = f"{type(error).__name__}: {reason[0]:.120}"
        raise UserError(
            f"{path} is damaged ({reason_text}). To resume from an older checkpoint, remove "
            f"{checkpoint}.*; to continue from these weights, with the data from its beginning, "
            f"remove only {path}"
        ) from error
