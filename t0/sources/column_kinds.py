"""Finds the kinds of values in columns, and reads the values of other files as the same kinds.

    find_kinds([{"text": "a", "options": ["x", "y"]}])      # {"text": "text", "options": "list"}
    read_as("list", '["red", "blue"]')                      # ["red", "blue"], as in a csv file
    source_kinds("quiz", None, "train")                     # the kinds in the rows of a split

A text file, such as csv, has lists and objects as JSON texts, and its numbers may be texts. A
prompt that was made for a list would join such a text letter by letter. So a training run records
the kinds of its columns, and predictions read new rows as these kinds. The columns of T0's own
datasets have the types that `t0.sources.schema` records.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from t0.errors import UserError
from t0.files.untrusted import parsed_json
from t0.prompts import is_missing
from t0.sources.csv_reader import number
from t0.sources.schema import Converter, converter, features
from t0.sources.splits import local_files, open_split

_SAMPLED_ROWS = 1000
_NESTED = "list or object"
# Kind -> the types of its values. A bool is also an int, so "truth value" is before "number".
_TYPES = {
    "text": str,
    "truth value": bool,
    "number": int | float,
    "list": list | tuple,
    "object": Mapping,
    _NESTED: list | tuple | Mapping,
}
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def find_kinds(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns column -> the kind of its values, for columns whose values all have one kind.

    The kinds are text, truth value, number, list and object. In the names of columns, underscores
    replace hyphens, as in templates.
    """
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            if not is_missing(value):
                kinds.setdefault(name.replace("-", "_"), set()).add(_kind_of(value))
    return {name: next(iter(s)) for name, s in kinds.items() if len(s) == 1 and "" not in s}


def _kind_of(value: Any) -> str:
    return next((kind for kind, type_ in _TYPES.items() if isinstance(value, type_)), "")


def source_kinds(dataset: str, subset: str | None, split: str) -> dict[str, str]:
    """Returns the kinds of the columns of one of the user's own datasets.

    The kinds are found in the first rows. The result is empty for T0's datasets, whose types are
    recorded, and if the rows are not in the data folders or cannot be read.
    """
    try:
        if features(dataset, subset) or not local_files(dataset, subset, split):
            return {}
        return find_kinds(
            itertools.islice(open_split(dataset, subset, split).rows(), _SAMPLED_ROWS)
        )
    except UserError:
        return {}


def make_converters(
    dataset: str, kinds: Mapping[str, str], nested: Iterable[str]
) -> dict[str, Converter]:
    """Returns name in templates -> a function that reads a value as in the training data.

    The functions raise ValueError for a value that cannot be read.

    Args:
      dataset: the training data: a dataset's name, with a slash and the subset if there is one.
      kinds: the kinds of its columns; empty if they were not recorded.
      nested: the columns that the template reads as lists or objects.
    """
    name, _, subset = dataset.rpartition("/")
    types = features(dataset) or (features(name, subset) if name else None) or {}
    recorded = {column.replace("-", "_"): converter(kind) for column, kind in types.items()}
    unknown = {column: _read_nested for column in nested if column not in recorded}
    own = {column: _Reader(kind) for column, kind in kinds.items() if column not in recorded}
    return unknown | own | {column: read for column, read in recorded.items() if read}


class _Reader:
    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(self, value: Any) -> Any:
        return read_as(self._kind, value)


def read_as(kind: str, value: Any) -> Any:
    """Reads a value as a kind: JSON text as a list or an object, a number as text, and so on.

    A missing value is None, except that an empty text stays empty. A text that is no number stays
    a text.

    Raises:
      ValueError: the value cannot be read as this kind.
    """
    if is_missing(value) and not (kind == "text" and value == ""):
        return None
    if kind in ("list", "object", _NESTED) and isinstance(value, str):
        try:
            value = parsed_json(value) if value.strip() else None
        except ValueError:
            raise _misfit(kind, value) from None
        if value is None:
            return None
    elif kind == "truth value" and not isinstance(value, bool):
        value = _TRUTH.get(str(value).strip().lower(), value)
    elif kind == "number" and isinstance(value, str):
        exact = number(value.strip())
        return value if exact is None else exact
    elif kind == "text" and _kind_of(value) == "number":
        return str(value)
    if kind in _TYPES and not isinstance(value, _TYPES[kind]):
        raise _misfit(kind, value)
    return value


def _read_nested(value: Any) -> Any:
    """Reads a text that begins like a list or an object as JSON; returns other values unchanged."""
    if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        return read_as(_NESTED, value)
    return value


def _misfit(kind: str, value: Any) -> ValueError:
    as_json = ' as JSON text, such as ["red", "blue"]' if kind in ("list", _NESTED) else ""
    as_json = ' as JSON text, such as {"stem": "red"}' if kind == "object" else as_json
    return ValueError(
        f"expected a {kind}, as in the training data{as_json}, got {value!r:.80}. Write the rows "
        "as in the training data, or as JSON Lines"
    )
