"""Learning rate schedules that gin can bind to `run.learning_rate_schedule`.

Each takes the `step` (a scalar) and `total_train_steps` (a number) and returns a scalar, as Mesh
TensorFlow's schedules do, which gin can bind as well. A schedule counts its steps from `offset`:
for fine-tuning from a checkpoint of step 1,000,000, bind `offset = 1000000`.

    run.learning_rate_schedule = @t0.cosine_with_warmup
    cosine_with_warmup.peak = 0.001
    cosine_with_warmup.warmup_steps = 500

T0's constant rate is `learning_rate_schedules/constant_0_001.gin`, and T5's truncated rsqrt is
`learning_rate_schedules.truncated_rsqrt`. `rsqrt` in this module is the same with a ramp-down.
"""

import math

from t0.compat import gin
from t0.compat import tf1 as tf


def _counted(step: tf.Tensor, offset: int) -> tf.Tensor:
    return tf.cast(step, tf.float32) - float(offset)


def _warmed_up(step: tf.Tensor, warmup_steps: int, begin: float = 0.0) -> tf.Tensor:
    if begin and warmup_steps:
        return tf.minimum(1.0, begin + (1.0 - begin) * step / warmup_steps)
    # (step + 1) / warmup_steps, so that the rate of the first step is not 0.
    return tf.minimum(1.0, (step + 1.0) / max(1, warmup_steps))


def _progress(step: tf.Tensor, first: float, last: float) -> tf.Tensor:
    return tf.clip_by_value((step - first) / max(1.0, last - first), 0.0, 1.0)


_OF_THE_CALLER = ["step", "total_train_steps"]  # which it passes, so that gin cannot set them


@gin.configurable("constant_with_warmup", module="t0", denylist=_OF_THE_CALLER)
def constant_with_warmup(
    step: tf.Tensor,
    total_train_steps: int,
    peak: float = 0.001,
    warmup_steps: int = 0,
    offset: int = 0,
) -> tf.Tensor:
    """Returns `peak`, which the rate reaches linearly over `warmup_steps`."""
    del total_train_steps
    return peak * _warmed_up(_counted(step, offset), warmup_steps)


@gin.configurable("rsqrt", module="t0", denylist=_OF_THE_CALLER)
def rsqrt(
    step: tf.Tensor,
    total_train_steps: int,
    warmup_steps: int = 10000,
    multiplier: float = 1.0,
    ramp_down_fraction: float = 0.0,
    offset: int = 0,
) -> tf.Tensor:
    """Returns `multiplier / sqrt(max(step, warmup_steps))`, T5's truncated rsqrt.

    Over the last `ramp_down_fraction` of the run, the rate is multiplied by a factor that falls
    linearly to 0.
    """
    count, total = _counted(step, offset), float(total_train_steps - offset)
    rate = multiplier * tf.math.rsqrt(tf.maximum(count, float(warmup_steps)))
    if ramp_down_fraction > 0:
        rate *= tf.minimum(1.0, (total - count) / (total * ramp_down_fraction))
    return rate


@gin.configurable("rsqrt_then_linear", module="t0", denylist=_OF_THE_CALLER)
def rsqrt_then_linear(
    step: tf.Tensor,
    total_train_steps: int,
    warmup_steps: int = 10000,
    multiplier: float = 1.0,
    linear_fraction: float = 0.1,
    offset: int = 0,
) -> tf.Tensor:
    """Returns the rate of `rsqrt`, which falls linearly to 0 over the last `linear_fraction`.

    This is nanoT5's "legacy" schedule. Before that fraction it is T5's: with the defaults the rate
    is 0.01 for the first 10,000 steps, even in a shorter run.
    """
    count, total = _counted(step, offset), total_train_steps - offset
    turn = float(math.ceil(total * (1.0 - linear_fraction)))
    rate = multiplier * tf.math.rsqrt(tf.maximum(tf.minimum(count, turn), float(warmup_steps)))
    return rate * (1.0 - _progress(count, turn, total))


@gin.configurable("linear_with_warmup", module="t0", denylist=_OF_THE_CALLER)
def linear_with_warmup(
    step: tf.Tensor,
    total_train_steps: int,
    peak: float = 0.001,
    warmup_steps: int = 0,
    end: float = 0.0,
    offset: int = 0,
) -> tf.Tensor:
    """Returns a rate that rises to `peak` over `warmup_steps`, then falls linearly to `end`."""
    count = _counted(step, offset)
    done = _progress(count, warmup_steps, total_train_steps - offset)
    return (peak + (end - peak) * done) * _warmed_up(count, warmup_steps)


@gin.configurable("cosine_with_warmup", module="t0", denylist=_OF_THE_CALLER)
def cosine_with_warmup(
    step: tf.Tensor,
    total_train_steps: int,
    peak: float = 0.001,
    warmup_steps: int = 0,
    end: float = 0.0,
    begin: float = 0.0,
    offset: int = 0,
) -> tf.Tensor:
    """Returns a rate that rises to `peak` over `warmup_steps`, then falls to `end` as a cosine.

    The rise starts at the fraction `begin` of the peak; in nanoT5 it is 0.5.
    """
    count = _counted(step, offset)
    done = _progress(count, warmup_steps, total_train_steps - offset)
    shape = 0.5 * (1.0 + tf.cos(math.pi * done))
    return (end + (peak - end) * shape) * _warmed_up(count, warmup_steps, begin)
