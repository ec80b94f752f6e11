"""Looks at the columns of somebody's data: which hold text, which is the label, what labels mean.

    table = look(reader, "reviews.csv")
    table.texts(), table.labels()              # (["review"], ["sentiment"]): what they may be
    labels = read_labels(table, "sentiment", choices=None)
    labels.choices, labels.index(1.0)          # (("negative", "positive"), 1)

A label is read as what it is: `1`, `1.0`, `"1"` and `" 1 "` are one label, as are `true`, `"True"`
and `TRUE`; names are names, `01` and `1e1` among them. Empty cells, NaN and null are no label, nor
is -1 beside 0, 1, 2 ...
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from t0.errors import UserError, unknown_name
from t0.prompts import is_missing, whole_number

# A column with more different values than this holds no labels.
MOST_LABELS = 100
_LOOKED_AT = 1000
_OFTEN_LABELS = ("label", "labels", "class", "category", "target", "sentiment", "answer", "y")
_FALSE_FIRST = (("false", "true"), ("no", "yes"), ("f", "t"), ("n", "y"))
_WHOLE = re.compile(r"(0|-?[1-9][0-9]*)(?:\.0+)?")
_JINJA = re.compile(r"\|\|\||[{}\n\r]")


@dataclasses.dataclass
class Column:
    """What was seen of a column.

    Attributes:
      name: its name in the file.
      values: label -> number of rows; incomplete if there are more than `MOST_LABELS`.
      rows: the rows that have a value.
      words: the number of words in the rows looked at closely.
      looked_at: how many those were.
      numbers: whether all of them are numbers.
      nested: whether it holds lists or objects, which are neither text nor labels.
    """

    name: str
    values: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    rows: int = 0
    words: int = 0
    looked_at: int = 0
    numbers: bool = True
    nested: bool = False

    def add(self, value: Any) -> None:
        """Counts a row's value."""
        if is_missing(value) or (isinstance(value, str) and not value.strip()):
            return
        self.rows += 1
        self.nested |= isinstance(value, list | tuple | Mapping)
        if len(self.values) <= MOST_LABELS:
            self.values[label_text(value)] += 1
        if self.looked_at < _LOOKED_AT:
            self.looked_at += 1
            self.words += len(str(value).split())
            self.numbers &= isinstance(value, int | float) or whole_number(value) is not None

    @property
    def is_text(self) -> bool:
        """Whether it seems to hold text: mostly of several words, and mostly different."""
        several = len(self.values) > min(MOST_LABELS, self.rows // 4)
        return not self.nested and not self.numbers and self.words > 2 * self.looked_at and several

    @property
    def is_label(self) -> bool:
        """Whether it seems to hold labels: a few values, each of which comes again."""
        return not self.nested and 2 <= len(self.values) <= min(MOST_LABELS, max(2, self.rows // 3))


@dataclasses.dataclass(frozen=True)
class Table:
    """The columns of somebody's data, with what was seen of them."""

    where: str
    columns: Mapping[str, Column]

    def texts(self) -> list[str]:
        """Returns the columns that seem to hold text."""
        return [name for name, column in self.columns.items() if column.is_text]

    def labels(self) -> list[str]:
        """Returns the columns that may be the label; only the first that is named so, if one is."""
        found = [c.name for c in self.columns.values() if c.is_label and not c.is_text]
        named = [name for often in _OFTEN_LABELS for name in found if name.lower() == often]
        return named[:1] or found

    def check(self, name: str, flag: str) -> None:
        """Checks that a column is there, and holds values that a prompt can show.

        Raises:
          UserError: with the columns that are there, or if it holds lists or objects.
        """
        if name not in self.columns:
            hint = f"({flag}) {self.where} has: {', '.join(self.columns)}."
            raise unknown_name("column", name, self.columns, hint)
        if self.columns[name].nested:
            some = next(iter(self.columns[name].values))
            raise UserError(
                f"column '{name}' of {self.where} ({flag}) holds lists or objects, such as "
                f"{some:.60}: a prompt would show these brackets. Write the wanted text or label "
                "into a separate column"
            )

    def described(self) -> Iterator[str]:
        """Yields a line for each column: its name and some of its values."""
        for column in self.columns.values():
            some = ", ".join(f"{value:.30}" for value in list(column.values)[:3])
            more = len(column.values) > MOST_LABELS
            count = f"more than {MOST_LABELS}" if more else f"{len(column.values):,}"
            count = f"lists or objects, {count}" if column.nested else count
            yield f"  {column.name}: {count} different values, such as {some}"


def look(rows: Iterable[Mapping[str, Any]], where: str) -> Table:
    """Reads all rows once, and returns what their columns hold.

    Raises:
      UserError: if there are no rows.
    """
    columns: dict[str, Column] = {}
    for row in rows:
        for name, value in row.items():
            if name not in columns:
                columns[name] = Column(name)
            columns[name].add(value)
    if not columns:
        raise UserError(f"{where} has no rows")
    return Table(where, columns)


def label_text(value: Any) -> str:
    """Returns the one spelling of a label.

    >>> [label_text(value) for value in (1, 1.0, "1", " 1.0", True, "TRUE", "so so ", 0.5, "01")]
    ['1', '1', '1', '1', 'true', 'true', 'so so', '0.5', '01']
    """
    text = str(value).strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels of a column, and the answer choice of each.

    Attributes:
      column: the column's name.
      choices: the answer choices.
      indices: label -> the index of its choice.
      counts: the number of rows of each choice.
    """

    column: str
    choices: tuple[str, ...]
    indices: Mapping[str, int]
    counts: tuple[int, ...]

    def index(self, value: Any) -> int | None:
        """Returns the index of the choice that a row's value means, None if it has no label."""
        return None if is_missing(value) else self.indices.get(label_text(value))


def read_labels(table: Table, name: str, choices: Sequence[str] | None) -> Labels:
    """Returns the labels of a column.

    Args:
      table: what was seen of the data.
      name: the column.
      choices: the answer choices, in the order of the labels' numbers (or of their names); None
        to take the labels' names.

    Raises:
      UserError: if the column holds no labels, or the choices do not fit.
    """
    column = table.columns[name]
    if len(column.values) > MOST_LABELS:
        raise UserError(
            f"column '{name}' of {table.where} has more than {MOST_LABELS} different values: it is "
            "no label. Name the column with the answers by --label"
        )
    labels = _sorted(set(column.values))
    if labels[:1] == ["-1"] and all(_is_number(label) for label in labels):
        labels = labels[1:]  # withheld
    if len(labels) < 2:
        raise UserError(
            f"column '{name}' of {table.where} has {len(labels)} different values; a label needs "
            "at least two. Name the column with the answers by --label"
        )
    given = tuple(choice.strip() for choice in choices or labels)
    _check_choices(given)
    indices = _indices(labels, given, f"column '{name}' of {table.where}")
    counts = collections.Counter(dict.fromkeys(range(len(given)), 0))
    for label, place in indices.items():
        counts[place] += column.values[label]
    return Labels(name, given, indices, tuple(counts[place] for place in range(len(given))))


def _sorted(labels: set[str]) -> list[str]:
    if all(map(_is_number, labels)):
        return sorted(labels, key=lambda label: (float(label), label))
    for order in _FALSE_FIRST:
        if {label.lower() for label in labels} <= set(order):
            return sorted(labels, key=lambda label: order.index(label.lower()))
    return sorted(labels)


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def _check_choices(choices: Sequence[str]) -> None:
    for choice in choices:
        if not choice or _JINJA.search(choice):
            raise UserError(
                f"'{choice}' cannot be an answer choice: it is empty, or holds a brace, a line "
                "break or '|||'. Name the choices by --choices, in the order of the labels"
            )
    if len(set(choices)) < len(choices):
        raise UserError(f"the choices are not all different: {', '.join(choices)}")


def _indices(labels: Sequence[str], choices: Sequence[str], where: str) -> dict[str, int]:
    by_name = {choice.casefold(): place for place, choice in enumerate(choices)}
    if all(label.casefold() in by_name for label in labels):
        return {label: by_name[label.casefold()] for label in labels}
    whole = [int(label) for label in labels if label.isdecimal()]
    if len({*whole}) == len(labels):
        start = 0 if min(whole) == 0 or max(whole) < len(choices) else 1
        if max(whole) < len(choices) + start:
            return {label: int(label) - start for label in labels}
    if len(labels) == len(choices):
        return {label: place for place, label in enumerate(labels)}
    raise UserError(
        f"--choices names {len(choices)}, {where} has {len(labels)} labels: {', '.join(labels)}. "
        "Name a choice for each, in this order"
    )
