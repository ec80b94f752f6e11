"""Reads parquet files, Arrow files, and folders of `Dataset.save_to_disk` with pyarrow.

    Parquet(Path("train.parquet")).count()          # from the file's metadata
    Arrow((Path("data-00000-of-00001.arrow"),)).rows(0, 10)

Arrow files may have Arrow's stream format, which the `datasets` library writes, or Arrow's file
format. Local files are memory-mapped. From an object store, only the needed ranges are read. So
only the rows that are read use memory. Values are converted to Python a few hundred rows at a time.

Some programs write text as a column of bytes. Bytes that are valid UTF-8 are read as text. Other
bytes remain bytes, and a template that uses such a value raises an error (`t0.prompts.render`).
"""

import dataclasses
import functools
import itertools
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from t0.errors import UserError, reading
from t0.files import checked_name
from t0.files.any_path import LARGEST_LINE, binary
from t0.files.paths import check_regular, is_remote, size_bytes
from t0.files.untrusted import read_json
from t0.sources import parquet_sizes


def _open_file(path: Path) -> pa.NativeFile:
    """Opens a file from which ranges can be read. A local file is memory-mapped."""
    check_regular(path)
    return pa.PythonFile(binary(path)) if is_remote(path) else pa.memory_map(str(path))


@dataclasses.dataclass(frozen=True)
class Parquet:
    """One parquet file."""

    path: Path

    def columns(self) -> tuple[str, ...]:
        """Returns the names of the top-level columns."""
        with reading(self.path, *_FAULTS), self._open() as file:
            return tuple(file.schema_arrow.names)

    def metadata(self) -> dict[bytes, bytes]:
        """Returns the metadata of the schema, with the description that `datasets` writes."""
        with reading(self.path, *_FAULTS), self._open() as file:
            return file.schema_arrow.metadata or {}

    def count(self) -> int:
        """Returns the number of rows, as recorded in the file's metadata."""
        with reading(self.path, *_FAULTS), self._open() as file:
            return file.metadata.num_rows

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """Yields the rows from `start` up to `stop`. Row groups before `start` are not read."""
        with reading(self.path, *_FAULTS):
            file = self._open()
        with file:
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            group, first = 0, 0
            while group < len(sizes) and first + sizes[group] <= start:
                first += sizes[group]
                group += 1
            remaining = None if stop is None else stop - first
            batches = guarded(self.path, self._batches(file, range(group, len(sizes))))
            yield from rows_between(self.path, batches, start - first, remaining)

    def _batches(
        self, file: pyarrow.parquet.ParquetFile, groups: Iterable[int]
    ) -> Iterator[pa.RecordBatch]:
        """Yields the batches of row groups: of 512 rows, or of fewer if the rows are large."""
        at_once = {group: self._rows_at_once(group) for group in groups}
        for rows, equal in itertools.groupby(at_once, key=at_once.__getitem__):
            yield from file.iter_batches(rows, row_groups=list(equal), use_threads=False)

    def _rows_at_once(self, number: int) -> int:
        """Returns how many rows of a group fit into `_BATCH_BYTES`.

        A file of a few kilobytes can hold gigabytes: repeated bytes are compressed, and a value of
        the dictionary is stored once, but read for each row.

        Raises:
          ValueError: if the rows are larger than `LARGEST_LINE`, the limit of all formats, or if
            half a gigabyte of texts repeats a few bytes.
        """
        group_rows, columns = parquet_sizes.row_groups(self.path)[number]
        unpacked = sum(column.unpacked for column in columns)
        if unpacked > max(_BATCH_BYTES, _LARGEST_RATIO * size_bytes(self.path)):
            raise ValueError(f"its rows have {unpacked:,} bytes: no texts are so alike")
        for column in columns:
            most = max(_BATCH_BYTES, _LARGEST_RATIO * column.stored)
            if column.width is None and column.unpacked > most:
                raise ValueError(
                    f"its column {column.name!r:.80} has {column.unpacked:,} bytes, compressed to "
                    f"{column.stored:,}: no texts are so alike"
                )
        total = sum(max(each.unpacked, each.values * (each.width or 0)) for each in columns)
        row = total // max(1, group_rows)
        if row > LARGEST_LINE:
            raise ValueError(f"a row has about {row:,} bytes; the limit is {LARGEST_LINE:,}")
        row += sum(map(_dictionary_bytes, columns))
        return max(1, min(ROWS_AT_ONCE, _BATCH_BYTES // max(1, row)))

    def _open(self) -> pyarrow.parquet.ParquetFile:
        if is_remote(self.path):
            return pyarrow.parquet.ParquetFile(binary(self.path))
        check_regular(self.path)
        return pyarrow.parquet.ParquetFile(self.path, memory_map=True)


_BATCH_BYTES = 2**29
# Writers end a dictionary at 1 MiB. A dictionary of texts is less than 16 times as large as its
# compressed form.
_SMALL_DICTIONARY, _MOST_COMPRESSED = 2**21, 16
_LARGEST_RATIO = 500  # texts are rarely compressed to a hundredth


def _dictionary_bytes(column: parquet_sizes.ColumnSizes) -> int:
    """Returns the bytes of a column's dictionary, if it is large or compressed suspiciously well."""
    ordinary = min(_SMALL_DICTIONARY, _MOST_COMPRESSED * column.stored_dictionary)
    large = column.unpacked > _SMALL_DICTIONARY and column.dictionary > ordinary
    return column.dictionary if large else 0


@dataclasses.dataclass(frozen=True)
class Arrow:
    """The rows of one split, which is stored in one or several Arrow files."""

    paths: tuple[Path, ...]

    def columns(self) -> tuple[str, ...]:
        """Returns the names of the top-level columns; none for a saved dataset without shards."""
        return tuple(self._schema().names)

    def metadata(self) -> dict[bytes, bytes]:
        """Returns the metadata of the schema, as `Parquet.metadata` does."""
        return self._schema().metadata or {}

    def _schema(self) -> pa.Schema:
        for path in self.paths:
            with reading(path, *_FAULTS), _open_file(path) as source:
                return _open_ipc(source).schema
        return pa.schema([])

    def count(self) -> int:
        """Returns the number of rows, without reading their values."""
        return sum(batch.num_rows for batch in self._batches())

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """Returns the rows from `start` up to `stop`, counted over all files in order."""
        where = Path(*self.paths[:1])
        return rows_between(where, self._batches(), start, stop)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for path in self.paths:
            with reading(path, *_FAULTS):
                if not is_remote(path):  # reading it twice would mean two downloads
                    status = path.stat()
                    _check_file(path, status.st_size, status.st_mtime_ns)
                source = _open_file(path)
            with source:
                with reading(path, *_FAULTS):
                    opened = _open_ipc(source)
                yield from guarded(path, opened)


def saved_shards(folder: Path) -> tuple[Path, ...]:
    """Returns the Arrow files that `state.json` of a saved dataset lists.

    Raises:
      UserError: the list cannot be read, or a listed file is missing or in another folder.
    """
    state = folder / "state.json"
    try:
        names = [entry["filename"] for entry in read_json(state)["_data_files"]]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{state}: was not written by Dataset.save_to_disk ({error!r}). Save it again."
        ) from error
    for name in names:
        checked_name(name, "file", state)
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise UserError(
            f"{folder}: of the {len(names)} files that state.json lists, {', '.join(absent)} is"
            " missing. Copy the folder again."
        )
    return tuple(folder / name for name in names)


def _open_ipc(source: pa.NativeFile) -> pa.RecordBatchReader:
    """Opens a source in one of Arrow's two formats. The messages of a file are read as a stream."""
    _seek_messages(source)
    return pa.ipc.open_stream(source)


def _seek_messages(source: pa.NativeFile) -> int | None:
    """Goes to the first message; returns how many batches the footer of a file lists.

    Between its signature and its footer, a file has the messages of a stream.
    """
    source.seek(0)
    is_file = source.read(len(_SIGNATURE)) == _SIGNATURE
    listed = pa.ipc.open_file(source).num_record_batches if is_file else None
    source.seek(_FILE_START if is_file else 0)
    return listed


_SIGNATURE, _FILE_START = b"ARROW1", 8


@functools.lru_cache(1024)
def _check_file(path: Path, size: int, modified: int) -> None:
    """Checks the messages of a file, once in a process for each state of the file.

    Rows are read range by range, and the check of a file with 10,000 batches takes 0.4 s.
    """
    del size, modified
    with _open_file(path) as source:
        _check_messages(source)


def _check_messages(source: pa.NativeFile) -> None:
    """Raises a ValueError if a few bytes are compressed gigabytes, or if a batch is missing."""
    batches, listed = 0, _seek_messages(source)
    for message in pa.ipc.MessageReader.open_stream(source):
        size = _uncompressed_size(message)
        if size > max(_BATCH_BYTES, _LARGEST_RATIO * message.body.size):
            raise ValueError(
                f"a batch of {message.body.size:,} bytes contains {size:,} bytes, compressed: no "
                "texts are so alike"
            )
        batches += message.type == "record batch"
    if listed not in (None, batches):
        raise ValueError(f"it has {batches} batches, but its footer lists {listed}")


def _uncompressed_size(message: pa.ipc.Message) -> int:
    """Returns the bytes that the buffers of a message claim to have when they are uncompressed.

    pyarrow does not say. The metadata is a table of FlatBuffers (format/Message.fbs of Arrow). The
    first eight bytes of a compressed buffer are its size.
    """
    metadata = message.metadata.to_pybytes()

    def number(kind: str, at: int) -> int:
        return struct.unpack_from(f"<{kind}", metadata, at)[0]

    def field(table: int, index: int) -> int:  # its position; 0 if it is absent
        entries = table - number("i", table)
        entry = 4 + 2 * index
        offset = number("H", entries + entry) if entry < number("H", entries) else 0
        return offset and table + offset

    def follow(at: int) -> int:
        return at + number("I", at)

    batch = follow(field(follow(0), _HEADER))
    if message.type == "dictionary":
        batch = follow(field(batch, _DATA))
    elif message.type != "record batch":
        return 0
    if not field(batch, _COMPRESSION):
        return 0
    buffers = follow(field(batch, _BUFFERS))
    total = 0
    for entry in range(buffers + 4, buffers + 4 + 16 * number("I", buffers), 16):
        offset, length = number("q", entry), number("q", entry + 8)
        if length:
            total += max(0, struct.unpack_from("<q", message.body, offset)[0])
    return total


# The indices of fields in the tables Message, DictionaryBatch and RecordBatch.
_HEADER, _DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3


# The errors that Arrow raises, and the errors that Python raises for values that Arrow does not
# check (names, dates).
_FAULTS = (pa.ArrowException, ValueError, OverflowError, LookupError, struct.error)

# The number of rows to convert to Python in one call: many for speed, but not too many for memory.
ROWS_AT_ONCE = 512


def guarded(path: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches. If reading a batch fails, raises a UserError that names the file."""
    while True:
        with reading(path, *_FAULTS):
            batch = next(batches, None)
            if batch is not None:
                # Without this check, a damaged offset would read memory outside of the batch.
                batch.validate(full=True)
        if batch is None:
            return
        yield batch


def rows_between(
    where: Path | str, batches: Iterator[pa.RecordBatch], start: int, stop: int | None
) -> Iterator[dict[str, Any]]:
    """Yields the rows from `start` up to `stop`, and reads no batches after `stop`.

    If `stop` is None, all rows from `start` are yielded.
    """
    first = 0
    for batch in batches:
        begin = max(start - first, 0)
        end = batch.num_rows if stop is None else min(batch.num_rows, stop - first)
        at_once = _rows_to_convert(batch)
        for offset in range(begin, end, at_once):
            with reading(where, *_FAULTS):
                rows = _rows(batch.slice(offset, min(at_once, end - offset)))
            yield from rows
        first += batch.num_rows
        if stop is not None and first >= stop:
            return


def _rows_to_convert(batch: pa.RecordBatch) -> int:
    """Returns how many rows to convert together: fewer if values of a dictionary are large."""
    columns = (column for column in batch.columns if pa.types.is_dictionary(column.type))
    large = sum(column.dictionary.nbytes for column in columns)
    return max(1, min(ROWS_AT_ONCE, _BATCH_BYTES // max(1, large)))


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows = batch.to_pylist()
    for name, kind in zip(batch.schema.names, batch.schema.types, strict=True):
        if _holds_bytes(kind):
            for row in rows:
                row[name] = _as_text(row[name])
    return rows


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    if pa.types.is_nested(kind):
        return any(_holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _as_text(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_text(item) for key, item in value.items()}
    return value
