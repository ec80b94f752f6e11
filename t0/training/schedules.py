"""Learning rate schedules that gin can bind to `run.learning_rate_schedule`.

Each takes the `step` (a scalar) and `total_train_steps` (a number) and returns a scalar, as Mesh
TensorFlow's do; theirs can be bound as well. `offset` is the step at which a schedule's own count
begins: for fine-tuning from a checkpoint of step 1,000,000, `offset = 1000000`.

    run.learning_rate_schedule = @t0.cosine_with_warmup
    cosine_with_warmup.peak = 0.001
    cosine_with_warmup.warmup_steps = 500

T0's constant rate is `learning_rate_schedules/constant_0_001.gin`, and T5's truncated rsqrt
`learning_rate_schedules.truncated_rsqrt`; `rsqrt` below can have its ramp-down.
"""

import math

from t0.compat import gin
from t0.compat import tf1 as tf


def _counted(step: tf.Tensor, offset: int) -> tf.Tensor:
    return tf.cast(step, tf.float32) - float(offset)


def _warmed_up(step: tf.Tensor, warmup_steps: int, begin: float = 0.0) -> tf.Tensor:
    if begin and warmup_steps:
        return tf.minimum(1.0, begin + (1.0 - begin) * step / warmup_steps)
    # The first step already learns: (step + 1) / warmup_steps.
    return tf.minimum(1.0, (step + 1.0) / max(1, warmup_steps))


def _progress(step: tf.Tensor, first: float, last: float) -> tf.Tensor:
    return tf.clip_by_value((step - first) / max(1.0, last - first), 0.0, 1.0)


@gin.configurable("constant_with_warmup", module="t0")
def constant_with_warmup(
    step: tf.Tensor,
    total_train_steps: int,
    peak: float = 0.001,
    warmup_steps: int = 0,
    offset: int = 0,
) -> tf.Tensor:
    """`peak`, reached linearly over `warmup_steps`."""
    del total_train_steps
    return peak * _warmed_up(_counted(step, offset), warmup_steps)


@gin.configurable("rsqrt", module="t0")
def rsqrt(
    step: tf.Tensor,
    total_train_steps: int,
    warmup_steps: int = 10000,
    multiplier: float = 1.0,
    ramp_down_fraction: float = 0.0,
    offset: int = 0,
) -> tf.Tensor:
    """`multiplier / sqrt(max(step, warmup_steps))`, T5's truncated rsqrt.

    Over the last `ramp_down_fraction` of the run the rate falls to 0 linearly, too.
    """
    count, total = _counted(step, offset), float(total_train_steps - offset)
    rate = multiplier * tf.math.rsqrt(tf.maximum(count, float(warmup_steps)))
    if ramp_down_fraction > 0:
        rate *= tf.minimum(1.0, (total - count) / (total * ramp_down_fraction))
    return rate


@gin.configurable("rsqrt_then_linear", module="t0")
def rsqrt_then_linear(
    step: tf.Tensor,
    total_train_steps: int,
    warmup_steps: int = 10000,
    multiplier: float = 1.0,
    linear_fraction: float = 0.1,
    offset: int = 0,
) -> tf.Tensor:
    """`rsqrt`, and over the last `linear_fraction` of the run straight from there down to 0.

    nanoT5's "legacy" schedule, which is T5's up to its end: with the defaults the rate is 0.01 for
    the first 10,000 steps, however few the run has.
    """
    count, total = _counted(step, offset), total_train_steps - offset
    turn = float(math.ceil(total * (1.0 - linear_fraction)))
    rate = multiplier * tf.math.rsqrt(tf.maximum(tf.minimum(count, turn), float(warmup_steps)))
    return rate * (1.0 - _progress(count, turn, total))


@gin.configurable("linear_with_warmup", module="t0")
def linear_with_warmup(
    step: tf.Tensor,
    total_train_steps: int,
    peak: float = 0.001,
    warmup_steps: int = 0,
    end: float = 0.0,
    offset: int = 0,
) -> tf.Tensor:
    """Up to `peak` over `warmup_steps`, then straight down to `end` at the run's last step."""
    count = _counted(step, offset)
    done = _progress(count, warmup_steps, total_train_steps - offset)
    return (peak + (end - peak) * done) * _warmed_up(count, warmup_steps)


@gin.configurable("cosine_with_warmup", module="t0")
def cosine_with_warmup(
    step: tf.Tensor,
    total_train_steps: int,
    peak: float = 0.001,
    warmup_steps: int = 0,
    end: float = 0.0,
    begin: float = 0.0,
    offset: int = 0,
) -> tf.Tensor:
    """Up to `peak` over `warmup_steps`, then half a cosine down to `end` at the last step.

    The rise starts at the fraction `begin` of the peak; nanoT5's at 0.5.
    """
    count = _counted(step, offset)
    done = _progress(count, warmup_steps, total_train_steps - offset)
    shape = 0.5 * (1.0 + tf.cos(math.pi * done))
    return (end + (peak - end) * shape) * _warmed_up(count, warmup_steps, begin)
