"""Defines the learning rate schedules that gin can bind to `run.learning_rate_schedule`.

Each schedule takes `step` (a scalar) and `total_train_steps` (a number), and returns the learning
rate. If the step is a Python number, the rate is a Python float. If the step is a TensorFlow
tensor, the rate is a float32 tensor. Mesh TensorFlow's own schedules have the same form, and gin
can also bind them. Both engines use these schedules. A schedule counts its steps from `offset`. For
example, to fine-tune from a checkpoint of step 1,000,000, bind `offset = 1000000`.

    run.learning_rate_schedule = @t0.cosine_with_warmup
    cosine_with_warmup.peak = 0.001
    cosine_with_warmup.warmup_steps = 500

Two schedules are not in this module. T0's constant rate is in
`learning_rate_schedules/constant_0_001.gin`, and T5's truncated rsqrt is
`learning_rate_schedules.truncated_rsqrt`. `rsqrt` in this module is T5's truncated rsqrt with a
ramp-down. `t0.run.configure` registers `SCHEDULES` with gin.
"""

import math
import numbers
from collections.abc import Callable
from typing import Any

from t0.config.plain_data import Count, NotNegative, Share

# A number, or a scalar TensorFlow tensor.
Scalar = Any


class _PythonOperations:
    """The operations that schedules need, for Python numbers, under TensorFlow's names."""

    minimum, maximum, cos = min, max, math.cos

    @staticmethod
    def rsqrt(x: float) -> float:
        return x**-0.5


def _start(step: Scalar, offset: int) -> tuple[Any, Scalar]:
    """Returns a namespace with `minimum`, `maximum`, `cos` and `rsqrt`, and the steps so far."""
    if isinstance(step, numbers.Real):
        return _PythonOperations, float(step - offset)
    from t0.compat import tf

    return tf.math, tf.cast(step, tf.float32) - float(offset)


def _warm_up(ops: Any, count: Scalar, warmup_steps: int, begin: float = 0.0) -> Scalar:
    """Returns a factor that rises linearly to 1 over `warmup_steps`, starting from `begin`."""
    if begin and warmup_steps:
        return ops.minimum(1.0, begin + (1.0 - begin) * count / warmup_steps)
    # The factor is (count + 1) / warmup_steps, because the first step must not have rate 0.
    return ops.minimum(1.0, (count + 1.0) / max(1, warmup_steps))


def _progress(ops: Any, count: Scalar, first: float, last: float) -> Scalar:
    """Returns how far `count` has come from `first` to `last`, as a number between 0 and 1."""
    return ops.maximum(ops.minimum((count - first) / max(1.0, last - first), 1.0), 0.0)


def constant_with_warmup(
    step: Scalar,
    total_train_steps: int,
    peak: NotNegative = 0.001,
    warmup_steps: Count = 0,
    offset: int = 0,
) -> Scalar:
    """Returns a rate that rises linearly to `peak` over `warmup_steps`, and then is constant."""
    del total_train_steps
    return peak * _warm_up(*_start(step, offset), warmup_steps)


def rsqrt(
    step: Scalar,
    total_train_steps: int,
    warmup_steps: Count = 10000,
    multiplier: NotNegative = 1.0,
    ramp_down_fraction: Share = 0.0,
    offset: int = 0,
) -> Scalar:
    """Returns T5's truncated rsqrt: `multiplier / sqrt(max(step, warmup_steps))`.

    Over the last `ramp_down_fraction` of the run, the rate is multiplied by a factor that falls
    linearly to 0.
    """
    (ops, count), total = _start(step, offset), float(total_train_steps - offset)
    rate = multiplier * ops.rsqrt(ops.maximum(count, float(warmup_steps)))
    if ramp_down_fraction > 0:
        rate *= ops.minimum(1.0, (total - count) / (total * ramp_down_fraction))
    return rate


def rsqrt_then_linear(
    step: Scalar,
    total_train_steps: int,
    warmup_steps: Count = 10000,
    multiplier: NotNegative = 1.0,
    linear_fraction: Share = 0.1,
    offset: int = 0,
) -> Scalar:
    """Returns a rate that first equals the rate of `rsqrt`, and then falls linearly to 0.

    The rate falls over the last `linear_fraction` of the run. This is nanoT5's "legacy" schedule.
    Before the fall, the rate equals that of T5's schedule. So with the defaults, the rate is 0.01
    in the first 10,000 steps, or until the fall begins in a shorter run.
    """
    (ops, count), total = _start(step, offset), total_train_steps - offset
    turn = float(math.ceil(total * (1.0 - linear_fraction)))
    rate = multiplier * ops.rsqrt(ops.maximum(ops.minimum(count, turn), float(warmup_steps)))
    return rate * (1.0 - _progress(ops, count, turn, total))


def linear_with_warmup(
    step: Scalar,
    total_train_steps: int,
    peak: NotNegative = 0.001,
    warmup_steps: Count = 0,
    end: NotNegative = 0.0,
    offset: int = 0,
) -> Scalar:
    """Returns a rate that rises to `peak` over `warmup_steps`, then falls linearly to `end`."""
    ops, count = _start(step, offset)
    done = _progress(ops, count, warmup_steps, total_train_steps - offset)
    return (peak + (end - peak) * done) * _warm_up(ops, count, warmup_steps)


def cosine_with_warmup(
    step: Scalar,
    total_train_steps: int,
    peak: NotNegative = 0.001,
    warmup_steps: Count = 0,
    end: NotNegative = 0.0,
    begin: Share = 0.0,
    offset: int = 0,
) -> Scalar:
    """Returns a rate that rises to `peak` over `warmup_steps`, then falls to `end` as a cosine.

    The warmup starts at the fraction `begin` of the peak (0.5 in nanoT5).
    """
    ops, count = _start(step, offset)
    done = _progress(ops, count, warmup_steps, total_train_steps - offset)
    shape = 0.5 * (1.0 + ops.cos(math.pi * done))
    return (end + (peak - end) * shape) * _warm_up(ops, count, warmup_steps, begin)


# Name of a schedule in gin's module "t0" -> its function.
SCHEDULES: dict[str, Callable[..., Scalar]] = {
    function.__name__: function
    for function in (
        constant_with_warmup,
        rsqrt,
        rsqrt_then_linear,
        linear_with_warmup,
        cosine_with_warmup,
    )
}
