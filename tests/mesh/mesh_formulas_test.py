"""The formulas against published facts, against sums that a person can do, and real lowering."""

import dataclasses

import pytest

from t0.errors import UserError
from t0.mesh import formulas, lowering, t5_model
from t0.mesh.costs import costs_by_formulas, costs_by_lowering
from tests.mesh import planning


def shape_of(model, vocabulary=32100, parallelism=1):
    run = planning.read(
        *planning.on_slice("v3-8", parallelism), files=(model,), vocabulary_size=vocabulary
    )
    return t5_model.sizes(lowering.build_model(run))


# Raffel et al. 2020 and the T5.1.1 and mT5 release notes, rounded as published; the exact T5.1.1
# counts are those of the released checkpoints (Hugging Face's google/t5-v1_1-*).
@pytest.mark.parametrize(
    ("model", "vocabulary", "count", "tolerance"),
    [
        ("models/t5.1.0.11B.gin", 32100, 11.3e9, 0.005),
        ("models/bi_v1_3B.gin", 32100, 2.85e9, 0.005),
        ("models/t5.1.1.lm100k.small.gin", 32100, 76_961_152, 0),
        ("models/t5.1.1.lm100k.base.gin", 32100, 247_577_856, 0),
        ("models/t5.1.1.lm100k.large.gin", 32100, 783_150_080, 0),
        ("models/t5.1.1.lm100k.xl.gin", 32100, 2_849_757_184, 0),
        ("models/t5.1.1.lm100k.xxl.gin", 32100, 11_135_332_352, 0),
        ("models/mt5.small.gin", 250_100, 300_176_768, 0),
        ("models/mt5.base.gin", 250_100, 582_401_280, 0),
        ("models/mt5.large.gin", 250_100, 1_229_581_312, 0),
        ("models/mt5.xl.gin", 250_100, 3_742_619_648, 0),
        ("models/mt5.xxl.gin", 250_100, 12_921_057_280, 0),
    ],
)
def test_formulas_parameter_counts_equal_published(model, vocabulary, count, tolerance):
    assert formulas.parameters(shape_of(model, vocabulary)) == pytest.approx(count, rel=tolerance)


def test_formulas_collective_bytes_equal_hand_count():
    run = planning.read(
        *planning.on_slice("v3-8", 2),
        "d_model = 8",
        "d_ff = 16",
        "d_kv = 4",
        "num_heads = 2",
        "num_layers = 1",
        "run.sequence_length = {'inputs': 4, 'targets': 2}",
        "run.batch_size = ('sequences_per_batch', 8)",
        "serialize_num_microbatches.tokens_per_microbatch_per_replica = 4",
        vocabulary_size=128,
    )
    quantities = costs_by_formulas(run, t5_model.sizes(lowering.build_model(run)))
    model, batch = quantities.collectives
    # 4 replicas of 2 sequences, one in each of 2 microbatches. Forward: the lookup, attention and
    # feed-forward of the encoder on 1 x 4 x 8 values, the lookup and three sublayers of the decoder
    # on 1 x 2 x 8; backward the same. bfloat16, two microbatches: 2 x 2 x (3 x 32 + 4 x 16) x 2.
    assert model.payload_bytes == 2 * 2 * (3 * 32 + 4 * 16) * 2 == 1280
    assert model.count == 2 * 2 * 7
    # A ring of 2 sends 2 x (2 - 1) / 2 of its operand.
    assert model.wire_bytes == 1280
    # On one core: 3 attentions of 4 x (8 x 4); 2 feed-forwards of 3 x (8 x 8); 7 scales of 8; an
    # embedding and the logits' 64 x 8 each; 2 position biases of 1 x 32 = 1,912 elements. In each
    # microbatch the bias gradients 1 x (4 x 4 + 2 x 2) = 20. Four replicas: bfloat16.
    weights = 3 * 4 * 32 + 2 * 3 * 64 + 7 * 8 + 2 * 64 * 8 + 2 * 32
    assert weights == 1912
    assert batch.payload_bytes == 2 * (weights + 2 * 20)
    assert batch.wire_bytes == round(2 * 3 / 4 * batch.payload_bytes)


SLOW_CASES = ("train, two ways of parallelism", "train, whole batch at once")
PARAMS = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW_CASES else [])
    for name in planning.CASES
]


@pytest.fixture(scope="module", params=PARAMS)
def both(request):
    run = planning.read_case(request.param)
    shape = t5_model.sizes(lowering.build_model(run))
    return run, costs_by_formulas(run, shape), costs_by_lowering(run, heads=4)


@pytest.mark.parametrize("name", ["parameters", "weights_bytes", "optimizer_bytes", "flops"])
def test_formulas_equal_lowering(both, name):
    _, fast, real = both
    assert getattr(fast, name) == getattr(real, name) > 0 or name == "optimizer_bytes"
    assert getattr(fast, name) == getattr(real, name)


def test_formulas_collectives_agree_with_lowering(both):
    _, fast, real = both
    found = {(c.axes, c.group_size, c.dtype): c for c in real.collectives}
    assert fast.collectives
    for collective in fast.collectives:
        same = found[collective.axes, collective.group_size, collective.dtype]
        # The softmax over the split vocabulary and the loss add scalars for each token.
        assert collective.payload_bytes == pytest.approx(same.payload_bytes, rel=0.02)
        assert collective.count == pytest.approx(same.count, rel=0.15)


# Five models on three slices: model, slice, model parallelism, sequences, tokens of a microbatch.
LARGE = [
    ("t5.1.1.small", "v3-8", 1, 64, 2048),
    ("t5.1.0.base", "v3-8", 2, 64, 4096),
    ("t5.1.1.base", "v3-8", 2, 64, 4096),
    ("t5.1.1.large", "v3-32", 4, 256, 4096),
    ("t5.1.1.xl", "v3-128", 8, 512, 4096),
]


@pytest.mark.parametrize("score", [False, True], ids=["train", "score"])
@pytest.mark.parametrize(
    "case",
    [pytest.param(LARGE[0], marks=pytest.mark.slow)]
    + [pytest.param(case, marks=pytest.mark.exhaustive) for case in LARGE[1:]],
    ids=[case[0] for case in LARGE],
)
def test_formulas_activations_are_within_ten_percent_of_lowering(case, score):
    model, slice_, parallelism, sequences, tokens = case
    run = planning.read(
        *planning.on_slice(slice_, parallelism),
        "num_layers = 3",
        "run.sequence_length = {'inputs': 1024, 'targets': 256}",
        f"run.batch_size = ('sequences_per_batch', {sequences})",
        f"serialize_num_microbatches.tokens_per_microbatch_per_replica = {tokens}",
        files=(f"models/{model}.gin",),
        vocabulary_size=32100,
        score=score,
    )
    fast = costs_by_formulas(run, t5_model.sizes(lowering.build_model(run)))
    real = costs_by_lowering(run, heads=4)
    for name in ("parameters", "weights_bytes", "optimizer_bytes", "flops", "tile_bytes"):
        assert getattr(fast, name) == getattr(real, name), name
    for name in ("weight copies", "gradients"):
        assert fast.temporary_bytes[name] == pytest.approx(
            real.temporary_bytes[name], rel=0.01
        ) or (
            score and name == "weight copies"  # of a scoring program only the largest is alive
        )
    activations = pytest.approx(real.temporary_bytes["activations"], rel=0.1)
    assert fast.temporary_bytes["activations"] == activations
    assert fast.recomputed_bytes == pytest.approx(real.recomputed_bytes, rel=0.15)


@pytest.mark.exhaustive
def test_formulas_of_xxl_on_v3_512_agree_with_lowering():
    run = planning.read(
        *planning.on_slice("v3-512", 8),
        "run.sequence_length = {'inputs': 1024, 'targets': 256}",
        "run.batch_size = ('sequences_per_batch', 1024)",
        "serialize_num_microbatches.tokens_per_microbatch_per_replica = 2048",
        files=("models/t5.1.1.lm100k.xxl.gin",),
        vocabulary_size=32100,
    )
    run = dataclasses.replace(run, batch_sequences=1024, microbatches=8)
    real = costs_by_lowering(run, heads=4)
    fast = costs_by_formulas(run, t5_model.sizes(lowering.build_model(run)))
    assert real.operations["CrossReplicaSum"] == 2375
    assert real.parameters == fast.parameters == 11_135_332_352
    assert (real.flops, real.weights_bytes) == (fast.flops, fast.weights_bytes)
    assert real.optimizer_bytes == fast.optimizer_bytes
    assert sum(fast.temporary_bytes.values()) == pytest.approx(
        sum(real.temporary_bytes.values()), rel=0.1
    )


def test_formulas_of_other_layers_need_an_exact_plan():
    model = lowering.build_model(planning.read_case("score", "num_layers = 3"))
    model.decoder.layer_stack._layers[-1].hidden_size += 128
    with pytest.raises(UserError, match="Plan it with --exact"):
        t5_model.sizes(model)
