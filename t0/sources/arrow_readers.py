"""Rows of parquet and Arrow files, and of folders written by `Dataset.save_to_disk`.

    Parquet(Path("train.parquet")).count()          # from the file's metadata
    Arrow((Path("data-00000-of-00001.arrow"),)).rows(0, 10)

Arrow files, in the stream format of the `datasets` library or the file format, are mapped into
memory, so a row costs what it holds. Values become plain Python a few hundred rows at a time.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from t0.errors import UserError
from t0.files import checked_name
from t0.sources.batches import ROWS_AT_ONCE, guarded, rows_between
from t0.sources.readers import reading


@dataclasses.dataclass(frozen=True)
class Parquet:
    """One parquet file."""

    path: Path

    def columns(self) -> tuple[str, ...]:
        """The names of the top-level columns."""
        with reading(self.path, pa.ArrowException), self._open() as file:
            return tuple(file.schema_arrow.names)

    def count(self) -> int:
        """The number of rows, from the metadata."""
        with reading(self.path, pa.ArrowException), self._open() as file:
            return file.metadata.num_rows

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """The rows; row groups that end before `start` are not read."""
        with reading(self.path, pa.ArrowException):
            file = self._open()
        with file:
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            group, first = 0, 0
            while group < len(sizes) and first + sizes[group] <= start:
                first += sizes[group]
                group += 1
            batches = file.iter_batches(
                ROWS_AT_ONCE, row_groups=list(range(group, len(sizes))), use_threads=False
            )
            left = None if stop is None else stop - first
            yield from rows_between(guarded(self.path, batches), start - first, left)

    def _open(self) -> pyarrow.parquet.ParquetFile:
        return pyarrow.parquet.ParquetFile(self.path, memory_map=True)


@dataclasses.dataclass(frozen=True)
class Arrow:
    """The Arrow files of one split, in order."""

    paths: tuple[Path, ...]

    def columns(self) -> tuple[str, ...]:
        """The names of the top-level columns; none for a saved dataset without a shard."""
        for path in self.paths:
            with reading(path, pa.ArrowException), pa.memory_map(str(path)) as source:
                return tuple(_open_ipc(source).schema.names)
        return ()

    def count(self) -> int:
        """The number of rows. Their values stay on the disk."""
        return sum(batch.num_rows for batch in self._batches())

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """The rows of all files, one after another."""
        return rows_between(self._batches(), start, stop)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for path in self.paths:
            with reading(path, pa.ArrowException):
                source = pa.memory_map(str(path))
            with source:
                with reading(path, pa.ArrowException):
                    opened = _open_ipc(source)
                yield from guarded(path, _ipc_batches(opened))


def saved_shards(folder: Path) -> tuple[Path, ...]:
    """Returns the Arrow files that the `state.json` of a saved dataset lists.

    Raises:
        UserError: the list cannot be read, or one of the files is not there, or in another folder.
    """
    state = folder / "state.json"
    try:
        with reading(state):
            names = [entry["filename"] for entry in json.loads(state.read_bytes())["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{state}: is not what Dataset.save_to_disk writes ({error!r}). Save it again."
        ) from error
    for name in names:
        checked_name(name, "file", state)
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise UserError(
            f"{folder}: of the {len(names)} files that state.json lists, {', '.join(absent)} is not"
            " there. Copy the folder again."
        )
    return tuple(folder / name for name in names)


def _open_ipc(source: pa.NativeFile) -> pa.ipc.RecordBatchFileReader | pa.RecordBatchReader:
    """Opens the file format, known by its first bytes, or else the stream format."""
    magic = source.read(6)
    source.seek(0)
    return pa.ipc.open_file(source) if magic == b"ARROW1" else pa.ipc.open_stream(source)


def _ipc_batches(
    opened: pa.ipc.RecordBatchFileReader | pa.RecordBatchReader,
) -> Iterator[pa.RecordBatch]:
    if isinstance(opened, pa.ipc.RecordBatchFileReader):
        return (opened.get_batch(i) for i in range(opened.num_record_batches))
    return iter(opened)
