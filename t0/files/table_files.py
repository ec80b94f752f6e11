"""Writes tables of rows as CSV, TSV, JSON Lines or Parquet.

    check_format("predicted.csv", "--output")       # UserError for an unknown extension
    write_table("predicted.csv", ("text", "prediction"), [{"text": "fine", "prediction": "good"}])

The file appears when it is complete. All formats but Parquet are written row by row.
"""

import csv
import io
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0.errors import UserError
from t0.files.publishing import whole_file, write_whole

Row = Mapping[str, Any]
# Extension -> the separator between the cells of a row; "" for formats without a separator.
_SEPARATORS = {".csv": ",", ".tsv": "\t", ".jsonl": "", ".parquet": ""}


def check_format(path: str, flag: str) -> None:
    """Raises a UserError, which names the flag, if the extension of a file to write is unknown."""
    if _extension(path) not in _SEPARATORS:
        raise UserError(
            f"{flag}={path}: tables are written as {', '.join(_SEPARATORS)}. Choose one of these "
            "extensions"
        )


def check_rows(path: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Raises a UserError if `write_table` could not write these rows into the format of `path`."""
    if _extension(path) == ".parquet":
        _arrow_table(path, columns, [*rows])


def write_table(
    path: str, columns: Sequence[str], rows: Iterable[Row], *, byte_order_mark: bool = False
) -> None:
    """Writes a table atomically; the extension of `path` selects the format.

    Args:
      path: the file, with an extension that `check_format` accepts.
      columns: the columns, in order.
      rows: the rows, which have these columns.
      byte_order_mark: whether CSV and TSV begin with this mark, so that Excel reads them as UTF-8.

    Raises:
      UserError: if the format cannot hold the values, or the file cannot be written.
    """
    extension = _extension(path)
    if extension == ".parquet":
        _write_parquet(path, _arrow_table(path, columns, [*rows]))
    elif extension == ".jsonl":
        write_whole(path, (_json({name: row[name] for name in columns}) + "\n" for row in rows))
    else:
        cells = (map(_cell, (row[name] for name in columns)) for row in rows)
        lines = separated_lines(itertools.chain([columns], cells), _SEPARATORS[extension])
        write_whole(path, itertools.chain(["\ufeff"] * byte_order_mark, lines))


def separated_lines(table: Iterable[Iterable[object]], separator: str = ",") -> Iterator[str]:
    """Yields the lines of a table as CSV, or with another separator between the columns.

    Args:
      table: the cells of each line; the first has the names of the columns.
    """
    buffer = io.StringIO()
    # Spreadsheets end a row at an unquoted carriage return. `csv` quotes a cell with a carriage
    # return only if the line terminator contains a carriage return.
    writer = csv.writer(buffer, delimiter=separator, lineterminator="\r\n")
    for cells in table:
        writer.writerow(cells)
        yield buffer.getvalue().removesuffix("\r\n") + "\n"
        buffer.seek(0)
        buffer.truncate()


def _extension(path: str) -> str:
    return Path(path).suffix.lower()


def _json(value: Any) -> str:
    return json.dumps(_without_nan(value), ensure_ascii=False, default=str)


def _without_nan(value: Any) -> Any:
    """Returns a value with None instead of NaN, which is not JSON."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return [*map(_without_nan, value)] if isinstance(value, list | tuple) else value


def _cell(value: Any) -> Any:
    """Returns JSON for lists, objects and booleans, None for NaN, and other values unchanged."""
    if isinstance(value, float):
        return _without_nan(value)
    return _json(value) if isinstance(value, list | dict | tuple | bool) else value


def _arrow_table(path: str, columns: Sequence[str], rows: Sequence[Row]) -> Any:
    import pyarrow as pa

    try:
        return pa.table({name: [row[name] for row in rows] for name in columns})
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
    ) as error:
        raise UserError(
            f"{path}: Parquet cannot hold these rows, because a column has values of different "
            f"types, or a number over 64 bits ({error!s:.100}). Write .jsonl"
        ) from error


def _write_parquet(path: str, table: Any) -> None:
    import pyarrow.parquet

    with whole_file(path) as temporary:
        pyarrow.parquet.write_table(table, temporary)
