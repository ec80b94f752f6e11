"""Writes tables of rows as CSV, TSV, JSON Lines or Parquet.

    check_format("predicted.csv", "--output")       # UserError for an unknown extension
    write_table("predicted.csv", ("text", "prediction"), [{"text": "fine", "prediction": "good"}])

The file appears when it is complete. All formats but Parquet are written row by row.
"""

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0.errors import UserError
from t0.files.publishing import whole_file, write_whole

Row = Mapping[str, Any]


def check_format(path: str, flag: str) -> None:
    """Raises a UserError, which names the flag, if the extension of a file to write is unknown."""
    if Path(path).suffix not in _WRITERS:
        raise UserError(
            f"{flag}={path}: tables are written as {', '.join(_WRITERS)}. Choose one of these "
            "extensions"
        )


def write_table(path: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Writes a table atomically; the extension of `path` selects the format.

    Args:
      path: the file, with an extension that `check_format` accepts.
      columns: the columns, in order.
      rows: the rows, which have these columns.

    Raises:
      UserError: a format cannot hold the values, or the file cannot be written.
    """
    _WRITERS[Path(path).suffix](path, columns, rows)


def separated_lines(table: Iterable[Iterable[object]], separator: str = ",") -> Iterator[str]:
    """Yields the lines of a table as CSV, or with another separator between the columns.

    Args:
      table: the cells of each line; the first has the names of the columns.
      separator: the separator.
    """
    buffer = io.StringIO()
    # Spreadsheets end a row at a carriage return. The writer only quotes it as a line terminator.
    writer = csv.writer(buffer, delimiter=separator, lineterminator="\r\n")
    for cells in table:
        writer.writerow(cells)
        yield buffer.getvalue().removesuffix("\r\n") + "\n"
        buffer.seek(0)
        buffer.truncate()


def _write_separated(separator: str) -> Callable[[str, Sequence[str], Iterable[Row]], None]:
    def write(path: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        cells = (map(_cell, (row[name] for name in columns)) for row in rows)
        write_whole(path, separated_lines(itertools.chain([columns], cells), separator))

    return write


def _cell(value: Any) -> Any:
    """Returns JSON for lists, objects and booleans; other values unchanged."""
    if isinstance(value, list | dict | tuple | bool):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value


def _write_json_lines(path: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    write_whole(
        path,
        (
            json.dumps({name: row[name] for name in columns}, ensure_ascii=False, default=str)
            + "\n"
            for row in rows
        ),
    )


def _write_parquet(path: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    values: dict[str, list[Any]] = {name: [] for name in columns}
    for row in rows:
        for name, stored in values.items():
            stored.append(row[name])
    try:
        table = pa.table(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise UserError(
            f"{path}: Parquet cannot hold these rows, because a column has values of different "
            f"types ({error!s:.100}). Write .jsonl"
        ) from error
    with whole_file(path) as temporary:
        pyarrow.parquet.write_table(table, temporary)


_WRITERS: dict[str, Callable[[str, Sequence[str], Iterable[Row]], None]] = {
    ".csv": _write_separated(","),
    ".tsv": _write_separated("\t"),
    ".jsonl": _write_json_lines,
    ".parquet": _write_parquet,
}
