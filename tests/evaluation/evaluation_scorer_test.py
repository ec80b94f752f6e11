"""Log-likelihoods against an independent forward pass, over all that must not change them."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from t0.errors import UserError
from t0.evaluation.batching import PackedShape
from t0.evaluation.mesh_model import find_unused_weights
from tests.evaluation.numpy_t5 import NumpyT5
from tests.evaluation.tiny_models import make_scorer, padded, random_variables, write_checkpoint
from tests.helpers.cases import one_quick

INPUTS = [[5, 9, 44, 17, 3, 100, 61], [7], list(range(3, 60)), [90, 91, 92]]
CHOICES = [[[10, 11, 1], [12, 1]], [[1], [33, 34, 35, 36, 1]], [[70, 1], [71, 1]], [[8, 1], [9, 1]]]


def expected(variables, inputs=INPUTS, choices=CHOICES):
    model = NumpyT5(variables)
    return np.array(
        [
            [model.log_likelihood(np.array(ids), np.array(choice)) for choice in row]
            for ids, row in zip(inputs, choices, strict=True)
        ]
    )


@pytest.fixture(scope="module")
def variables():
    return random_variables("t5.1.1")


@pytest.fixture(scope="module")
def checkpoint(variables, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("scored"), variables)


@pytest.fixture(scope="module")
def scorer(checkpoint):
    """Holds `checkpoint`; a test that restores another one restores this one at its end."""
    scorer = make_scorer()
    scorer.restore(checkpoint)
    yield scorer
    scorer.close()


@pytest.mark.parametrize("model", one_quick(["t5.1.1", "t5.1.0"]))
def test_log_likelihoods_equal_independent_forward_pass(model, tmp_path):
    variables = random_variables(model, seed=1, layers=2)
    scorer = make_scorer(model, layers=2)
    assert scorer.restore(write_checkpoint(tmp_path, variables)) == len(variables)
    scores = scorer.log_likelihoods(padded(INPUTS), padded(CHOICES))
    np.testing.assert_allclose(scores, expected(variables), atol=1e-4)
    scorer.close()


def test_independent_forward_pass_depends_on_every_variable(variables):
    # Otherwise the agreement above says nothing about some part of the model.
    base = expected(variables)
    for name, value in variables.items():
        changed = expected({**variables, name: value[..., ::-1] * 1.1})
        assert np.abs(changed - base).max() > 1e-3, name


def test_log_likelihoods_do_not_depend_on_padding_or_batch(scorer, variables):
    wanted = expected(variables)
    wider = scorer.log_likelihoods(padded(INPUTS, 80), padded(CHOICES, 9))
    np.testing.assert_allclose(wider, wanted, atol=2e-5)
    row = PackedShape(1, max(map(len, INPUTS)), 7)  # one program for all that are alone
    for b, (ids, choices) in enumerate(zip(INPUTS, CHOICES, strict=True)):
        alone = scorer.log_likelihoods(padded([ids]), padded([choices]), row)
        np.testing.assert_allclose(alone[0], wanted[b], atol=2e-5)
        backwards = scorer.log_likelihoods(padded([ids]), padded([choices[::-1]]), row)
        np.testing.assert_allclose(backwards[0], wanted[b][::-1], atol=2e-5)


def test_log_likelihood_of_a_padding_choice_is_zero(scorer):
    targets = padded([[[10, 11, 1], [12, 1]]])
    targets[0, 1] = 0
    scores = scorer.log_likelihoods(padded([[5, 9]]), targets)
    assert scores[0, 0] < -1
    assert scores[0, 1] == 0


@pytest.mark.parametrize("mesh", [pytest.param("batch:2", marks=pytest.mark.slow), "model:2"])
def test_sharding_over_two_devices_keeps_log_likelihoods(mesh, checkpoint, variables):
    scorer = make_scorer(mesh=mesh)
    assert scorer.replicas == (2 if mesh == "batch:2" else 1)
    scorer.restore(checkpoint)
    scores = scorer.log_likelihoods(padded(INPUTS), padded(CHOICES))
    np.testing.assert_allclose(scores, expected(variables), atol=1e-4)
    scorer.close()


def test_bfloat16_master_weights_are_scored_in_float32(variables, tmp_path):
    import tensorflow as tf

    narrow = {
        name: tf.cast(tf.cast(value, tf.bfloat16), tf.float32).numpy()
        for name, value in variables.items()
    }
    scorer = make_scorer(master="bfloat16")
    scorer.restore(write_checkpoint(tmp_path, variables, dtype="bfloat16"))
    scores = scorer.log_likelihoods(padded(INPUTS), padded(CHOICES))
    np.testing.assert_allclose(scores, expected(narrow), atol=1e-4)
    assert np.abs(scores - expected(variables)).max() > 1e-3
    scorer.close()


@pytest.mark.parametrize("mesh", ["", pytest.param("model:2", marks=pytest.mark.slow)])
def test_bfloat16_model_has_float32_logits_and_softmax(variables, tmp_path, mesh):
    # All that bfloat16 computes here is exact in it: layers that add nothing, hidden states of 1
    # and -1. Logits, sums of 16 numbers of 7 bits, and their softmax are not.
    rng = np.random.default_rng(3)
    exact = {
        name: np.zeros_like(value) if name.endswith(("/o", "/wo/kernel")) else value
        for name, value in variables.items()
    }
    exact |= {name: np.ones_like(value) for name, value in exact.items() if "rms_norm" in name}
    exact["shared/embedding"] = rng.choice([-1, 1], size=(128, 16)).astype(np.float32)
    exact["decoder/logits/kernel"] = rng.integers(-127, 128, (16, 128)).astype(np.float32) / 64
    scorer = make_scorer(computed="bfloat16", mesh=mesh)
    scorer.restore(write_checkpoint(tmp_path, exact))
    scores = scorer.log_likelihoods(padded(INPUTS), padded(CHOICES))
    np.testing.assert_allclose(scores, expected(exact), atol=1e-4)
    scorer.close()


def test_checkpoint_restored_again_replaces_weights_of_every_shape(
    scorer, checkpoint, variables, tmp_path
):
    other = random_variables("t5.1.1", seed=2)
    first = scorer.log_likelihoods(padded(INPUTS), padded(CHOICES))
    scorer.restore(write_checkpoint(tmp_path, other, step=3))
    second = scorer.log_likelihoods(padded(INPUTS), padded(CHOICES))
    np.testing.assert_allclose(first, expected(variables), atol=1e-4)
    np.testing.assert_allclose(second, expected(other), atol=1e-4)
    scorer.restore(checkpoint)


def _lacking(variables):
    del variables["encoder/rms_norm/scale"]


def _reshaped(variables):
    variables["decoder/logits/kernel"] = np.zeros((16, 256), np.float32)


def _deeper(variables):
    for name, value in list(variables.items()):
        if "decoder/block_000" in name:
            variables[name.replace("block_000", "block_001")] = value


def test_checkpoint_leftover_weights_are_listed():
    model = {"decoder/block_000/q", "shared/embedding"}
    slots = {"decoder/block_000/q_slot_vr", "shared/embedding/adam_m", "global_step", "epoch"}
    old = {"decoder/block_000/layer_001/EncDecAttention/relative_attention_bias"}
    assert find_unused_weights({*model, *slots, *old}, model) == []
    deeper = {"decoder/block_001/q", "decoder/block_001/q_slot_vr", "decoder/logits/kernel"}
    found = find_unused_weights({*model, *slots, *deeper}, model)
    assert found == ["decoder/block_001/q", "decoder/logits/kernel"]


@pytest.mark.parametrize(
    ("change", "dtype", "message"),
    [
        (_deeper, "float32", "holds 14 weights that the configured model does not have, such as d"),
        (_lacking, "float32", "1 of the model's .*missing, such as encoder/rms_norm/scale"),
        (_reshaped, "float32", r"decoder/logits/kernel: \[16, 256\], .* model \[16, 128\]"),
        (dict.copy, "bfloat16", "as bfloat16.*master_dtype = 'bfloat16'"),
    ],
)
def test_checkpoint_of_another_model_is_refused(  # noqa: PLR0913
    scorer, variables, tmp_path, change, dtype, message
):
    changed = dict(variables)
    change(changed)
    with pytest.raises(UserError, match=message):
        scorer.restore(write_checkpoint(tmp_path, changed, dtype=dtype))
    with pytest.raises(UserError, match="nowhere.*cannot be read"):
        scorer.restore(str(tmp_path / "nowhere"))


def test_checkpoint_that_is_truncated_is_refused(scorer, checkpoint, tmp_path):
    folder = shutil.copytree(Path(checkpoint).parent, tmp_path / "cut")
    (data,) = folder.glob("*.data-*")
    data.write_bytes(data.read_bytes()[:5000])
    with pytest.raises(UserError, match=r"model.ckpt-0.data-.* is truncated: 5,000 bytes of"):
        scorer.restore(str(folder / "model.ckpt-0"))
    scorer.restore(checkpoint)
