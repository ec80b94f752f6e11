"""Jinja's environments for templates, with promptsource's filters and our changes of a template.

    tree = ENVIRONMENT.parse("{{ answer_choices[label] }}")
    read_labels(tree)        # a label 1.0 or "1" selects the same choice as the integer 1
    draws_at_random(tree)    # False: it uses neither `choice` nor `random`

`ENVIRONMENT` renders promptsource's templates, and `METERED_ENVIRONMENT` a user's, within limits.
`CHECKING_ENVIRONMENT` and `SEARCHING_ENVIRONMENT` find templates that print lists or words such as
`None`. `t0.prompts.render` says how the rendered texts differ from promptsource's.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes, sandbox
from jinja2.filters import do_truncate

from t0.errors import UserError
from t0.prompts import budget, missing_values
from t0.prompts.missing_values import Options, is_missing

STREAM = "\0stream"
"""The variable that holds the row's `random.Random`. No column can have this name."""

HIDES = "\0hides"
"""The variable that holds the row's function `hides`, if there is one (see `PreparedRow`)."""

# Methods of texts, lists and dicts that change nothing.
_READS = frozenset(
    ("capitalize", "copy", "count", "endswith", "find", "format", "get", "index", "isdigit",
     "items", "join", "keys", "lower", "lstrip", "replace", "rstrip", "split", "splitlines",
     "startswith", "strip", "title", "upper", "values")
)  # fmt: skip
# Filters that read the items of a list or an object.
_ITEM_FILTERS = frozenset(
    ("batch", "choice", "dictsort", "first", "items", "join", "last", "list", "map", "max", "min",
     "most_frequent", "random", "reject", "rejectattr", "select", "selectattr", "slice", "sort",
     "sum", "unique")
)  # fmt: skip
_RANDOM_FILTERS = ("choice", "random")
_INDEX_FILTER, _CUT_FILTER = "\0index", "\0cut"  # a template cannot write these names
LONGEST_PRINTED = 2048
"""The length, in characters, to which promptsource truncates the texts that a template prints.

A text is truncated only if it exceeds this length by more than 5 characters.
"""

CUTS = "\0cuts"
"""The variable that collects the lengths of the truncated texts, in characters."""


@jinja2.pass_context
def _choice(context: jinja2.runtime.Context, items: Sequence[Any]) -> Any:
    """Draws one item of a sequence.

    Because of `pass_context`, Jinja does not evaluate this filter at compile time.
    """
    if not len(items):
        raise IndexError("'choice' got an empty sequence or a missing column")
    return context[STREAM].choice(_without_blanks(items))


@jinja2.pass_context
def _random(context: jinja2.runtime.Context, items: Sequence[Any]) -> Any:
    """Draws one item. If `items` is empty, returns an undefined value, like Jinja's `random`."""
    if not len(items):
        return context.environment.undefined("No random item, sequence was empty.")
    return context[STREAM].choice(_without_blanks(items))


def _without_blanks(items: Sequence[Any]) -> Sequence[Any]:
    return [*items] if isinstance(items, Options) and any(items) else items


def _most_frequent(items: Sequence[Any]) -> list[Any] | None:
    """Returns the most frequent items, in order of first occurrence."""
    if not items:
        return None
    counts = Counter(items)
    most = max(counts.values())
    return [item for item, count in counts.items() if count == most]


@jinja2.pass_context
def _truncate(context: jinja2.runtime.Context, text: str, length: int) -> str:
    """Truncates a printed text as promptsource does, and records the length before truncation."""
    if len(text) <= length:
        return text
    cut = do_truncate(context.environment, text, length)
    if cut is not text:
        context[CUTS].append(len(text))
    return cut


def count_cuts(tree: nodes.Template) -> None:
    """Changes a parsed template so that `_truncate` replaces Jinja's filter `truncate`."""
    for node in tree.find_all(nodes.Filter):
        if node.name == "truncate" and node.args == [nodes.Const(LONGEST_PRINTED)]:
            node.name = _CUT_FILTER


def _highlight(text: str) -> str:
    return "<span style='color: #F08080'>" + text + "</span>"


def whole_number(value: Any) -> int | None:
    """Returns the integer that a value represents (1 for 1, 1.0, "1" and "1.0"), or None.

    >>> [whole_number(value) for value in (True, 2.0, "3", " 4.0 ", 0.5, float("nan"), "yes", None)]
    [1, 2, 3, 4, None, None, None, None]
    """
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        if not isinstance(value, str):
            return None
        try:
            number = float(value)
        except ValueError:
            return None
        return int(number) if number.is_integer() else None
    return number if isinstance(value, str) or number == value else None


@jinja2.pass_context
def _index(
    context: jinja2.runtime.Context,
    value: Any,
    items: Any,
    column: str,
    of_choices: bool,
    calculated: bool,
) -> Any:
    """Converts the subscript in `items[value]` in a template to the subscript to use.

    Args:
      context: the template's variables.
      value: the value of the subscript in this row.
      items: the list or mapping.
      column: the name of the column that contains the value, for messages.
      of_choices: whether `items` are answer choices. If so, `value` must select a choice.
      calculated: whether the subscript is an arithmetic or conditional expression, as in `1 - x`.

    Raises:
      UserError: `value` selects none of the choices.
    """
    if isinstance(value, jinja2.Undefined) or is_missing(value):
        return value
    number = whole_number(value)
    if isinstance(items, Mapping):
        keys = () if number is None or value in items else (number, str(number))
        return next((key for key in keys if key in items), value)
    if not isinstance(items, list | tuple):
        return value
    # As in promptsource, a withheld label of -1 selects the last choice. `RowReport` counts the
    # rows with a withheld label. In a user's own data, -1 can also be a class. The function `hides`
    # reads the split's rows to find out whether -1 is a class or a withheld label.
    hides = context.get(HIDES)
    lowest = -1 if hides is None else 0
    checked = of_choices and not (calculated and hides is None)
    withheld = hides is not None and (number == -1 or calculated)
    if (
        checked
        and (number is None or not lowest <= number < len(items))
        and not (withheld and hides(column))
    ):
        listed = ", ".join(f"{i} is {item!r}" for i, item in enumerate(items[:20]))
        verb = "makes" if calculated else "is"
        why = " (-1 is a class, since the split has other labels)" if number == -1 and hides else ""
        raise UserError(
            f"column '{column}' {verb} {value!r}, which selects none of the {len(items)} choices"
            f"{why} ({listed}); write the label's number, or null if the row has none"
        )
    return value if number is None else number


def read_labels(tree: nodes.Template) -> None:
    """Changes a parsed template so that labels in subscripts are converted to integers and checked.

    If a float or a string represents a whole number, it selects the item with that index. If a
    value selects no answer choice, or no item of a list in the template, rendering raises a
    UserError that names the value's column.
    """
    literals = (nodes.List, nodes.Tuple)
    for node in list(tree.find_all(nodes.Getitem)):
        names = [node.arg] if isinstance(node.arg, nodes.Name) else node.arg.find_all(nodes.Name)
        column = next((name.name for name in names), None)
        if column is None or isinstance(node.arg, nodes.Slice):
            continue
        if not isinstance(node.node, (nodes.Name, nodes.Dict, *literals)):
            continue
        choices = isinstance(node.node, literals) or (
            isinstance(node.node, nodes.Name) and node.node.name == "answer_choices"
        )
        # For example, if the label is -1 (withheld), the subscript in `answer_choices[1 - label]`
        # is 2.
        calculated = isinstance(node.arg, nodes.BinExpr | nodes.UnaryExpr | nodes.CondExpr)
        arguments = [node.node, *map(nodes.Const, (column, choices, calculated))]
        node.arg = nodes.Filter(node.arg, _INDEX_FILTER, arguments, [], None, None)
        node.arg.lineno = node.lineno


def may_change_rows(tree: nodes.Template) -> bool:
    """Returns whether a parsed template may call a method that changes a list or dict of its row.

    A template can change an object only by calling a method. All calls are counted, except calls of
    `range`, `zip` and methods in `_READS`. But if the template makes dicts, the name of a method in
    `_READS` may also be a key with another method.
    """
    makes_dicts = next(tree.find_all(nodes.Dict), None) is not None

    def is_harmless(callee: nodes.Expr) -> bool:
        if isinstance(callee, nodes.Name):
            return callee.name in ("range", "zip")
        return isinstance(callee, nodes.Getattr) and callee.attr in _READS and not makes_dicts

    return not all(is_harmless(call.node) for call in tree.find_all(nodes.Call))


def read_as_nested(tree: nodes.Template) -> Iterator[str]:
    """Yields the names that a parsed template reads as lists or objects."""
    called = {id(call.node) for call in tree.find_all(nodes.Call)}
    bases = [loop.iter for loop in tree.find_all(nodes.For)]
    bases += [each.node for each in tree.find_all(nodes.Filter) if each.name in _ITEM_FILTERS]
    bases += [each.node for each in tree.find_all(nodes.Getattr) if id(each) not in called]
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == "zip":
            bases += call.args
    for item in tree.find_all(nodes.Getitem):
        if isinstance(item.arg, nodes.Const) and isinstance(item.arg.value, str):
            bases.append(item.node)
    return (base.name for base in bases if isinstance(base, nodes.Name))


def _make_environment(kind: type[sandbox.SandboxedEnvironment]) -> sandbox.SandboxedEnvironment:
    environment = kind()
    environment.globals["zip"] = zip
    del environment.globals["lipsum"]
    environment.filters.update(
        choice=_choice, random=_random, most_frequent=_most_frequent, highlight=_highlight
    )
    environment.filters |= {_INDEX_FILTER: _index, _CUT_FILTER: _truncate}
    environment.filters |= missing_values.FILTERS
    return environment


ENVIRONMENT = _make_environment(sandbox.SandboxedEnvironment)
METERED_ENVIRONMENT = _make_environment(budget.MeteredEnvironment)
METERED_ENVIRONMENT.add_counting_filters()


class PrintsNested(Exception):
    """Raised when a template prints a list or an object of a row from `mark_nested`."""


def _refuse_to_print(value: Any) -> str:
    raise PrintsNested


def _refuse_nested(value: Any) -> Any:
    return _refuse_to_print(value) if isinstance(value, list | tuple | Mapping) else value


# It calls `_refuse_nested` with each value that a template prints.
CHECKING_ENVIRONMENT = ENVIRONMENT.overlay(finalize=_refuse_nested)


@jinja2.pass_context
def _find_words(context: jinja2.runtime.Context, value: Any) -> Any:
    if str(value).strip() in missing_values.WORDS:
        context[missing_values.COUNTS].append(value)
    return value


# It records the printed values that are texts such as `None`.
SEARCHING_ENVIRONMENT = ENVIRONMENT.overlay(finalize=_find_words)


class _MarkedDict(dict[Any, Any]):
    __repr__ = _refuse_to_print


class _MarkedList(list[Any]):
    __repr__ = _refuse_to_print

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        return _MarkedList(item) if isinstance(index, slice) else item


def mark_nested(value: Any) -> Any:
    """Returns a copy of a value whose lists and dicts raise `PrintsNested` when printed."""
    if isinstance(value, Mapping):
        return _MarkedDict({key: mark_nested(item) for key, item in value.items()})
    return _MarkedList(map(mark_nested, value)) if isinstance(value, list | tuple) else value


def draws_at_random(tree: nodes.Template) -> bool:
    """Returns whether a parsed template needs a random stream (`STREAM`)."""
    return any(node.name in _RANDOM_FILTERS for node in tree.find_all(nodes.Filter))
