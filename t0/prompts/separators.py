"""Protects separators in rows, and finds the part of a template before its separator.

    row = {"review-text": "wet ||| cold", "label": 1}
    remove_hyphens(row)         # {"review_text": "wet ||| cold", "label": 1}
    prepared(row)               # the same, with a placeholder instead of "|||"

    "".join(until_separator(iter(["Is it wet?", " ||| ", "yes"])))    # "Is it wet? |||"
    remove_targets(tree.body)   # the parsed template then only reads the columns of its inputs

Templates separate inputs and targets with "|||". So this string must not be in the texts of a row
while a template is rendered. After rendering, "|||" replaces the placeholder in the rendered text.
A row without a label can only print the part of a template before the separator.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jinja2 import nodes

SEPARATOR = "|||"
# During rendering, promptsource replaces the separator inside a row's text with this string. This
# module uses the same string, because its length matters when printed texts are truncated.
PIPE_PROTECTOR = "3ed2dface8203c4c9dfb1a5dc58e41e0"


def remove_hyphens(row: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces `-` with `_` in column names, because Jinja reads `a-b` as a subtraction."""
    return {name.replace("-", "_"): value for name, value in row.items()}


class PreparedRow(dict[str, Any]):
    """A row that was prepared for `CompiledTemplate.example` (see `prepared`).

    Attributes:
      hides: a function that takes a column's name and returns whether -1 in this column means a
        withheld label; None for a row that is not an `OwnRow` (see `t0.sources.schema`).
    """

    hides: Callable[[str], bool] | None = None


def prepared(row: Mapping[str, Any]) -> PreparedRow:
    """Prepares a row, so that several templates can render it without preparing it again."""
    ready = PreparedRow(protect_row(remove_hyphens(row)))
    ready.hides = getattr(row, "hides", None)
    return ready


def protect_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of the row with the separator replaced in all texts, also in nested texts."""
    return {name: protect_value(value) for name, value in row.items()}


def protect_value(value: Any) -> Any:
    """Returns a copy of a value with the separator replaced in all texts, also in nested texts."""
    if isinstance(value, str):
        return value.replace(SEPARATOR, PIPE_PROTECTOR)
    if isinstance(value, Mapping):
        return {protect_value(key): protect_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(protect_value, value))
    return value


def until_separator(pieces: Iterator[str]) -> Iterator[str]:
    """Yields a template's printed pieces up to the first separator.

    Jinja computes the pieces one by one. So the target, which needs the label, is not computed.
    """
    for piece in pieces:
        inputs, separator, _ = piece.partition(SEPARATOR)
        yield inputs + separator
        if separator:
            return


def remove_targets(body: list[nodes.Node]) -> bool:
    """Removes the nodes after separators; returns whether there is a separator."""
    last = None
    for position, node in enumerate(body):
        if isinstance(node, nodes.Output):
            pieces = node.nodes
            first = next((n for n, each in enumerate(pieces) if _prints_separator(each)), None)
            if first is not None:
                del pieces[first:], body[position + 1 :]
                return True
            continue
        branches = [getattr(node, name, None) or [] for name in ("body", "else_")]
        branches += [branch.body for branch in getattr(node, "elif_", None) or []]
        if sum(map(remove_targets, branches)):  # `any` would not visit all branches
            last = position  # a later node may print inputs of rows that skip this node
    if last is not None:
        del body[last + 1 :]
    return last is not None


def _prints_separator(node: nodes.Node) -> bool:
    return isinstance(node, nodes.TemplateData) and SEPARATOR in node.data
