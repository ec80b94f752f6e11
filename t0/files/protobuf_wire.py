r"""The wire format of protocol buffers, written and read by hand: varints, tags, fields.

    field(1, b"shared/embedding")                # b"\n\x10shared/embedding"
    field(2, 300)                                # b"\x10\xac\x02"
    dict(fields(field(1, b"x") + field(2, 300))) # {1: b"x", 2: 300}

There is no class for each message, so nothing is copied into one: a nested message stays bytes
until it is read. Whole numbers are 0 or more.
"""

import math
import struct
from collections.abc import Iterator

# The wire type, which is in the low three bits of a field's tag: how its content is written.
VARINT, FIXED64, SIZED, FIXED32 = 0, 1, 2, 5
_LONGEST_SHIFT = 63


def varint(value: int) -> bytes:
    """Returns a number of 0 or more as a varint: seven bits in each byte."""
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
    """Returns the number at position `at`, and the position after it.

    Raises:
      ValueError: if the data ends within the number, or it has more than ten bytes.
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
    """Returns a field: its encoded tag, the size of its content, and the content."""
    return tag + varint(len(content)) + content


def field(number: int, value: int | bytes) -> bytes:
    """Returns a field that holds a number, or bytes: a text or a nested message."""
    if isinstance(value, bytes):
        return sized(varint(number << 3 | SIZED), value)
    return varint(number << 3 | VARINT) + varint(value)


def float_field(number: int, value: float) -> bytes:
    """Returns a field that holds a float of four bytes; one out of their range is infinite."""
    try:
        content = struct.pack("<f", value)
    except OverflowError:
        content = struct.pack("<f", math.copysign(math.inf, value))
    return varint(number << 3 | FIXED32) + content


def double_field(number: int, value: float) -> bytes:
    """Returns a field that holds a float of eight bytes."""
    return varint(number << 3 | FIXED64) + struct.pack("<d", value)


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the number and the value, int or bytes, of each field of a message, in order.

    Raises:
      ValueError: if the bytes are not a whole message.
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
            raise ValueError(f"a protocol buffer field of kind {kind}")
        yield tag >> 3, value
