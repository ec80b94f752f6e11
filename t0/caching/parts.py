"""Writes and reads parts. A part is a file with the records of one piece of a task's split.

    with PartWriter(directory, name) as part:
        part.append([framed(record), ...])
        info = part.finish({"kept": 500})
    parts.read_info(path)      # returns the same info if `path` is a complete part, else None

A part is a TFRecord file. Its last record contains the counts of the part (JSON), followed by their
length and a magic number. When the task is published, its parts are removed.

A part gets its final name when it is complete. The name identifies everything that the content
depends on (`part_name`): the rows or source shards, the template or code, the vocabulary and the
engine. So the next run can use the parts of a killed run (`adopt`). If a template or data file has
changed, the names of the parts differ, and the next run does not use the old ones.

Writing and reading keep only a few records in memory at a time.
"""

import contextlib
import hashlib
import itertools
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from t0.files import path_inside, paths, tfrecord, writing
from t0.files.publishing import UnfinishedFile, make_folder
from t0.files.untrusted import parsed_json

_FOOTER = struct.Struct("<Q8s")
_HEADER_BYTES, _CHECKSUM_BYTES = 12, 4  # in a TFRecord frame
_MAGIC = b"t0-part2"
SUFFIX = ".part"


def part_name(key: str, start: int, stop: int) -> str:
    """Returns the file name of a part.

    Args:
      key: a text that identifies everything that the content depends on, except `start` and `stop`.
      start: the number of the first row or shard.
      stop: the number after the last row or shard.
    """
    return f"{hashlib.sha256(key.encode()).hexdigest()[:40]}-{start:010d}-{stop:010d}{SUFFIX}"


class PartWriter:
    """Writes one part into `directory`. At the end of a `with` block, removes an unfinished part.

    Args:
      directory: the directory of the parts.
      name: the file name of the part.
    """

    def __init__(self, directory: str, name: str) -> None:
        self._path = path_inside(directory, name)
        self._unfinished = UnfinishedFile(self._path)
        self._records = self._bytes = 0
        with writing(self._path):
            self._file = open(self._unfinished.path, "wb")  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        # On a full disk, flushing the buffer fails again here, which would hide the first error.
        with contextlib.suppress(OSError):
            self._file.close()
        self._unfinished.discard()

    def append(self, frames: Sequence[bytes]) -> None:
        """Adds records, each framed as in a TFRecord file.

        Raises:
          OutputError: if they cannot be written.
        """
        joined = b"".join(frames)
        self._records += len(frames)
        self._bytes += len(joined)
        with writing(self._path):
            self._file.write(joined)

    def finish(self, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Completes the part: adds the counts to the file, and gives it its name.

        Returns:
          `counts`, with "records" (the number of records) and "bytes" (their size) added.
        """
        info = {**counts, "records": self._records, "bytes": self._bytes}
        content = json.dumps(info).encode()
        with writing(self._path):
            footer = _FOOTER.pack(len(content), _MAGIC)
            self._file.write(tfrecord.framed(content + footer))
            self._file.close()
            self._unfinished.publish()
        return info


def _read_counts(file: BinaryIO) -> dict[str, Any]:
    """Returns the counts at the end of an open part.

    Raises:
      ValueError: if the file is not a complete part.
    """
    end = file.seek(0, os.SEEK_END) - _CHECKSUM_BYTES - _FOOTER.size
    file.seek(max(end, 0))
    length, magic = _FOOTER.unpack(file.read(_FOOTER.size))
    start = end - length - _HEADER_BYTES
    if magic != _MAGIC or start < 0:
        raise ValueError("the file is not complete")
    file.seek(start)
    counts = parsed_json(next(tfrecord.unframed(file))[:length])
    if counts["bytes"] != start:
        raise ValueError("records are missing")
    return counts


def read_info(path: str) -> dict[str, Any] | None:
    """Returns the counts of a part (see `PartWriter.finish`); None if it is not complete."""
    try:
        with paths.local_copy(path) as local, paths.opened(local) as file:
            return _read_counts(file)
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None


def read_records(path: str) -> Iterator[bytes]:
    """Yields the records of a local part."""
    with paths.opened(path) as file:
        count = _read_counts(file)["records"]
        file.seek(0)
        yield from itertools.islice(tfrecord.unframed(file), count)


def adopt(directory: str, leftovers: Iterable[str]) -> None:
    """Moves the parts of killed runs into `directory`.

    If two runs call this function at the same time, each part goes to only one of the runs, because
    a move is atomic.

    Args:
      directory: this run's directory of parts.
      leftovers: the directories of the parts of killed runs. This function removes them.
    """
    make_folder(directory)
    for leftover in leftovers:
        for name in filter(_is_part, paths.list_names(leftover)):
            # Another run may have moved it first.
            with contextlib.suppress(OSError):
                paths.rename(path_inside(leftover, name), path_inside(directory, name))
        paths.remove(leftover)


def any_whole(directory: str) -> bool:
    """Returns whether `directory` has a part that a later run may take over."""
    return any(map(_is_part, paths.list_names(directory)))


def _is_part(name: str) -> bool:
    return name.endswith(SUFFIX)
