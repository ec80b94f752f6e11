"""Packed rows have the scores of padded ones at all lengths; other models are not packed."""

import numpy as np
import pytest

from t0.compat import mtf, transformer_layers
from t0.evaluation import scorer as scorer_module
from t0.evaluation.batching import PackedShape
from t0.evaluation.scorer import pack_attention
from tests.evaluation.tiny_models import (
    bind,
    build,
    make_scorer,
    random_variables,
    write_checkpoint,
)
from tests.helpers.cases import one_quick


def ragged(many, choices, seed=0):
    """Inputs of 0 to 30 tokens and choices of 0 to 7, of a vocabulary of 128."""
    rng = np.random.default_rng(seed)
    inputs, targets = np.zeros((many, 30), np.int32), np.zeros((many, choices, 7), np.int32)
    for row in (*inputs, *targets.reshape(-1, 7)):
        length = rng.integers(0, len(row) + 1)
        row[:length] = rng.integers(2, 128, length)
    return inputs, targets


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Returns a scorer that packs and one that does not, of one random checkpoint.

    Scorers of the same arguments are the same, so tests also share the programs of a batch shape.
    """
    opened = {}

    def scorers(model="t5.1.1", **given):
        key = (model, *given.items())
        if key not in opened:
            variables = random_variables(model, layers=2)
            checkpoint = write_checkpoint(tmp_path_factory.mktemp("packed"), variables)
            packed = make_scorer(model, layers=2, **given)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(scorer_module, "pack_attention", lambda *_: False)
                padded = make_scorer(model, layers=2, **given)
            assert [packed.packs, padded.packs] == [True, False]
            for scorer in (packed, padded):
                scorer.restore(checkpoint)
            opened[key] = packed, padded
        return opened[key]

    yield scorers
    for scorer in (scorer for pair in opened.values() for scorer in pair):
        scorer.close()


@pytest.mark.parametrize("model", one_quick(["t5.1.1", "t5.1.0"]))
def test_packing_scores_equal_padded_scores(model, both):
    packed, padded = both(model)
    for many, choices, spare in [(1, 1, 0), (3, 2, 5), (23, 3, 11)]:
        inputs, targets = ragged(many, choices, seed=many)
        shape = None
        if spare:
            shape = PackedShape(1, 30 * many + spare, 7 * choices * many + spare)
        found = packed.log_likelihoods(inputs, targets, shape)
        wanted = padded.log_likelihoods(inputs, targets)
        np.testing.assert_allclose(found, wanted, atol=3e-5)
        assert many == 1 or np.ptp(wanted) > 1


def test_packing_batches_of_one_shape_share_a_program(both):
    packed, padded = both()
    shape, count = PackedShape(1, 200, 60), len(packed._programs)
    for seed in range(3):
        inputs, targets = ragged(3, 2, seed=seed)
        found = packed.log_likelihoods(inputs, targets, shape)
        np.testing.assert_allclose(found, padded.log_likelihoods(inputs, targets), atol=3e-5)
    assert len(packed._programs) == count + 1


@pytest.mark.slow
def test_packing_bfloat16_scores_are_close_to_padded(both):
    packed, padded = both(computed="bfloat16")
    inputs, targets = ragged(6, 2)
    found = packed.log_likelihoods(inputs, targets)
    np.testing.assert_allclose(found, padded.log_likelihoods(inputs, targets), atol=0.3)


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param("batch:2", marks=pytest.mark.exhaustive),
        pytest.param("model:2", marks=pytest.mark.exhaustive),
        pytest.param("batch:2,model:2", marks=pytest.mark.slow),
    ],
)
def test_packing_sharding_of_rows_and_heads_keeps_scores(mesh, both):
    packed, padded = both(mesh=mesh, layout="batch:batch,d_ff:model,heads:model")
    inputs, targets = ragged(8, 2)
    rows = packed.replicas
    shape = PackedShape(rows, 240 // rows + 30, 112 // rows + 14)
    found = packed.log_likelihoods(inputs, targets, shape)
    np.testing.assert_allclose(found, padded.log_likelihoods(inputs, targets), atol=3e-5)
    alone = packed.log_likelihoods(inputs[:1], targets[:1], shape)  # other rows have no input
    np.testing.assert_allclose(alone, found[:1], atol=3e-5)


def test_packing_vocabulary_in_blocks_keeps_scores(both, monkeypatch):
    packed, padded = both()
    inputs, targets = ragged(3, 2)
    monkeypatch.setattr(scorer_module, "_BLOCK", 4)
    found = packed.log_likelihoods(inputs, targets)
    np.testing.assert_allclose(found, padded.log_likelihoods(inputs, targets), atol=3e-5)


@pytest.mark.parametrize(
    "param",
    [
        "transformer_layers.SelfAttention.shared_kv = True",
        "transformer_layers.SelfAttention.num_memory_heads = 1",
        "encoder/transformer.make_layer_stack.layers = "
        "[@transformer_layers.LocalSelfAttention, @transformer_layers.DenseReluDense]",
    ],
)
def test_packing_is_off_for_other_layers(param):
    bind("t5.1.1", param)
    model = build()
    assert not pack_attention(model, mtf.Shape([]), mtf.LayoutRules([]))
    layers = model.decoder.layer_stack._layers
    assert type(layers[0]) is transformer_layers.SelfAttention


def test_packing_is_off_for_layouts_that_split_rows():
    bind("t5.1.1")
    shape = mtf.convert_to_shape("all:2")
    assert not pack_attention(build(), shape, mtf.convert_to_layout_rules("length:all"))
    assert pack_attention(build(), shape, mtf.convert_to_layout_rules("heads:all"))
