"""A comparison says which of its numbers differ by more than rounding can do."""

import dataclasses

import numpy as np
import pytest

from t0.rehearsal.comparing import (
    BANDS,
    CheckpointPair,
    Comparison,
    StepPair,
    VariablePair,
    relative_difference,
    sign_is_rounding,
    variable_pairs,
)
from t0.rehearsal.one_device import ChoiceScores, Perplexities, Perplexity

STEP = StepPair(1, 2.0, 2.0, 0.5, 0.5, {"v": 1e-7, "w": 1e-6}, ())
SCORES = np.array([[-3.0, -4.0]], np.float32)
PERPLEXITY = Perplexity(3.0, 2, 40)
SAVED = CheckpointPair(
    1.5,
    1.5,
    (),
    ChoiceScores(SCORES, SCORES, equal_on_cores=True),
    Perplexities(PERPLEXITY, PERPLEXITY, equal_on_cores=True),
)
EQUAL = Comparison((STEP, STEP), (VariablePair("w", 1e-9, 1e-6),), SAVED, (), BANDS["float32"])


def measured(pod, *, equal=True):
    """Returns what was saved, with another perplexity by the pod."""
    return dataclasses.replace(SAVED, measured=Perplexities(pod, PERPLEXITY, equal))


def test_rehearsal_verdict_of_equal_numbers_is_agreement():
    assert EQUAL.disagreements() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": (dataclasses.replace(STEP, pod_loss=2.001),)}, "the loss of step 1 differs"),
        ({"steps": (dataclasses.replace(STEP, pod_loss=np.nan),)}, "the loss of step 1 differs"),
        ({"steps": (STEP, dataclasses.replace(STEP, device_loss=2.1))}, "a later step differs"),
        (
            {"steps": (dataclasses.replace(STEP, pod_gradient_norm=0.6),)},
            "the gradient norm of step 1 differs",
        ),
        (
            {"steps": (dataclasses.replace(STEP, gradients={"v": 1e-7, "w": np.inf}),)},
            "step 1's gradient of w differs",
        ),
        ({"variables": (VariablePair("w", 0.1, 0.3),)}, "w, by how far it moved, differs"),
        ({"saved": dataclasses.replace(SAVED, pod_loss=1.6)}, "after restoring the checkpoint"),
        (
            {"saved": dataclasses.replace(SAVED, ranked=ChoiceScores(SCORES, SCORES + 1, True))},
            "scores of choices differ by 3.3e-01",
        ),
        (
            {"saved": dataclasses.replace(SAVED, ranked=ChoiceScores(SCORES, SCORES, False))},
            "the cores' scores are not equal",
        ),
        (
            {"saved": measured(dataclasses.replace(PERPLEXITY, nats_per_token=3.1))},
            "nats per token differ by 3.3e-02",
        ),
        ({"saved": measured(dataclasses.replace(PERPLEXITY, tokens=41))}, "differ by inf"),
        (
            {"saved": measured(dataclasses.replace(PERPLEXITY, correct=3))},
            "token accuracy differs by 2.5e-02",
        ),
        ({"saved": measured(PERPLEXITY, equal=False)}, "the cores' cross entropies are not equal"),
        ({"saved": dataclasses.replace(SAVED, faults=("w is lost",))}, "w is lost"),
        ({"faults": ("only the cores have x",)}, "only the cores have x"),
    ],
)
def test_rehearsal_verdict_reports_each_difference(change, said):
    found = dataclasses.replace(EQUAL, **change).disagreements()
    assert said in " ".join(found)


def test_rehearsal_verdict_bfloat16_allows_more_rounding():
    steps = (dataclasses.replace(STEP, pod_loss=2.02),)
    rounded = dataclasses.replace(EQUAL, steps=steps, bands=BANDS["bfloat16"])
    assert rounded.disagreements() == []


def test_rehearsal_verdict_nan_is_a_difference():
    before, after = {"w": np.zeros(2)}, {"w": np.array([0.1, np.nan])}
    no_sign = {"w": np.array([False, True])}
    (pair,) = variable_pairs(before, after, {"w": np.array([0.1, 0.2])}, no_sign)
    assert pair == VariablePair("w", np.inf, np.inf)
    assert relative_difference(np.array([np.nan]), np.array([1.0])) == np.inf
    assert relative_difference(np.array([1.0]), np.array([0.0])) == np.inf


def stepped(shape, flipped, gradients):
    """Returns a variable that one step moved, some of its numbers down in place of up."""
    after = {"w": np.full(shape, 0.1)}
    ours = {"w": after["w"].copy()}
    ours["w"].flat[:flipped] *= -1
    no_sign = {"w": sign_is_rounding(*gradients, BANDS["float32"].sign)}
    (pair,) = variable_pairs({"w": np.zeros(shape)}, after, ours, no_sign)
    assert pair.greatest == 0.2
    return dataclasses.replace(EQUAL, variables=(pair,)).disagreements()


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
