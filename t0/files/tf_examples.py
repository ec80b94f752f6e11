"""Bytes of `tf.train.Example` messages, made without TensorFlow.

    entry = bytes_entry("targets_pretokenized", [b"Yes"])
    record = example(ints_entry("targets", [2163, 1]) + entry)

An example is the concatenation of its features' entries, in the order of their names. So an entry
that many records share (the inputs of a row's choices) is made once. Readers ignore the order of
entries; with a fixed order the bytes depend on the values only.
"""

import struct
from collections.abc import Iterable, Sequence

from t0.files.protobuf_wire import SIZED, sized, varint

FIELD_1, FIELD_2, FIELD_3 = (bytes((number << 3 | SIZED,)) for number in (1, 2, 3))
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = FIELD_1, FIELD_2, FIELD_3


def _entry(name: str, kind: bytes, values: bytes) -> bytes:
    feature = sized(kind, values)
    return sized(FIELD_1, sized(FIELD_1, name.encode()) + sized(FIELD_2, feature))


def bytes_entry(name: str, values: Sequence[bytes]) -> bytes:
    """Returns the entry of a feature of byte strings."""
    return _entry(name, _BYTES_LIST, b"".join([sized(FIELD_1, value) for value in values]))


def packed_entry(name: str, packed: bytes) -> bytes:
    """Returns the entry of an integer feature whose values are already encoded as varints."""
    return _entry(name, _INT64_LIST, sized(FIELD_1, packed) if packed else b"")


def ints_entry(name: str, values: Iterable[int]) -> bytes:
    """Returns the entry of a feature of integers, all of them 0 or more."""
    return packed_entry(name, b"".join([varint(value) for value in values]))


def float_entry(name: str, value: float) -> bytes:
    """Returns the entry of a feature of one float."""
    return _entry(name, _FLOAT_LIST, sized(FIELD_1, struct.pack("<f", value)))


def example(entries: bytes) -> bytes:
    """Returns the bytes of a `tf.train.Example` from entries in the order of their names."""
    return FIELD_1 + varint(len(entries)) + entries
