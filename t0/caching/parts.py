"""Parts: the records of a stretch of a split for one task, kept until the split is whole.

    with PartWriter(directory, name) as part:
        part.append([framed(record), ...])
        info = part.finish({"kept": 500})
    parts.read_info(path)      # the same, of a part that is whole; None of anything else

A part holds its records framed as in a TFRecord file, so that a split's final files are made by
copying bytes; behind them stand the frames' lengths (4 bytes each, little-endian), what was counted
(JSON), the sizes of both and a closing word:

    frames | lengths | counts | QQ | "t0-part1"

A part gets its name when all of that is written. The name tells what it holds (`part_name`): rows
or source shards, template or code, vocabulary and engine. So a run that was killed leaves parts
that the next run takes over (`adopt`), and a changed template or data file leaves parts that nobody
looks at.

Neither writing nor reading holds more in memory than what is being written or read, however many
records there are.
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
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from t0.caching import layout
from t0.files import path_inside

_TAIL = struct.Struct("<QQ8s")
_MAGIC = b"t0-part1"
_LENGTH_BYTES = 4
_READ_AT_ONCE = 2**20  # bytes; a multiple of a length's
SUFFIX = ".part"


def part_name(key: str, start: int, stop: int) -> str:
    """Returns the file name of a part.

    Args:
      key: all that its content depends on besides the numbers of its rows or shards, as text.
    """
    return f"{hashlib.sha256(key.encode()).hexdigest()[:40]}-{start:010d}-{stop:010d}{SUFFIX}"


class PartWriter:
    """Writes one part into `directory`; nothing is left there of one that is not finished."""

    def __init__(self, directory: str, name: str) -> None:
        self._path = path_inside(directory, name)
        where = tempfile.gettempdir() if layout.is_remote(directory) else directory
        self._temporary = os.path.join(where, f"{name}.{uuid.uuid4().hex}")  # noqa: PTH118
        self._records = self._bytes = 0
        with layout.writing(self._path):
            self._file = open(self._temporary, "wb")  # noqa: SIM115 - closed by __exit__
            # On the same disk, and without a name.
            self._lengths = tempfile.TemporaryFile(dir=where)  # noqa: SIM115

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        # What a full disk left in the buffer fails again here, and would hide the first error.
        for file in (self._lengths, self._file):
            with contextlib.suppress(OSError):
                file.close()
        with contextlib.suppress(OSError):
            os.remove(self._temporary)  # noqa: PTH107

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
        with layout.writing(self._path):
            self._file.write(joined)
            self._lengths.write(lengths)

    def finish(self, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Names the part, and returns `counts` with the part's "records" and "bytes" added."""
        info = {**counts, "records": self._records, "bytes": self._bytes}
        told = json.dumps(info).encode()
        with layout.writing(self._path):
            self._lengths.seek(0)
            shutil.copyfileobj(self._lengths, self._file)
            self._file.write(told)
            self._file.write(_TAIL.pack(self._records * _LENGTH_BYTES, len(told), _MAGIC))
            self._file.close()
            if layout.is_remote(self._path):
                from t0.compat import tf

                tf.io.gfile.copy(self._temporary, self._path, overwrite=True)
            else:
                os.replace(self._temporary, self._path)  # noqa: PTH105
        return info


def _foot(file: BinaryIO) -> tuple[int, int]:
    """Returns the sizes of the lengths and the counts of a part, and stands before the first.

    Raises:
      ValueError: if this is not a whole part.
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
    """Returns what `PartWriter.finish` returned, None if there is no whole part at `path`."""
    try:
        with local_copy(path) as local, open(local, "rb") as file:
            lengths, counts = _foot(file)
            frames = file.seek(lengths, os.SEEK_CUR) - lengths
            info = json.loads(file.read(counts))
            return info if info["bytes"] == frames else None
    except (OSError, ValueError, KeyError, layout.OutputError):
        return None


def _lengths(path: str) -> Iterator[np.ndarray]:
    """Yields the lengths of the frames of a whole part on this machine, some at a time."""
    with open(path, "rb") as file:
        size, _ = _foot(file)
        while size:
            block = file.read(min(size, _READ_AT_ONCE))
            size -= len(block)
            yield np.frombuffer(block, dtype="<u4")


def offsets(path: str, numbers: Sequence[int]) -> list[int]:
    """Returns the byte at which each of these records of a part begins, or the last one ends.

    Args:
      numbers: the records' numbers in ascending order, from 0 up to how many there are.
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
    """Yields the framed records of a part on this machine."""
    with open(path, "rb") as file:
        for some in _lengths(path):
            for length in some.tolist():
                yield file.read(length)


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """Gives a path of this machine for `path`; of an object store's file a copy, for the block."""
    if not layout.is_remote(path):
        yield path
        return
    from t0.compat import tf

    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, posixpath.basename(path))  # noqa: PTH118
        with layout.writing(path):
            tf.io.gfile.copy(path, local)
        yield local


def adopt(directory: str, leftovers: Iterable[str]) -> int:
    """Moves the parts of dead runs into `directory`, and returns how many there were.

    Two runs that adopt at the same time share the parts: moving one is a single step.

    Args:
      leftovers: the dead runs' directories of parts, which are gone afterwards.
    """
    adopted = 0
    layout.make_directory(directory)
    for leftover in leftovers:
        for name in _names(leftover):
            if not name.endswith(SUFFIX):
                continue
            with contextlib.suppress(FileNotFoundError, layout.OutputError):
                _move(path_inside(leftover, name), path_inside(directory, name))
                adopted += 1
        layout.remove(leftover)
    return adopted


def any_whole(directory: str) -> bool:
    """Whether `directory` holds a part that a later run may take over."""
    return any(name.endswith(SUFFIX) for name in _names(directory))


def _names(directory: str) -> list[str]:
    if not layout.is_remote(directory):
        try:
            return os.listdir(directory)  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []
    from t0.compat import tf

    return tf.io.gfile.listdir(directory) if tf.io.gfile.isdir(directory) else []


def _move(source: str, target: str) -> None:
    with layout.writing(target):
        if not layout.is_remote(target):
            shutil.move(source, target)
            return
        from t0.compat import tf

        tf.io.gfile.rename(source, target, overwrite=True)
