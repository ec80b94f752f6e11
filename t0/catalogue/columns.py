"""Summarizes the columns of a user's data: text columns, the label column and its classes.

    table = summarize_columns(reader, where="reviews.csv")
    table.texts(), table.labels()              # (["review"], ["sentiment"]): the candidates
    labels = read_labels(table, "sentiment", choices=None)
    labels.choices, labels.index(1.0)          # (("negative", "positive"), 1)

Different spellings may be the same label. For example, `1`, `1.0`, `"1"` and `" 1 "` are one label,
and `true`, `"True"` and `TRUE` are one label. In general, values that differ only in case or
Unicode form are one label. The values `01` and `1e1` are read as names, not as numbers. An empty
cell, NaN or null means that a row has no label. The value -1 is usually a class. But if -1 is the
only label of a split, and another split has other labels, the split with only -1 withholds its
labels. `Labels.notes` says how ambiguous values were read.
"""

import collections
import dataclasses
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from t0.errors import UserError, nearest, unknown_name
from t0.prompts import is_missing, whole_number

# If a column has more distinct values than this number, it is a label column only if the user names
# it, and prompts do not list its labels.
MOST_LABELS = 100
_MOST_NAMED_LABELS = 10_000
_SAMPLED_ROWS = 1000
_MOST_LISTED = 20
_OFTEN_LABELS = ("label", "labels", "class", "category", "target", "sentiment", "answer", "y")
_FALSE_FIRST = (("false", "true"), ("no", "yes"), ("f", "t"), ("n", "y"))
_WHOLE = re.compile(r"(0|-?[1-9][0-9]*)(?:\.0+)?")
_JINJA = re.compile(r"\|\|\||[{}\n\r]")


@dataclasses.dataclass
class ColumnSummary:
    """A summary of one column.

    Attributes:
      name: the column's name in the file.
      splits: the set of labels in each split that was read, in the spelling of `label_text`.
      most: the number of labels that are counted.
      values: label -> number of rows; incomplete if there are more than `most` labels.
      rows: the number of rows that have a value.
      words: the total number of words in the sampled values.
      sampled: the number of sampled values, which are the first values of the column.
      numbers: whether all sampled values are numbers.
      nested: whether the column contains lists or objects, which cannot be text or labels.
    """

    name: str
    most: int = MOST_LABELS
    splits: list[set[str]] = dataclasses.field(default_factory=list)
    values: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    rows: int = 0
    words: int = 0
    sampled: int = 0
    numbers: bool = True
    nested: bool = False

    def add(self, value: Any, split: int) -> None:
        """Adds the value of a row of the split with the index `split` to the summary."""
        if is_missing(value) or (isinstance(value, str) and not value.strip()):
            return
        self.rows += 1
        self.nested |= isinstance(value, list | tuple | Mapping)
        if len(self.values) <= self.most:
            self.values[label_text(value)] += 1
            self.splits[split].add(label_text(value))
        if self.sampled < _SAMPLED_ROWS:
            self.sampled += 1
            self.words += len(str(value).split())
            self.numbers &= isinstance(value, int | float) or whole_number(value) is not None

    @property
    def hidden_splits(self) -> list[int]:
        """The indices of the splits that withhold their labels.

        Such a split has no label, or its only label is -1, and another split has other labels.
        """
        hidden = [n for n, labels in enumerate(self.splits) if labels <= {"-1"}]
        return hidden if set().union(*self.splits) - {"-1"} else []

    @property
    def is_text(self) -> bool:
        """Whether this column looks like text.

        On average, its values must have more than two words, and it must have many distinct values.
        """
        several = len(self.values) > min(MOST_LABELS, self.rows // 4)
        return not self.nested and not self.numbers and self.words > 2 * self.sampled and several

    @property
    def is_label(self) -> bool:
        """Whether this column looks like labels: it has few distinct values, in many rows."""
        return not self.nested and 2 <= len(self.values) <= min(MOST_LABELS, max(2, self.rows // 3))


@dataclasses.dataclass(frozen=True)
class ColumnTable:
    """The summaries of all columns of a user's data.

    Attributes:
      where: the name of the data, for messages.
      columns: name -> the summary of the column.
    """

    where: str
    columns: Mapping[str, ColumnSummary]

    def texts(self) -> list[str]:
        """Returns the names of the columns that look like text."""
        return [name for name, column in self.columns.items() if column.is_text]

    def labels(self) -> list[str]:
        """Returns the names of the columns that may contain labels.

        If one or several of these columns have a typical name, such as `label`, only the column
        with the most typical name is returned.
        """
        candidates = [c.name for c in self.columns.values() if c.is_label and not c.is_text]
        typical = [name for name in candidates if name.lower() in _OFTEN_LABELS]
        typical.sort(key=lambda name: _OFTEN_LABELS.index(name.lower()))
        return typical[:1] or candidates

    def check(self, name: str, flag: str) -> None:
        """Checks that a column exists and has values that a prompt can show.

        Args:
          name: the column's name.
          flag: the flag with which the user chose the column, for messages.

        Raises:
          UserError: there is no such column (the message lists the columns), or it contains lists
            or objects.
        """
        if name not in self.columns:
            hint = f"({flag}) {self.where} has: {', '.join(self.columns)}."
            raise unknown_name("column", name, self.columns, hint)
        if self.columns[name].nested:
            some = next(iter(self.columns[name].values))
            raise UserError(
                f"column '{name}' of {self.where} ({flag}) contains lists or objects, such as "
                f"{some:.60}: a prompt would show these brackets. Write the text or label to a "
                "separate column"
            )

    def describe(self) -> Iterator[str]:
        """Yields a line for each column, with the column's name and some of its values."""
        for column in self.columns.values():
            some = ", ".join(f"{value:.30}" for value in list(column.values)[:3])
            more = "more than " * (len(column.values) > column.most)
            count = f"{more}{min(len(column.values), column.most)}"
            kind = "lists or objects, " * column.nested
            yield f"  {column.name}: {kind}{count} different values, such as {some}"


def summarize_columns(
    *splits: Iterable[Mapping[str, Any]], where: str, label: str | None = None
) -> ColumnTable:
    """Reads the rows of all splits once and summarizes their columns.

    Args:
      splits: the rows of each split. A row is a mapping: column -> value.
      where: the name of the data, for messages.
      label: the label column, if the user names it. All of its values are counted.

    Raises:
      UserError: there are no rows.
    """
    columns: dict[str, ColumnSummary] = {}
    for number, rows in enumerate(splits):
        for row in rows:
            for name, value in row.items():
                if name not in columns:
                    most = _MOST_NAMED_LABELS if name == label else MOST_LABELS
                    columns[name] = ColumnSummary(name, most, [set() for _ in splits])
                columns[name].add(value, number)
    if not columns:
        raise UserError(f"{where} has no rows")
    return ColumnTable(where, columns)


def label_text(value: Any) -> str:
    """Returns a label's standard spelling, in which different spellings of a value are equal.

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
    """The labels of a column, and the answer choice of each label.

    Attributes:
      column: the column's name.
      choices: the answer choices.
      indices: label -> the index of its choice.
      counts: the number of rows for each choice, in the order of `choices`.
      notes: notes that tell the user how ambiguous values were read.
    """

    column: str
    choices: tuple[str, ...]
    indices: Mapping[str, int]
    counts: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def index(self, value: Any) -> int | None:
        """Returns the index of the choice for a row's label; None if the row has no label.

        Args:
          value: the value of the label column in the row.
        """
        return None if is_missing(value) else self.indices.get(label_text(value))


def read_labels(
    table: ColumnTable, name: str, choices: Sequence[str] | None, *, names: Sequence[str] = ()
) -> Labels:
    """Reads the labels of a column.

    Args:
      table: the summary of the data.
      name: the name of the column.
      choices: the answer choices, in the order of the labels (0, 1, ... or sorted by name); None to
        use the labels themselves as choices.
      names: the names of the labels 0, 1, ... that the `datasets` library stored with the data.

    Raises:
      UserError: the column contains no labels, or the choices do not match the labels.
    """
    column = table.columns[name]
    where = f"column '{name}' of {table.where}"
    if (count := len(column.values)) > MOST_LABELS and (
        count > column.most or column.rows < 2 * count
    ):
        raise UserError(
            f"{where} has {'more than ' * (count > column.most)}{min(count, column.most):,} "
            f"different values in {column.rows:,} rows, too many for labels: a class needs several "
            "rows. Set the column of the answers with --label, or write templates.yaml without "
            "answer_choices if the answers are free text (docs/data.md)"
        )
    label_values = set().union(
        *(s for n, s in enumerate(column.splits) if n not in column.hidden_splits)
    )
    if names:
        spellings, notes = _match_stored_names(label_values, names, where)
        order = list(names)
    else:
        spellings, notes = _group_spellings(
            {n: column.values[n] for n in label_values}, choices or ()
        )
        order = _sort_labels(set(spellings.values()))
    if len(order) < 2:
        raise UserError(
            f"{where} has {len(order)} different values; a label needs at least two. Set the "
            "column of the answers with --label"
        )
    stripped = tuple(choice.strip() for choice in choices or order)
    _check_choices(stripped)
    choice_indices, order_notes = _match_choices(order, stripped, where)
    notes += order_notes
    indices = {label: choice_indices[main] for label, main in spellings.items()}
    counts = collections.Counter(dict.fromkeys(range(len(stripped)), 0))
    for label, index in indices.items():
        counts[index] += column.values[label]
    if "-1" in indices:
        notes.append(
            f"{name} -1 is read as a class, since its split has other labels. If it means that a "
            "row has no label, leave these cells empty"
        )
    rows_per_choice = tuple(counts[index] for index in range(len(stripped)))
    return Labels(name, stripped, indices, rows_per_choice, tuple(notes))


def _group_spellings(
    counts: Mapping[str, int], choices: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Groups the spellings that differ only in case or Unicode form into one label.

    If `choices` contains all spellings of a group, each spelling is a separate label.

    Returns:
      (spelling -> the most frequent spelling of the same label, notes about labels with several
      spellings).
    """
    groups: dict[str, list[str]] = {}
    for label in sorted(counts, key=lambda label: (-counts[label], label)):
        groups.setdefault(_normalize_label(label), []).append(label)
    spellings, notes = {}, []
    for group in groups.values():
        if len(group) > 1 and set(group) <= set(choices):
            spellings |= {label: label for label in group}
            continue
        spellings |= dict.fromkeys(group, group[0])
        if len(group) > 1:
            listed = ", ".join(f"{label!a} ({counts[label]:,} rows)" for label in group)
            notes.append(
                f"{listed} differ only in case or Unicode form, and are read as one label. To keep "
                "them apart, list each of them in --choices"
            )
    return spellings, notes


def _normalize_label(label: str) -> str:
    """Normalizes the case, Unicode form and spaces of a label."""
    return " ".join(unicodedata.normalize("NFKC", label).casefold().split())


def _match_stored_names(
    labels: Iterable[str], names: Sequence[str], where: str
) -> tuple[dict[str, str], list[str]]:
    """Returns (label -> the label's stored name, notes about rows without a label)."""
    stored_names, notes = {}, []
    for label in sorted(labels):
        number = whole_number(label)
        if label in names and number is None:
            stored_names[label] = label
        elif number is not None and 0 <= number < len(names):
            stored_names[label] = names[number]
        elif number == -1:
            notes.append(f"-1 of {where} is not a label: the data names the labels from 0")
        else:
            listed = ", ".join(f"{n}={name}" for n, name in enumerate(names[:20]))
            raise UserError(f"{where}: unknown label '{label}'; the data names: {listed}")
    return stored_names, notes


def _sort_labels(labels: set[str]) -> list[str]:
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
                f"'{choice}' cannot be an answer choice: it is empty, or contains a brace, a line "
                "break or '|||'. Set the choices with --choices, in the order of the labels"
            )
    if len(set(choices)) < len(choices):
        raise UserError(f"the choices are not all different: {', '.join(choices)}")


def _match_choices(
    labels: Sequence[str], choices: Sequence[str], where: str
) -> tuple[dict[str, int], list[str]]:
    """Returns (label -> the index of its choice, notes about choices that were given by position).

    If a choice equals a label, all labels must have a choice of their own name.
    """
    indices = _match_names(labels, choices)
    if len(indices) == len(labels):
        return indices, []
    _refuse_misspelled(labels, choices, indices, where)
    whole = [int(label) for label in labels if label.isdecimal()]
    if len({*whole}) == len(labels):
        start = 0 if min(whole) == 0 else 1
        if start and len(labels) < len(choices) > max(whole):
            raise UserError(
                f"{where} has the labels {', '.join(labels)}, but --choices names {len(choices)}: "
                "do the labels count from 0 or from 1? Name one choice for each label"
            )
        if max(whole) < len(choices) + start:
            return {label: int(label) - start for label in labels}, []
    if len(labels) != len(choices):
        raise UserError(
            f"--choices names {len(choices)}, but {where} has {len(labels)} labels: "
            f"{_list_some(labels)}. Name a choice for each, in this order"
            + "; leave cells empty if -1 means that a row has no label"
            * ("-1" in labels)
        )
    notes = []
    if not all(map(_is_number, labels)):
        pairs = [f"{label} is '{c}'" for label, c in zip(labels, choices, strict=True)]
        notes = [
            f"no choice is the name of a label, so the order decides: {_list_some(pairs)}. Check "
            "these pairs; --choices must be in this order of the labels"
        ]
    return {label: index for index, label in enumerate(labels)}, notes


def _match_names(labels: Sequence[str], choices: Sequence[str]) -> dict[str, int]:
    """Returns label -> the index of the choice with the same name, for the labels that have one.

    If no choice has exactly the name of a label, its name may differ in case or Unicode form.
    """
    indices = {label: choices.index(label) for label in labels if label in choices}
    others = {
        _normalize_label(label_text(choice)): index
        for index, choice in enumerate(choices)
        if index not in indices.values()
    }
    for label in labels:
        if label not in indices and _normalize_label(label) in others:
            indices[label] = others.pop(_normalize_label(label))
    return indices


def _refuse_misspelled(
    labels: Sequence[str], choices: Sequence[str], indices: Mapping[str, int], where: str
) -> None:
    """Raises an error if some choices are names of labels, but a label has no choice of its name.

    Similar names also count as names if the choices are in another order than the labels.

    Args:
      labels: the labels, in order.
      indices: the labels that a choice names -> the index of this choice.
      where: the column, for messages.
    """
    names = {_normalize_label(label): label for label in labels if label not in indices}

    def find_similar(choice: str) -> list[str]:
        word = _normalize_label(choice)
        starts = [name for name in names if len(name) > 1 and word.startswith(name)]
        return [names[name] for name in starts[:1] or nearest(word, names, 1, 0.6)]

    unused = [choice for index, choice in enumerate(choices) if index not in indices.values()]
    similar = {choice: find_similar(choice) for choice in unused}
    crossed = any(
        close and close[0] != label
        for label, close in zip(labels, map(similar.get, choices), strict=False)
    )
    if not similar or not (indices or crossed):
        return
    unknown = [
        f"'{choice}'" + "".join(f" (did you mean '{label}'?)" for label in close)
        for choice, close in similar.items()
    ]
    raise UserError(
        f"--choices: not a label of {where}: {_list_some(unknown)}. Its labels, in order: "
        f"{_list_some(labels)}; without a choice: {_list_some([*names.values()])}. Write each "
        "label as it is, or other words for all labels, in this order"
    )


def _list_some(names: Sequence[str]) -> str:
    """Joins names with commas; if there are many, only the first."""
    more = f" and {len(names) - _MOST_LISTED:,} more" * (len(names) > _MOST_LISTED)
    return ", ".join(names[:_MOST_LISTED]) + more
