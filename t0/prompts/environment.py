"""The one Jinja environment of all templates: sandboxed, with promptsource 0.1.0's names in it.

    variables = {"words": ["sun", "rain"], STREAM: random.Random("seed")}
    ENVIRONMENT.from_string("{{ words | choice }}").render(variables)

Promptsource adds the global `zip` and the filters `choice`, `most_frequent` and `highlight` to
Jinja's own; nothing else is added here. Two things are taken from it: `choice` and Jinja's `random`
draw from the stream of the row instead of Python's shared one, and `lipsum`, which can only draw
from the shared one, is gone. So what a template prints depends on the row and the stream alone.

`read_labels` changes a parsed template of the user's own, so that `answer_choices[label]` takes a
label that a file spells `1.0` or `"1"` for the integer that it means, and refuses one that picks no
choice, where promptsource prints nothing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import meta, nodes, sandbox

from t0.errors import UserError

STREAM = "\0stream"
"""The name under which a `random.Random` is passed: no Jinja identifier, so no column hides it."""

_RANDOM_FILTERS = ("choice", "random")
_INDEX_FILTER = "\0index"  # no name that a template could write


@jinja2.pass_context
def _choice(context: jinja2.runtime.Context, items: Sequence[Any]) -> Any:
    """Draws one item. Taking the context keeps Jinja from drawing at compile time, once for all."""
    if not len(items):
        raise IndexError("'choice' got an empty sequence or a column that the row lacks")
    return context[STREAM].choice(items)


@jinja2.pass_context
def _random(context: jinja2.runtime.Context, items: Sequence[Any]) -> Any:
    """Draws one item, or nothing from an empty sequence, as Jinja's own filter of this name."""
    if not len(items):
        return context.environment.undefined("No random item, sequence was empty.")
    return context[STREAM].choice(items)


def _most_frequent(items: Sequence[Any]) -> list[Any] | None:
    """Returns the items that occur most often, in order of first occurrence."""
    if not items:
        return None
    counts = Counter(items)
    most = max(counts.values())
    return [item for item, count in counts.items() if count == most]


def _highlight(text: str) -> str:
    return "<span style='color: #F08080'>" + text + "</span>"


def whole_number(value: Any) -> int | None:
    """Returns the integer that a value means: of 1, 1.0, "1" and "1.0" it is 1; else None.

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


def is_missing(value: Any) -> bool:
    """Returns whether a value stands for none: None, an empty text, NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _index(value: Any, items: Any, column: str, of_choices: bool) -> Any:
    """Returns what to subscript `items` with, where a template says `items[value]`.

    Args:
      column: what the template calls the value.
      of_choices: `items` are alternatives of which a label must pick one.

    Raises:
      UserError: a label picks none of the choices.
    """
    if isinstance(value, jinja2.Undefined) or is_missing(value):
        return value
    number = whole_number(value)
    if isinstance(items, Mapping):
        keys = () if number is None or value in items else (number, str(number))
        return next((key for key in keys if key in items), value)
    if not isinstance(items, list | tuple):
        return value
    # -1 is a withheld label, which picks the last choice in promptsource; it is counted elsewhere.
    if of_choices and (number is None or not -1 <= number < len(items)):
        listed = ", ".join(f"{i} is {item!r}" for i, item in enumerate(items[:20]))
        raise UserError(
            f"column '{column}' is {value!r}, which picks none of the {len(items)} choices "
            f"({listed}); write the label's number, or null where there is none"
        )
    return value if number is None else number


def read_labels(tree: nodes.Template) -> None:
    """Makes the subscripts of a parsed template read labels as what they mean.

    Lists are subscripted with the whole number that a float or a text means; a value that picks no
    answer choice, or none of a list in the template itself, is a UserError that names its column.
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
        # In `answer_choices[1 - label]` a withheld label gives 2: only the label itself is refused.
        calculated = isinstance(node.arg, nodes.BinExpr | nodes.UnaryExpr | nodes.CondExpr)
        of_choices = choices and not calculated
        arguments = [node.node, nodes.Const(column), nodes.Const(of_choices)]
        node.arg = nodes.Filter(node.arg, _INDEX_FILTER, arguments, [], None, None)
        node.arg.lineno = node.lineno
    tree.set_environment(ENVIRONMENT)


def _make_environment() -> sandbox.SandboxedEnvironment:
    environment = sandbox.SandboxedEnvironment()
    environment.globals["zip"] = zip
    del environment.globals["lipsum"]
    environment.filters.update(
        choice=_choice, random=_random, most_frequent=_most_frequent, highlight=_highlight
    )
    environment.filters[_INDEX_FILTER] = _index
    return environment


ENVIRONMENT = _make_environment()


def build(tree: nodes.Template) -> jinja2.Template:
    """Compiles a parsed template.

    `from_string` would do, but it wraps the globals in a ChainMap, and copying that for each row
    takes more than half of the time of a short template.
    """
    code = ENVIRONMENT.compile(tree)
    return jinja2.Template.from_code(ENVIRONMENT, code, ENVIRONMENT.globals)


def draws_at_random(tree: nodes.Template) -> bool:
    """Tells whether a parsed template needs a `STREAM`."""
    return any(node.name in _RANDOM_FILTERS for node in tree.find_all(nodes.Filter))


def reads_names(tree: nodes.Template) -> bool:
    """Tells whether a parsed template reads or sets any name at all, its own or Jinja's included.

    One that does not, and does not draw, prints the same for every row.
    """
    return next(tree.find_all(nodes.Name), None) is not None


def columns_read(source: str) -> frozenset[str]:
    """Returns the names that the source takes from the row (the undeclared ones).

    Raises:
        jinja2.TemplateSyntaxError: the source is not valid Jinja.
    """
    return frozenset(meta.find_undeclared_variables(ENVIRONMENT.parse(source)))
