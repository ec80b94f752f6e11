"""Reads plain data, as in JSON, into dataclasses, and checks types and ranges.

    read_plain({"sizes": [3]}, Mapping[str, Sequence[Positive]], "lengths")   # {"sizes": (3,)}
    read_file("/models/tiny/windows.json", Sequence[Count], "Delete it.")

The type is often a dataclass. A field of it may have a type such as `Positive`, which limits the
range of a number.
"""

import dataclasses
import functools
import itertools
import json
import math
import posixpath
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from t0.errors import UserError, short_reason
from t0.files import paths
from t0.files.untrusted import parsed_json

Record = typing.TypeVar("Record")
LARGEST = 2**63 - 1  # the largest integer of numpy and PyTorch


_UNLIMITED = 2**31 - 1  # a maximum from here on only excludes what a computer cannot represent
_IN_WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    types.NoneType: "None",
}


@dataclasses.dataclass(frozen=True)
class Range:
    """The allowed range of a number, in an `Annotated` type: its smallest and largest value."""

    least: float
    most: float = LARGEST


class OpenRecord:
    """The base of dataclasses for files that other programs and versions also write.

    Fields that the dataclass does not have are ignored, and a field that is null counts as missing.
    """


Count = Annotated[int, Range(0)]
NotNegative = Annotated[float, Range(0, sys.float_info.max)]
Share = Annotated[float, Range(0, 1)]
BelowOne = Annotated[float, Range(0, 1 - 1e-9)]  # the decay of a moving average
ActivationType = Literal["auto", "float32", "bfloat16"]  # auto: bfloat16 where that is fast
Positive = Annotated[int, Range(1, 2**31 - 1)]
Tokens = Annotated[int, Range(1, 2**20)]
Rows = Annotated[int, Range(1, 2**20)]


def to_json(record: Any) -> str:
    """Returns a dataclass as JSON text."""
    return json.dumps(dataclasses.asdict(record), indent=1, ensure_ascii=False, allow_nan=False)


def read_file(path: str, kind: Any, fix: str, check: Callable[[Any], Any] = bool) -> Any:
    """Reads a JSON file as the type `kind`; returns None if there is no such file.

    Args:
      path: the file, local or `gs://`.
      kind: the type, such as a dataclass.
      fix: the sentence of the error message that says what to do.
      check: a function that raises a ValueError if the value is wrong.

    Raises:
      UserError: the file is damaged.
    """
    if not paths.exists(path):
        return None
    try:
        value = read_plain(parsed_json(paths.read_bytes(path)), kind, posixpath.basename(path))
        check(value)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {short_reason(error)}. {fix}") from error
    return value


def read_plain(value: Any, kind: Any, location: str) -> Any:
    """Converts a value from JSON to the type `kind`.

    Args:
      value: plain data.
      kind: a dataclass, `Any`, bool, int, float, str, a `Literal`, or a type built from these: a
        union, a `Mapping` with string keys, a `Sequence`, a tuple, or an `Annotated` type with a
        `Range`.
      location: the name of the value, for messages.

    Raises:
      ValueError: the value has a wrong type or is out of range.
    """
    return _reader(kind)(value, location)


@functools.cache
def _reader(kind: Any) -> Callable[[Any, str], Any]:
    """Returns `read_plain` for one type. A type is analyzed once, because files have many lines."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value, location: value
    if origin is Annotated:
        return functools.partial(_read_number, *arguments)
    if kind in (int, float):
        most = LARGEST if kind is int else sys.float_info.max
        return functools.partial(_read_number, kind, Range(-most, most))
    if origin in (types.UnionType, typing.Union):
        rest = [kind for kind in arguments if kind is not types.NoneType]
        # A JSON object can be a dataclass or a mapping. Every other JSON value has a plain type.
        composed = [kind for kind in rest if dataclasses.is_dataclass(kind)]
        plain = [kind for kind in rest if kind not in composed]
        objects, others = _reader((composed or plain)[0]), _reader((plain or composed)[0])
        return functools.partial(_read_union, len(rest) < len(arguments), objects, others)
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    if origin in (tuple, Sequence):
        readers = [_reader(argument) for argument in arguments if argument is not Ellipsis]
        endless = origin is Sequence or arguments[-1] is Ellipsis
        return functools.partial(_read_sequence, readers, endless)
    if origin is Mapping:
        return functools.partial(_read_mapping, _reader(arguments[1]))
    return functools.partial(_read_exactly, kind, arguments if origin is Literal else ())


def _read_exactly(kind: Any, literals: Sequence[str], value: Any, location: str) -> Any:
    if type(value) is kind or isinstance(value, str) and value in literals:
        return value
    raise _misfit_error(value, location, _name_of(kind))


def _read_sequence(readers: Sequence[Any], endless: bool, value: Any, location: str) -> Any:
    if not isinstance(value, list | tuple) or not endless and len(value) != len(readers):
        raise _misfit_error(value, location, "a list")
    pairs = enumerate(zip(value, itertools.cycle(readers), strict=False))
    return tuple([read(x, f"{location}[{n}]") for n, (x, read) in pairs])


def _read_mapping(read: Any, value: Any, location: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _misfit_error(value, location, "an object")
    return {name: read(x, f"{location}.{name}") for name, x in value.items()}


def _read_union(optional: bool, objects: Any, others: Any, value: Any, location: str) -> Any:
    if value is None and optional:
        return None
    return (objects if isinstance(value, Mapping) else others)(value, location)


def _dataclass_reader(kind: Any) -> Callable[[Any, str], Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    readers = {name: _reader(hint) for name, hint in hints.items()}
    required = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def read(value: Any, location: str) -> Any:
        if not isinstance(value, Mapping):
            raise _misfit_error(value, location, "an object")
        if issubclass(kind, OpenRecord):
            value = {name: x for name, x in value.items() if name in readers and x is not None}
        if not required <= value.keys() <= readers.keys():
            unknown, missing = value.keys() - readers.keys(), required - value.keys()
            fault = (
                f"the unknown field {min(unknown)!r:.40}"
                if unknown
                else f"no field '{min(missing)}'"
            )
            raise ValueError(f"{location} has {fault}. Another version may have written it")
        return kind(**{name: readers[name](x, f"{location}.{name}") for name, x in value.items()})

    return read


def is_plain(kind: Any) -> bool:
    """Returns whether a type, such as an annotation, consists of plain types without dataclasses.

    >>> is_plain(Sequence[str] | None), is_plain(Callable[[int], str])
    (True, False)
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Annotated, Literal):
        return True
    if origin in (tuple, Sequence, Mapping, types.UnionType, typing.Union):
        return all(is_plain(argument) for argument in arguments if argument is not Ellipsis)
    return kind in (bool, int, float, str, types.NoneType)


def _read_number(kind: Any, allowed: Range, value: Any, location: str) -> int | float:
    if type(value) is kind and allowed.least <= value <= allowed.most:
        return value
    # Booleans are rejected here, because True and False are integers in Python. The value 4.0 is
    # accepted for an integer, because JSON does not distinguish 4.0 from 4.
    expected = _describe_range(kind, allowed)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _misfit_error(value, location, expected)
    if isinstance(value, float) and not math.isfinite(value):
        raise _misfit_error(value, location, "a finite number")
    if kind is int and value != int(value):
        raise _misfit_error(value, location, expected)
    if not allowed.least <= value <= allowed.most:
        full = _describe_range(kind, allowed, with_most=value > allowed.most)
        raise _misfit_error(value, location, full)
    return kind(value)


def _describe_range(kind: type, allowed: Range, *, with_most: bool = False) -> str:
    least, most = (f"{x:,}" if isinstance(x, int) else f"{x:g}" for x in vars(allowed).values())
    number = _IN_WORDS[kind]
    if allowed.least > -_UNLIMITED:
        number += f" from {least}"
    if with_most or allowed.most < _UNLIMITED:
        number += f" to {most}"
    return number


def describe_type(kind: Any) -> str:
    """Describes the values of a plain type in words.

    >>> describe_type(Count | None), describe_type(Sequence[str])
    ('a whole number from 0, or None', 'a list of texts')
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _describe_range(*arguments)
    if origin in (types.UnionType, typing.Union):
        return ", or ".join(map(describe_type, arguments))
    if origin in (tuple, Sequence):
        return "a list of " + {str: "texts"}.get(arguments[0], "numbers")
    return _name_of(kind)


def _misfit_error(value: Any, location: str, expected: str) -> ValueError:
    try:
        text = repr(value)
    except ValueError:  # Python does not convert a number of more than 4,300 digits
        text = "a number with thousands of digits"
    return ValueError(f"{location:.200} is {text:.80}; expected {expected}")


def _name_of(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin is Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    names = {tuple: "a list", Sequence: "a list", Mapping: "an object"} | _IN_WORDS
    return names.get(origin or kind) or kind.__name__
