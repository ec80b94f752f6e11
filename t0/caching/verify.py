"""Checks that every file of a finished cache exists, is unchanged, and can be read.

    for cache in find_caches("/data/cache"):
        for fault in verify_cache(cache):
            print(fault)     # "/data/cache/toy/train.tfrecord-00000-of-00002: missing"
    has_checksums("/data/cache/toy")     # False: SeqIO wrote it

In a cache of this project, `COMPLETED` lists the files with their sizes, checksums and counts, and
contains a checksum of itself. Other caches in SeqIO's layout have no such list. SeqIO itself wrote
them, or they are part of the published P3. For such a cache, three things are checked. All files
must exist (the file names and `info.<split>.json` state their number). The checksum in each record
must be right. The number of records must equal the number of examples in `stats.<split>.json`.
"""

import concurrent.futures
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from t0.caching import cache_files
from t0.errors import UserError, refuse_unanswered
from t0.files import object_facts, paths, tfrecord
from t0.files.object_facts import Facts
from t0.files.untrusted import parsed_json

SHARD = re.compile(r"(?P<split>.+)\.tfrecord-\d{5}-of-(?P<count>\d{5})")
_DESCRIPTION = re.compile(r"(?:info|stats)\.(?P<split>.+)\.json")
_AT_ONCE = 16
_MOST_SHARDS = 10**5  # the number of files has five digits in file names


def find_caches(directory: str) -> list[str]:
    """Returns the directories of cached tasks at or below `directory`, sorted.

    Caches without `COMPLETED` are included, because `verify_cache` reports them. The temporary
    directories of running and killed runs are left out.

    Raises:
      UserError: if there is none.
    """
    caches = [
        folder
        for folder, names in paths.walk(directory)
        if ".incomplete-" not in folder and any(map(_is_of_cache, names))
    ]
    if not caches:
        raise UserError(
            f"{directory} has no cache. Set the directory of a task, or a directory of tasks, such "
            "as the --output_cache_dir of a run"
        )
    return sorted(caches)


def _is_of_cache(name: str) -> bool:
    return name == cache_files.COMPLETED or bool(SHARD.fullmatch(name))


def find_faults(directory: str) -> dict[str, list[str]]:
    """Finds faults in all caches at or below a directory, without reading their records.

    Returns:
      directory of a cache -> its faults.

    Raises:
      UserError: if there is no cache.
      OSError: if the directory cannot be listed.
    """
    caches = find_caches(directory.rstrip("/"))
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as threads:
        faults = threads.map(lambda cache: list(verify_cache(cache, contents=False)), caches)
        return dict(zip(caches, faults, strict=True))


def verify_cache(
    directory: str, *, split: str | None = None, contents: bool = True
) -> Iterator[str]:
    """Yields the faults of the cache of one task, each with the path of its file.

    Args:
      directory: the task's folder.
      split: the split to check; None for all.
      contents: whether to read the records. If False, three things are checked: the names and sizes
        of the files, and the checksums that an object store has recorded.
    """
    asks_bucket = not contents and object_facts.applies(directory)
    in_bucket = object_facts.below(directory) if asks_bucket else {}
    names = set(in_bucket or paths.list_names(directory))
    if unread := sorted(name for name in names if ".array_record-" in name):
        yield (
            f"{directory}: {unread[0]} is an ArrayRecord file, but training and SeqIO read "
            "only TFRecord; cache the task again"
        )
        return
    if cache_files.COMPLETED not in names:
        yield f"{directory}: unfinished, it has no {cache_files.COMPLETED}; cache the task again"
        return
    try:
        manifest = _read_manifest(directory)
    except (OSError, ValueError) as error:
        refuse_unanswered(error)
        yield f"{posixpath.join(directory, cache_files.COMPLETED)}: damaged: {error}"
        return
    if contents:
        try:
            cache_files.read_provenance(directory)
        except (OSError, ValueError) as error:
            yield f"{posixpath.join(directory, cache_files.PROVENANCE)}: damaged: {error}"
    if manifest is None:
        yield from _compare_with_stats(directory, names, split, contents)
        return
    manifested = {name for of_split in manifest["splits"].values() for name in of_split["files"]}
    for name, of_split in manifest["splits"].items():
        if split in (None, name):
            for file, entry in of_split["files"].items():
                path = posixpath.join(directory, file)
                if file not in names:
                    yield f"{path}: missing"
                elif fault := _find_difference(path, entry, in_bucket.get(file), contents):
                    yield f"{path}: {fault}"
    for name in sorted(names - manifested):
        match = SHARD.fullmatch(name) or _DESCRIPTION.fullmatch(name)
        if match and split in (None, match["split"]):
            path = posixpath.join(directory, name)
            yield f"{path}: does not belong to this cache, but readers would read it; remove it"


def has_checksums(directory: str) -> bool:
    """Returns whether a cache has checksums of its files. If SeqIO wrote the cache, it has none."""
    try:
        return _read_manifest(directory) is not None
    except (OSError, ValueError):
        return True


def _read_manifest(directory: str) -> dict[str, Any] | None:
    content = paths.read_bytes(posixpath.join(directory, cache_files.COMPLETED))
    return cache_files.checked_manifest(content)


def _find_difference(
    path: str, entry: Mapping[str, Any], in_bucket: Facts | None, contents: bool
) -> str | None:
    """Describes how a file differs from its entry in the manifest; None if it does not differ.

    Args:
      path: the file.
      entry: the entry, with "bytes", "sha256" and perhaps "crc32c".
      in_bucket: the size and checksum that an object store has recorded; None if it was not asked
        for them.
      contents: whether to read the file.
    """
    digest = entry["sha256"]
    try:
        size = in_bucket.size_bytes if in_bucket else paths.size_bytes(path)
        if contents and size == entry["bytes"]:
            with paths.opened(path) as file:
                actual = cache_files.entry_of(file)
            size, digest = actual["bytes"], actual["sha256"]
    except Exception as error:  # noqa: BLE001 - a disk or a store fails in many ways
        return f"cannot be read ({error})"
    if size != entry["bytes"]:
        return f"has {size:,} bytes, but {entry['bytes']:,} were written"
    if digest != entry["sha256"]:
        return "damaged: its bytes are not those that were written"
    if in_bucket and entry.get("crc32c") not in (None, in_bucket.crc32c):
        return f"damaged: its CRC32C is {in_bucket.crc32c}, but {entry['crc32c']} was written"
    return None


def _compare_with_stats(
    directory: str, names: set[str], only: str | None, contents: bool
) -> Iterator[str]:
    shards: dict[str, list[str]] = {}
    for name in sorted(names):
        if match := SHARD.fullmatch(name):
            shards.setdefault(match["split"], []).append(name)
        elif match := _DESCRIPTION.fullmatch(name):
            shards.setdefault(match["split"], [])
    for split, of_split in shards.items():
        if only in (None, split):
            yield from _compare_split_with_stats(directory, split, of_split, names, contents)


def _compare_split_with_stats(
    directory: str, split: str, shards: list[str], names: set[str], contents: bool
) -> Iterator[str]:
    info = posixpath.join(directory, f"info.{split}.json")
    promised = read_number(info, "num_shards")
    counts = {int(SHARD.fullmatch(name)["count"]) for name in shards}
    if f"info.{split}.json" not in names:
        yield f"{info}: missing; SeqIO does not read a split without it"
    elif promised is None:
        yield f"{info}: damaged: it does not say how many files the split has"
    if len(counts | {promised} - {None}) > 1:
        yield f"{info}: says {promised} files, but the files' names say {sorted(counts)}"
        return
    count = promised if promised is not None else next(iter(counts), 0)
    expected_names = (
        cache_files.file_name(split, index, count) for index in range(min(count, _MOST_SHARDS))
    )
    missing = [name for name in expected_names if name not in names]
    yield from (f"{posixpath.join(directory, name)}: missing" for name in missing)
    if not contents:
        return
    records, sound = 0, not missing
    for name in shards:
        path = posixpath.join(directory, name)
        try:
            with paths.opened(path) as file:
                records += sum(1 for _ in tfrecord.unframed(file))
        except (ValueError, OSError) as error:
            sound = False
            yield f"{path}: {error}"
    path = posixpath.join(directory, f"stats.{split}.json")
    expected = read_number(path, "examples")
    if expected is None and f"stats.{split}.json" in names:
        yield f"{path}: damaged: it does not say how many examples the split has"
    elif sound and expected not in (None, records):
        yield f"{path}: counts {expected:,} examples, but the files have {records:,}"


def read_number(path: str, name: str) -> int | None:
    """Returns the number under `name` in a JSON file; None if the file or the number is missing."""
    try:
        number = parsed_json(paths.read_bytes(path))[name]
    except Exception:  # noqa: BLE001 - absent or not JSON: there is nothing to compare with
        return None
    return number if type(number) is int and number >= 0 else None
