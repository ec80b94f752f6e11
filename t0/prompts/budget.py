"""Limits the time and memory that a user's template may use for one row.

    meter = Meter(Limits.configured())
    meter.step()            # a loop iteration or a call; UserError if the time limit is exceeded
    meter.take(5000)        # new characters or items; UserError if there are too many

    T0_TEMPLATE_SECONDS=60 T0_TEMPLATE_CHARACTERS=100000000 seqio_cache_tasks ...

A dataset from the internet may come with templates, and one line of a template can count to ten
billion or print a terabyte. Therefore each row has a meter, which counts loop iterations, calls and
created characters. Soon after a template exceeds its time limit, the meter stops the template. The
template accesses the meter through the Jinja variable `METER`. If an operation or filter would
create one huge value (`"a" * 10**10`, `"%99999999999d"`), it is rejected before it runs.
Promptsource's own templates have no meter.
"""

import contextlib
import dataclasses
import functools
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from t0.errors import UserError

METER = "\0meter"
"""The Jinja variable that holds the row's meter. No column can have this name."""

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

    def text_method(self, text: str, name: str, arguments: tuple[Any, ...]) -> None:
        """Counts the estimated size of a text method's result before the method is called."""
        estimate = _TEXT_METHODS.get(name)
        if estimate:
            self.take(estimate(text, arguments))

    def filtered(self, name: str, value: Any, arguments: tuple[Any, ...]) -> None:
        """Counts the estimated size of a filter's result before the filter runs."""
        if name == "format":
            self.take(_bound_widths(str(value)) + _sum_integers(arguments))
        elif name == "replace":
            self.take(_estimate_replace(str(value), arguments))
        elif name == "join":
            self.take(_estimate_join(str(arguments[0]) if arguments else "", (value,)))
        elif name == "indent":
            self.take(_sum_integers(arguments) * (1 + str(value).count("\n")))
        else:
            self.take(_sum_integers(arguments))


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


def _estimate_replace(text: str, arguments: tuple[Any, ...]) -> int:
    if len(arguments) < 2:
        return 0
    old, new = str(arguments[0]), str(arguments[1])
    return len(text) + (text.count(old) if old else len(text) + 1) * len(new)


def _estimate_join(separator: str, arguments: tuple[Any, ...]) -> int:
    items = arguments[0] if arguments else ()
    # If the number of items is unknown, the items come from a loop of at most 100,000 iterations.
    return len(separator) * (len(items) if isinstance(items, Sized) else 10**5)


def _estimate_translate(text: str, arguments: tuple[Any, ...]) -> int:
    table = arguments[0] if arguments else {}
    values = table.values() if isinstance(table, dict) else ()
    return len(text) * max([1, *map(_measure, values)])


_TEXT_METHODS: dict[str, Callable[[str, tuple[Any, ...]], int]] = {
    **dict.fromkeys(("ljust", "rjust", "center", "zfill"), lambda text, a: _sum_integers(a)),
    **dict.fromkeys(
        ("format", "format_map"), lambda text, a: _bound_widths(text) + _sum_integers(a)
    ),
    "expandtabs": lambda text, a: len(text) + text.count("\t") * _sum_integers(a),
    "replace": _estimate_replace,
    "join": _estimate_join,
    "translate": _estimate_translate,
}

# Filters whose result may be much larger than their input.
GROWING_FILTERS = (
    "batch", "center", "format", "indent", "join", "replace", "round", "slice", "tojson", "wordwrap"
)  # fmt: skip
# Filters whose result is never larger than a value that has already been counted.
_SMALL_FILTERS = frozenset(
    ("abs", "attr", "choice", "count", "d", "default", "first", "float", "int", "last", "length",
     "max", "min", "random", "round", "string", "sum", "truncate")
)  # fmt: skip
_STEPS, _RESULT = "\0steps", "\0result"  # a template cannot write these names


def count_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a Jinja filter: before it runs, the meter counts the estimated size of its result."""
    passes = getattr(function, "jinja_pass_arg", None)

    @functools.wraps(function)
    def count_and_filter(
        context: jinja2.runtime.Context, value: Any, *args: Any, **kwargs: Any
    ) -> Any:
        meter = context.parent.get(METER)
        if meter is not None:
            meter.filtered(name, value, (*args, *kwargs.values()))
        first = {None: (), "environment": (context.environment,), "context": (context,)}.get(
            getattr(passes, "name", passes), (context.eval_ctx,)
        )
        return function(*first, value, *args, **kwargs)

    return jinja2.pass_context(count_and_filter)


@jinja2.pass_context
def _steps(context: jinja2.runtime.Context, items: Any) -> Iterator[Any]:
    return context.parent[METER].steps(items)


@jinja2.pass_context
def _result(context: jinja2.runtime.Context, value: Any) -> Any:
    return context.parent[METER].result(value)


class _Metering(NodeTransformer):
    """Changes a parsed template so that the meter counts its iterations and results."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _wrap_in_filter(node.iter, _STEPS)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        small = node.name in _SMALL_FILTERS or node.name.startswith("\0")
        return node if small else _wrap_in_filter(node, _RESULT)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _wrap_in_filter(node, _RESULT)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _wrap_in_filter(node, _RESULT) if isinstance(node.arg, nodes.Slice) else node


def _wrap_in_filter(node: nodes.Expr, name: str) -> nodes.Filter:
    wrapped = nodes.Filter(node, name, [], [], None, None)
    wrapped.lineno = node.lineno
    return wrapped


_UNBOUNDED = (
    nodes.For, nodes.Macro, nodes.CallBlock, nodes.Call, nodes.Add, nodes.Mul, nodes.Pow, nodes.Mod,
    nodes.Concat,
)  # fmt: skip


def is_bounded(tree: nodes.Template) -> bool:
    """Returns whether a parsed template is too simple to need a meter.

    Such a template has no loop, macro, call or operation. It also has no filter whose result may be
    larger than the input, and no filter that applies another filter.
    """
    filters = {node.name for node in tree.find_all(nodes.Filter)}
    return next(tree.find_all(_UNBOUNDED), None) is None and filters.isdisjoint(
        {*GROWING_FILTERS, "map"}
    )


def add_counting(tree: nodes.Template) -> None:
    """Changes a parsed template so that the meter counts its iterations and results."""
    _Metering().visit(tree)


def add_filters(filters: dict[str, Any]) -> None:
    """Adds the filters that metered templates need to Jinja's filters."""
    filters[_STEPS], filters[_RESULT] = _steps, _result
    for name in GROWING_FILTERS:
        filters[name] = count_filter(name, filters[name])


_running = threading.local()


@contextlib.contextmanager
def use_meter(meter: Meter) -> Iterator[None]:
    """Makes `concat` use this meter during a `with` block, in the current thread."""
    before = getattr(_running, "meter", None)
    _running.meter = meter
    try:
        yield
    finally:
        _running.meter = before


def concat(pieces: Iterable[str]) -> str:
    """Counts the output of a macro or block, then joins it."""
    pieces = list(pieces)
    meter = getattr(_running, "meter", None)
    if meter is not None:
        meter.take(sum(map(len, pieces)))
    return "".join(pieces)
