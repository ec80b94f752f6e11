"""Counts and identifies the records of a cache's files (shards), without TensorFlow.

    shards = find_shards(files, {})  # [Shard(records=830, crc32c="yZRlqg==", ...), ...]
    find_shards(files, recorded)     # reads only the files that have changed since

The caches of this project list the numbers of records and the checksums in the file `COMPLETED`. A
bucket reports the checksums of all files. Other files are read once. Later, a file whose size and
modification time are the recorded ones is not read again.
"""

import dataclasses
import posixpath
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from t0.config.specification import Count
from t0.errors import reading
from t0.files import object_facts, paths, tfrecord
from t0.files.any_path import any_path, binary
from t0.files.object_facts import Facts

_FILES_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class Shard:
    """The facts that identify the content of a cache's file.

    Attributes:
      records: the number of records.
      crc32c: the file's CRC-32C, in base 64.
      bytes: the file's size; 0 if the cache or the bucket lists the checksum.
      modified: the file's modification time in nanoseconds; 0 in the same case.
    """

    records: Count
    crc32c: str
    bytes: Count = 0
    modified: Count = 0


def find_shards(files: Sequence[str], recorded: Mapping[str, Shard]) -> list[Shard]:
    """Returns the facts that identify the content of each file.

    Args:
      files: the files.
      recorded: file -> the facts that an earlier call returned, for files that were read before.

    Raises:
      UserError: if a file cannot be read, or is damaged.
    """
    listed, in_bucket = _list_entries(files), _list_buckets(files)

    def find(file: str) -> Shard:
        entry, before = listed.get(file, {}), recorded.get(file)
        crc32c = entry.get("crc32c") or (file in in_bucket and in_bucket[file].crc32c)
        if crc32c and before and before.crc32c == crc32c:
            return before
        if crc32c:
            return Shard(entry.get("examples") or _count(file), crc32c)
        with reading(file):
            status = any_path(file).stat()
            if before and (before.bytes, before.modified) == (status.st_size, status.st_mtime_ns):
                return before
        checksum = _compute_facts(file).crc32c
        return Shard(_count(file), checksum, status.st_size, status.st_mtime_ns)

    return _map_files(find, files)


def count_records(files: Sequence[str]) -> list[int]:
    """Returns the number of records of each file, without computing checksums.

    Raises:
      UserError: if a file cannot be read, or is damaged.
    """
    listed = _list_entries(files)
    return _map_files(lambda file: listed.get(file, {}).get("examples") or _count(file), files)


def _count(file: str) -> int:
    with reading(file, ValueError), binary(file) as stream:
        return sum(1 for _ in tfrecord.beginnings(stream))


def find_facts(files: Sequence[str]) -> list[Facts]:
    """Returns the size and the CRC-32C of each file.

    If the file is in a bucket, these are the values that the bucket reports. Otherwise they are
    computed from the file.

    Raises:
      UserError: if a file cannot be read.
    """
    in_bucket = _list_buckets(files)
    return _map_files(lambda file: in_bucket.get(file) or _compute_facts(file), files)


def _list_buckets(files: Sequence[str]) -> dict[str, Facts]:
    """Returns file -> the size and the checksum that its bucket reports."""
    return {
        posixpath.join(folder, name): facts
        for folder in {posixpath.dirname(file) for file in files}
        if object_facts.applies(folder)
        for name, facts in object_facts.below(folder).items()
    }


def _compute_facts(file: str) -> Facts:
    with reading(file), paths.local_copy(file) as copy:
        return object_facts.of_file(copy)


def _map_files(function: Callable[[str], Any], files: Sequence[str]) -> list[Any]:
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return list(pool.map(function, files))


def _list_entries(files: Sequence[str]) -> dict[str, Any]:
    """Returns file -> its entry in the `COMPLETED` of its folder, for the files that have one."""
    from t0.caching import cache_files

    return {
        posixpath.join(folder, file): entry
        for folder in {posixpath.dirname(file) for file in files}
        for of_split in cache_files.read_manifest(folder).get("splits", {}).values()
        for file, entry in of_split["files"].items()
    }
