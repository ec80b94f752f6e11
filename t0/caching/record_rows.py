"""Stores, for each record of a prompted task's cache, the dataset row from which it was made.

    mask = pack_rows([0, 1, 4], start=0, stop=5)     # text: one bit for each row, compressed
    content_of(source, infos)                        # the file's content, from the parts' masks
    rows = read("/cache/toy", "train")
    rows.dataset                                     # "super_glue"
    rows.numbers                                     # int64 [kept rows]: [0, 1, 4]

The file `rows.<split>.json` is next to the files that SeqIO knows, and SeqIO ignores it. A kept row
is a row that has records. In a plain task, record i was made from the kept row with index i. In a
task for rank evaluation, each record has a feature `idx`, whose first value is the index of the
kept row.
"""

import base64
import dataclasses
import functools
import glob
import itertools
import math
import os
import posixpath
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from t0.config.plain_data import Range, read_file
from t0.files import paths

# The name of the mask in the counts of a part.
MASK = "row_mask"
_BLOCK_ROWS = 2**23
_LEAST_RECORD = 16  # bytes of the frame of an empty record
_MOST_COMPRESSED = 8  # the highest ratio to expect of a disk that compresses


@dataclasses.dataclass(frozen=True)
class RowSource:
    """The origin of a split's records.

    Attributes:
      dataset: the dataset's name.
      subset: the subset's name, or None.
      split: the dataset's split.
      prompt: the name of the prompt that rendered the rows.
      choices: whether there is a record for each answer choice of a row.
    """

    dataset: str
    subset: str | None
    split: str
    prompt: str
    choices: bool


@dataclasses.dataclass(frozen=True)
class RecordRows(RowSource):
    """The rows of the records of a split.

    Attributes:
      rows: the number of the dataset's rows.
      mask: a result of `pack_rows`: which rows have records.
    """

    rows: Annotated[int, Range(0, 2**32)]
    mask: str

    @functools.cached_property
    def numbers(self) -> np.ndarray:
        """The numbers of the rows that have records, int64, ascending."""
        blocks = enumerate(_bit_blocks(self.mask, self.rows))
        numbers = [np.flatnonzero(bits) + number * _BLOCK_ROWS for number, bits in blocks]
        return np.concatenate([np.zeros(0, np.int64), *numbers])


def pack_rows(kept: Sequence[int], start: int, stop: int) -> str:
    """Returns a text that says which rows of a range have records."""
    mask = np.zeros(stop - start, bool)
    mask[np.array(kept, np.int64) - start] = True
    return _encode(mask)


def _encode(mask: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(np.packbits(mask).tobytes(), 9)).decode()


def _bit_blocks(text: str, rows: int) -> Iterator[np.ndarray]:
    """Yields a mask in blocks, because a few kilobytes can claim billions of rows."""
    packed, unpacker = base64.b64decode(text, validate=True), zlib.decompressobj()
    for start in range(0, rows, _BLOCK_ROWS):
        count = min(_BLOCK_ROWS, rows - start)
        try:
            bits = unpacker.decompress(packed, -(-count // 8))
        except zlib.error as error:
            raise ValueError(f"its mask is not compressed: {error}") from error
        packed = unpacker.unconsumed_tail
        if len(bits) != -(-count // 8):
            raise ValueError(f"its mask ends within row {start + 8 * len(bits):,} of {rows:,}")
        yield np.unpackbits(np.frombuffer(bits, np.uint8), count=count).view(bool)
    if unpacker.decompress(packed, 1):
        raise ValueError(f"its mask has more than {rows:,} rows")


def content_of(source: RowSource, infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the content of `rows.<split>.json`.

    Args:
      source: the dataset and the prompt.
      infos: the counts of the split's parts, in the order of the rows.
    """
    masks = (_bit_blocks(info[MASK], info["stop"] - info["start"]) for info in infos)
    mask = np.concatenate([np.zeros(0, bool), *itertools.chain.from_iterable(masks)])
    return {**dataclasses.asdict(source), "rows": len(mask), "mask": _encode(mask)}


def read(folder: str, split: str) -> RecordRows | None:
    """Returns the rows of a cached split; None if the cache has no `rows.<split>.json`.

    Raises:
      UserError: if the file is damaged.
    """
    path = posixpath.join(folder, f"rows.{split}.json")
    fix = "Cache the task again, or copy the file again"
    return read_file(path, RecordRows, fix, check=functools.partial(_check, folder, split))


def _check(folder: str, split: str, rows: RecordRows) -> None:
    """Raises a ValueError if the mask is damaged, or has more rows than the files have records."""
    most = _count_most(folder, split)
    records = 0
    for bits in _bit_blocks(rows.mask, rows.rows):
        records += int(bits.sum())
        if records > most:
            raise ValueError(
                f"its mask has more rows than the split's files have records: {most:,}"
            )


def _count_most(folder: str, split: str) -> float:
    """Returns how many records the files of a split can have at most, by their space on disk.

    The size alone does not tell it, because a sparse file of a few kilobytes can have any size.
    """
    if paths.is_remote(folder):
        return math.inf
    total = 0
    for name in paths.names_like(folder, f"{glob.escape(split)}.tfrecord-*"):
        status = os.stat(posixpath.join(folder, name))  # noqa: PTH116
        # Disks compress blocks, and some store a small file without a block.
        total += min(status.st_size, _MOST_COMPRESSED * 512 * status.st_blocks + 2**16)
    return total // _LEAST_RECORD
