"""Reads a task's examples in blocks from its cache.

A block is a few thousand examples that are read and shuffled together. Each epoch shuffles the
order of the cache's files, and the examples within each block. So a position in the stream of
examples consists of three numbers: (epoch, block, offset).

    source = CachedSource("toy", files, examples=60, features=("inputs", "targets"))
    for block in source.blocks(epoch=0, first=0, seed=7):
        block[0]        # {"inputs": int32 [n], "targets": int32 [m]}: views, not copies
"""

import dataclasses
import functools
import hashlib
import posixpath
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from t0.config.plain_data import Count
from t0.errors import UserError, reading
from t0.feeding.token_files import Ragged, read_ids, reading_order
from t0.files import object_facts, paths, tfrecord
from t0.files.any_path import any_path, binary
from t0.files.object_facts import Facts

# The number of examples of a block. With larger blocks, examples are shuffled better, but more
# memory is needed, because one block of each task of a mixture is in memory.
BLOCK_EXAMPLES = 4096
# The last file that SeqIO and our own commands write to a finished cache.
_COMPLETED = "COMPLETED"
_FILES_AT_ONCE = 16
_END = object()


def content_of(cache_files: Sequence[str]) -> str:
    """Returns a text that identifies the content of a task's cache, without reading the records.

    The text consists of the size of each file, and the hash of the file `COMPLETED`, in which our
    caches list the checksums of all files.
    """
    marks = {posixpath.join(posixpath.dirname(name), _COMPLETED) for name in cache_files}
    lines = []
    for mark in sorted(marks):
        content = paths.read_bytes(mark) if paths.exists(mark) else b""
        lines.append(f"{mark} {hashlib.sha256(content).hexdigest()}")
    for name in cache_files:
        lines.append(f"{name} {paths.size_bytes(name) if paths.exists(name) else None}")
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class ExampleBlock:
    """A block of a task's examples, in shuffled order.

    Attributes:
      features: feature -> the ids of each example, in the order in which they are stored.
      order: the indices of the stored examples, in the order in which the block returns them.
      number: the block's number. None if the source numbers its blocks without gaps.
    """

    features: Mapping[str, Ragged]
    order: np.ndarray
    number: int | None = None

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        number = self.order[index]
        return {name: ids.sequence(number) for name, ids in self.features.items()}


class ExampleSource(Protocol):
    """A source of a task's examples.

    Attributes:
      name: the task's name.
      examples: the number of the split's examples; None if it is unknown.
      cache: the cache whose records each give one example; None if there is no such cache.
    """

    name: str
    examples: int | None
    cache: "CachedSource | None"

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[ExampleBlock]:
        """Yields the blocks of an epoch from number `first` on, unshuffled if `seed` is None."""


@dataclasses.dataclass(frozen=True)
class CachedSource:
    """The examples of a split in a cache with SeqIO's layout.

    Attributes:
      name: the task's name.
      files: the split's TFRecord files, in order.
      examples: the number of the split's examples.
      features: the features to read.
    """

    name: str
    files: tuple[str, ...]
    examples: int
    features: tuple[str, ...]
    # If all files of a task fit into one block: this block. It is read once, and later epochs only
    # reorder it.
    _whole: list[dict[str, Ragged]] = dataclasses.field(default_factory=list, compare=False)

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[ExampleBlock]:
        """Yields the blocks of an epoch from number `first` on, unshuffled if `seed` is None.

        Raises:
          UserError: if a file cannot be read. The message has the task and the file.
        """
        for number, members in enumerate(self._files_of_blocks(epoch, seed)):
            if number < first:
                continue
            if len(members) < len(self.files):
                features = self.read([self.files[index] for index in members])
            else:
                if not self._whole:
                    self._whole.append(self.read(self.files))
                features = self._whole[0]
            count = len(features[self.features[0]].lengths)
            yield ExampleBlock(features, shuffled(self.name, epoch, number, seed, count))

    def _files_of_blocks(self, epoch: int, seed: int | None) -> list[list[int]]:
        """Returns, for each block of an epoch, the indices of its files."""
        count = len(self.files)
        at_once = max(1, round(BLOCK_EXAMPLES / max(1.0, self.examples / count)))
        order = np.arange(count)
        if seed is not None and at_once < count:
            order = np.random.default_rng([seed, key_of(self.name), epoch]).permutation(count)
        return [order[start : start + at_once].tolist() for start in range(0, count, at_once)]

    @property
    def cache(self) -> "CachedSource":
        """This cache."""
        return self

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """The number of records of each file, int64 [files]."""
        return np.array(count_records(self.files), np.int64)

    def set_counts(self, counts: Sequence[int]) -> None:
        """Sets the number of records of each file, so that `counts` need not read the files.

        Raises:
          UserError: if the stats file has another number of records.
        """
        if sum(counts) != self.examples:
            raise UserError(
                f"the cache of task {self.name} has {sum(counts):,} records, but its stats file "
                f"says {self.examples:,}. To find all damage, use: "
                f"t0 verify {posixpath.dirname(self.files[0])}"
            )
        vars(self)["counts"] = np.array(counts, np.int64)

    def locate(self, served: int, seed: int | None) -> tuple[int, int, int]:
        """Returns (epoch, block, offset) of the example that follows the first `served` examples.

        Raises:
          UserError: if the records of a file cannot be counted.
        """
        epoch, offset = divmod(served, max(1, self.examples))
        if offset == 0:
            return epoch, 0, 0
        blocks = self._files_of_blocks(epoch, seed)
        ends = np.cumsum([self.counts[members].sum() for members in blocks])
        number = int(np.searchsorted(ends, offset, side="right"))
        return epoch, number, int(offset - (ends[number - 1] if number else 0))

    def records(self, epoch: int, seed: int | None, offsets: np.ndarray) -> np.ndarray:
        """Returns the record number, int64, of the example at each offset (int64) in an epoch."""
        starts = np.cumsum(self.counts) - self.counts
        numbers = np.empty_like(offsets)
        begin = 0
        for number, members in enumerate(self._files_of_blocks(epoch, seed)):
            counts = self.counts[members]
            inside = np.flatnonzero((begin <= offsets) & (offsets < begin + counts.sum()))
            if inside.size:
                stored = np.concatenate([starts[i] + np.arange(self.counts[i]) for i in members])
                order = shuffled(self.name, epoch, number, seed, len(stored))
                used = stored[reading_order(counts.tolist())][order]
                numbers[inside] = used[offsets[inside] - begin]
            begin += counts.sum()
        return numbers

    def read(self, files: Sequence[str]) -> dict[str, Ragged]:
        """Returns feature -> the ids of each record of some of the files.

        Raises:
          UserError: if a file cannot be read. The message has the task and the file.
        """
        try:
            return read_ids(files, self.features)
        except UserError as error:
            folder = posixpath.dirname(self.files[0])
            raise UserError(
                f"the cache of task {self.name}: {error}. To find all damage, use: "
                f"t0 verify {folder}"
            ) from error


def shuffled(name: str, epoch: int, number: int, seed: int | None, count: int) -> np.ndarray:
    """Returns a random order of the `count` examples of a block; 0, 1, ... if `seed` is None."""
    if seed is None:
        return np.arange(count)
    return np.random.default_rng([seed, key_of(name), epoch, number]).permutation(count)


def key_of(name: str) -> int:
    """Returns a number for a task's name, used as part of random seeds."""
    # Python's own `hash` cannot be used, because its results differ between processes.
    return zlib.crc32(name.encode())


def read_ahead(elements: Iterator[Any], count: int = 4) -> Iterator[Any]:
    """Yields the elements of an iterator, and prefetches `count` of them in a thread.

        with contextlib.closing(read_ahead(data.batches(16, position))) as batches:
            batch, position = next(batches)

    Args:
      elements: the iterator. No other code may use it.
      count: the number of elements to prefetch.
    """
    with ThreadPoolExecutor(1) as thread:
        coming = deque(thread.submit(next, elements, _END) for _ in range(count))
        try:
            while (element := coming.popleft().result()) is not _END:
                coming.append(thread.submit(next, elements, _END))
                yield element
        finally:
            thread.shutdown(cancel_futures=True)


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
