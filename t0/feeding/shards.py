"""Counts and identifies the records of a cache's files (shards), without TensorFlow.

    count_records(files)        # [830, 830, 830]
    find_checksums(files)       # ["yZRlqg==", ...]: the CRC-32C of each file, in base 64

The caches of this project list the numbers of records and the checksums in the file `COMPLETED`.
For other caches, the records are counted by reading their lengths. For other caches in a bucket,
the bucket reports the checksums. For local files, they are computed.
"""

import posixpath
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from t0.errors import reading
from t0.files import object_facts, paths, tfrecord
from t0.files.any_path import binary
from t0.files.object_facts import Facts

_FILES_AT_ONCE = 16


def count_records(files: Sequence[str]) -> list[int]:
    """Returns the number of records of each file.

    Raises:
      UserError: if a file cannot be read, or is damaged.
    """
    return _look_up(files, "examples", lambda unlisted: _map_files(_count, unlisted))


def _count(file: str) -> int:
    with reading(file, ValueError), binary(file) as stream:
        return sum(1 for _ in tfrecord.beginnings(stream))


def find_checksums(files: Sequence[str]) -> list[str]:
    """Returns the CRC-32C of each file, in base 64.

    Raises:
      UserError: if a file cannot be read.
    """
    return _look_up(files, "crc32c", lambda unlisted: [x.crc32c for x in find_facts(unlisted)])


def find_facts(files: Sequence[str]) -> list[Facts]:
    """Returns the size and the CRC-32C of each file: those of its bucket, or computed from it.

    Raises:
      UserError: if a file cannot be read.
    """
    in_bucket = {
        posixpath.join(folder, name): facts
        for folder in {posixpath.dirname(file) for file in files}
        if object_facts.applies(folder)
        for name, facts in object_facts.below(folder).items()
    }
    return _map_files(lambda file: in_bucket.get(file) or _compute_facts(file), files)


def _compute_facts(file: str) -> Facts:
    with reading(file), paths.local_copy(file) as copy:
        return object_facts.of_file(copy)


def _map_files(function: Callable[[str], Any], files: Sequence[str]) -> list[Any]:
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return list(pool.map(function, files))


def _look_up(
    files: Sequence[str], name: str, compute: Callable[[Sequence[str]], Sequence[Any]]
) -> list[Any]:
    """Returns a value of each file that `COMPLETED` records under a name, or that is computed."""
    values = dict(zip(files, _recorded(files, name), strict=True))
    unlisted = [file for file, value in values.items() if value is None]
    values.update(zip(unlisted, compute(unlisted), strict=True))
    return [values[file] for file in files]


def _recorded(files: Sequence[str], name: str) -> Iterator[Any]:
    """Yields, for each file, the value of the field `name` in `COMPLETED`, or None."""
    from t0.caching import cache_files

    folders = dict.fromkeys(posixpath.dirname(file) for file in files)
    entries = {
        posixpath.join(folder, file): entry
        for folder in folders
        for of_split in cache_files.read_manifest(folder).get("splits", {}).values()
        for file, entry in of_split["files"].items()
    }
    for file in files:
        yield entries.get(file, {}).get(name)
