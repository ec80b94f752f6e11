"""Rows out of files, one reader for each format, all with the same three questions.

    reader = reader_for("jsonl", (Path("train.jsonl.gz"),))
    reader.columns()            # ('text', 'label'): looks at the start of the file only
    reader.count()              # 5452
    list(reader.rows(10, 12))   # two dicts, in the file's order

A reader holds paths and nothing else, so it can be pickled and sent to another process, and it
reads anew each time: memory does not grow with the file. Ranges are 0 <= start, and stop None for
the end.

JSON Lines: each line is one object; all have the columns of the first (a value that is absent is
written null), and blank lines do not count. A column too many or too few is an error that names the
line, because a typing slip would otherwise render as nothing.
"""

import contextlib
import dataclasses
import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from t0.errors import UserError, reading
from t0.sources.schema import Features

# File name endings, and the format that each one means.
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
    """What every format offers."""

    def columns(self) -> tuple[str, ...]:
        """The columns as stored."""

    def count(self) -> int:
        """The number of rows."""

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """The rows from start up to stop."""


def reader_for(kind: str, paths: tuple[Path, ...], known: Features | None = None) -> Reader:
    """Returns the reader for files of one format.

    Args:
      kind: a value of FORMATS, or `saved` for a folder written by `Dataset.save_to_disk`.
      paths: one file or folder, or the shards of one split in order.
      known: T0's columns of the dataset, which give the cells of csv and tsv their types.
    """
    # Late: pyarrow takes 0.2 s to import, and JSON Lines does without it.
    if kind == "jsonl":
        return JsonLines(paths[0])
    if kind in ("csv", "tsv"):
        from t0.sources.arrow_readers import Csv

        return Csv(paths[0], delimiter="\t" if kind == "tsv" else ",", known=known)
    from t0.sources import arrow_readers

    if kind == "parquet":
        return arrow_readers.Parquet(paths[0])
    return arrow_readers.Arrow(paths if kind == "arrow" else arrow_readers.saved_shards(paths[0]))


@dataclasses.dataclass(frozen=True)
class JsonLines:
    """One object on each line; `.gz` is unpacked on the way."""

    path: Path

    def columns(self) -> tuple[str, ...]:
        """The keys of the first line's object; none for an empty file."""
        for number, line in self._lines():
            return tuple(self._parse(number, line))
        return ()

    def count(self) -> int:
        """The lines that are not blank. They are not parsed."""
        return sum(1 for _ in self._lines())

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """The objects, with the keys of the first one.

        Raises:
          UserError: a line is no JSON object, or has a column too many or too few.
        """
        lines = self._lines()
        first_number, first_line = next(lines, (0, b""))
        if not first_number:
            return
        first = self._parse(first_number, first_line)
        wanted = first.keys()
        every = itertools.chain([(first_number, first_line)], lines)
        for number, line in itertools.islice(every, start, stop):
            row = self._parse(number, line)
            if row.keys() != wanted:
                raise self._wrong_columns(number, row, first, first_number)
            yield row

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yields the lines that are not blank, each with its number counted from 1."""
        with contextlib.ExitStack() as stack:
            with reading(self.path):
                opener = gzip.open if self.path.suffix == ".gz" else open
                lines = enumerate(stack.enter_context(opener(self.path, "rb")), start=1)
            while True:
                with reading(self.path):
                    number, line = next(lines, (0, b""))
                if not number:
                    return
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if not line.isspace():
                    yield number, line

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        return parsed_line(f"{self.path}, line {number}", line)

    def _wrong_columns(
        self, number: int, row: dict[str, Any], first: dict[str, Any], first_number: int
    ) -> UserError:
        missing = [f"lacks the column '{name}'" for name in first if name not in row]
        extra = [f"has a column '{name}'" for name in row if name not in first]
        other = " that line {} {}".format(first_number, "does not have" if extra else "has")
        return UserError(
            f"{self.path}, line {number}: {' and '.join(missing + extra)}{other}. All rows need the"
            " same columns; write null where a value is absent."
        )


def parsed_line(where: str, line: bytes) -> dict[str, Any]:
    """Returns the object on a line of JSON Lines.

    Raises:
      UserError: there is none, beginning with `where`.
    """
    try:
        row = json.loads(line.decode("utf-8"))
    except ValueError as error:
        start = line[:60].decode("utf-8", "replace").strip()
        raise UserError(
            f"{where}: not JSON ({error}); it starts with {start!r}. Each line must be one"
            " whole JSON object, in UTF-8."
        ) from error
    if not isinstance(row, dict):
        raise UserError(
            f"{where}: got a JSON {_JSON_NAMES[type(row)]}, wanted an object such as"
            ' {"text": "...", "label": 0}. Each line holds one row (JSON Lines), with no list'
            " around them."
        )
    return row


_JSON_NAMES = {
    list: "list",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
