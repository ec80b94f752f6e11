"""Reads how many bytes the pages of a Parquet file have when they are unpacked.

    for rows, columns in row_groups(Path("train.parquet")):
        sum(column.unpacked for column in columns)

pyarrow allocates what the header of a page says. The footer also has sizes, but a forged footer may
contradict the pages, and pyarrow ends the process if it reads the sizes in some damaged footers. So
this module reads the footer and the headers itself. Both are structs in Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md), which
parquet.thrift of https://github.com/apache/parquet-format describes.
"""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from t0.files.any_path import binary
from t0.files.paths import is_remote
from t0.files.protobuf_wire import read_varint

# The limits of a file: the bytes of its footer and of the header of a page, and the pages.
_LARGEST_FOOTER, _LARGEST_HEADER, _MOST_PAGES = 2**26, 2**20, 2**20
_DEEPEST = 16
_END = 8  # the bytes after the footer: its length, and a signature
# Physical type -> bytes of a value in memory, for numbers. In the file, equal values are stored
# once. The types are BOOLEAN, INT32, INT64, INT96, FLOAT and DOUBLE. Texts are not in the table.
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 8, 4: 4, 5: 8}
_DICTIONARY_PAGE = 2

# Types of fields in the compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET = range(11)
_STRUCT = 12
_BYTES = {_BYTE: 1, _DOUBLE: 8}
_LONG_LIST = 15  # then the size of a list follows as a number


@dataclasses.dataclass(frozen=True)
class ColumnSizes:
    """The sizes of a column in one row group, in bytes.

    Attributes:
      name: the column's name.
      values: the number of values.
      width: the size of a value in memory; None for texts.
      stored: the size in the file.
      unpacked: the size of all pages when they are unpacked.
      dictionary: the size of the dictionary when it is unpacked; 0 if there is none.
      stored_dictionary: the size of the dictionary in the file.
    """

    name: str
    values: int
    width: int | None
    stored: int
    unpacked: int
    dictionary: int = 0
    stored_dictionary: int = 0


def row_groups(path: Path) -> tuple[tuple[int, tuple[ColumnSizes, ...]], ...]:
    """Returns the number of rows and the sizes of the columns of each row group.

    In a bucket, the headers of pages are not read, because each one would be a request. The sizes
    are those of the footer.

    Raises:
      ValueError: if the footer or the header of a page is damaged.
      OSError: if the file cannot be read.
    """
    if is_remote(path):
        return _read_groups(path)
    status = path.stat()
    return _read_local_groups(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(1024)
def _read_local_groups(path: Path, size: int, modified: int) -> Any:  # noqa: ANN401
    """Reads a file once in a process for each of its states, because rows are read in ranges."""
    del size, modified
    return _read_groups(path)


def _read_groups(path: Path) -> Any:  # noqa: ANN401 (as `row_groups`)
    with binary(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _END))
        length = int.from_bytes(file.read(4), "little")
        if length > min(size, _LARGEST_FOOTER):
            raise ValueError(f"its footer has {length:,} bytes")
        file.seek(size - _END - length)
        pages = _Pages(None if is_remote(path) else file)
        try:
            groups = _read_struct(file.read(length))[0].get(4, ())
            return tuple(
                (group[3], tuple(map(pages.sizes_of, (column[3] for column in group[1]))))
                for group in groups
            )
        except (LookupError, TypeError, AttributeError) as error:  # a field is missing, or no list
            raise ValueError("its footer, or the header of a page, is damaged") from error


class _Pages:
    """Reads the pages of columns. `file` is None if only the footer's sizes are known."""

    def __init__(self, file: BinaryIO | None) -> None:
        self._file, self._count = file, 0

    def sizes_of(self, column: dict[int, Any]) -> ColumnSizes:
        """Returns the sizes of a column, given its `ColumnMetaData`."""
        stored, name = column[7], ".".join(name.decode(errors="replace") for name in column[3])
        values, width = column[5], _WIDTHS.get(column[1])
        if self._file is None:
            return ColumnSizes(name, values, width, stored, column[6])
        unpacked = dictionary = stored_dictionary = 0
        # 0 as the position of a dictionary means that there is none.
        start = min(column[9], column.get(11) or column[9])
        for kind, size, stored_size in self._pages(start, start + stored):
            unpacked += size
            if kind == _DICTIONARY_PAGE:
                dictionary, stored_dictionary = dictionary + size, stored_dictionary + stored_size
        return ColumnSizes(name, values, width, stored, unpacked, dictionary, stored_dictionary)

    def _pages(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yields (type, size when it is unpacked, size in the file) of the pages in a range."""
        while start < end:
            self._count += 1
            if self._count > _MOST_PAGES:
                raise ValueError(f"it has more than {_MOST_PAGES:,} pages")
            self._file.seek(start)
            header, length = _read_struct(self._file.read(min(_LARGEST_HEADER, end - start)))
            kind, size, stored = (header[number] for number in (1, 2, 3))
            if min(size, stored) < 0:
                raise ValueError("a page has no size")
            yield kind, size, stored
            start += length + stored


def _read_struct(data: bytes, at: int = 0, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Returns the fields of a struct by number, and the position after the struct."""
    fields: dict[int, Any] = {}
    number = 0
    while True:
        delta, kind = _split_byte(data, at)
        at += 1
        if kind == _STOP:
            return fields, at
        if delta:
            number += delta
        else:
            number, at = _read_number(data, at)
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        else:
            fields[number], at = _read_value(data, at, kind, depth)


def _read_value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if depth > _DEEPEST:
        raise ValueError("its footer is nested too deeply")
    if kind in (_I16, _I32, _I64):
        return _read_number(data, at)
    if kind == _STRUCT:
        return _read_struct(data, at, depth + 1)
    if kind in (_LIST, _SET):
        count, of_kind = _split_byte(data, at)
        at += 1
        if count == _LONG_LIST:
            count, at = read_varint(data, at)
        if count > len(data) - at:
            raise ValueError("a list in its footer has no end")
        values = []
        for _ in range(count):
            value, at = _read_value(data, at, _BYTE if of_kind <= _FALSE else of_kind, depth + 1)
            values.append(value)
        return values, at
    if kind == _BINARY:
        length, at = read_varint(data, at)
        return data[at : at + length], at + length
    if kind in _BYTES:
        return None, at + _BYTES[kind]
    raise ValueError(f"its footer has a field of the unknown type {kind}")


def _split_byte(data: bytes, at: int) -> tuple[int, int]:
    if at >= len(data):
        raise ValueError("its footer has no end")
    return data[at] >> 4, data[at] & 15


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    value, at = read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at
