r"""Reads csv and tsv files, plain or `.gz`, so that every cell prints exactly as in the file.

    Csv(Path("train.csv")).columns()                   # ('text', 'label'), from the first line
    Csv(Path("train.tsv"), delimiter="\t").rows(0, 10) # dicts, typed for the whole file

In csv files, a cell that contains separators, line breaks or quotes is enclosed in double quotes,
and each quote inside the cell is doubled (RFC 4180). If the cells of the first line are separated
by semicolons or tabs, the reader uses this separator for all lines. In tsv files, each line is a
row, and a quote is part of the text. There is one exception: if quotes enclose a whole cell, they
are removed, and the cell may contain tabs and line breaks. Files are in UTF-8, or in UTF-16 or
UTF-32 with a byte order mark.

A stray quote must not join rows. Therefore the readers reject a quote that is never closed, text
after a closing quote, and a cell whose lines are rows with known labels. The error gives the line
number in the file.

The columns of T0's own datasets have the types that `t0.sources.schema` records. In other data, a
column is numeric only if the number read from each cell prints exactly as in the file. So 01000,
1.10 and 1e1 stay text. In a numeric column, an empty cell is None.
"""

import codecs
import collections
import csv
import dataclasses
import functools
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from t0.errors import UserError, reading
from t0.files.any_path import unpacked
from t0.progress import count_units
from t0.sources.json_lines import LARGEST_LINE, Rest, read_range, too_long
from t0.sources.schema import Features

TAB = "\t"
MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark is the beginning of this mark
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_LINE_END = re.compile(r"\r\n|\r|\n")
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*"(?!")')
# The first line of some Excel files names the separator.
_SEPARATOR_LINE = re.compile(r"sep=(.)\s*")
# If a column, such as a label column, has at most this number of distinct values, `_SwallowedRows`
# uses the column to recognize rows inside quoted cells.
_FEW_VALUES = 1000
_MOST_SUSPECTS = 10_000
_REMEDY = 'Put "" for each quote inside a quoted cell, or write the file as JSON Lines.'

Record = tuple[int, list[str]]  # the number of the record's first line, and its cells


class MalformedLineError(ValueError):
    """Raised for a line that cannot be read. `number` is the line's number, counted from 1."""

    def __init__(self, number: int, fault: str) -> None:
        super().__init__(fault)
        self.number = number


class _Start(NamedTuple):
    """The facts read from a file's start: its encoding, separator and column names.

    `skipped` is the number of lines before the line with the names.
    """

    encoding: str
    delimiter: str
    skipped: int
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Csv:
    """One csv or tsv file.

    If a range of rows starts where the previous range ended, reading continues at that position, as
    in `JsonLines`.

    Attributes:
      path: the path of the file.
      delimiter: a tab to read the file by the rules for tsv, a comma for the rules for csv.
      features: T0's columns of the dataset, whose cells `t0.sources.schema` converts.
      numbers: whether columns that are not in `features` may be numeric.
    """

    path: Path
    delimiter: str = ","
    features: Features | None = None
    numbers: bool = True
    _rest: Rest[Record] = dataclasses.field(default_factory=list, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_rest": []}

    def columns(self) -> tuple[str, ...]:
        """Returns the names of the columns, which are in the first line."""
        return self._start.names

    def count(self) -> int:
        """Returns the number of rows; the first call reads the whole file."""
        return self._scan[1]

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """Yields the rows from `start` up to `stop`. A column has the same type in the whole file.

        Raises:
          UserError: a row has too many or too few cells, or a quote is misplaced.
        """
        # The scan checks the whole file before the first row is yielded.
        names, numeric = self.columns(), [self.columns()[i] for i in self._scan[0]]
        for _, cells in read_range(self._rest, self._records, start, stop):
            row: dict[str, Any] = dict(zip(names, cells, strict=True))
            for name in numeric:
                row[name] = number(row[name])
            yield row

    @functools.cached_property
    def _start(self) -> _Start:
        with reading(self.path), unpacked(self.path) as file:
            head = file.read(4)
        encoding = next((name for mark, name in MARKS.items() if head.startswith(mark)), "utf-8")
        lines = self._lines(encoding)
        skipped, line = next(((n, x) for n, x in enumerate(lines) if x.strip("\r\n")), (0, ""))
        if not line:
            raise UserError(
                f"{self.path} is empty: expected a first line with the names of the columns, and a "
                "line for each row"
            )
        if "\0" in line:
            raise self._fault(
                skipped + 1,
                "has NUL characters. Is it UTF-16 without a byte order mark? Write it as UTF-8: "
                f"iconv -f UTF-16LE -t UTF-8 {self.path.name} > NEW",
            )
        delimiter = self.delimiter
        if named := _SEPARATOR_LINE.fullmatch(line):
            skipped, delimiter = skipped + 1, named[1]
        elif delimiter == ",":
            # Remove quoted names, because a quoted name may contain any of these separators.
            bare = _QUOTED.sub("", line)
            delimiter = next((mark for mark in (",", ";", TAB) if mark in bare), ",")
        start = _Start(encoding, delimiter, skipped, ())
        _, names = next(self._all_records(start), (0, []))
        counts = collections.Counter(names)
        if double := sorted(name for name, count in counts.items() if count > 1):
            raise self._fault(
                skipped + 1,
                f"the column names {double} occur twice. Name each column once. If the first line "
                "is a row, write a line with the names of the columns before it.",
            )
        return start._replace(names=tuple(names))

    @functools.cached_property
    def _scan(self) -> tuple[list[int], int]:
        """The indices of the numeric columns, and the number of rows; the file was checked."""
        unknown = [i for i, name in enumerate(self.columns()) if name not in (self.features or {})]
        has_number = dict.fromkeys(unknown if self.numbers else (), False)
        num_rows = 0
        records = count_units(self._records(), unit="row", doing=f"checking {self.path.name}")
        for _, cells in records:
            num_rows += 1
            for column in tuple(has_number):
                if cell := cells[column]:
                    if number(cell) is None:
                        del has_number[column]
                    else:
                        has_number[column] = True
        return [i for i, has in has_number.items() if has], num_rows

    def _records(self) -> Iterator[Record]:
        return itertools.islice(self._all_records(self._start), 1, None)

    def _all_records(self, start: _Start) -> Iterator[Record]:
        """Yields the records. The first record has the names of the columns."""
        lines = itertools.islice(self._lines(start.encoding), start.skipped, None)
        first = start.skipped + 1
        try:
            if start.delimiter == TAB:
                yield from tsv_records(lines, first)
            else:
                yield from csv_records(lines, start.delimiter, first)
        except MalformedLineError as fault:
            raise self._fault(fault.number, str(fault)) from None

    def _lines(self, encoding: str, errors: str = "strict") -> Iterator[str]:
        try:
            with (
                reading(self.path),
                unpacked(self.path) as file,
                io.TextIOWrapper(file, encoding, errors, newline="") as text,
            ):
                for count in itertools.count(1):
                    line = text.readline(LARGEST_LINE + 1)
                    if len(line) > LARGEST_LINE:
                        raise too_long(self.path, count)
                    if not line:
                        return
                    yield line
        except UnicodeError as error:
            raise self._not_text(encoding, error) from None

    def _not_text(self, encoding: str, error: UnicodeError) -> UserError:
        if not encoding.startswith("utf-8"):
            return UserError(f"{self.path}: cannot be read as {encoding}: {error}. Copy it again.")
        for count, line in enumerate(self._lines(encoding, "surrogateescape"), 1):
            if match := re.search("[\udc80-\udcff]", line):
                before, byte = line[: match.start()], ord(match[0]) - 0xDC00
                return self._fault(count, not_utf8(self.path.name, before, byte))
        return UserError(f"{self.path}: cannot be read: {error}. Write it as UTF-8.")

    def _fault(self, line: int, text: str) -> UserError:
        return UserError(f"{self.path}, line {line}: {text}")


def not_utf8(name: str, before: str, byte: int, likely: str = "WINDOWS-1252") -> str:
    """Returns a message about a line that is not UTF-8, with the command that converts the file.

    Args:
      name: the file's name.
      before: the text of the line before `byte`.
      byte: the first byte that is not UTF-8.
      likely: the likely encoding of the file.
    """
    return (
        f"not UTF-8: byte 0x{byte:02x} ('{chr(byte)}' in Latin-1) after {before[-20:]!r}. Write it "
        f"as UTF-8, such as: iconv -f {likely} -t UTF-8 {name} > NEW"
    )


@functools.lru_cache(maxsize=4096)  # most numeric columns have few distinct values
def number(cell: str) -> int | float | None:
    """Returns the number that prints exactly like a cell; None if there is no such number.

    >>> [number(cell) for cell in ("7", "-0.5", "1e+16", "01", "1.10", "1e1", " 1", "nan")]
    [7, -0.5, 1e+16, None, None, None, None, None]
    """
    try:
        value = float(cell) if "." in cell or "e" in cell else int(cell)
    except ValueError:
        return None
    return value if str(value) == cell and -(2**63) <= value < 2**63 else None


def csv_records(lines: Iterable[str], delimiter: str, first: int = 1) -> Iterator[Record]:
    """Yields the records of a csv file, skipping empty lines.

    Args:
      lines: the lines with their line endings.
      delimiter: the separator.
      first: the number of the first line.

    Raises:
      MalformedLineError: a record has more or fewer cells than the first record, a quote is
        misplaced, or lines inside a quoted cell look like rows.
    """
    taken: list[str] = []
    size = 0

    def feed() -> Iterator[str]:
        nonlocal size
        for line in lines:
            taken.append(line)
            size += len(line)
            if size > LARGEST_LINE:
                raise MalformedLineError(
                    at,
                    f"the row that begins here has more than {LARGEST_LINE:,} characters, the "
                    "limit for a row. Is a quote not closed?",
                )
            yield line

    records = _split(feed(), delimiter, strict=True)
    at, width, swallowed = first, 0, _SwallowedRows(delimiter)
    while True:
        try:
            cells = next(records, None)
        except csv.Error as error:
            raise _misplaced_quote("".join(taken), delimiter, at, error) from None
        if cells is None:
            break
        if cells:
            width = width or len(cells)
            _check_width(at, cells, width)
            swallowed.add(at, taken, cells)
            yield at, cells
        at, size = at + len(taken), 0
        taken.clear()
    swallowed.check()


def _split(lines: Iterable[str], delimiter: str, *, strict: bool) -> Iterator[list[str]]:
    # This limit applies to the whole process. Longer rows have already been rejected.
    csv.field_size_limit(max(csv.field_size_limit(), 2 * LARGEST_LINE))
    return csv.reader(lines, delimiter=delimiter, strict=strict)


def _check_width(at: int, cells: list[str], width: int) -> None:
    if len(cells) != width:
        more = f", and begins {cells[0][:30]!r}"
        raise MalformedLineError(
            at,
            f"has {len(cells)} cells instead of the {width} of the first line{more}. Each row needs"
            " a cell for each column; a cell with separators or line breaks needs quotes.",
        )


class _SwallowedRows:
    """Finds quoted cells whose lines are rows of the file, which a stray quote has joined.

    Lines of an ordinary text, such as an e-mail, can have as many separators as a row. They are
    rows only if they also have known values in some column: values that this column often has in
    other rows, such as labels, or numbers if the column has only numbers.
    """

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        self._width = 0
        # Index of a column -> how often it has each value, without cells of several lines. A column
        # with more than `_FEW_VALUES` distinct values is removed.
        self._values: dict[int, collections.Counter[str]] = {}
        # Index of a column that has only numbers -> whether it has a number.
        self._numeric: dict[int, bool] = {}
        # Quoted cells that may be joined rows. Each item is (number of the cell's first line,
        # whether its lines look like rows, the rows that its lines would be).
        self._suspects: list[tuple[int, bool, list[list[str]]]] = []

    def add(self, at: int, lines: list[str], cells: list[str]) -> None:
        """Adds a record, and checks its quoted cells. The first record has the column names."""
        if not self._width:
            self._width = len(cells)
            self._values = {column: collections.Counter() for column in range(len(cells))}
            self._numeric = dict.fromkeys(self._values, False)
            return
        whole = len(lines) == 1
        for column, values in tuple(self._values.items()):
            if whole or not _LINE_END.search(cells[column]):
                values[cells[column]] += 1
                if len(values) > _FEW_VALUES:
                    del self._values[column]
        for column in tuple(self._numeric):
            if (cell := cells[column]) and (whole or not _LINE_END.search(cell)):
                if number(cell) is None:
                    del self._numeric[column]
                else:
                    self._numeric[column] = True
        if not whole and self._width > 1 and len(self._suspects) < _MOST_SUSPECTS:
            self._find_suspects(at, cells)

    def _find_suspects(self, at: int, cells: list[str]) -> None:
        for index, cell in enumerate(cells):
            inner = _LINE_END.split(cell)
            if len(inner) > 1:
                first, *middle, last = (line.split(self._delimiter) for line in inner)
                # The first and the last line also have the cells before and after this one.
                ends = [[*cells[:index], *first], [*last, *cells[index + 1 :]]]
                middle = [line for line in middle if line != [""]]
                if min(map(len, ends)) >= self._width and {*map(len, middle)} <= {self._width}:
                    whole = [line for line in (*middle, *ends) if len(line) == self._width]
                    rows = [self._joined(line, index) for line in (*middle, *ends)]
                    self._suspects.append((at, len(inner) > 2 and len(whole) > 1, rows))
            at += len(inner) - 1

    def _joined(self, line: list[str], index: int) -> list[str]:
        """Returns a line as a row. Separators that are too many belong to the cell at `index`.

        A line has too many if the quote that is missing was meant to protect them.
        """
        end = index + 1 + len(line) - self._width
        return [*line[:index], self._delimiter.join(line[index:end]), *line[end:]]

    def check(self) -> None:
        """Raises an error if the lines of a suspect cell are rows.

        If no column has values by which a row is known, lines that look like rows count as rows.
        """
        checks: dict[int, Callable[[str], bool]] = {
            column: values.__contains__
            for column, values in self._values.items()
            if any(values) and 2 * len(values) <= values.total()
        }
        numeric = [column for column, has_number in self._numeric.items() if has_number]
        checks |= dict.fromkeys(numeric, lambda cell: not cell or number(cell) is not None)
        for at, look_like_rows, rows in self._suspects:
            if (
                look_like_rows
                if not checks
                else any(
                    all(is_known(row[column]) for row in rows)
                    and 2 * sum(bool(row[column]) for row in rows) > len(rows)
                    for column, is_known in checks.items()
                )
            ):
                raise MalformedLineError(
                    at,
                    "a quoted cell that begins here contains lines that look like rows. Is its "
                    f"quote a mistake? {_REMEDY}",
                )


def _misplaced_quote(text: str, delimiter: str, at: int, error: csv.Error) -> MalformedLineError:
    """Returns the error for a misplaced quote in a record that starts on line `at`."""
    boundary = re.compile(rf"{re.escape(delimiter)}|\r\n|\r|\n")

    def line_from(offset: int) -> str:
        return repr(_LINE_END.split(text[offset : offset + 30])[0])

    def fault(offset: int, words: str) -> MalformedLineError:
        line = at + len(_LINE_END.findall(text, 0, offset))
        return MalformedLineError(line, f"{words}. {_REMEDY}")

    offset = 0
    while offset < len(text):
        if text[offset] == '"':
            closed = _QUOTED.match(text, offset)
            if not closed:
                return fault(offset, f"the quote before {line_from(offset + 1)} is never closed")
            offset = closed.end()
            if offset < len(text) and not boundary.match(text, offset):
                escaped = text[offset - 2] == "\\"
                why = ' (a quote inside a cell is written "", not \\")' if escaped else ""
                return fault(offset, f"text follows a closing quote: {line_from(offset)}{why}")
        match = boundary.search(text, offset)
        offset = match.end() if match else len(text)
    return fault(0, f"cannot be read: {error}")


class _Lines:
    """An iterator over numbered lines.

    Lines that were read can be put back. The iterator then yields these lines again.
    """

    def __init__(self, lines: Iterable[str], first: int) -> None:
        self._numbered = enumerate(lines, first)
        self._returned: collections.deque[tuple[int, str]] = collections.deque()

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return self

    def __next__(self) -> tuple[int, str]:
        return self._returned.popleft() if self._returned else next(self._numbered)

    def put_back(self, lines: list[tuple[int, str]]) -> None:
        """Puts lines back, so that the iterator yields them next, in the given order."""
        self._returned.extendleft(reversed(lines))


def tsv_records(lines: Iterable[str], first: int = 1) -> Iterator[Record]:
    r"""Yields the records of a tsv file, skipping empty lines.

    If a line has as many cells as the first line, the line is a row, as in T5. In other lines,
    quoted cells may contain tabs and line breaks. But if the lines inside a quoted cell look like
    rows, they are read as separate lines.

    Args:
      lines: the lines with their line endings.
      first: the number of the first line.

    Raises:
      MalformedLineError: a record has more or fewer cells than the first record.
    """
    numbered = _Lines(lines, first)
    width = 0
    for at, line in numbered:
        cells = line.rstrip("\r\n").split(TAB)
        if cells == [""]:
            continue
        quoted = _quoted_row(line, width, numbered) if width > 1 and '"' in line else None
        if quoted is None:
            cells = [c[1:-1].replace('""', '"') if _QUOTED.fullmatch(c) else c for c in cells]
        else:
            cells = quoted
        width = width or len(cells)
        _check_width(at, cells, width)
        yield at, cells


def _quoted_row(line: str, width: int, following: _Lines) -> list[str] | None:
    """Returns the cells of a row that has quoted tabs or line breaks.

    Returns None if the line does not start such a row.
    """

    def is_row(text: str) -> bool:
        return text.count(TAB) == width - 1

    cells = line.rstrip("\r\n").split(TAB)
    if all(not cell.startswith('"') or _QUOTED.fullmatch(cell) for cell in cells):
        return None
    taken: list[tuple[int, str]] = []

    def feed() -> Iterator[str]:
        yield line
        size = len(line)
        for at, text in following:
            taken.append((at, text))
            size += len(text)
            if size > LARGEST_LINE or ('"' not in text and is_row(text)):
                return
            yield text

    try:
        quoted = next(_split(feed(), TAB, strict=True))
    except csv.Error:
        quoted = []
    good = len(quoted) == width and not (is_row(line) and (not taken or is_row(taken[-1][1])))
    inner = (text for cell in quoted if _LINE_END.search(cell) for text in _LINE_END.split(cell))
    if good and not any(map(is_row, inner)):
        return quoted
    following.put_back(taken)
    return None
