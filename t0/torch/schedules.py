"""Computes the learning rate of a step from the schedule that a specification names.

    rate = schedule(spec.schedule, total=spec.schedule_steps)
    rate(0)

Some schedules are functions of `t0.training.schedules`. The others are the schedules of Mesh
TensorFlow's `transformer/learning_rate_schedules.py`, computed with Python numbers. A schedule that
the user registered with gin is a table, which `t0.run.spec_from_gin` made.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t0.config.specification import ConfiguredSpec
from t0.errors import UserError
from t0.training.schedules import SCHEDULES, rsqrt

Rate = Callable[[int], float]
_MESH_MODULE = "mesh_tensorflow.transformer.learning_rate_schedules"
_LARGEST = 3.4e38  # approximately the largest float32 number


def schedule(configured: ConfiguredSpec | float | None, total: int) -> Rate:
    """Returns the learning rate as a function of the number of steps done.

    Args:
      configured: the schedule in a specification, or a constant rate.
      total: the total number of steps of the schedule.

    Raises:
      UserError: if this engine does not have the schedule, or if a parameter is wrong. The returned
        function raises one if the rate is not a finite number.
    """
    if configured is None:
        raise UserError(
            "run.learning_rate_schedule is not bound; add a file of learning_rate_schedules/, such "
            "as --gin_file=learning_rate_schedules/constant_0_001.gin"
        )
    if isinstance(configured, float | int):
        configured = ConfiguredSpec(f"{_MESH_MODULE}.constant", {"value": configured})
    function = _find_function(configured.selector)

    def rate(step: int) -> float:
        try:
            value = function(step, total, **configured.parameters)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            value = error
        if not isinstance(value, int | float) or not abs(value) <= _LARGEST:
            raise UserError(
                f"run.learning_rate_schedule, @{configured.selector} with "
                f"{dict(configured.parameters)!r:.200}, is {value!r:.120} at step {step:,} of "
                f"{total:,}; expected a finite number, from the parameters of this schedule"
            )
        return float(value)

    rate(configured.parameters.get("first_step", 0))  # checks the parameters
    return rate


def _find_function(selector: Any) -> Callable[..., float]:
    if selector not in _FUNCTIONS:
        raise UserError(
            f"run.learning_rate_schedule uses @{selector}, which the PyTorch engine does not have; "
            f"expected one of {', '.join(_FUNCTIONS)}"
        )
    return _FUNCTIONS[selector]


def _table(
    step: int, total: float, *, schedule: str, first_step: int, rates: Sequence[float]
) -> float:
    if not 0 <= step - first_step < len(rates):
        raise UserError(
            f"run.learning_rate_schedule, {schedule}, has no rate for step {step:,}; the specification "
            f"has rates of steps {first_step:,} to {first_step + len(rates) - 1:,}, the last steps "
            "of the run. Use Mesh TensorFlow's schedules or t0's for a longer run."
        )
    return rates[step - first_step]


def _product(step: float, total: float, *, factors: list[Any], offset: float = 0) -> float:
    rate = 1.0
    for factor in factors:
        if isinstance(factor, Mapping):
            function = _find_function(factor["selector"])
            rate *= function(step - offset, total - offset, **factor["parameters"])
        else:
            rate *= factor
    return rate


def _linear_decay(step: float, total: float, *, steps_or_fraction: float = 0.1) -> float:
    steps = steps_or_fraction * (total if steps_or_fraction <= 1 else 1)
    return min(1.0, (total - step) / steps)


def _linear_warmup(step: float, total: float, *, steps_or_fraction: float = 10000) -> float:
    return min(1.0, step / (steps_or_fraction * (total if steps_or_fraction <= 1 else 1)))


def _linear_decay_learning_rate(
    step: float, total: float, *, initial_lr: float = 0.1, offset: float = 0
) -> float:
    return initial_lr * min(1.0, (total - step) / (total - offset))


def _noam(step: float, total: float, *, linear_decay_fraction: float = 0.1, **rest: Any) -> float:
    return rsqrt(step, total, ramp_down_fraction=linear_decay_fraction, **rest)


def _slanted_triangular(
    step: float,
    total: float,
    *,
    cut_fraction: float = 0.1,
    ratio: float = 32,
    max_learning_rate: float = 0.01,
    start_step: float = 0,
) -> float:
    cut, past = math.floor(total * cut_fraction), step - start_step
    share = past / cut if past < cut else 1 - (past - cut) / (cut * (1 / cut_fraction - 1))
    return max_learning_rate * (1 + share * (ratio - 1)) / ratio


_MESH = {
    "product_learning_rate": _product,
    "linear_decay": _linear_decay,
    "linear_warmup": _linear_warmup,
    "truncated_rsqrt": rsqrt,
    "constant": lambda step, total, *, value=1.0: value,
    "constant_learning_rate": lambda step, total, *, learning_rate: learning_rate,
    "linear_decay_learning_rate": _linear_decay_learning_rate,
    "learning_rate_schedule_noam": _noam,
    "slanted_triangular": _slanted_triangular,
}
# Selector in gin -> function.
_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "t0.table": _table,
    **{f"t0.{name}": function for name, function in SCHEDULES.items()},
    **{f"{_MESH_MODULE}.{name}": function for name, function in _MESH.items()},
}
