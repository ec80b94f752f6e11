"""Reads rows from JSON Lines and from JSON documents.

    reader = JsonLines(Path("train.jsonl.gz"))      # a `readers.Reader`
    reader.columns()            # ('text', 'label'); reads only the start of the file

JSON files have two forms. In JSON Lines, each line is one object, and blank lines are skipped. In
the other form, the whole file is one JSON document: a list of objects or an object of columns. The
list or object may also be under the key `data` of the document. A document is held in memory.

All rows must have the columns of the first row. Missing values must be null. An extra or missing
column is an error that names the line, because a template would silently render a misspelled column
as nothing. A row that contains half of a surrogate pair, which no tokenizer can read, is also an
error. If `skip_bad_rows` was called (`--skip_bad_rows`), rows with half of a surrogate pair are
skipped and counted instead.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from t0.errors import UserError, reading
from t0.files.any_path import LARGEST_LINE, unpacked
from t0.files.untrusted import find_lone_surrogate, parsed_json

LARGEST_DOCUMENT = 512 * 2**20
SKIP_VARIABLE = "T0_SKIP_BAD_ROWS"
# Files are UTF-8, so half of a surrogate pair can only be written as an escape, such as \ud83d.
# These patterns also match the text \\ud83d, which is not an escape. So `_is_bad` parses each line
# that matches.
_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F]"
_HALF_ESCAPED = re.compile(rb"%s(?!%s)|(?<!%s)%s" % (_HIGH, _LOW, _HIGH, _LOW))

Item = TypeVar("Item")
# The state after the last range that was read: (index of the next item, remaining items).
Rest = list[tuple[int, Iterator[Item]]]


def read_range(
    rest: Rest[Item], open_items: Callable[[], Iterator[Item]], start: int, stop: int | None
) -> Iterator[Item]:
    """Yields the items from `start` up to `stop`.

    If the range starts where the range in `rest` ended, reading continues at that position. So
    reading a file range by range takes no longer than reading it in one call.
    """
    if stop is not None and stop <= start:
        return
    at, items = rest.pop() if rest else (0, open_items())
    if at > start:
        at, items = 0, open_items()
    yield from itertools.islice(items, start - at, None if stop is None else stop - at)
    if stop is not None:
        rest[:] = [(stop, items)]


@dataclasses.dataclass(frozen=True)
class JsonLines:
    """A file of JSON Lines, or a file with one JSON document. The file may be gzipped.

    If a range of rows starts where the previous range ended, reading continues at that position.
    """

    path: Path
    _rest: Rest[tuple[int, Any]] = dataclasses.field(
        default_factory=list, compare=False, repr=False
    )

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonLines, (self.path,)

    def columns(self) -> tuple[str, ...]:
        """Returns the keys of the first object; an empty tuple if the file is empty."""
        return tuple(self._first[1])

    def count(self) -> int:
        """Returns the number of rows, without parsing lines."""
        return sum(1 for _ in self._items())

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """Yields the objects from `start` up to `stop`. All have the keys of the first object.

        Raises:
          UserError: a line is not a JSON object, or has an extra or missing column.
        """
        for number, item in read_range(self._rest, self._items, start, stop):
            row = self._parse(number, item)
            first_number, names = self._first
            if row.keys() != names:
                raise self._wrong_columns(number, row, names, first_number)
            yield row

    def check(self) -> None:
        """Checks that no row contains half of a surrogate pair, without parsing most lines.

        Raises:
          UserError: a row contains half of a surrogate pair.
        """
        for number, item in self._items():
            if _is_bad(item):
                self._parse(number, item)

    @functools.cached_property
    def _first(self) -> tuple[int, KeysView[str]]:
        """The number of the first object, and its keys; no keys if the file is empty."""
        for number, item in self._items():
            return number, self._parse(number, item).keys()
        return 0, {}.keys()

    @functools.cached_property
    def _document_rows(self) -> list[Any] | None:
        document = read_document(self.path)
        return None if document is None else list(rows_of_document(document, str(self.path)))

    def _items(self) -> Iterator[tuple[int, Any]]:
        """Yields (number, item): lines that are not blank, or the rows of a document.

        Lines are numbered from 1, and rows from 0.
        """
        if self._document_rows is None:
            yield from without_bad_rows(self._lines(), self.path)
        else:
            yield from without_bad_rows(enumerate(self._document_rows), self.path)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yields (number, line) for the lines that are not blank. Lines are numbered from 1."""
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
                    line = line.removeprefix(_BOM)
                if not line.isspace():
                    yield number, line

    def _describe_location(self, number: int) -> str:
        return f"line {number}" if self._document_rows is None else f"row {number} (the first is 0)"

    def _parse(self, number: int, item: Any) -> dict[str, Any]:  # noqa: ANN401 (bytes, or JSON)
        where = f"{self.path}, {self._describe_location(number)}"
        return parsed_line(where, item) if isinstance(item, bytes) else checked_row(where, item)

    def _wrong_columns(
        self, number: int, row: dict[str, Any], first: KeysView[str], first_number: int
    ) -> UserError:
        missing = [f"has no column '{name}'" for name in first if name not in row]
        extra = [f"has a column '{name}'" for name in row if name not in first]
        verb = "does not have" if extra else "has"
        return UserError(
            f"{self.path}, {self._describe_location(number)}: {' and '.join(missing + extra)} that "
            f"{self._describe_location(first_number)} {verb}. All rows need the same columns; "
            "write null where a value is absent."
        )


def too_long(path: Path, number: int) -> UserError:
    """Returns the error for a line that is longer than `LARGEST_LINE`."""
    return UserError(
        f"{path}, line {number}: has more than {LARGEST_LINE:,} bytes, the limit for a row. Is each"
        " row on its own line?"
    )


_BOM = b"\xef\xbb\xbf"


def read_document(path: Path) -> Any:  # noqa: ANN401 (whatever JSON holds)
    """Returns the content of a file that is one JSON document; None for JSON Lines.

    A file with a single object on one line is a document if its name ends in `.json`, or if the
    object has a list of objects under the key `data`. Otherwise the object is a row.

    Raises:
      UserError: the file is a malformed document, or a list of more than `LARGEST_DOCUMENT` bytes.
    """
    with reading(path), unpacked(path) as file:
        first = _next_line(file).removeprefix(_BOM)
        is_list, named_json = (
            first.lstrip().startswith(b"["),
            ".json" in map(str.lower, path.suffixes),
        )
        if not is_list and (
            not first.lstrip().startswith(b"{") or (len(first) > LARGEST_LINE and not named_json)
        ):
            return None
        second = _next_line(file)
        with contextlib.suppress(ValueError):
            row = parsed_json(first)
            if second.strip():
                return None
            return row if is_list or named_json or _is_wrapped(row) else None
        text = first + second + file.read(LARGEST_DOCUMENT + 1)
    if len(text) > LARGEST_DOCUMENT:
        if not is_list:
            return None
        raise UserError(
            f"{path}: is a JSON list with more than {LARGEST_DOCUMENT:,} bytes, the limit for one "
            "document. Write JSON Lines: one object on each line."
        )
    try:
        return parsed_json(text)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        # In these two cases, the file is JSON Lines. If the first line is malformed, the reader
        # reports that line.
        if "Extra data" in str(error) or (line == 1 and not is_list):
            return None
        raise UserError(
            f"{path}, line {line}: not JSON ({error}). The file is one JSON document; write it "
            "again, or write JSON Lines: one object on each line, in UTF-8."
        ) from error


def _next_line(file: IO[bytes]) -> bytes:
    """Returns the next line that is not blank, or its first `LARGEST_LINE` + 1 bytes."""
    line = file.readline(LARGEST_LINE + 1)
    while line and not line.removeprefix(_BOM).strip():
        line = file.readline(LARGEST_LINE + 1)
    return line


def _is_wrapped(document: Any) -> bool:  # noqa: ANN401
    rows = document.get("data") if isinstance(document, Mapping) else None
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], Mapping)


def rows_of_document(document: Any, where: str) -> Iterator[Any]:  # noqa: ANN401
    """Yields the rows of a document, without checking that the rows are objects.

    Raises:
      UserError: the document has no rows, or its columns differ in length.
    """
    if isinstance(document, Mapping) and isinstance(document.get("data"), list | Mapping):
        document = document["data"]
    if isinstance(document, list):
        yield from document
        return
    if not isinstance(document, Mapping):
        raise UserError(f"{where}: expected a list of rows, got a {type(document).__name__}.")
    columns = list(document.values())
    # pandas writes {"text": {"0": ...}}, with the same keys in all columns. Other programs write
    # lists.
    if columns and all(isinstance(c, Mapping) and c.keys() == columns[0].keys() for c in columns):
        columns = [list(column.values()) for column in columns]
    if not columns or not all(isinstance(column, list) for column in columns):
        yield document  # the object is a single row
        return
    lengths = {name: len(values) for name, values in zip(document, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise UserError(f"{where}: its columns differ in length: {lengths}.")
    for values in zip(*columns, strict=True):
        yield dict(zip(document, values, strict=True))


def skip_bad_rows() -> None:
    """Makes this process skip rows that contain half of a surrogate pair.

    Processes that this process starts also skip these rows.
    """
    os.environ[SKIP_VARIABLE] = "1"


def skips_bad_rows() -> bool:
    """Returns whether rows that contain half of a surrogate pair are skipped."""
    return os.environ.get(SKIP_VARIABLE, "") not in ("", "0")


def without_bad_rows(items: Iterable[tuple[int, Any]], where: object) -> Iterator[tuple[int, Any]]:
    """Yields numbered items. If `skip_bad_rows` was called, leaves out bad rows.

    A bad row contains half of a surrogate pair.

    Args:
      items: (number, item), where an item is a line in bytes or a JSON value.
      where: the file, for the note about the number of skipped rows.
    """
    if not skips_bad_rows():
        yield from items
        return
    skipped = 0
    for number, item in items:
        if _is_bad(item):
            skipped += 1
        else:
            yield number, item
    if skipped:
        _print_skipped(str(where), skipped)


def _is_bad(item: Any) -> bool:  # noqa: ANN401
    if isinstance(item, bytes):
        if not _HALF_ESCAPED.search(item):
            return False
        try:
            item = parsed_json(item)
        except ValueError:
            return False  # not JSON, which is reported elsewhere, with another message
    return find_lone_surrogate(item) is not None


@functools.lru_cache(maxsize=1024)  # a file may be read several times
def _print_skipped(where: str, count: int) -> None:
    print(
        f"note: {where}: skipped {count:,} rows that contain half of a surrogate pair "
        "(--skip_bad_rows)",
        file=sys.stderr,
    )


def parsed_line(where: str, line: bytes) -> dict[str, Any]:
    """Parses a line of JSON Lines.

    Args:
      where: the file and line, for messages.

    Raises:
      UserError: the line is not a JSON object.
    """
    try:
        row = parsed_json(line)
    except ValueError as error:
        start = line[:60].decode("utf-8", "replace").strip()
        raise UserError(
            f"{where}: not JSON ({error}); it starts with {start!r}. Each line must be one"
            " complete JSON object, in UTF-8."
        ) from error
    may_be_bad = b"\\u" in line and _HALF_ESCAPED.search(line) is not None
    return checked_row(where, row, may_be_bad=may_be_bad)


def checked_row(where: str, row: Any, *, may_be_bad: bool = True) -> dict[str, Any]:  # noqa: ANN401
    """Checks that a value from JSON is an object whose texts are Unicode, and returns it.

    If `may_be_bad` is False, the texts are not checked.

    Raises:
      UserError: the row is not an object, or a checked text contains half of a surrogate pair.
    """
    if not isinstance(row, dict):
        raise UserError(
            f"{where}: got {row!r:.40}, expected an object such as"
            ' {"text": "...", "label": 0}. Write one row on each line (JSON Lines), or one list of '
            "rows."
        )
    if may_be_bad:
        for name, value in row.items():
            check_unicode(f"{where}, column '{name}'", (name, value))
    return row


def check_unicode(where: str, value: Any) -> None:  # noqa: ANN401 (whatever JSON holds)
    """Checks that all texts of a JSON value are Unicode.

    Raises:
      UserError: a text contains half of a surrogate pair, which no tokenizer can read.
    """
    half = find_lone_surrogate(value)
    if half is not None:
        raise UserError(
            f"{where}: the text contains {half!r}, half of a surrogate pair (such as an emoji that "
            "was cut in two), which is no Unicode text. Write the row again, or leave such rows "
            f"out with --skip_bad_rows (or {SKIP_VARIABLE}=1)."
        )


def holds_texts(value: Any) -> bool:  # noqa: ANN401 (whatever JSON or YAML holds)
    """Returns whether a value is a list of texts with at least one text."""
    return isinstance(value, list) and bool(value) and all(isinstance(x, str) for x in value)
