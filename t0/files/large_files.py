"""The bytes of large arrays in files, piece by piece.

    file.seek(first)
    read_into(file, array, path)
    for piece in pieces(array):
        crc = google_crc32c.extend(crc, piece)
        other.write(piece.data)

Pieces are views of the array, so a tensor is in memory once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from t0.errors import UserError

_PIECE_BYTES = 16 << 20


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the bytes of a contiguous array as flat uint8 views of at most 16 MiB."""
    flat = array.reshape(-1).view(np.uint8)
    for start in range(0, flat.size, _PIECE_BYTES):
        yield flat[start : start + _PIECE_BYTES]


def read_into(file: BinaryIO, array: np.ndarray, path: Path) -> None:
    """Fills a contiguous array from a file's position.

    Args:
      file: the open file.
      array: the array, of any type.
      path: the file's path, for the message.

    Raises:
      UserError: if the file ends before the array is full.
    """
    for piece in pieces(array):
        view, done = memoryview(piece), 0
        while done < len(view):
            count = file.readinto(view[done:])
            if not count:
                raise UserError(f"{path} is truncated: it ends within a tensor. Copy it again")
            done += count
