"""The learning rates of the PyTorch engine are those of Mesh TensorFlow's and our own functions."""

import pytest

from t0.config.specification import ConfiguredSpec
from t0.errors import UserError
from t0.torch.schedules import schedule

TOTAL = 1000
STEPS = [0, 1, 5, 49, 50, 99, 100, 101, 500, 899, 900, 950, 999]
SELECTORS = "mesh_tensorflow.transformer.learning_rate_schedules"
CASES = [
    ("t0.constant_with_warmup", {"peak": 0.01, "warmup_steps": 100, "offset": -3}),
    ("t0.rsqrt", {"warmup_steps": 100, "multiplier": 2.0, "ramp_down_fraction": 0.1}),
    ("t0.rsqrt_then_linear", {"warmup_steps": 50, "linear_fraction": 0.25}),
    ("t0.linear_with_warmup", {"peak": 0.1, "warmup_steps": 100, "end": 0.01}),
    ("t0.cosine_with_warmup", {"peak": 0.1, "warmup_steps": 100, "end": 0.01, "begin": 0.5}),
    (f"{SELECTORS}.truncated_rsqrt", {"warmup_steps": 100}),
    (f"{SELECTORS}.linear_decay", {"steps_or_fraction": 0.1}),
    (f"{SELECTORS}.linear_decay", {"steps_or_fraction": 300}),
    (f"{SELECTORS}.linear_warmup", {"steps_or_fraction": 0.05}),
    (f"{SELECTORS}.constant", {"value": 0.3}),
    (f"{SELECTORS}.constant_learning_rate", {"learning_rate": 0.003}),
    (f"{SELECTORS}.linear_decay_learning_rate", {"initial_lr": 0.2, "offset": 10}),
    (f"{SELECTORS}.learning_rate_schedule_noam", {"warmup_steps": 100, "offset": 20}),
    (f"{SELECTORS}.slanted_triangular", {"cut_fraction": 0.1}),
]


@pytest.mark.parametrize(("selector", "parameters"), CASES, ids=lambda x: str(x)[-30:])
def test_learning_rate_schedule_equals_tensorflow_function(selector, parameters):
    from t0.compat import learning_rate_schedules
    from t0.compat import tf as tf
    from t0.training import schedules

    module, _, name = selector.rpartition(".")
    function = getattr(schedules if module == "t0" else learning_rate_schedules, name)
    rate = schedule(ConfiguredSpec(selector, parameters), TOTAL)
    for step in STEPS:
        expected = function(tf.constant(step), TOTAL, **parameters)
        assert rate(step) == pytest.approx(float(expected), rel=2e-6, abs=1e-12), step


def test_learning_rate_product_of_numbers_and_functions():
    factors = [0.5, {"selector": f"{SELECTORS}.linear_warmup", "parameters": {}}]
    product = ConfiguredSpec(f"{SELECTORS}.product_learning_rate", {"factors": factors})
    assert schedule(product, TOTAL)(500) == pytest.approx(0.5 * 500 / 10000)


def test_learning_rate_constant():
    assert schedule(0.25, TOTAL)(7) == 0.25


@pytest.mark.parametrize("selector", ["mine.rate", f"{SELECTORS}.other", "t0.other"])
def test_learning_rate_unknown_schedule_is_refused_with_list(selector):
    with pytest.raises(UserError, match=f"uses @{selector}.*expected one of .*cosine_with_warmup"):
        schedule(ConfiguredSpec(selector, {}), TOTAL)
    with pytest.raises(UserError, match="is not bound"):
        schedule(None, TOTAL)


@pytest.mark.parametrize(
    ("selector", "parameters", "message"),
    [
        ("t0.rsqrt", {"warmup": 3}, "unexpected keyword argument 'warmup'"),
        (f"{SELECTORS}.constant_learning_rate", {}, "missing .* argument: 'learning_rate'"),
        ("t0.rsqrt", {"warmup_steps": "x"}, "'warmup_steps': 'x'.* is ValueError"),
        (f"{SELECTORS}.product_learning_rate", {"factors": ["x"]}, "is TypeError"),
        (f"{SELECTORS}.product_learning_rate", {"factors": [{"selector": "x"}]}, "uses @x"),
        (
            f"{SELECTORS}.product_learning_rate",
            {"factors": [{"selector": f"{SELECTORS}.linear_warmup", "parameters": {"steps": 1}}]},
            "unexpected keyword argument 'steps'",
        ),
    ],
)
def test_learning_rate_wrong_parameters_are_refused(selector, parameters, message):
    with pytest.raises(UserError, match=message):
        schedule(ConfiguredSpec(selector, parameters), TOTAL)


@pytest.mark.parametrize(
    ("selector", "parameters"),
    [
        (f"{SELECTORS}.linear_warmup", {"steps_or_fraction": 0}),
        (f"{SELECTORS}.truncated_rsqrt", {"warmup_steps": 0}),
        (f"{SELECTORS}.learning_rate_schedule_noam", {"warmup_steps": -3, "offset": 5}),
        (f"{SELECTORS}.constant", {"value": 1e300}),
    ],
)
def test_learning_rate_that_is_not_finite_is_refused_at_its_step(selector, parameters):
    with pytest.raises(UserError, match="at step 0 of 1,000; expected a finite number"):
        schedule(ConfiguredSpec(selector, parameters), TOTAL)(0)
