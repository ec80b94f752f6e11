"""Collects the numeric values of a task's metrics. Two values with the same name are an error.

    from t0.compat import t5_metrics

    values = MetricValues("qa_squad")
    values.add(t5_metrics.squad, {"em": 81.2, "f1": 88.0, "by": {"length": 79.0}, "first": "tea"})
    values.numbers              # {"em": 81.2, "f1": 88.0, "by/length": 79.0}
    values.others               # {"first": "str"}: not in the results files

The original T5 code only accepts metrics whose values are numbers. SeqIO's evaluator also accepts
`seqio.metrics.Scalar`, `Text`, `Histogram`, `Image`, arrays and other types. In this module, a
`Scalar` counts as a number. Values of other types are skipped, and their names are listed. The
names in nested dictionaries are joined with "/".
"""

import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t0.errors import UserError

Metric = Callable[..., Any]


class MetricValues:
    """Collects the values of the metrics of one task.

    Args:
      task: the task's name, for messages.

    Attributes:
      numbers: name -> value, for values that are numbers.
      others: name -> the name of the value's type, for all other values.
    """

    def __init__(self, task: str) -> None:
        self.numbers: dict[str, float] = {}
        self.others: dict[str, str] = {}
        self._task = task
        self._metric_of: dict[str, Metric] = {}

    def add(self, metric: Metric, returned: Any) -> dict[str, float]:
        """Adds the values that a metric returned, and returns those that are numbers.

        Raises:
          UserError: if another metric has already returned a value with the same name.
        """
        added = {}
        for name, value in _flat(returned, _name_of(metric)):
            other = self._metric_of.setdefault(name, metric)
            if other is not metric:
                raise UserError(
                    f"task {self._task}: its metrics {_name_of(other)} and {_name_of(metric)} both "
                    f"return '{name}', so one value would replace the other. Rename one, or leave "
                    "one out of the task's metric_fns"
                )
            number = _number(value)
            if number is None:
                self.others[name] = type(value).__name__
            else:
                added[name] = number
        self.numbers |= added
        return added

    def notes(self) -> Iterator[str]:
        """Yields a line for each value that is not a number."""
        for name, kind in self.others.items():
            yield f"{self._task}: metric '{name}' is not a number ({kind}) and is left out"


def _flat(returned: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) for each value in `returned`; a single value is called `name`."""
    if not isinstance(returned, Mapping):
        yield name, returned
        return
    for key, value in returned.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}/{inner}", leaf) for inner, leaf in _flat(value, ""))
        else:
            yield str(key), value


def _number(value: Any) -> float | None:
    value = getattr(value, "value", value)  # seqio.metrics.Scalar
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()  # numpy and JAX
    return float(value) if isinstance(value, numbers.Real) else None


def _name_of(metric: Metric) -> str:
    metric = getattr(metric, "func", metric)  # functools.partial
    return getattr(metric, "__name__", type(metric).__name__)
