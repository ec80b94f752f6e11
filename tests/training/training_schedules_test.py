import math

import pytest
import tensorflow.compat.v1 as tf

from t0.training import schedules


def rates(function, steps, **values):
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rate = function(step=step, total_train_steps=1000, **values)
        compute = session.make_callable(rate, [step])
        return [float(compute(n)) for n in steps]


@pytest.mark.parametrize(
    ("function", "values", "probes"),
    [
        (schedules.constant_with_warmup, {}, {0: 0.001, 999: 0.001}),
        (
            schedules.constant_with_warmup,
            {"peak": 0.2, "warmup_steps": 10},
            {0: 0.02, 4: 0.1, 9: 0.2, 500: 0.2},
        ),
        (schedules.rsqrt, {"warmup_steps": 100}, {0: 0.1, 100: 0.1, 400: 0.05, 900: 1 / 30}),
        (schedules.rsqrt, {"warmup_steps": 100, "multiplier": 2.0}, {0: 0.2, 400: 0.1}),
        (
            schedules.rsqrt,
            {"warmup_steps": 100, "ramp_down_fraction": 0.2},
            {400: 0.05, 800: 800**-0.5, 900: 900**-0.5 / 2, 1000: 0.0},
        ),
        (schedules.rsqrt, {"warmup_steps": 100, "offset": 600}, {600: 0.1, 1000: 0.05}),
        (
            schedules.linear_with_warmup,
            {"peak": 1.0, "warmup_steps": 200},
            {0: 0.005, 99: 0.5, 200: 1.0, 600: 0.5, 1000: 0.0},
        ),
        (schedules.linear_with_warmup, {"peak": 1.0, "end": 0.2}, {0: 1.0, 500: 0.6, 1000: 0.2}),
        (
            schedules.cosine_with_warmup,
            {"peak": 1.0, "warmup_steps": 200, "end": 0.1},
            {
                99: 0.5,
                200: 1.0,
                400: 0.1 + 0.45 * (1 + math.cos(math.pi / 4)),
                600: 0.55,
                1000: 0.1,
            },
        ),
        # nanoT5's, as PyTorch's schedulers give them.
        (
            schedules.cosine_with_warmup,
            {"peak": 0.02, "warmup_steps": 200, "end": 1e-5, "begin": 0.5},
            {0: 0.01, 1: 0.01005, 100: 0.015, 199: 0.01995, 200: 0.02, 400: 0.017072532}
            | {600: 0.010005, 999: 1.0077e-05},
        ),
        (schedules.rsqrt_then_linear, {}, {0: 0.01, 899: 0.01, 900: 0.01, 950: 0.005, 999: 1e-4}),
        (
            schedules.rsqrt_then_linear,
            {"offset": -19_000},  # 20,000 steps in all
            {-19_000: 0.01, -4_600: 1 / 120, -1_001: 0.007453767, 0: 0.00372678, 999: 3.727e-06},
        ),
    ],
)
def test_learning_rate_schedule_values_at_probe_steps(function, values, probes):
    assert rates(function, probes, **values) == pytest.approx(list(probes.values()), abs=1e-6)


def test_learning_rate_rsqrt_equals_mesh_tensorflow():
    from mesh_tensorflow.transformer import learning_rate_schedules as published

    # At every third step, bit for bit.
    ours = rates(schedules.rsqrt, range(0, 9000, 3), warmup_steps=100)
    assert ours == rates(published.truncated_rsqrt, range(0, 9000, 3), warmup_steps=100)
    steps = range(1000)
    ramped = rates(
        schedules.rsqrt, steps, warmup_steps=100, ramp_down_fraction=0.1, multiplier=3.0, offset=20
    )
    theirs = rates(
        published.learning_rate_schedule_noam,
        steps,
        warmup_steps=100,
        linear_decay_fraction=0.1,
        multiplier=3.0,
        offset=20,
    )
    assert ramped == theirs
