"""Encodes `tf.train.Example` messages without TensorFlow.

    entry = bytes_entry("targets_pretokenized", [b"Yes"])
    record = example(ints_entry("targets", [2163, 1]) + entry)

An example is the concatenation of its features' entries. So if many records share an entry, such as
the inputs of all choices of a row, the entry needs to be encoded only once. Readers ignore the
order of the entries. This project sorts the entries by name, so that equal values give equal bytes.
"""

import functools
import itertools
import struct
from collections.abc import Iterable, Sequence

import numpy as np

from t0.files.protobuf_wire import SIZED, sized, varint

FIELD_1, FIELD_2, FIELD_3 = (bytes((number << 3 | SIZED,)) for number in (1, 2, 3))
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = FIELD_1, FIELD_2, FIELD_3


@functools.cache
def _key(name: str) -> bytes:
    return sized(FIELD_1, name.encode())


def _entry(name: str, kind: bytes, values: bytes) -> bytes:
    feature = sized(kind, values)
    return sized(FIELD_1, _key(name) + sized(FIELD_2, feature))


def bytes_entry(name: str, values: Sequence[bytes]) -> bytes:
    """Encodes a feature of byte strings."""
    return _entry(name, _BYTES_LIST, b"".join([sized(FIELD_1, value) for value in values]))


def packed_entry(name: str, packed: bytes) -> bytes:
    """Encodes an integer feature whose values are already varints."""
    return _entry(name, _INT64_LIST, sized(FIELD_1, packed) if packed else b"")


def ints_entry(name: str, values: Iterable[int]) -> bytes:
    """Encodes a feature of integers, which must be 0 or more."""
    return packed_entry(name, b"".join([varint(value) for value in values]))


def float_entry(name: str, value: float) -> bytes:
    """Encodes a feature of one float."""
    return _entry(name, _FLOAT_LIST, sized(FIELD_1, struct.pack("<f", value)))


def example(entries: bytes) -> bytes:
    """Encodes a `tf.train.Example` from entries that are sorted by name."""
    return FIELD_1 + varint(len(entries)) + entries


def pack_rows(rows: np.ndarray) -> list[bytes]:
    """Encodes each row of a matrix as varints, for `packed_entry`.

    Args:
      rows: numbers from 0 to 2**31 - 1, [rows, columns].
    """
    values = rows.reshape(-1).astype(np.int64)
    sizes = 1 + sum((values >> 7 * byte > 0).astype(np.int64) for byte in range(1, 5))
    starts = np.cumsum(sizes) - sizes
    packed = np.zeros(int(sizes.sum()), np.uint8)
    for byte in range(int(sizes.max(initial=1))):
        longer = sizes > byte
        more = (sizes[longer] > byte + 1).astype(np.int64) << 7
        packed[starts[longer] + byte] = values[longer] >> 7 * byte & 127 | more
    content, columns = packed.tobytes(), rows.shape[1]
    ends = [*starts[::columns].tolist(), len(content)]
    return [content[a:b] for a, b in itertools.pairwise(ends)]
