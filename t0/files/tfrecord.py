"""Reads and writes TFRecord files, and computes the masked CRC-32C that such files contain.

    file.write(framed(b"a record"))
    for record in unframed(file):
        ...                                # ValueError: "record 7 is damaged"

A file is a sequence of frames. A frame is the record's length (8 bytes), the length's checksum (4),
the record, and the record's checksum (4). All numbers are little-endian. The checksums are masked,
because a CRC detects fewer errors if its data contains CRCs.
"""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

import google_crc32c

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_TOO_LARGE = 2**28  # several times the largest row, which has 64 MiB
_BLOCK_BYTES = 2**20
_CRC = google_crc32c.value


def masked(crc: int) -> int:
    """Masks a CRC-32C, as TensorFlow's file formats require."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """Returns the masked CRC-32C of bytes."""
    return masked(_CRC(data))


# Length of a record -> header of its frame. Many records of a file have the same length.
_headers: dict[int, bytes] = {}


def _header(size: int) -> bytes:
    length = struct.pack("<Q", size)
    header = length + _CHECKSUM.pack(masked_crc(length))
    if len(_headers) < 2**16:
        _headers[size] = header
    return header


def framed(record: bytes) -> bytes:
    """Frames a record for a TFRecord file."""
    size = len(record)
    crc = _CRC(record)
    # `masked` is inlined for speed: this runs for each record of a cache.
    return (
        (_headers.get(size) or _header(size))
        + record
        + _CHECKSUM.pack(((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)
    )


def record_of(frame: bytes) -> bytes:
    """Returns the record in a complete frame."""
    return frame[_HEADER.size : -_CHECKSUM.size]


def beginnings(file: BinaryIO) -> Iterator[int]:
    """Yields the byte offset of each frame in a TFRecord file, without reading the records.

    Raises:
      ValueError: if the length of a record is damaged, or the file ends within a record.
    """
    end = file.seek(0, os.SEEK_END)
    at = index = 0
    while at < end:
        file.seek(at)
        size = _size(file.read(_HEADER.size), index)
        yield at
        at += _HEADER.size + size + _CHECKSUM.size
        index += 1
    if at > end:
        raise ValueError(f"the file ends within record {index - 1}")


def end_of(file: BinaryIO, at: int, count: int) -> int:
    """Returns the position after `count` frames that begin at `at`, without checking them."""
    start, block = at, b""
    for _ in range(count):
        if at + _HEADER.size > start + len(block):
            file.seek(at)
            start, block = at, file.read(_BLOCK_BYTES)
        at += _HEADER.unpack_from(block, at - start)[0] + _HEADER.size + _CHECKSUM.size
    return at


def _size(start: bytes, index: int) -> int:
    """Returns the size of record `index` from the first bytes of its frame."""
    if len(start) < _HEADER.size:
        raise ValueError(f"the file ends within record {index}")
    size, checksum = _HEADER.unpack(start)
    if masked_crc(start[:8]) != checksum:
        raise ValueError(f"the length of record {index} is damaged")
    if size >= _TOO_LARGE:
        raise ValueError(f"record {index} claims {size:,} bytes")
    return size


def unframed(file: BinaryIO) -> Iterator[bytes]:
    """Yields the records of a TFRecord file.

    Raises:
      ValueError: if a checksum does not match, or the file ends within a record. The message
        contains the record's number.
    """
    index = 0
    while start := file.read(_HEADER.size):
        size = _size(start, index)
        rest = file.read(size + _CHECKSUM.size)
        if len(rest) < size + _CHECKSUM.size:
            raise ValueError(f"the file ends within record {index}")
        record = rest[:size]
        if masked_crc(record) != _CHECKSUM.unpack_from(rest, size)[0]:
            raise ValueError(f"record {index} is damaged")
        yield record
        index += 1
