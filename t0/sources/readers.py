"""Reads rows from files. Each format has its own reader. All readers have the same three methods.

    reader = reader_for("jsonl", (Path("train.jsonl.gz"),))
    reader.columns()            # ('text', 'label'); reads only the start of the file
    reader.count()              # 5452
    list(reader.rows(10, 12))   # two dicts, in the file's order

A reader holds only paths, so it can be pickled and sent to another process. It opens the file again
in each call and reads row by row, so memory use does not grow with the file. A range of rows has a
`start`, which is at least 0, and a `stop`. If `stop` is None, the range ends with the last row.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from t0.sources.csv_reader import Csv
from t0.sources.json_lines import JsonLines
from t0.sources.schema import Features

# File extension -> format.
FORMATS = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
TEXT_FORMATS = ("jsonl", "csv", "tsv")


class Reader(Protocol):
    """The methods that the readers of all formats have."""

    def columns(self) -> tuple[str, ...]:
        """Returns the names of the columns as stored."""

    def count(self) -> int:
        """Returns the number of rows."""

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """Yields the rows from `start` up to, but not including, `stop`."""


def reader_for(
    kind: str, paths: tuple[Path, ...], known: Features | None = None, *, numbers: bool = True
) -> Reader:
    """Returns the reader for files of one format.

    Args:
      kind: a value of FORMATS, or `saved` for a folder written by `Dataset.save_to_disk`.
      paths: one file or folder, or the shards of one split in order.
      known: T0's columns of the dataset, which determine the types of cells in csv and tsv files.
      numbers: whether columns of csv and tsv files may be numeric. If not, all cells are text.
    """
    if kind == "jsonl":
        return JsonLines(paths[0])
    if kind in ("csv", "tsv"):
        return Csv(paths[0], "\t" if kind == "tsv" else ",", features=known, numbers=numbers)
    # Imported here, because pyarrow takes 0.2 s to load, and readers of text files do not need it.
    from t0.sources import arrow_readers

    if kind == "parquet":
        return arrow_readers.Parquet(paths[0])
    return arrow_readers.Arrow(paths if kind == "arrow" else arrow_readers.saved_shards(paths[0]))
