r"""Prints nothing for missing values in a user's templates, and leaves out blank answer options.

    tree = environment.parse("{{ name }} costs {{ price }}")
    print_nothing_if_missing(tree)      # rendered with price=None: "The lamp costs "

    options = Options(["red", "", "blue"])
    ", ".join(options), options[2]      # "red, blue", "blue"
    is_missing(float("nan"))            # True

Missing values are None and NaN. Promptsource prints them as `None` and `nan`, and T0's own
templates keep these texts. In a user's templates, nothing is printed, also if the template
concatenates, joins, formats or changes the value as text. Elsewhere in an expression, the value is
None: `{% if price is none %}` and comparisons work as in Jinja.

An environment that renders such trees needs the filters in `FILTERS`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

COUNTS = "\0missing"
"""The variable with a list, to which rendering appends an item for each value printed as nothing.

No column can have this name.
"""

WORDS = frozenset(("None", "nan", "NaN", "NaT", "<NA>", "[]", "{}"))
"""The texts that programs print for missing and empty values."""

_SHOW, _SHOW_ITEMS = "\0show", "\0show_items"  # a template cannot write these names
# Filters that read their input as text.
_TEXT_FILTERS = frozenset(
    ("capitalize", "center", "e", "escape", "forceescape", "indent", "lower", "replace", "safe",
     "string", "striptags", "title", "trim", "truncate", "upper", "urlencode", "urlize",
     "wordcount", "wordwrap", "\0cut")
)  # fmt: skip
# Filters and methods whose arguments become a part of the text.
_PRINT_ARGUMENTS = frozenset(("format", "join", "replace"))


class _Nothing(str):
    """The empty text, which also prints as nothing in a format such as `{:.2f}`."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return ""


_NOTHING = _Nothing()


class Options(list[str]):
    """The answer options of a row, some of which may be blank.

    An index selects an option by its number in the template. Iteration leaves out blank options.
    """

    def __iter__(self) -> Iterator[str]:
        return filter(None, super().__iter__())

    def __reversed__(self) -> Iterator[str]:
        return filter(None, super().__reversed__())


def is_missing(value: Any) -> bool:
    """Returns whether a value is missing: None, an empty string or NaN."""
    return value is None or value == "" or is_nan(value)


def is_nan(value: Any) -> bool:
    """Returns whether a value is NaN."""
    return isinstance(value, float) and math.isnan(value)


def has_missing(value: Any) -> bool:
    """Returns whether a value of a row is missing or blank, or contains such a value."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return any(map(has_missing, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_missing, value))
    return is_missing(value)


@jinja2.pass_context
def _show(context: jinja2.runtime.Context, value: Any) -> Any:
    if value is not None and not is_nan(value):
        return value
    context.get(COUNTS, []).append(value)
    return _NOTHING


@jinja2.pass_context
def _show_items(context: jinja2.runtime.Context, items: Iterable[Any] | None) -> Any:
    if isinstance(items, str | jinja2.Undefined):
        return items
    return [_show(context, item) for item in _show(context, items)]


FILTERS = {_SHOW: _show, _SHOW_ITEMS: _show_items}


def print_nothing_if_missing(tree: nodes.Template) -> None:
    """Changes a parsed template so that it prints nothing for None and NaN."""
    _Showing().visit(tree)


class _Showing(NodeTransformer):
    def visit(self, node: nodes.Node) -> nodes.Node:
        """Returns the changed node."""
        self.generic_visit(node)
        if type(node) in _CHANGES:
            _CHANGES[type(node)](node)
        return node


def _change_pieces(node: nodes.Output | nodes.Concat) -> None:
    node.nodes = _wrap_all(node.nodes)


def _change_filter(node: nodes.Filter) -> None:
    if node.node is not None and node.name in _TEXT_FILTERS:
        node.node = _wrap(node.node)
    if node.node is not None and (node.name == "join" or _maps_texts(node)):
        _map_attribute(node)
        node.node = _wrap(node.node, _SHOW_ITEMS)
    if node.name in _PRINT_ARGUMENTS:
        _wrap_arguments(node)


def _change_call(node: nodes.Call) -> None:
    method = node.node.attr if isinstance(node.node, nodes.Getattr) else None
    if method == "join":
        node.args = [_wrap(each, _SHOW_ITEMS) for each in node.args]
    elif method in _PRINT_ARGUMENTS:
        _wrap_arguments(node)


def _change_format(node: nodes.Mod) -> None:
    if isinstance(node.left, nodes.Const) and isinstance(node.left.value, str):
        if isinstance(node.right, nodes.Tuple):
            node.right.items = _wrap_all(node.right.items)
        else:
            node.right = _wrap(node.right)


_CHANGES: dict[type[nodes.Node], Callable[[Any], None]] = {
    nodes.Output: _change_pieces,
    nodes.Concat: _change_pieces,
    nodes.Filter: _change_filter,
    nodes.Call: _change_call,
    nodes.Mod: _change_format,
}


def _maps_texts(node: nodes.Filter) -> bool:
    """Returns whether a filter is `map` with the name of a text filter, as in `map("lower")`."""
    name = node.args[0] if node.name == "map" and node.args else None
    return isinstance(name, nodes.Const) and name.value in _TEXT_FILTERS


def _map_attribute(node: nodes.Filter) -> None:
    """Changes `items | join(", ", "a")` to `items | map(attribute="a") | join(", ")`."""
    if node.name != "join":
        return
    attributes = [each for each in node.kwargs if each.key == "attribute"]
    if len(node.args) > 1:
        attributes = [nodes.Keyword("attribute", node.args[1])]
        node.args = node.args[:1]
    if attributes:
        node.kwargs = [each for each in node.kwargs if each.key != "attribute"]
        node.node = nodes.Filter(node.node, "map", [], attributes, None, None, lineno=node.lineno)


def _wrap_arguments(node: nodes.Filter | nodes.Call) -> None:
    node.args = _wrap_all(node.args)
    for keyword in node.kwargs:
        keyword.value = _wrap(keyword.value)


def _wrap_all(values: Sequence[nodes.Expr]) -> list[nodes.Expr]:
    return [_wrap(value) for value in values]


def _wrap(value: nodes.Expr, name: str = _SHOW) -> nodes.Expr:
    """Returns a node that replaces a missing value, if the value can be missing."""
    is_text = isinstance(value, nodes.TemplateData | nodes.Concat) or (
        isinstance(value, nodes.Filter) and value.name in _TEXT_FILTERS
    )
    if name == _SHOW and is_text:
        return value
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)
