r"""Renders a table in four formats, for the page, the terminal, CSV and JSON.

    columns = (ReportColumn("dataset", "Dataset", "dataset"), ReportColumn("mean", "Mean", "mean"))
    table = ReportTable("datasets", "Datasets", columns, [{"dataset": "rte", "mean": 54.151}])
    table.csv()                # "dataset,mean\nrte,54.151\n"
    table.records()            # [{"dataset": "rte", "mean": 54.151}], for JSON
    list(table.lines())        # ["dataset  mean", "rte      54.2"], for the terminal

The page renders a table with `data_table` of macros.html.j2. The page and the terminal show the
table's `columns`. Functions such as `number`, `signed` and `interval` format their cells. CSV and
JSON contain the values of the rows at full precision. If the rows have a key "label", the field
"run" of CSV and JSON contains the label instead of the run's position.

Texts are untrusted. If a spreadsheet would interpret a text as a formula, the text gets an
apostrophe as prefix in CSV. An unknown value (None) is a dash on the page and in the terminal,
empty in CSV, and null in JSON.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from t0.files.table_files import separated_lines
from t0.text_tables import table_lines

Row = Mapping[str, Any]
# The key of a row's `Mark`. JSON and CSV never contain a mark, because they name runs by their
# labels.
MARK = "mark"
# Some spreadsheets interpret a cell as a formula if it begins with one of these characters.
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\n")


def number(value: float | None, digits: int = 1) -> str:
    """Formats a number with `digits` decimals; None becomes a dash.

    >>> number(54.151), number(None)
    ('54.2', '–')
    """
    return "–" if value is None else f"{value:.{digits}f}"


def signed(value: float, digits: int = 1) -> str:
    """Formats a number with a typographic plus or minus sign, which zero does not have.

    >>> signed(-2.04), signed(0.01)
    ('−2.0', '0.0')
    """
    text = f"{value:+.{digits}f}"
    return text[1:] if not float(text) else text.replace("-", "−")


def span(low: float, high: float, digits: int = 0) -> str:
    """Formats a range as "low–high", or as one number if both ends are equal.

    >>> span(9, 1267), span(40.0, 62.54, 1)
    ('9–1,267', '40.0–62.5')
    """
    texts = [f"{value:,.{digits}f}" for value in (low, high)]
    return texts[0] if low == high and not digits else "–".join(texts)


def interval(row: Row, kind: str = "interval", suffix: str = "") -> str:
    """Formats a row's interval as "low to high"; returns "" if the row has no interval.

    Args:
      row: the row, with the keys `<kind>_low<suffix>` and `<kind>_high<suffix>`.
      kind: the prefix of the keys: "interval", "fixed" (the interval for only these prompts) or
        another prefix.
      suffix: the end of the keys.
    """
    low, high = row[f"{kind}_low{suffix}"], row[f"{kind}_high{suffix}"]
    return "" if low is None else f"{low:.1f} to {high:.1f}".replace("-", "−")


def p_value(p: float) -> str:
    """Formats a p-value with two significant digits, or as "< 0.001"."""
    return "< 0.001" if p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def group_by(rows: Iterable[Row], *keys: str) -> dict[Any, list[Row]]:
    """Returns value of a key, or values of several -> the rows with it, in the order of the rows.

    >>> group_by([{"run": 0, "step": 1}, {"run": 0, "step": 2}], "run")
    {0: [{'run': 0, 'step': 1}, {'run': 0, 'step': 2}]}
    """
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(itemgetter(*keys)(row), []).append(row)
    return groups


def prompt_name(row: Row) -> str:
    """Returns the name of a row's prompt; the name of its task if the prompt has no name."""
    return row["prompt"] or row["task"]


def fact(value: Any) -> str:
    """Formats a value from the `run` object of a results file; objects become "key value, ...".

    >>> fact({"inputs": 1024, "targets": 256})
    'inputs 1024, targets 256'
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {fact(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(fact, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)


def value_text(value: Any) -> str:
    """Formats a value for the page and the terminal.

    >>> value_text(54.151), value_text(1000), value_text(None), value_text("rte")
    ('54.2', '1,000', '–', 'rte')
    """
    if isinstance(value, str):
        return value or "–"
    return number(value) if value is None or isinstance(value, float) else f"{value:,}"


@dataclass(frozen=True)
class ReportColumn:
    """A column of a table on the page or in the terminal.

    Attributes:
      key: the key of the column's values in the rows.
      heading: the heading on the page; empty if the column is only in the terminal.
      short: the heading in the terminal; empty if the column is only on the page.
      show: the function that formats a value, unless the value is None.
      text: the function that formats a cell from the whole row; if it is set, `show` is not used.
      detail: the function that formats a second text from the whole row. The page shows this text
        in small type.
      sort: the function that returns the value by which the page sorts a row; by default, this is
        the value of `key`.
      css: the CSS classes of the cells, "t ..." for texts and "n ..." for numbers.
      kind: "name" (shown in bold), "run" (shown with the run's letter and colour) or "prompt" (a
        click opens the prompt's examples).
      needed: a function that returns whether a row needs the column. If no row does, the column is
        left out. By default, the column is always there.
    """

    key: str
    heading: str = ""
    short: str = ""
    show: Callable[[Any], str] = value_text
    text: Callable[[Row], str] | None = None
    detail: Callable[[Row], str] | None = None
    sort: Callable[[Row], Any] | None = None
    css: str = "n"
    kind: str = ""
    needed: Callable[[Row], bool] | None = None

    def cell(self, row: Row) -> str:
        """Formats the cell of a row."""
        if self.kind == "run":
            return row[MARK].letter
        if self.text is not None:
            return self.text(row)
        value = row[self.key]
        return value_text(None) if value is None else self.show(value)


@dataclass(frozen=True)
class ReportTable:
    """A table of the report.

    Attributes:
      name: the table's key in JSON and its anchor on the page.
      title: the heading.
      columns: the columns on the page and in the terminal.
      rows: the rows, each a mapping from key to value.
      note: a text that the page shows above the table.
      file: the name of the table's CSV file; empty if the table has no CSV file.
      nested: the fields with structured values, which JSON contains and CSV does not.
      long: whether the page shows only the first rows, together with a text field to filter all
        rows.
      shown: a function that returns whether the page and the terminal show a row; by default they
        show all rows.
      terminal_rows: with more rows than this, the terminal does not show the table.
    """

    name: str
    title: str
    columns: Sequence[ReportColumn]
    rows: Sequence[Row] = ()
    note: str = ""
    file: str = ""
    nested: Sequence[str] = ()
    long: bool = False
    shown: Callable[[Row], bool] | None = None
    terminal_rows: float = math.inf

    @property
    def shown_rows(self) -> list[Row]:
        """The rows that the page and the terminal show."""
        return [row for row in self.rows if self.shown is None or self.shown(row)]

    def records(self) -> list[dict[str, Any]]:
        """Returns the rows as JSON objects."""
        return [
            {
                key: row.get("label", value) if key == "run" else value
                for key, value in row.items()
                if key not in (MARK, "label")
            }
            for row in self.rows
        ]

    def csv(self) -> str:
        """Formats the rows as CSV, with a header."""
        records = self.records()
        names = [name for name in (records or [{}])[0] if name not in self.nested]
        rows = ([escape_formula(record[name]) for name in names] for record in records)
        return "".join(separated_lines([names, *rows]))

    @property
    def is_in_terminal(self) -> bool:
        """Whether the terminal shows the table: it has values to show, and not too many rows."""
        has_values = any(column.short for column in self.columns if column.kind != "run")
        return has_values and bool(self.shown_rows) and len(self.rows) <= self.terminal_rows

    def lines(self, width: int | None = None) -> Iterator[str]:
        """Yields the table's lines for a terminal of `width` characters; None for no limit."""
        columns = [column for column in self.columns if column.short]
        yield from table_lines(
            [column.short for column in columns],
            [[column.cell(row) for column in columns] for row in self.shown_rows],
            right=[column.short for column in columns if column.css.startswith("n")],
            width=width,
        )


def escape_formula(value: object) -> object:
    """Escapes a text that a spreadsheet would run as a formula; returns all other values unchanged.

    A mapping is first formatted as one text.
    """
    if isinstance(value, Mapping):
        value = "; ".join(f"{key}: {item}" for key, item in value.items())
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n")
    return f"'{text}" if text.startswith(_FORMULA_SIGNS) else text
