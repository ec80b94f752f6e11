"""Re-checks caches: every file is there, holds what it held when it was written, and can be read.

    for cache in find_caches("/data/cache"):
        for fault in verify_cache(cache):
            print(fault)     # "/data/cache/toy/train.tfrecord-00000-of-00002: record 7 is damaged"

A cache of ours lists its files with sizes, checksums and counts in `COMPLETED`. Other caches in
SeqIO's layout (of SeqIO itself, P3's published ones) have no such list: there the shards that the
files' names promise must be there, and each record's own checksum and the number of examples in
`stats.<split>.json` must fit.
"""

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from t0.caching import cache_files
from t0.errors import UserError
from t0.files import paths, tfrecord

_SHARD = re.compile(r"(?P<split>.+)\.(?P<kind>tfrecord|array_record)-\d{5}-of-(?P<count>\d{5})")
_READ_AT_ONCE = 2**20


def find_caches(directory: str) -> list[str]:
    """Returns the tasks' directories at or below `directory`, finished or not, sorted.

    Raises:
      UserError: if there are none.
    """
    # What a run is working on, or a killed one has left, is no cache yet.
    found = [
        folder
        for folder, names in paths.walk(directory)
        if ".incomplete-" not in folder and any(map(_of_a_cache, names))
    ]
    if not found:
        raise UserError(
            f"{directory}: no cache is there. Name a task's directory, or one that holds some: "
            "what --output_cache_dir named."
        )
    return sorted(found)


def _of_a_cache(name: str) -> bool:
    return name == cache_files.COMPLETED or bool(_SHARD.fullmatch(name))


def verify_cache(directory: str) -> Iterator[str]:
    """Yields what is wrong with the cache of one task: each with the path of the file."""
    names = set(paths.list_names(directory))
    if cache_files.COMPLETED not in names:
        yield f"{directory}: unfinished, it has no {cache_files.COMPLETED}; cache the task again"
        return
    splits = cache_files.read_manifest(directory).get("splits")
    if isinstance(splits, dict):
        yield from _against_manifest(directory, splits, names)
    else:
        yield from _against_stats(directory, names)


def _against_manifest(directory: str, splits: Mapping[str, Any], names: set[str]) -> Iterator[str]:
    listed: set[str] = set()
    for split in splits.values():
        for name, entry in split["files"].items():
            path = posixpath.join(directory, name)
            listed.add(name)
            if name not in names:
                yield f"{path}: missing"
                continue
            fault = _differs(path, entry)
            if fault:
                yield f"{path}: {fault}"
    for name in sorted(names - listed):
        if _SHARD.fullmatch(name):
            yield f"{posixpath.join(directory, name)}: not of this cache, but readers would read it"


def _differs(path: str, entry: Mapping[str, Any]) -> str | None:
    digest, size = hashlib.sha256(), 0
    try:
        with paths.opened(path) as file:
            while block := file.read(_READ_AT_ONCE):
                digest.update(block)
                size += len(block)
    except Exception as error:  # noqa: BLE001 - a disk or a store fails in many ways
        return f"cannot be read ({error})"
    if size != entry["bytes"]:
        return f"has {size:,} bytes, {entry['bytes']:,} were written"
    if digest.hexdigest() != entry["sha256"]:
        return f"damaged: its bytes are not those that were written{_where(path)}"
    return None


def _where(path: str) -> str:
    """Returns at which record a file of records is damaged, if that can be found."""
    try:
        if ".tfrecord-" in path:
            _count(path)
    except ValueError as error:
        return f" ({error})"
    return ""


def _count(path: str) -> int:
    """Returns the number of records of a TFRecord file.

    Raises:
      ValueError: if one is damaged.
    """
    with paths.opened(path) as file:
        return sum(1 for _ in tfrecord.unframed(file))


def _against_stats(directory: str, names: set[str]) -> Iterator[str]:
    shards: dict[str, list[str]] = {}
    for name in sorted(names):
        match = _SHARD.fullmatch(name)
        if match:
            shards.setdefault(match["split"], []).append(name)
    for split, of_split in shards.items():
        if f"info.{split}.json" not in names:
            path = posixpath.join(directory, f"info.{split}.json")
            yield f"{path}: missing, without it nobody reads the split"
        yield from _split_against_stats(directory, split, of_split, names)


def _split_against_stats(
    directory: str, split: str, shards: list[str], names: set[str]
) -> Iterator[str]:
    count = int(_SHARD.fullmatch(shards[0])["count"])
    prefix = shards[0][: -len("00000-of-00000")]
    for index in range(count):
        name = f"{prefix}{index:05d}-of-{count:05d}"
        if name not in names:
            yield f"{posixpath.join(directory, name)}: missing"
    found, sound = 0, len(shards) == count and ".tfrecord-" in prefix
    for name in shards:
        path = posixpath.join(directory, name)
        try:
            found += _count(path) if ".tfrecord-" in name else 0
        except (ValueError, OSError) as error:
            sound = False
            yield f"{path}: {error}"
    path = posixpath.join(directory, f"stats.{split}.json")
    wanted = _examples(path)
    if sound and wanted is not None and wanted != found:
        yield f"{path}: counts {wanted:,} examples, the files hold {found:,}"


def _examples(path: str) -> int | None:
    try:
        return int(json.loads(paths.read_bytes(path))["examples"])
    except Exception:  # noqa: BLE001 - absent or not JSON: there is nothing to compare with
        return None
