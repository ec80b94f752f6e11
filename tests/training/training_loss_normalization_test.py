"""The loss averaged per token and per sequence: weights by hand, and Mesh TensorFlow's loss."""

import numpy as np
import pytest

from t0.errors import UserError
from t0.feeding import packing
from t0.training import graph, losses
from t0.training.loop import LOSS_WEIGHTS, add_loss_weights
from tests.helpers.cases import one_quick
from tests.training import tiny_training as tiny

TARGETS = np.array([[5, 6, 1, 0], [7, 1, 8, 1], [0, 0, 0, 0]], np.int32)
# The second row is packed: it has two sequences.
SEGMENTS = np.array([[1, 1, 1, 0], [1, 1, 2, 2], [0, 0, 0, 0]], np.int32)
THIRDS, QUARTERS, HALVES = ([1 / n] * n for n in (3, 4, 2))
CASES = {
    "sequences, unpacked": ("sequences", None, [[*THIRDS, 0], QUARTERS, [0] * 4], 2),
    "sequences, packed": ("sequences", SEGMENTS, [[*THIRDS, 0], [*HALVES, *HALVES], [0] * 4], 3),
    "tokens": ("tokens", SEGMENTS, TARGETS > 0, 7),
}


@pytest.mark.parametrize("case", CASES)
def test_loss_weights_of_each_average_in_closed_form(case):
    average, segments, expected, count = CASES[case]
    batch = {"targets": TARGETS} | ({} if segments is None else {"targets_segmentation": segments})
    weights = add_loss_weights(batch, average)[LOSS_WEIGHTS]
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, np.array(expected, float) / count, rtol=1e-6)
    assert weights.sum() == pytest.approx(1)


def test_loss_weights_are_absent_by_default_and_zero_for_padding():
    batch = {"targets": TARGETS}
    assert add_loss_weights(batch, "positions") is batch
    assert not add_loss_weights({"targets": TARGETS * 0}, "sequences")[LOSS_WEIGHTS].any()


MICROBATCHES = ["serialize_num_microbatches.tokens_per_microbatch_per_replica = 24"]
EXACT = ["z_loss = 0.0"]


@pytest.fixture(scope="module")
def examples():
    rng = np.random.default_rng(0)
    return [
        {n: rng.integers(2, 60, rng.integers(1, 6)).astype(np.int32) for n in tiny.LENGTHS}
        for _ in range(8)
    ]


def filled(examples, *, pack):
    """A batch of 8 rows, with one example in each row or several."""
    groups = [examples] if pack else [[example] for example in examples]
    packed = [packing.pack(group, tiny.LENGTHS) for group in groups]
    batch = {n: np.concatenate([x[n] for x in packed]) for n in packed[0]}
    missing = 8 - len(batch["targets"])
    return {n: np.pad(x, [(0, missing), (0, 0)]) for n, x in batch.items()}


def weighted_steps(params=(), **settings):
    spec = tiny.training_spec(dropout=0.0, params=[*EXACT, *params], **settings)
    features = [*tiny.FEATURES, LOSS_WEIGHTS]
    built = graph.build(spec, features=features, seed=0, activations=tiny.tf.float32)
    return tiny.Steps(spec, built=built)


@pytest.fixture(scope="module")
def steps():
    return weighted_steps()


def test_loss_per_sequence_is_the_mean_of_each_examples_mean(examples, steps):

    def validated(batch):
        feed = steps.fed(add_loss_weights(batch, "sequences"))
        values = steps.session.run(steps.graph.validate, feed).tolist()
        return dict(zip(("loss", *losses.PARTS), values, strict=True))

    alone = [validated(filled([example], pack=False)) for example in examples]
    expected = np.mean([values["nll"] / values["tokens"] for values in alone])
    for pack in (False, True):
        batch = filled(examples, pack=pack)
        assert (len(np.unique(np.flatnonzero(batch["targets"].any(1)))) < 8) == pack
        assert validated(batch)["loss"] == pytest.approx(expected, rel=1e-5)
    over_tokens = sum(x["nll"] for x in alone) / sum(x["tokens"] for x in alone)
    assert abs(over_tokens - expected) > 1e-3  # the two averages differ on these examples


@pytest.mark.parametrize("settings", one_quick([{"params": MICROBATCHES}, {"mesh": "batch:2"}]))
@pytest.mark.parametrize("pack", one_quick([True, False]))
def test_loss_per_sequence_does_not_depend_on_microbatches_or_mesh(examples, steps, pack, settings):
    batch = add_loss_weights(filled(examples, pack=pack), "sequences")
    weights, expected = steps.weights(), steps.step(batch)
    other = weighted_steps(**settings)
    assert other.graph.microbatches == (4 if "params" in settings else 1)
    other.load(weights)
    values = other.step(batch)
    for name in ("loss", "gradient_square", "nll"):
        assert values[name] == pytest.approx(expected[name], rel=1e-4), name


def test_loss_average_refuses_another_normalization():
    with pytest.raises(UserError, match="Unitransformer.loss_denominator = 9.0 are both set"):
        weighted_steps(["decoder/Unitransformer.loss_denominator = 9.0"])
