"""Limits the time and memory that a user's template may use for one row.

    meter = start_meter(Limits.configured())
    meter.step()            # a loop iteration or a call; UserError if the time limit is exceeded
    meter.take(5000)        # new characters or items; UserError if there are too many

    T0_TEMPLATE_SECONDS=60 T0_TEMPLATE_CHARACTERS=100000000 seqio_cache_tasks ...

A dataset from the internet may come with templates, and one line of a template can count to ten
billion or print a terabyte. Therefore each row has a meter, which counts loop iterations, calls and
created characters. Soon after a template exceeds its time limit, the meter stops the template. If
an operation or filter would create one huge value (`"a" * 10**10`, `"%99999999999d"`), it is
rejected before it runs. The templates of the installed promptsource have no meter.
"""

import dataclasses
import functools
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import jinja2
from jinja2 import nodes, sandbox
from jinja2.visitor import NodeTransformer

from t0.errors import UserError

SECONDS_VARIABLE = "T0_TEMPLATE_SECONDS"
CHARACTERS_VARIABLE = "T0_TEMPLATE_CHARACTERS"
LONGEST_TEMPLATE = 50_000
"""The maximum length of a user's template, in characters.

Compiling takes up to a second per 1,000 characters.
"""

_STEPS_BETWEEN_LOOKS = 256
_DIGITS = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits on the resources that a template may use for one row.

    Attributes:
      seconds: the maximum processor time.
      characters: the maximum size of everything that is created or printed. The size is the number
        of characters of texts plus the number of items of lists.
    """

    seconds: float = 10.0
    characters: int = 20_000_000

    @classmethod
    def configured(cls) -> "Limits":
        """Reads the limits from the environment variables.

        Raises:
          UserError: a value is not a number above 0.
        """
        seconds = _read_positive(SECONDS_VARIABLE, cls.seconds)
        return cls(seconds, int(_read_positive(CHARACTERS_VARIABLE, cls.characters)))


def _read_positive(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        value = float(text) if text else float(default)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UserError(f"{variable} is {text!r:.40}; expected a number above 0")
    return value


class Meter:
    """Counts the resources that a template uses for one row."""

    __slots__ = ("_ends", "_left", "_limits", "_steps")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = limits.characters
        self._steps = 0
        self._ends = time.thread_time() + limits.seconds

    def step(self) -> None:
        """Counts a loop iteration or a call.

        Raises:
          UserError: the time limit is exceeded.
        """
        self._steps += 1
        if self._steps % _STEPS_BETWEEN_LOOKS == 0 and time.thread_time() > self._ends:
            raise UserError(
                f"rendering one row takes more than {self._limits.seconds:g} s of CPU time "
                f"({SECONDS_VARIABLE} sets the limit)"
            )

    def take(self, size: int) -> None:
        """Counts characters or items that were created or will be created.

        Raises:
          UserError: the total number for the row exceeds the limit.
        """
        self._left -= size
        if self._left < 0:
            raise UserError(
                f"rendering one row makes more than {self._limits.characters:,} characters "
                f"({CHARACTERS_VARIABLE} sets the limit)"
            )

    def steps(self, items: Any) -> Iterator[Any]:
        """Yields the items of a loop, and counts each item as a step."""
        for item in items:
            self.step()
            yield item

    def collect(self, pieces: Iterable[str]) -> list[str]:
        """Returns the pieces of text as a list, and counts each piece when it arrives."""
        collected, remaining = [], self._left
        for piece in pieces:
            collected.append(piece)
            remaining -= len(piece)
            if remaining < 0:
                self.take(self._left + 1)
        return collected

    def operation(self, operator: str, left: Any, right: Any) -> None:
        """Counts the estimated size of an operation's result before the result is computed."""
        self.step()
        if operator == "**":
            if isinstance(left, int) and isinstance(right, int) and right > 0:
                self.take(left.bit_length() * right // 3)
        elif operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(times, int):
                    self.take(_measure(sequence) * max(0, times))
            if isinstance(left, int) and isinstance(right, int):
                self.take((left.bit_length() + right.bit_length()) // 3)
        elif operator == "%" and isinstance(left, str):
            self.take(_bound_widths(left) + _measure(right) + _sum_integers(right))
        elif operator == "+":
            self.take(_measure(left) + _measure(right))

    def result(self, value: Any) -> Any:
        """Counts the size of a new value and returns the value."""
        self.step()
        self.take(_measure(value))
        return value

    def estimated(self, name: str, value: Any, arguments: tuple[Any, ...]) -> None:
        """Counts the estimated size of the result of a filter or text method before it runs."""
        if name in _ESTIMATES:
            self.take(_ESTIMATES[name](value, arguments))


def _measure(value: Any) -> int:
    """Returns the number of characters or items of a value; 0 for a value without a size."""
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 0


def _sum_integers(values: Any) -> int:
    values = values if isinstance(values, tuple) else (values,)
    return sum(abs(value) for value in values if isinstance(value, int))


def _bound_widths(text: str) -> int:
    """Returns an upper bound for the length of a formatted text.

    The bound is the length of the format plus the largest padding that its widths can add.
    """
    return len(text) + sum(min(int(digits[:12]), 10**12) for digits in _DIGITS.findall(text))


def _estimate_replace(value: Any, arguments: tuple[Any, ...]) -> int:
    text, (old, new) = str(value), (*map(str, arguments), "", "")[:2]
    return len(text) + (text.count(old) if old else len(text) + 1) * len(new)


def _estimate_join(separator: Any, arguments: tuple[Any, ...]) -> int:
    items = arguments[0] if arguments else ()
    # If the number of items is unknown, the items come from a loop of at most 100,000 iterations.
    return len(str(separator)) * (len(items) if isinstance(items, Sized) else 10**5)


def _estimate_translate(text: str, arguments: tuple[Any, ...]) -> int:
    table = arguments[0] if arguments else {}
    values = table.values() if isinstance(table, dict) else ()
    return len(text) * max([1, *map(_measure, values)])


_PADDING = ("batch", "center", "ljust", "rjust", "round", "slice", "tojson", "wordwrap", "zfill")
# Filter or text method whose result may be much larger than its input -> a function that takes the
# input and the arguments and estimates the size of the result.
_ESTIMATES: dict[str, Callable[[Any, tuple[Any, ...]], int]] = {
    **dict.fromkeys(_PADDING, lambda value, a: _sum_integers(a)),
    **dict.fromkeys(
        ("format", "format_map"), lambda value, a: _bound_widths(str(value)) + _sum_integers(a)
    ),
    "expandtabs": lambda value, a: len(value) + value.count("\t") * _sum_integers(a),
    "indent": lambda value, a: _sum_integers(a) * (1 + str(value).count("\n")),
    "replace": _estimate_replace,
    "join": _estimate_join,
    "translate": _estimate_translate,
}
# Filters whose result is never larger than a value that has already been counted.
_SMALL_FILTERS = frozenset(
    ("abs", "attr", "choice", "count", "d", "default", "first", "float", "int", "last", "length",
     "max", "min", "random", "round", "string", "sum", "truncate")
)  # fmt: skip
_STEPS, _RESULT = "\0steps", "\0result"  # a template cannot write these names
_running = threading.local()


def start_meter(limits: Limits) -> Meter:
    """Starts a new meter for the row that the current thread renders."""
    _running.meter = Meter(limits)
    return _running.meter


def _count_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a Jinja filter: before it runs, the meter counts the estimated size of its result."""
    passes = getattr(function, "jinja_pass_arg", None)

    @functools.wraps(function)
    def count_and_filter(
        context: jinja2.runtime.Context, value: Any, *args: Any, **kwargs: Any
    ) -> Any:
        arguments = (*args, *kwargs.values())
        estimated = (value, arguments) if name != "join" else ((*arguments, "")[0], (value,))
        _running.meter.estimated(name, *estimated)
        first = {None: (), "environment": (context.environment,), "context": (context,)}.get(
            getattr(passes, "name", passes), (context.eval_ctx,)
        )
        return function(*first, value, *args, **kwargs)

    return jinja2.pass_context(count_and_filter)


# Because of `pass_context`, Jinja does not evaluate these filters at compile time.
@jinja2.pass_context
def _steps(context: jinja2.runtime.Context, items: Any) -> Iterator[Any]:
    return _running.meter.steps(items)


@jinja2.pass_context
def _result(context: jinja2.runtime.Context, value: Any) -> Any:
    return _running.meter.result(value)


class Metering(NodeTransformer):
    """Changes a parsed template so that the meter counts its iterations and results."""

    def visit(self, node: nodes.Node) -> nodes.Node:
        """Returns the changed node."""
        self.generic_visit(node)
        if isinstance(node, nodes.For):
            node.iter = _wrap_in_filter(node.iter, _STEPS)
        creates = (
            isinstance(node, nodes.Concat)
            or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice))
            or (
                isinstance(node, nodes.Filter)
                and node.name not in _SMALL_FILTERS
                and not node.name.startswith("\0")
            )
        )
        return _wrap_in_filter(node, _RESULT) if creates else node


def _wrap_in_filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _concat(pieces: Iterable[str]) -> str:
    """Counts the output of a macro or block, then joins it."""
    pieces = list(pieces)
    _running.meter.take(sum(map(len, pieces)))
    return "".join(pieces)


class MeteredEnvironment(sandbox.SandboxedEnvironment):
    """Jinja's sandbox for the user's own templates. The meter limits their resources."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    concat = staticmethod(_concat)

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Computes an operation, whose estimated size is counted before."""
        _running.meter.operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(
        self, context: jinja2.runtime.Context, callee: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Calls a function, and counts the size of its result."""
        meter = _running.meter
        owner = getattr(callee, "__self__", getattr(callee, "__wrapped__", None))
        owner = getattr(owner, "__self__", owner)  # the sandbox wraps `format`
        arguments = (*args, *kwargs.values())
        if isinstance(owner, str):
            meter.estimated(callee.__name__, owner, arguments)
        elif isinstance(owner, list | dict):
            for value in arguments:
                meter.result(value)
        return meter.result(super().call(context, callee, *args, **kwargs))

    def add_counting_filters(self) -> None:
        """Adds the filters that metered templates need."""
        self.filters |= {_STEPS: _steps, _RESULT: _result}
        for name in _ESTIMATES.keys() & self.filters.keys():
            self.filters[name] = _count_filter(name, self.filters[name])
