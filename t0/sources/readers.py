"""Reads rows from files. Each format has its own reader. All readers have the same three methods.

    reader = reader_for("jsonl", (Path("train.jsonl.gz"),))
    reader.columns()            # ('text', 'label'); reads only the start of the file
    reader.count()              # 5452
    list(reader.rows(10, 12))   # two dicts, in the file's order

A reader holds only paths, so it can be pickled and sent to another process. It opens the file again
in each call and reads row by row, so memory use does not grow with the file. A range of rows has a
`start`, which is at least 0, and a `stop`. If `stop` is None, the range ends with the last row.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, Protocol

from t0.sources.csv_reader import TAB, Csv
from t0.sources.json_lines import JsonLines
from t0.sources.schema import Features


class Reader(Protocol):
    """The methods that the readers of all formats have."""

    def columns(self) -> tuple[str, ...]:
        """Returns the names of the columns as stored."""

    def count(self) -> int:
        """Returns the number of rows."""

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """Yields the rows from `start` up to, but not including, `stop`."""


class Format(NamedTuple):
    """A format of files with rows.

    Attributes:
      suffixes: the extensions of its files; none for a folder of `Dataset.save_to_disk`.
      open: makes the reader from the arguments of `reader_for`.
      columns: where the names and kinds of the columns are: in each of the "values"; only the
        names, in a "header", because all cells are texts; or in a "schema". A reader of a file with
        a schema also has a method `metadata`, which returns the metadata of the schema.
      gzip: whether its files may be compressed, with `.gz` after the extension.
    """

    suffixes: tuple[str, ...]
    open: Callable[[tuple[Path, ...], Features | None, bool], Reader]
    columns: Literal["values", "header", "schema"]
    gzip: bool = False


def _arrow() -> ModuleType:
    # Imported here, because pyarrow takes 0.2 s to load, and readers of text files do not need it.
    from t0.sources import arrow_readers

    return arrow_readers


def _open_saved(paths: tuple[Path, ...], *_: Any) -> Reader:
    return _arrow().Arrow(_arrow().saved_shards(paths[0]))


# Everything that depends on the format of a file of rows reads this table.
FORMATS = {
    "jsonl": Format((".jsonl", ".json"), lambda x, *_: JsonLines(x[0]), "values", gzip=True),
    "csv": Format((".csv",), lambda x, *types: Csv(x[0], ",", *types), "header", gzip=True),
    "tsv": Format((".tsv",), lambda x, *types: Csv(x[0], TAB, *types), "header", gzip=True),
    "parquet": Format((".parquet",), lambda x, *_: _arrow().Parquet(x[0]), "schema"),
    "arrow": Format((".arrow",), lambda x, *_: _arrow().Arrow(x), "schema"),
    "saved": Format((), _open_saved, "schema"),
}
# Extension -> the name of its format.
SUFFIXES = {suffix: name for name, each in FORMATS.items() for suffix in each.suffixes}
# The extensions, for messages.
LISTED_SUFFIXES = f"{', '.join(SUFFIXES)} (text also as .gz)"


def reader_for(
    kind: str, paths: tuple[Path, ...], known: Features | None = None, *, numbers: bool = True
) -> Reader:
    """Returns the reader for files of one format.

    Args:
      kind: the name of the format in FORMATS.
      paths: one file or folder, or the shards of one split in order.
      known: T0's columns of the dataset, which determine the types of cells in csv and tsv files.
      numbers: whether columns of csv and tsv files may be numeric. If not, all cells are text.
    """
    return FORMATS[kind].open(paths, known, numbers)
