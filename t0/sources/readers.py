"""Reads rows from files: one reader for each format, all with the same three methods.

    reader = reader_for("jsonl", (Path("train.jsonl.gz"),))
    reader.columns()            # ('text', 'label'): reads only the start of the file
    reader.count()              # 5452
    list(reader.rows(10, 12))   # two dicts, in the file's order

A reader holds only paths, so it can be pickled and sent to another process. It reads the file
again at each call, so memory does not grow with the file. In ranges, `start` is at least 0, and
`stop` is None for the end.

JSON Lines: each line is one object with the same columns as the first (absent values are null);
blank lines do not count. An extra or missing column is an error that names the line, because a
misspelled column would otherwise be rendered as nothing.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from t0.errors import UserError, reading
from t0.files.any_path import unpacked
from t0.files.untrusted import parsed_json
from t0.sources.schema import Features

# File name ending -> format.
FORMATS = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
LARGEST_LINE = 64 * 2**20
TEXT_FORMATS = ("jsonl", "csv", "tsv")


class Reader(Protocol):
    """The methods of every format's reader."""

    def columns(self) -> tuple[str, ...]:
        """Returns the columns as stored."""

    def count(self) -> int:
        """Returns the number of rows."""

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """Yields the rows from `start` up to `stop`."""


def reader_for(kind: str, paths: tuple[Path, ...], known: Features | None = None) -> Reader:
    """Returns the reader for files of one format.

    Args:
      kind: a value of FORMATS, or `saved` for a folder written by `Dataset.save_to_disk`.
      paths: one file or folder, or the shards of one split in order.
      known: T0's columns of the dataset, which are the types of csv and tsv cells.
    """
    if kind == "jsonl":
        return JsonLines(paths[0])
    if kind in ("csv", "tsv"):
        from t0.sources.csv_reader import Csv

        return Csv(paths[0], delimiter="\t" if kind == "tsv" else ",", known=known)
    # Imported late: pyarrow takes 0.2 s, and text files do not need it.
    from t0.sources import arrow_readers

    if kind == "parquet":
        return arrow_readers.Parquet(paths[0])
    return arrow_readers.Arrow(paths if kind == "arrow" else arrow_readers.saved_shards(paths[0]))


@dataclasses.dataclass(frozen=True)
class JsonLines:
    """A file with one JSON object on each line, plain or `.gz`.

    Rows that follow those of the call before are read on from there, so that reading a file range
    by range takes no longer than reading it at once.
    """

    path: Path
    # After a range: the next row, the lines from there, the first line's number and its object.
    _rest: list[tuple[int, Iterator[tuple[int, bytes]], int, dict[str, Any]]] = dataclasses.field(
        default_factory=list, compare=False, repr=False
    )

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonLines, (self.path,)

    def columns(self) -> tuple[str, ...]:
        """Returns the keys of the first line's object; none for an empty file."""
        for number, line in self._lines():
            return tuple(self._parse(number, line))
        return ()

    def count(self) -> int:
        """Returns the number of lines that are not blank, without parsing them."""
        return sum(1 for _ in self._lines())

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """Yields the objects, which all have the keys of the first.

        Raises:
          UserError: a line is not a JSON object, or has an extra or missing column.
        """
        if stop is not None and stop <= start:
            return
        at, lines, first_number, first = self._rest.pop() if self._rest else self._opened()
        if at > start:
            at, lines, first_number, first = self._opened()
        for number, line in itertools.islice(
            lines, start - at, None if stop is None else stop - at
        ):
            row = self._parse(number, line)
            if row.keys() != first.keys():
                raise self._wrong_columns(number, row, first, first_number)
            yield row
        if stop is not None:
            self._rest[:] = [(stop, lines, first_number, first)]

    def _opened(self) -> tuple[int, Iterator[tuple[int, bytes]], int, dict[str, Any]]:
        """Returns 0, the numbered lines, the number of the first one, and its object."""
        lines = self._lines()
        number, line = next(lines, (0, b""))
        if not number:
            return 0, lines, 0, {}
        return 0, itertools.chain([(number, line)], lines), number, self._parse(number, line)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yields the lines that are not blank, each with its number counted from 1."""
        with contextlib.ExitStack() as stack:
            with reading(self.path):
                file = stack.enter_context(unpacked(self.path))
            for number in itertools.count(1):
                with reading(self.path):
                    line = file.readline(LARGEST_LINE + 1)
                if not line:
                    return
                if len(line) > LARGEST_LINE:
                    raise too_long(self.path, number)
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


def too_long(path: Path, number: int) -> UserError:
    """Returns the error for a line that is longer than `LARGEST_LINE`."""
    return UserError(
        f"{path}, line {number}: has more than {LARGEST_LINE:,} bytes, the most for a row. Is each"
        " row on a line of its own?"
    )


def parsed_line(where: str, line: bytes) -> dict[str, Any]:
    """Returns the object on a line of JSON Lines.

    Args:
      where: the file and line, for messages.
      line: the line.

    Raises:
      UserError: the line is not a JSON object.
    """
    try:
        row = parsed_json(line)
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
