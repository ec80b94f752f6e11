"""Reads and writes safetensors files tensor by tensor, whole or transposed, in bounded memory.

A file is the length of its header (8 bytes), the header (JSON: dtype, shape and byte range of each
tensor), then the bytes. The library of that name hands out whole tensors and writes whole files
from memory, and its numpy side has no bfloat16; the format itself is a page.

    tensors, metadata = read_header(path)
    writer = ShardWriter(path, {"shared.weight": ((32128, 512), dtype)}, {"format": "pt"})
"""

import dataclasses
import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from t0.checkpoints.shape import shown
from t0.checkpoints.streams import read_into, read_transposed, sync, write_all, write_transposed
from t0.errors import UserError

_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# The library's own limit; a header of a T5 has some 100 kB.
_LONGEST_HEADER_BYTES = 100_000_000


@dataclasses.dataclass(frozen=True)
class Stored:
    """Where a tensor lies: in which file, from which byte, as what."""

    path: Path
    offset_bytes: int
    shape: tuple[int, ...]
    dtype: np.dtype


def read_header(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    """Returns the tensors of a file and its metadata.

    Raises:
      UserError: if the file is missing, cut off or no safetensors file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
            if not 2 <= length <= min(size - 8, _LONGEST_HEADER_BYTES):
                raise UserError(f"{path} is truncated or no safetensors file ({size:,} bytes)")
            header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        if not all(isinstance(text, str) for text in metadata.values()):
            raise TypeError("__metadata__ holds more than text")
        start = 8 + length
        tensors = {name: _stored(path, start, name, fields) for name, fields in header.items()}
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is no safetensors file: its header is broken ({error})") from error
    end = max((s.offset_bytes + _nbytes(s) for s in tensors.values()), default=start)
    if size < end:
        raise UserError(f"{path} is truncated: {size:,} bytes of {end:,}. Copy it again")
    return tensors, metadata


def read_tensor(stored: Stored, *, transposed: bool) -> np.ndarray:
    """Returns a tensor, or the transpose of a matrix, without holding both."""
    with stored.path.open("rb") as file:
        file.seek(stored.offset_bytes)
        if transposed:
            return read_transposed(file, stored.shape[::-1], stored.dtype, stored.path)
        array = np.empty(stored.shape, stored.dtype)
        read_into(file, array.reshape(-1).view(np.uint8), stored.path)
    return array


class ShardWriter:
    """One file, its header written at once and its tensors in any order.

    Args:
      path: of the file.
      tensors: (shape, dtype) by name, as they will lie in the file.
      metadata: strings for the header.
    """

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, tuple[tuple[int, ...], np.dtype]],
        metadata: Mapping[str, str],
    ) -> None:
        header: dict = {"__metadata__": dict(metadata)}
        offset, self._offsets = 0, {}
        # The widest types first, as the library does it: every tensor is then aligned.
        for name in sorted(tensors, key=lambda n: (-tensors[n][1].itemsize, n)):
            shape, dtype = tensors[name]
            end = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            header[name] = {
                "dtype": _NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [offset, end],
            }
            self._offsets[name] = offset
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._start = 8 + len(text)
        self._file = path.open("wb")
        self._file.write(struct.pack("<Q", len(text)) + text)

    def write(self, name: str, array: np.ndarray, *, transposed: bool) -> None:
        """Writes a tensor, or the transpose of a matrix, in its place."""
        self._file.seek(self._start + self._offsets[name])
        (write_transposed if transposed else write_all)(self._file, array)

    def finish(self) -> None:
        """Waits until the bytes are on the disk."""
        sync(self._file)
        self._file.close()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _stored(path: Path, start: int, name: str, fields: Mapping) -> Stored:
    kind = fields["dtype"]
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise UserError(f"{path}: {shown(name)} has dtype {shown(kind)}, which no T5 weights have")
    begin, end = fields["data_offsets"]
    # True counts as 1 in Python, and JSON's 1.0 and 1e400 are no sizes.
    if not all(type(n) is int and 0 <= n < 2**63 for n in (begin, end, *fields["shape"])):
        raise ValueError(f"the sizes of {shown(name)} are no whole numbers")
    stored = Stored(path, start + begin, tuple(fields["shape"]), _DTYPES[fields["dtype"]])
    if end - begin != math.prod(stored.shape) * stored.dtype.itemsize:
        raise ValueError(f"{name} has {end - begin:,} bytes, wanted {_nbytes(stored):,}")
    return stored


def _nbytes(stored: Stored) -> int:
    return math.prod(stored.shape) * stored.dtype.itemsize
