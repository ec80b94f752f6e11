"""Prepares rows for rendering: column names without hyphens, texts without the separator.

    row = {"review-text": "wet ||| cold", "label": 1}
    remove_hyphens(row)         # {"review_text": "wet ||| cold", "label": 1}
    prepared(row)               # the same, with a placeholder instead of "|||"

Templates separate inputs and targets with "|||". So this string must not be in the texts of a row
while a template is rendered. After rendering, "|||" replaces the placeholder in the rendered text.
"""

from collections.abc import Callable, Mapping
from typing import Any

from t0.prompts.unlabeled import SEPARATOR

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
    return {
        name: value.replace(SEPARATOR, PIPE_PROTECTOR)
        if isinstance(value, str)
        else protect_value(value)
        if isinstance(value, list | dict | tuple) and holds_separator(value)
        else value
        for name, value in row.items()
    }


def holds_separator(value: Any) -> bool:
    """Returns whether a value contains the separator in a text, also in a nested one."""
    if isinstance(value, str):
        return SEPARATOR in value
    if isinstance(value, Mapping):
        return any(map(holds_separator, value)) or any(map(holds_separator, value.values()))
    return isinstance(value, list | tuple) and any(map(holds_separator, value))


def protect_value(value: Any) -> Any:
    """Returns a copy of a value with the separator replaced in all texts, also in nested texts."""
    if isinstance(value, str):
        return value.replace(SEPARATOR, PIPE_PROTECTOR)
    if isinstance(value, Mapping):
        return {protect_value(key): protect_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(protect_value, value))
    return value
