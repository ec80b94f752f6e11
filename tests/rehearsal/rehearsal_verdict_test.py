"""A comparison says which of its numbers differ by more than rounding can do."""

import types

import numpy as np
import pytest

from t0.rehearsal import comparing
from t0.rehearsal.comparing import BANDS, Comparison, relative_difference, sign_is_rounding
from t0.rehearsal.one_device import DeviceStep, Perplexity
from t0.rehearsal.virtual_pod import PodStep, WholeTensors

FLOAT32 = BANDS["float32"]
BATCH = {"inputs": np.arange(6).reshape(3, 2)}
GRADIENT = np.array([0.3, 0.4])


def compare_steps(
    step=1, bands=FLOAT32, *, losses=(2.0, 2.0), loss=2.0, norm=0.5, second=BATCH, **changes
):
    """Compares a step in which both sides are equal, except for the changes."""
    pod = {"gradients": WholeTensors({"w": GRADIENT}, ()), "features": WholeTensors(BATCH, ())}
    comparison = Comparison(bands)
    theirs = PodStep(np.array(losses), **(pod | changes))
    ours = DeviceStep(loss, norm, {"w": GRADIENT})
    comparing.compare_step(comparison, step, theirs, ours, [BATCH, second])
    return comparison.disagreements


def test_rehearsal_verdict_of_equal_numbers_is_agreement():
    assert compare_steps() == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": 2.001}, "the loss of step 1 differs"),
        ({"loss": np.nan}, "the loss of step 1 differs"),
        ({"step": 2, "loss": 2.1}, "the loss of step 2 differs"),
        ({"norm": 0.6}, "the gradient norm of step 1 differs"),
        (
            {"second": {"inputs": BATCH["inputs"] + 1}},
            "step 1: core 1 gets other inputs than core 0",
        ),
        ({"losses": (2.0, 2.1)}, "step 1: the cores' losses are not equal"),
        (
            {"gradients": WholeTensors({"w": np.array([0.3, 0.41])}, ())},
            "step 1's gradient of w differs",
        ),
        (
            {"gradients": WholeTensors({"w": GRADIENT}, ("w",))},
            "the cores' replicas of the gradient of w are not equal",
        ),
        (
            {"features": WholeTensors({"inputs": BATCH["inputs"] + 1}, ())},
            "the rows of inputs that the cores took do not make up the batch",
        ),
        (
            {"features": WholeTensors(BATCH, ("inputs",))},
            "cores at the same position of the layout took different rows of inputs",
        ),
    ],
)
def test_rehearsal_verdict_reports_each_difference_of_a_step(changes, said):
    assert said in " ".join(compare_steps(**changes))


def test_rehearsal_verdict_bfloat16_allows_more_rounding():
    assert compare_steps(loss=2.02) != []
    assert compare_steps(bands=BANDS["bfloat16"], loss=2.02) == []


ENTROPY = np.array([[3.0, 3.0], [3.0, 9.0]])
LABELS = np.array([[5, 6], [7, 0]])
MEASURED = [0, ENTROPY, LABELS, LABELS, np.array([[1, 1], [1, 0]])]
SCORES = np.array([[-3.0, -4.0]], np.float32)


class Cores:
    """Stands for the programs of two cores, with the values of each."""

    def __init__(self, *values):
        self._values = list(values)

    def restore(self, prefix):
        pass

    def values(self, rows):
        return self._values


def changed(index, value):
    return [value if number == index else old for number, old in enumerate(MEASURED)]


@pytest.mark.parametrize(
    ("scores", "measured", "said"),
    [
        ([[SCORES]] * 2, [MEASURED] * 2, ""),
        ([[SCORES + 1]] * 2, [MEASURED] * 2, "score of the choices differs by 2.5e-01"),
        ([[SCORES], [SCORES + 1]], [MEASURED] * 2, "the cores' scores are not equal"),
        ([[SCORES]] * 2, [changed(1, ENTROPY + 0.1)] * 2, "nats per token differs by 3.3e-02"),
        ([[SCORES]] * 2, [changed(4, np.ones((2, 2)))] * 2, "number of target tokens differs"),
        ([[SCORES]] * 2, [changed(2, 1 + LABELS)] * 2, "the token accuracy differs by 1.0e+00"),
        ([[SCORES]] * 2, [MEASURED, changed(1, ENTROPY + 1)], "cross entropies are not equal"),
    ],
)
def test_rehearsal_verdict_reports_each_difference_of_evaluations(
    monkeypatch, scores, measured, said
):
    run = types.SimpleNamespace(
        batch_sequences=2, vocabulary_size=9, sequence_length={"inputs": 3, "targets": 2}
    )
    monkeypatch.setattr(comparing, "score_choices", lambda *_: SCORES)
    monkeypatch.setattr(comparing, "measure_perplexity", lambda *_: Perplexity(3.0, 1.0, 3))
    comparison = Comparison(FLOAT32)
    cores = (Cores(*scores), Cores(*measured))
    comparing.compare_evaluations(comparison, run, cores, "prefix")
    assert said in " ".join(comparison.disagreements)
    assert bool(said) == bool(comparison.disagreements)


def compare_variables(before, theirs, ours, no_sign):
    comparison = Comparison(FLOAT32)
    comparing.compare_variables(comparison, before, theirs, ours, no_sign)
    return comparison


def test_rehearsal_verdict_nan_is_a_difference():
    before, after = {"w": np.zeros(2)}, {"w": np.array([0.1, np.nan])}
    no_sign = {"w": np.array([False, True])}
    found = compare_variables(before, after, {"w": np.array([0.1, 0.2])}, no_sign)
    assert "w, by how far it moved, differs by" in found.disagreements[0]
    assert found.lines == ["greatest difference of a weight: inf in w"]
    assert not relative_difference(np.array([np.nan]), np.array([1.0])) <= 1
    assert relative_difference(np.array([1.0]), np.array([0.0])) > 1


def test_rehearsal_verdict_reports_variables_of_one_side():
    w = np.ones(2)
    found = compare_variables({"w": w}, {"w": w, "x": w}, {"w": w, "y": w, "global_step": w}, {})
    assert found.disagreements == ["only the cores have x", "only our loop has y"]


def stepped(shape, flipped, gradients):
    """Returns a variable that one step moved, some of its numbers down in place of up."""
    after = {"w": np.full(shape, 0.1)}
    ours = {"w": after["w"].copy()}
    ours["w"].flat[:flipped] *= -1
    no_sign = {"w": sign_is_rounding(*gradients, FLOAT32.sign)}
    found = compare_variables({"w": np.zeros(shape)}, after, ours, no_sign)
    assert found.lines == ["greatest difference of a weight: 2.0e-01 in w"]
    return found.disagreements


@pytest.mark.parametrize("shape", [(2,), (100, 80)])
@pytest.mark.parametrize("flipped", [1, 8, 40, 400])
def test_rehearsal_verdict_detects_updates_of_opposite_sign(flipped, shape):
    gradient = np.ones(shape)
    assert stepped(shape, flipped, (gradient, gradient)) != []
    # Its gradient is small on one side alone: that is no rounding.
    small = gradient.copy()
    small.flat[:flipped] = 1e-6
    assert stepped(shape, flipped, (small, gradient)) != []


@pytest.mark.parametrize("flipped", [1, 8, 40, 400])
def test_rehearsal_verdict_ignores_sign_of_rounding_gradients(flipped):
    theirs, ours = np.ones((100, 80)), np.ones((100, 80))
    theirs.flat[:flipped], ours.flat[:flipped] = 3e-6, -3e-6
    assert stepped(theirs.shape, flipped, (theirs, ours)) == []
    # One more that moved the other way has a gradient.
    assert stepped(theirs.shape, flipped + 1, (theirs, ours)) != []


def test_rehearsal_verdict_zero_gradients_exclude_nothing():
    assert not sign_is_rounding(np.zeros(4), np.zeros(4), 1e-4).any()
