"""Parts: files with the records of a piece of a split for one task, until the split is whole.

    with PartWriter(directory, name) as part:
        part.append([framed(record), ...])
        info = part.finish({"kept": 500})
    parts.read_info(path)      # returns the same info if `path` is a whole part, else None

A part holds its records framed as in a TFRecord file, so that the final files of a split are made
by copying bytes. After the frames come their lengths (4 bytes each, little-endian), the counts
(JSON), the sizes of both, and a magic number:

    frames | lengths | counts | QQ | "t0-part1"

A part gets its name when it is complete. The name identifies its content (`part_name`): rows or
source shards, template or code, vocabulary and engine. So the next run takes over the parts of a
killed run (`adopt`), but not those of a template or data file that has changed.

Writing and reading hold few records in memory at a time, however many a part has.
"""

import array
import contextlib
import hashlib
import itertools
import json
import os
import posixpath
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from t0.files import path_inside, paths, writing
from t0.files.publishing import UnfinishedFile
from t0.files.untrusted import parsed_json

_TAIL = struct.Struct("<QQ8s")
_MAGIC = b"t0-part1"
_LENGTH_BYTES = 4
_LENGTHS_IN_MEMORY = 2**18  # bytes
_READ_AT_ONCE = 2**20  # bytes; a multiple of a length's
SUFFIX = ".part"


def part_name(key: str, start: int, stop: int) -> str:
    """Returns the file name of a part.

    Args:
      key: all that the content depends on, except the numbers of its rows or shards, as text.
      start: the number of the first row or shard.
      stop: the number after the last row or shard.
    """
    return f"{hashlib.sha256(key.encode()).hexdigest()[:40]}-{start:010d}-{stop:010d}{SUFFIX}"


class PartWriter:
    """Writes one part into `directory`; an unfinished part is removed at the end of the context."""

    def __init__(self, directory: str, name: str) -> None:
        self._path = path_inside(directory, name)
        self._unfinished = UnfinishedFile(self._path)
        self._records = self._bytes = 0
        with writing(self._path):
            self._file = open(self._unfinished.path, "wb")  # noqa: SIM115 - closed by __exit__
            # More than fit are on the same disk without a name, so that a kill leaves no file.
            self._lengths = tempfile.SpooledTemporaryFile(  # noqa: SIM115
                _LENGTHS_IN_MEMORY, dir=posixpath.dirname(self._unfinished.path)
            )

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        # On a full disk, flushing the buffer fails again here, which would hide the first error.
        for file in (self._lengths, self._file):
            with contextlib.suppress(OSError):
                file.close()
        self._unfinished.discard()

    def append(self, frames: Sequence[bytes]) -> None:
        """Adds framed records.

        Raises:
          OutputError: if they cannot be written.
        """
        joined, lengths = b"".join(frames), array.array("I", map(len, frames))
        self._records += len(frames)
        self._bytes += len(joined)
        if sys.byteorder == "big":
            lengths.byteswap()
        with writing(self._path):
            self._file.write(joined)
            self._lengths.write(lengths)

    def finish(self, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Gives the part its name, and returns `counts` with "records" and "bytes" added."""
        info = {**counts, "records": self._records, "bytes": self._bytes}
        content = json.dumps(info).encode()
        with writing(self._path):
            self._lengths.seek(0)
            shutil.copyfileobj(self._lengths, self._file)
            self._file.write(content)
            self._file.write(_TAIL.pack(self._records * _LENGTH_BYTES, len(content), _MAGIC))
            self._file.close()
            self._unfinished.publish()
        return info


def _foot(file: BinaryIO) -> tuple[int, int]:
    """Returns the sizes of the lengths and of the counts, and seeks to the lengths.

    Raises:
      ValueError: if the file is not a whole part.
    """
    size = file.seek(0, os.SEEK_END)
    if size < _TAIL.size:
        raise ValueError("too short")
    file.seek(size - _TAIL.size)
    lengths, counts, magic = _TAIL.unpack(file.read(_TAIL.size))
    if magic != _MAGIC or lengths + counts + _TAIL.size > size:
        raise ValueError("not closed")
    file.seek(size - _TAIL.size - counts - lengths)
    return lengths, counts


def read_info(path: str) -> dict[str, Any] | None:
    """Returns what `PartWriter.finish` returned; None if `path` is not a whole part."""
    try:
        with paths.local_copy(path) as local, open(local, "rb") as file:
            lengths, counts = _foot(file)
            frames = file.seek(lengths, os.SEEK_CUR) - lengths
            info = parsed_json(file.read(counts))
            return info if info["bytes"] == frames else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lengths(path: str) -> Iterator[np.ndarray]:
    """Yields the lengths of the frames of a whole local part, some at a time."""
    with open(path, "rb") as file:
        size, _ = _foot(file)
        while size:
            block = file.read(min(size, _READ_AT_ONCE))
            size -= len(block)
            yield np.frombuffer(block, dtype="<u4")


def offsets(path: str, numbers: Sequence[int]) -> list[int]:
    """Returns the byte offsets of records of a local part.

    Args:
      path: the part.
      numbers: the numbers of the records in ascending order, from 0 to the number of all records,
        whose offset is the end of the last record.
    """
    found: list[int] = []
    first = byte = 0
    for some in itertools.chain(_lengths(path), [np.zeros(0, dtype="<u4")]):
        ends = np.concatenate([[0], np.cumsum(some, dtype=np.int64)])
        while len(found) < len(numbers) and numbers[len(found)] <= first + len(some):
            found.append(byte + int(ends[numbers[len(found)] - first]))
        first, byte = first + len(some), byte + int(ends[-1])
    return found


def read_frames(path: str) -> Iterator[bytes]:
    """Yields the framed records of a local part."""
    with open(path, "rb") as file:
        for some in _lengths(path):
            for length in some.tolist():
                yield file.read(length)


def adopt(directory: str, leftovers: Iterable[str]) -> int:
    """Moves the parts of killed runs into `directory`, and returns their number.

    If two runs adopt at the same time, each part goes to one of them, because a move is atomic.

    Args:
      directory: this run's directory of parts.
      leftovers: the killed runs' directories of parts, which are removed.
    """
    adopted = 0
    with writing(directory):
        paths.make_folder(directory)
    for leftover in leftovers:
        for name in paths.list_names(leftover):
            if not name.endswith(SUFFIX):
                continue
            # Another run may have moved it first.
            with contextlib.suppress(OSError):
                paths.rename(path_inside(leftover, name), path_inside(directory, name))
                adopted += 1
        paths.remove(leftover)
    return adopted


def any_whole(directory: str) -> bool:
    """Returns whether `directory` holds a part that a later run may take over."""
    return any(name.endswith(SUFFIX) for name in paths.list_names(directory))
