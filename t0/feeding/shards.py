"""Counts and identifies the records of a cache's files (shards), without TensorFlow.

    count_records(files)        # [830, 830, 830]
    find_checksums(files)       # ["yZRlqg==", ...]: the CRC-32C of each file, in base 64

The caches of this project list the numbers of records and the checksums in the file `COMPLETED`.
For other caches, the records are counted by reading their lengths. For other caches in a bucket,
the bucket reports the checksums. For local files, they are computed.
"""

import posixpath
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from t0.errors import reading
from t0.files import object_facts, paths, tfrecord
from t0.files.any_path import binary

_FILES_AT_ONCE = 16


def count_records(files: Sequence[str]) -> list[int]:
    """Returns the number of records of each file.

    Raises:
      UserError: if a file cannot be read, or is damaged.
    """
    recorded = list(_recorded(files, "examples"))
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        unknown = [file for file, count in zip(files, recorded, strict=True) if count is None]
        counted = dict(zip(unknown, pool.map(_count, unknown), strict=True))
    return [counted.get(file, count) for file, count in zip(files, recorded, strict=True)]


def _count(file: str) -> int:
    with reading(file, ValueError), binary(file) as stream:
        return sum(1 for _ in tfrecord.beginnings(stream))


def find_checksums(files: Sequence[str]) -> list[str]:
    """Returns the CRC-32C of each file, in base 64.

    Raises:
      UserError: if a file cannot be read.
    """
    recorded = list(_recorded(files, "crc32c"))
    folders = {
        posixpath.dirname(file)
        for file, checksum in zip(files, recorded, strict=True)
        if not checksum
    }
    in_bucket = {
        posixpath.join(folder, name): facts.crc32c
        for folder in folders
        if object_facts.applies(folder)
        for name, facts in object_facts.below(folder).items()
    }
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return list(
            pool.map(
                lambda file, checksum: checksum or in_bucket.get(file) or _compute_checksum(file),
                files,
                recorded,
            )
        )


def _compute_checksum(file: str) -> str:
    with reading(file), paths.local_copy(file) as copy:
        return object_facts.of_file(copy).crc32c


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
