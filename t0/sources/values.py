"""Values of one column brought to the form that T0's templates were written for.

    convert = converter({"names": ["no", "yes"], "_type": "ClassLabel"})
    convert("yes"), convert(1), convert("1"), convert(-1)   # (1, 1, 1, -1)

Class labels are integers (-1: withheld), and so are columns of integers, whether a copy spells them
1, 1.0 or "1"; a number in a column of text is text again; NaN, as pandas writes what is missing, is
None in all of these. A sequence of records is one dict of lists, as in rows of the `datasets`
library; a nested value that a text file had to spell out is JSON. Everything else stays as the file
has it. Columns that need nothing of this have no converter.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

from t0.prompts import is_missing, whole_number

Converter = Callable[[Any], Any]


def converter(feature: Any) -> Converter | None:  # noqa: ANN401
    """Returns the function for a column of this feature, None where values stay as they are.

    The function raises ValueError, with a text for the user, on a value that does not fit.
    """
    kind = _kind(feature)
    if kind == "ClassLabel":
        return functools.partial(_class_label, names=tuple(feature["names"]))
    if kind == "Value":
        if feature["dtype"] == "string":
            return _text
        return _integer if "int" in feature["dtype"] else None
    inner = _nested(feature)
    return functools.partial(_parsed, convert=inner) if inner else None


def _kind(feature: Any) -> str:  # noqa: ANN401
    """Returns Value, ClassLabel, Sequence, dict or list; a column may itself be called `_type`."""
    if isinstance(feature, list):
        return "list"
    kind = feature.get("_type")
    if isinstance(kind, str):
        return "Sequence" if kind == "List" else kind
    return "dict"


def _nested(feature: Any) -> Converter | None:  # noqa: ANN401
    """Returns the function for a value that may be nested: never None for one that is."""
    kind = _kind(feature)
    if kind == "ClassLabel":
        return converter(feature)
    if kind == "dict":
        return functools.partial(_dict, convert={k: _nested(v) for k, v in feature.items()})
    if kind == "list":
        return functools.partial(_list, convert=_nested(feature[0]))
    if kind == "Sequence" and _kind(feature["feature"]) == "dict":
        fields = {name: _nested(item) for name, item in feature["feature"].items()}
        return functools.partial(_dict_of_lists, convert=fields)
    if kind == "Sequence":
        return functools.partial(_list, convert=_nested(feature["feature"]))
    return None


def _class_label(value: Any, *, names: tuple[str, ...]) -> int | None:  # noqa: ANN401
    if is_missing(value):
        return None
    # A name first: where the names are "0" and "1" both readings agree. str(True) is boolq's name.
    if isinstance(value, str | bool) and str(value) in names:
        return names.index(str(value))
    number = whole_number(value)
    if number is None or not -1 <= number < len(names):
        listed = ", ".join(f"{i}={name}" for i, name in enumerate(names[:60]))
        raise ValueError(f"{value!r} is no class label; labels are {listed} (-1: withheld)")
    return number


def _integer(value: Any) -> int | None:  # noqa: ANN401
    if type(value) is int or is_missing(value):
        return value if type(value) is int else None
    number = whole_number(value)
    if number is None:
        raise ValueError(f"{value!r} is no whole number")
    return number


def _text(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = whole_number(value)
        return None if is_missing(value) else str(value if number is None else number)
    return value


def _parsed(value: Any, *, convert: Converter) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{value[:80]!r} is not JSON, which a text file needs for a nested column ({error})"
            ) from error
    return convert(value)


def _dict(value: Any, *, convert: dict[str, Converter | None]) -> Any:  # noqa: ANN401
    if not isinstance(value, dict):
        return value
    return {key: _apply(convert.get(key), item) for key, item in value.items()}


def _list(value: Any, *, convert: Converter | None) -> Any:  # noqa: ANN401
    if not isinstance(value, list) or convert is None:
        return value
    return [convert(item) for item in value]


def _dict_of_lists(value: Any, *, convert: dict[str, Converter | None]) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        value = {name: [(item or {}).get(name) for item in value] for name in convert}
    if not isinstance(value, dict):
        return value
    return {name: _list(items, convert=convert.get(name)) for name, items in value.items()}


def _apply(convert: Converter | None, value: Any) -> Any:  # noqa: ANN401
    return value if convert is None else convert(value)
