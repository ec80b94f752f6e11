"""Checked access to the fields of a JSON object, with errors that name the place.

    field({"step": 3}, "step", int, "results_3.json")                  # 3
    field({"step": "3"}, "step", int, "results_3.json")                # UserError
    field({}, "step", int, "results_3.json", default=None)             # None

A field that is null counts as absent. Booleans are no numbers, NaN and infinities neither.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from t0.errors import UserError

_MISSING = object()


def json_object(text: str, where: object) -> dict[str, Any]:
    """Returns the object that a text holds as JSON, else UserError."""
    try:
        record = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON ({error}).") from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: wanted an object, got {record!r:.80}.")
    return record


def field(
    record: Mapping[str, Any], key: str, kind: type, where: object, *, default: Any = _MISSING
) -> Any:
    """Returns `record[key]`, which must be of the kind given; the default where it is absent.

    Raises:
        UserError: absent without a default, or of another kind.
    """
    value = record.get(key)
    if value is None:
        if default is _MISSING:
            raise UserError(f"{where}: the field '{key}' is missing.")
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"{where}: '{key}' must be {kind.__name__}, got {value!r:.80}.")
    return value


def numbers(record: Mapping[str, Any], where: str) -> dict[str, float]:
    """Returns the record, all of whose values must be finite numbers, else UserError."""
    for key, value in record.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise UserError(f"{where}: '{key}' must be a finite number, got {value!r:.80}.")
    return {key: float(value) for key, value in record.items()}


def percentage(record: Mapping[str, Any], key: str, where: str) -> float | None:
    """Returns `record[key]`, a number from 0 to 100; None where it is absent."""
    if record.get(key) is None:
        return None
    value = numbers({key: record[key]}, where)[key]
    if not 0 <= value <= 100:
        raise UserError(f"{where}: '{key}' must be a percentage from 0 to 100, got {value:g}.")
    return value


def counts(record: Mapping[str, Any], where: str) -> dict[str, int]:
    """Returns the record, all of whose values must be whole numbers from 0, else UserError."""
    for key, value in record.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise UserError(f"{where}: '{key}' must be a count, got {value!r:.80}.")
    return dict(record)
