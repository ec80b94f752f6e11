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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from t0.errors import UserError
from t0.feeding.shards import count_records
from t0.feeding.token_files import Ragged, read_ids, reading_order
from t0.files import paths

# The number of examples of a block. With larger blocks, examples are shuffled better, but more
# memory is needed, because one block of each task of a mixture is in memory.
BLOCK_EXAMPLES = 4096
# The last file that SeqIO and our own commands write to a finished cache.
_COMPLETED = "COMPLETED"
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
        return {
            name: ids.values[ids.ends[number] : ids.ends[number + 1]]
            for name, ids in self.features.items()
        }


class ExampleSource(Protocol):
    """A source of a task's examples."""

    @property
    def name(self) -> str:
        """The task's name."""

    @property
    def examples(self) -> int | None:
        """The number of the split's examples; None if it is unknown."""

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[ExampleBlock]:
        """Yields the blocks of an epoch from number `first` on, unshuffled if `seed` is None."""

    @property
    def cache(self) -> "CachedSource | None":
        """The cache whose records each give one example; None if there is no such cache."""


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
            yield self._block(features, epoch, number, seed)

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

    def _block(
        self, features: dict[str, Ragged], epoch: int, number: int, seed: int | None
    ) -> ExampleBlock:
        count = len(features[self.features[0]].ends) - 1
        return ExampleBlock(features, shuffled(self.name, epoch, number, seed, count))


def shuffled(name: str, epoch: int, number: int, seed: int | None, count: int) -> np.ndarray:
    """Returns a random order of the `count` examples of a block; 0, 1, ... if `seed` is None."""
    if seed is None:
        return np.arange(count)
    return np.random.default_rng([seed, key_of(name), epoch, number]).permutation(count)


def key_of(name: str) -> int:
    """Returns a number for a task's name, used as part of random seeds."""
    # Python's own `hash` cannot be used, because its results differ between processes.
    return zlib.crc32(name.encode())


class ReadAhead:
    """Prefetches a few elements of an iterator in a thread.

        with ReadAhead(data.batches(16, position)) as batches:
            batch, position = next(batches)

    Args:
      elements: the iterator. No other code may use it.
      count: the number of elements to prefetch.
    """

    def __init__(self, elements: Iterator[Any], count: int = 4) -> None:
        self._elements, self._count = elements, count
        self._coming: deque[Future[Any]] = deque()

    def __enter__(self) -> "ReadAhead":
        self._thread = ThreadPoolExecutor(1)
        for _ in range(self._count):
            self._submit()
        return self

    def __exit__(self, *error: Any) -> None:
        self._thread.shutdown(cancel_futures=True)

    def __iter__(self) -> "ReadAhead":
        return self

    def __next__(self) -> Any:
        element = self._coming.popleft().result()
        if element is _END:
            raise StopIteration
        self._submit()
        return element

    def _submit(self) -> None:
        self._coming.append(self._thread.submit(next, self._elements, _END))
