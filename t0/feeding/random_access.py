"""Reads any record of a cache by its number, without TensorFlow.

    records = CachedRecords("/cache/super_glue_rte_GPT_3_style", "train")
    len(records)                            # 2490
    records[17]["inputs"]                   # int64 [tokens]
    records[17]["inputs_pretokenized"]      # [b"Dana Reeve, the widow of ..."]

`CachedRecords` has the interface of a PyTorch dataset (`len` and integer indices), and can be
pickled into the processes of a data loader. The records of all files of the split are numbered in
order. The first access to a file reads the lengths of all its records, to find the records'
offsets. After that, each record takes one read.
"""

import bisect
import dataclasses
import functools
import glob
import itertools
import operator
import posixpath
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from t0.caching.row_numbers import ExampleRows, cached_rows
from t0.errors import UserError, reading
from t0.feeding import token_files
from t0.files import paths, protobuf_wire, tfrecord
from t0.files.any_path import binary

# The field numbers of bytes_list, float_list and int64_list in a `tf.train.Feature`.
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3

Value = np.ndarray | list[bytes]
_T = TypeVar("_T")

# The number of files that SeqIO keeps open, and the number of records that it reads from a file
# before it continues with the next file.
_OPEN, _BLOCK = 16, 16


class CachedRecords(Sequence[dict[str, Value]]):
    """The records of a split of a task's cache.

    Args:
      folder: the task's folder in the cache, local or `gs://`.
      split: the split's name.

    Raises:
      UserError: if the folder does not have the split, or if a file of the split is missing.
    """

    def __init__(self, folder: str, split: str = "train") -> None:
        self._files = _files(str(folder), split)
        self._begins: dict[int, np.ndarray] = {}

    @functools.cached_property
    def _ends(self) -> list[int]:
        """For each file, its last record's number plus 1."""
        return [*itertools.accumulate(len(self._begin(n)) for n in range(len(self._files)))]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: Any) -> Any:
        """Returns a record as name -> value. If `number` is a slice, returns a list of records.

        Integers are int64, floats are float32, and texts are a list of bytes.

        Raises:
          IndexError: if there is no record with this number.
          UserError: if a file cannot be read, or the record is damaged.
        """
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(len(self)))]
        position = operator.index(number)
        position += len(self) if position < 0 else 0
        if not 0 <= position < len(self):
            raise IndexError(f"record {number} of {len(self):,}")
        file = bisect.bisect_right(self._ends, position)
        before = self._ends[file - 1] if file else 0
        path = self._files[file]
        with reading(path, ValueError), binary(path) as stream:
            stream.seek(int(self._begin(file)[position - before]))
            record = next(tfrecord.unframed(stream), None)
            if record is None:
                raise ValueError("the file has become shorter")
            features = token_files.features_of(record)
            return {name: _value(feature) for name, feature in features.items()}

    def _begin(self, file: int) -> np.ndarray:
        if file not in self._begins:
            path = self._files[file]
            with reading(path, ValueError), binary(path) as stream:
                self._begins[file] = np.fromiter(tfrecord.beginnings(stream), np.int64)
        return self._begins[file]


def rows_as_read(files: Sequence[str]) -> Callable[[], ExampleRows] | None:
    """Returns a function that finds the rows of a plain task's examples in SeqIO's reading order.

    Args:
      files: the TFRecord files of a cached split.

    Returns:
      None if the cache does not record the rows, or if its records are answer choices.
    """
    rows = cached_rows(files)
    if rows is None or rows.source.choices:
        return None

    def find() -> ExampleRows:
        if len(files) == 1:
            return rows
        ends = [*itertools.accumulate(map(_count_records, files), initial=0)]
        if ends[-1] != len(rows.numbers):
            raise rows.missing(max(ends[-1] - 1, len(rows.numbers)))
        order = interleave_blocks(iter(range(*pair)) for pair in itertools.pairwise(ends))
        return dataclasses.replace(rows, numbers=rows.numbers[[*order]])

    return find


def _count_records(file: str) -> int:
    with reading(file, ValueError), binary(file) as stream:
        return sum(1 for _ in tfrecord.beginnings(stream))


def interleave_blocks(streams: Iterable[Iterator[_T]]) -> Iterator[_T]:
    """Yields the elements of streams in the order in which SeqIO reads the files of a cache.

    >>> list(interleave_blocks(map(iter, [range(18), "ab"])))[14:]
    [14, 15, 'a', 'b', 16, 17]
    """
    waiting = deque(streams)
    opened: list[Iterator[_T] | None] = [None] * min(_OPEN, len(waiting))
    while waiting or any(opened):
        for index, stream in enumerate(opened):
            stream = stream or (waiting.popleft() if waiting else None)
            block = list(itertools.islice(stream, _BLOCK)) if stream else []
            opened[index] = stream if len(block) == _BLOCK else None
            yield from block


def _files(folder: str, split: str) -> tuple[str, ...]:
    with reading(folder):
        names = paths.names_like(folder, f"{glob.escape(split)}.tfrecord-?????-of-?????")
    count = len(names)
    whole = [f"{split}.tfrecord-{number:05d}-of-{count:05d}" for number in range(count)]
    if not names or names != whole:
        present = f"{count} of its files" if names else "none of its files"
        raise UserError(
            f"{folder} has {present} of split '{split}' ({split}.tfrecord-00000-of-...): expected "
            "the folder of a task in a cache. To check whether it is complete, use t0 verify"
        )
    return tuple(posixpath.join(folder, name) for name in names)


def _value(feature: bytes) -> Value:
    """Returns the value of a `tf.train.Feature`; an empty int64 array if it has no value."""
    for kind, content in token_files.nested(feature, _BYTES, _FLOATS, _INTEGERS):
        if kind == _BYTES:
            return [text for _, text in token_files.nested(content, 1)]
        if kind == _FLOATS:
            return np.concatenate([np.zeros(0, np.float32), *_floats(content)])
        packed = np.frombuffer(token_files.packed_integers("", feature), np.uint8)
        return token_files.decode_varints(packed, np.array([0, packed.size]), np.int64).values
    return np.zeros(0, np.int64)


def _floats(content: bytes) -> Iterator[np.ndarray]:
    for _, packed in protobuf_wire.fields(content):
        if isinstance(packed, int):  # a number that is not packed
            packed = struct.pack("<I", packed % 2**32)
        yield np.frombuffer(packed, "<f4")
