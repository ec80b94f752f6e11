"""Reads the examples of a task in blocks, from its cache.

A block is some thousands of examples that are read together and shuffled as a whole: the files of a
cache come in an order of their own in each epoch, the examples of a block in another. Where a
stream has come to is therefore three numbers: (epoch, block, offset).

    source = CachedSource("toy", files, examples=60, features=("inputs", "targets"))
    for block in source.blocks(epoch=0, first=0, seed=7):
        block[0]        # {"inputs": int32 [n], "targets": int32 [m]}: views, not copies
"""

import dataclasses
import posixpath
import zlib
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from t0.errors import UserError
from t0.feeding.token_files import Ragged, read_ids

# Examples of a block: more shuffle better, and every task of a mixture keeps one in memory.
BLOCK_EXAMPLES = 4096


@dataclasses.dataclass(frozen=True)
class Block:
    """Examples of a task.

    Attributes:
      features: feature -> the ids of each example.
      order: the number of the example at each place.
      number: of the block, where blocks are not numbered one after the other.
    """

    features: Mapping[str, Ragged]
    order: np.ndarray
    number: int | None = None

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> dict[str, np.ndarray]:
        number = self.order[place]
        return {
            name: ids.values[ids.ends[number] : ids.ends[number + 1]]
            for name, ids in self.features.items()
        }


class Source(Protocol):
    """Where the examples of a task come from."""

    @property
    def name(self) -> str:
        """The task's name."""

    @property
    def examples(self) -> int | None:
        """Examples of the split; None if that is not known."""

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[Block]:
        """Yields the blocks of an epoch from number `first` on, unshuffled without a seed."""


@dataclasses.dataclass(frozen=True)
class CachedSource:
    """A split in SeqIO's cache layout.

    Attributes:
      name: of the task.
      files: the split's TFRecord files, in order.
      examples: of the split.
      features: which to read.
    """

    name: str
    files: tuple[str, ...]
    examples: int
    features: tuple[str, ...]
    # A task of one block is read once: later epochs only order it anew.
    _whole: list[dict[str, Ragged]] = dataclasses.field(default_factory=list, compare=False)

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[Block]:
        """Yields the blocks of an epoch from number `first` on; in dataset order without a seed.

        Raises:
          UserError: naming task and file, if a file cannot be read.
        """
        files = list(self.files)
        per_file = max(1.0, self.examples / len(files))
        at_once = max(1, round(BLOCK_EXAMPLES / per_file))
        if at_once >= len(files):
            yield from self._only_block(epoch, first, seed)
            return
        if seed is not None:
            order = np.random.default_rng([seed, key_of(self.name), epoch]).permutation(len(files))
            files = [files[number] for number in order.tolist()]
        for number, start in enumerate(range(0, len(files), at_once)):
            if number >= first:
                yield self._block(self._read(files[start : start + at_once]), epoch, number, seed)

    def _only_block(self, epoch: int, first: int, seed: int | None) -> Iterator[Block]:
        if first > 0:
            return
        if not self._whole:
            self._whole.append(self._read(self.files))
        block = self._block(self._whole[0], epoch, 0, seed)
        if len(block):
            yield block

    def _read(self, files: tuple[str, ...] | list[str]) -> dict[str, Ragged]:
        try:
            return read_ids(files, self.features)
        except UserError as error:
            folder = posixpath.dirname(self.files[0])
            raise UserError(
                f"the cache of task {self.name}: {error}. All that is damaged is found by: "
                f"t0 verify {folder}"
            ) from error

    def _block(
        self, features: dict[str, Ragged], epoch: int, number: int, seed: int | None
    ) -> Block:
        count = len(features[self.features[0]].ends) - 1
        return Block(features, shuffled(self.name, epoch, number, seed, count))


def shuffled(name: str, epoch: int, number: int, seed: int | None, count: int) -> np.ndarray:
    """Returns the order of the `count` examples of a block; as they are without a seed."""
    if seed is None:
        return np.arange(count)
    return np.random.default_rng([seed, key_of(name), epoch, number]).permutation(count)


def key_of(name: str) -> int:
    """Returns a task's part of a random generator's key."""
    # Python's hash differs between processes.
    return zlib.crc32(name.encode())
