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
import posixpath
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from t0.config.specification import Range, read_file

# The name of the mask in the counts of a part.
MASK = "row_mask"


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
        return np.flatnonzero(_decode(self.mask, self.rows))


def pack_rows(kept: Sequence[int], start: int, stop: int) -> str:
    """Returns a text that says which rows of a range have records."""
    mask = np.zeros(stop - start, bool)
    mask[np.array(kept, np.int64) - start] = True
    return _encode(mask)


def _encode(mask: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(np.packbits(mask).tobytes(), 9)).decode()


def _decode(text: str, rows: int) -> np.ndarray:
    size = -(-rows // 8)
    try:
        bits = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), size + 1)
    except zlib.error as error:
        raise ValueError(f"its mask is not compressed: {error}") from error
    if len(bits) != size:
        raise ValueError(f"its mask has {len(bits):,} bytes, expected {size:,}")
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=rows).astype(bool)


def content_of(source: RowSource, infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the content of `rows.<split>.json`.

    Args:
      source: the dataset and the prompt.
      infos: the counts of the split's parts, in the order of the rows.
    """
    masks = [_decode(info[MASK], info["stop"] - info["start"]) for info in infos]
    mask = np.concatenate([np.zeros(0, bool), *masks])
    return {**dataclasses.asdict(source), "rows": len(mask), "mask": _encode(mask)}


def read(folder: str, split: str) -> RecordRows | None:
    """Returns the rows of a cached split; None if the cache has no `rows.<split>.json`.

    Raises:
      UserError: if the file is damaged.
    """
    path = posixpath.join(folder, f"rows.{split}.json")
    fix = "Cache the task again, or copy the file again"
    return read_file(path, RecordRows, fix, check=lambda rows: rows.numbers)
