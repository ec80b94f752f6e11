"""A comparison says which of its numbers differ by more than rounding can do."""

import dataclasses

import numpy as np
import pytest

from t0.rehearsal.comparing import BANDS, Comparison, StepPair, VariablePair, variable_pairs
from t0.rehearsal.ranking import Ranked
from t0.rehearsal.saving import Saved

STEP = StepPair(1, 2.0, 2.0, 0.5, 0.5, ())
SCORES = np.array([[-3.0, -4.0]], np.float32)
SAVED = Saved(1.5, 1.5, (), Ranked(SCORES, SCORES, equal_on_cores=True))
EQUAL = Comparison((STEP, STEP), (VariablePair("w", 1e-9, 1e-6),), SAVED, (), BANDS["float32"])


def test_equal_numbers_agree():
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
        ({"variables": (VariablePair("w", 0.1, 0.3),)}, "w, by how far it moved, differs"),
        ({"saved": dataclasses.replace(SAVED, pod_loss=1.6)}, "after restoring the checkpoint"),
        (
            {"saved": dataclasses.replace(SAVED, ranked=Ranked(SCORES, SCORES + 1, True))},
            "scores of choices differ by 3.3e-01",
        ),
        (
            {"saved": dataclasses.replace(SAVED, ranked=Ranked(SCORES, SCORES, False))},
            "the cores' scores are not equal",
        ),
        ({"saved": dataclasses.replace(SAVED, faults=("w is lost",))}, "w is lost"),
        ({"faults": ("only the cores have x",)}, "only the cores have x"),
    ],
)
def test_each_difference_is_said(change, said):
    found = dataclasses.replace(EQUAL, **change).disagreements()
    assert said in " ".join(found)


def test_bfloat16_rounds_more():
    steps = (dataclasses.replace(STEP, pod_loss=2.02),)
    rounded = dataclasses.replace(EQUAL, steps=steps, bands=BANDS["bfloat16"])
    assert rounded.disagreements() == []


def test_what_is_not_a_number_differs():
    before, after = {"w": np.zeros(2)}, {"w": np.array([0.1, np.nan])}
    (pair,) = variable_pairs(before, after, {"w": np.array([0.1, 0.2])})
    assert pair == VariablePair("w", np.inf, np.inf)


@pytest.mark.parametrize(("flipped", "agrees"), [(1, True), (8, True), (40, False), (400, False)])
def test_a_gradient_that_is_rounding_has_no_sign(flipped, agrees):
    before, after = {"w": np.zeros((100, 80))}, {"w": np.full((100, 80), 0.1)}
    ours = {"w": after["w"].copy()}
    ours["w"].flat[:flipped] *= -1
    (pair,) = variable_pairs(before, after, ours)
    assert pair.greatest == 0.2
    found = dataclasses.replace(EQUAL, variables=(pair,)).disagreements()
    assert (found == []) is agrees
