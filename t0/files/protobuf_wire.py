r"""Reads and writes the wire format of protocol buffers directly: varints, tags, fields.

    field(1, b"shared/embedding")                # b"\n\x10shared/embedding"
    field(2, 300)                                # b"\x10\xac\x02"
    dict(fields(field(1, b"x") + field(2, 300))) # {1: b"x", 2: 300}

There are no message classes. A nested message remains bytes until its fields are read. Integers
must be 0 or more.
"""

import functools
import math
import struct
from collections.abc import Iterator

# The wire types. The low three bits of a field's tag are its wire type, which says how the field's
# content is encoded.
VARINT, FIXED64, SIZED, FIXED32 = 0, 1, 2, 5
_LONGEST_SHIFT = 63


@functools.lru_cache(2**16)
def varint(value: int) -> bytes:
    """Encodes an integer of 0 or more as a varint, with seven bits in each byte."""
    if value < 128:
        return bytes((value,))
    if value < 16384:
        return bytes((value & 127 | 128, value >> 7))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decodes the varint at position `at`; returns its value and the position after it.

    Raises:
      ValueError: if the data ends within the varint, or the varint has more than ten bytes.
    """
    value = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, at
            shift += 7
            if shift > _LONGEST_SHIFT:
                raise ValueError("a number is too long")
    except IndexError:
        raise ValueError("the data ends within a number") from None


def sized(tag: bytes, content: bytes) -> bytes:
    """Returns a length-delimited field: the encoded tag, the content's size, and the content."""
    return tag + varint(len(content)) + content


def field(number: int, value: int | bytes) -> bytes:
    """Encodes a field whose value is an integer or bytes (a text or a nested message)."""
    if isinstance(value, bytes):
        return sized(varint(number << 3 | SIZED), value)
    return varint(number << 3 | VARINT) + varint(value)


def float_field(number: int, value: float) -> bytes:
    """Encodes a field whose value is a 4-byte float; a value out of range becomes infinite."""
    try:
        content = struct.pack("<f", value)
    except OverflowError:
        content = struct.pack("<f", math.copysign(math.inf, value))
    return varint(number << 3 | FIXED32) + content


def double_field(number: int, value: float) -> bytes:
    """Encodes a field whose value is an 8-byte float."""
    return varint(number << 3 | FIXED64) + struct.pack("<d", value)


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the number and value (int or bytes) of each field of a message, in order.

    Raises:
      ValueError: if the bytes are not a complete message.
    """
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        kind = tag & 7
        if kind == VARINT:
            value, at = read_varint(message, at)
        elif kind in (SIZED, FIXED64, FIXED32):
            size = {FIXED64: 8, FIXED32: 4}.get(kind)
            if size is None:
                size, at = read_varint(message, at)
            content, at = message[at : at + size], at + size
            if len(content) < size:
                raise ValueError("the data ends within a field")
            value = content if kind == SIZED else int.from_bytes(content, "little")
        else:
            raise ValueError(f"unsupported protocol buffer field of kind {kind}")
        yield tag >> 3, value
