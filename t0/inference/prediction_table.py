"""Writes rows with their predictions as CSV, TSV, JSON Lines or Parquet.

    check_format("predicted.csv")       # UserError for an unknown extension
    write_table("predicted.csv", ("text", "prediction"), [{"text": "fine", "prediction": "good"}])

The file appears only when it is complete. Parquet is written in one piece, all other formats row by
row.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0.errors import UserError
from t0.files import whole_file, write_whole

Row = Mapping[str, Any]


def check_format(path: str) -> None:
    """Raises a UserError if `write_table` does not know the extension of a path."""
    if Path(path).suffix not in _WRITERS:
        raise UserError(
            f"--output={path}: predictions are written as {', '.join(_WRITERS)}. Choose one of "
            "these extensions"
        )


def write_table(path: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Writes a table atomically; the extension of `path` selects the format.

    Args:
      path: the file.
      columns: the columns, in order.
      rows: the rows, which have all of these columns.

    Raises:
      UserError: the extension is unknown, a format cannot hold the values, or the file cannot be
        written.
    """
    check_format(path)
    _WRITERS[Path(path).suffix](path, columns, rows)


def _write_separated(delimiter: str) -> Callable[[str, Sequence[str], Iterable[Row]], None]:
    def write(path: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        write_whole(path, lines(columns, rows))

    def lines(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
        buffer = io.StringIO()
        writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_cell(row[name]) for name in columns])
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
        yield buffer.getvalue()

    return write


def _cell(value: Any) -> str:
    """Returns the text of a cell: empty for a missing value, JSON for lists and objects."""
    if value is None:
        return ""
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


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
