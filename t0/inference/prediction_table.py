"""Writes rows with their predictions as CSV, TSV, JSON Lines or Parquet.

    check_format("predicted.csv")       # UserError for an unknown extension
    write_table("predicted.csv", ("text", "prediction"), [{"text": "fine", "prediction": "good"}])

The file appears when it is complete. All formats but Parquet are written row by row.
"""

import csv
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0.errors import UserError
from t0.files import whole_file, write_whole

# Extension -> what separates the cells of a row; None for formats without cells.
_SEPARATORS = {".csv": ",", ".tsv": "\t", ".jsonl": None, ".parquet": None}


def check_format(path: str) -> None:
    """Raises a UserError if the extension of a file to write is unknown."""
    if Path(path).suffix not in _SEPARATORS:
        raise UserError(
            f"--output={path}: predictions are written as {', '.join(_SEPARATORS)}. Choose one of "
            "these extensions"
        )


def write_table(path: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a table atomically; the extension of `path` selects the format.

    Args:
      path: the file, whose extension `check_format` accepts.
      columns: the columns, in order.
      rows: the rows, which have these columns.

    Raises:
      UserError: the format cannot hold the values, or the file cannot be written.
    """
    rows = ({name: row[name] for name in columns} for row in rows)
    extension = Path(path).suffix
    if extension == ".parquet":
        _write_parquet(path, rows)
    elif extension == ".jsonl":
        write_whole(path, (_json(row) + "\n" for row in rows))
    else:
        write_whole(path, _separated_lines(columns, rows, _SEPARATORS[extension]))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _separated_lines(
    columns: Sequence[str], rows: Iterable[Mapping[str, Any]], separator: str
) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=separator, lineterminator="\r\n")  # it quotes both
    for cells in itertools.chain([columns], (map(_cell, row.values()) for row in rows)):
        writer.writerow(cells)
        yield buffer.getvalue().removesuffix("\r\n") + "\n"
        buffer.seek(0)
        buffer.truncate()


def _cell(value: Any) -> Any:
    """Returns the value of a cell: JSON for lists and objects. `csv` writes nothing for None."""
    return _json(value) if isinstance(value, list | dict | tuple) else value


def _write_parquet(path: str, rows: Iterable[Mapping[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        table = pa.Table.from_pylist([*rows])
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise UserError(
            f"{path}: Parquet cannot hold these rows, because a column has values of different "
            f"types ({error!s:.100}). Write .jsonl"
        ) from error
    with whole_file(path) as temporary:
        pyarrow.parquet.write_table(table, temporary)
