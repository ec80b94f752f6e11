"""Values of metrics: numbers are kept, others are named, and no name has two metrics."""

import functools

import numpy as np
import pytest

from t0.errors import UserError
from t0.training.metric_values import MetricValues


class Scalar:
    """As `seqio.metrics.Scalar`, which needs JAX to be imported."""

    def __init__(self, value):
        self.value = value


class Text:
    def __init__(self, textdata):
        self.textdata = textdata


def accuracy(targets, predictions):
    return {"accuracy": float(targets == predictions)}


def other_accuracy(targets, predictions):
    del targets, predictions
    return {"accuracy": 7.0}


def test_metric_values_of_every_number_type():
    values = MetricValues("teas")
    returned = {
        "int": 3, "bool": True, "numpy": np.float32(0.5), "zero_d": np.array(2),
        "scalar": Scalar(np.float32(1.5)), "by": {"color": {"green": 1.0}, "n": np.int64(4)},
    }  # fmt: skip
    expected = {
        "int": 3.0, "bool": 1.0, "numpy": 0.5, "zero_d": 2.0, "scalar": 1.5, "by/color/green": 1.0,
        "by/n": 4.0,
    }  # fmt: skip
    assert values.add(accuracy, returned) == expected
    assert values.numbers == expected
    assert not values.others
    assert all(type(value) is float for value in values.numbers.values())


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Text("tea"), "Text"),
        ("41.5", "str"),
        (np.array([1.5]), "ndarray"),
        ([1.0, [2.0]], "list"),
        (None, "NoneType"),
        (1j, "complex"),
    ],
)
def test_metric_values_that_are_no_numbers_are_noted(value, kind):
    values = MetricValues("teas")
    assert values.add(accuracy, {"first": value, "share": 0.25}) == {"share": 0.25}
    assert values.others == {"first": kind}
    assert [*values.notes()] == [f"teas: metric 'first' is not a number ({kind}) and is left out"]


def test_metric_without_dictionary_uses_its_function_name():
    values = MetricValues("teas")
    values.add(functools.partial(accuracy, []), 2.5)
    assert values.numbers == {"accuracy": 2.5}


def test_metric_names_that_clash_are_refused():
    values = MetricValues("teas")
    values.add(accuracy, {"accuracy": 1.0})
    values.add(accuracy, {"accuracy": 1.0})
    with pytest.raises(UserError, match="teas: .*accuracy and other_accuracy both return 'acc"):
        values.add(other_accuracy, {"accuracy": 1.0})
