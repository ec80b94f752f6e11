"""Real lowering against the formulas, and both against themselves."""

import dataclasses

import planning
import pytest

from t0.mesh import formulas, lowering, planner, quantities
from t0.mesh.lowering import read_program

LAYERS = ("num_layers = 2", "d_model = 128", "d_ff = 256", "d_kv = 32", "num_heads = 4")
CASES = {
    "train, two ways of parallelism": (planning.on_slice("v3-8", 2), False),
    "train, whole batch at once": (
        (
            *planning.on_slice("v3-8", 4),
            "serialize_num_microbatches.tokens_per_microbatch_per_replica = None",
            "run.batch_size = ('sequences_per_batch', 4)",
            "DenseReluDense.activation = 'relu'",
            "Unitransformer.shared_embedding_and_softmax_weights = True",
        ),
        False,
    ),
    "score": (planning.on_slice("v3-8", 2), True),
}


@pytest.fixture(scope="module", params=list(CASES))
def both(request):
    params, score = CASES[request.param]
    settings = planning.read(*LAYERS, *params, *(BATCH if score else ()), score=score)
    sizes = formulas.model_sizes(lowering.build_model(settings))
    return (
        settings,
        quantities.by_formulas(settings, sizes),
        quantities.by_lowering(settings),
    )


BATCH = ("run.batch_size = ('sequences_per_batch', 32)",)


@pytest.mark.parametrize("name", ["parameters", "weights_bytes", "optimizer_bytes", "flops"])
def test_formulas_equal_lowering(both, name):
    _, fast, real = both
    assert getattr(fast, name) == getattr(real, name) > 0 or name == "optimizer_bytes"
    assert getattr(fast, name) == getattr(real, name)


def test_collectives_agree(both):
    _, fast, real = both
    found = {(c.axes, c.group_size, c.dtype): c for c in real.collectives}
    assert fast.collectives
    for collective in fast.collectives:
        same = found[collective.axes, collective.group_size, collective.dtype]
        # The softmax over the split vocabulary and the loss add scalars for each token.
        assert collective.payload_bytes == pytest.approx(same.payload_bytes, rel=0.02)
        assert collective.count == pytest.approx(same.count, rel=0.15)


@pytest.mark.parametrize("score", [False, True], ids=["train", "score"])
def test_activations_agree(score):
    settings = planning.read(
        *planning.on_slice("v3-8", 2),
        "num_layers = 2",
        "run.sequence_length = {'inputs': 1024, 'targets': 256}",
        "run.batch_size = ('sequences_per_batch', 32)",
        "serialize_num_microbatches.tokens_per_microbatch_per_replica = 2048",
        files=("models/t5.1.1.base.gin",),
        score=score,
    )
    fast = quantities.by_formulas(settings, formulas.model_sizes(lowering.build_model(settings)))
    real = quantities.by_lowering(settings)
    for name in ("weight copies", "gradients", "activations"):
        if real.temporary_bytes[name] > 0.02 * sum(real.temporary_bytes.values()):
            wanted = pytest.approx(real.temporary_bytes[name], rel=0.2)
            assert fast.temporary_bytes[name] == wanted, name
    assert fast.recomputed_bytes == pytest.approx(real.recomputed_bytes, rel=0.25)


@pytest.mark.parametrize("case", ["train, two ways of parallelism", "score"])
def test_one_core_stands_for_all(case):
    params, score = CASES[case]
    settings = planning.read(*LAYERS, *params, *(BATCH if score else ()), score=score)
    one, every = (quantities.by_lowering(settings, every_slice=all_) for all_ in (False, True))
    assert every.operations["graph"] > one.operations["graph"]
    del every.operations["graph"], one.operations["graph"]
    assert every == one


def test_microbatches_repeat_the_loop():
    loops = {}
    for count, tokens in ((1, 256), (4, 64)):
        settings = planning.read(
            *LAYERS,
            *planning.on_slice("v3-8", 2),
            f"serialize_num_microbatches.tokens_per_microbatch_per_replica = {tokens}",
        )
        assert settings.microbatches == count
        lowered = lowering.lower(settings)
        program = read_program(lowered.graph, lowered.fetches)
        loops[count] = any(step.in_loop for step in program.steps)
    assert loops == {1: False, 4: True}


def test_plan_of_a_small_model():
    planning.configure(*LAYERS, *planning.on_slice("v3-8", 2))
    plan = planner.plan_configured(planner.Choices(start_step=40, utilisation=0.5))
    memory = plan["per_core_bytes"]
    parts = ("weights", "optimizer", "weight_copies", "gradients", "activations")
    assert memory["total"] == sum(memory[part] for part in parts)
    assert memory["total_recomputed"] <= memory["total"]
    assert plan["verdict"]["word"] == "fits"
    assert plan["run"]["steps"] == 60
    assert plan["flops"]["per_step"] == 8 * plan["flops"]["per_core_per_step"]
    time = plan["time"]
    assert time["compute_seconds"] == plan["flops"]["per_core_per_step"] / (61.5e12 * 0.5)
    assert time["step_seconds"] == time["compute_seconds"] + time["communication_seconds"]
    assert plan["mesh"]["layout"]["heads"] == {"size": 4, "axis": "model", "per_core": 2}
    assert sorted(plan["mesh"]["logical_to_physical"]) == list(range(8))
    assert plan["longest_poles"]["flops"][0]["amount"] > 0


@pytest.mark.slow
def test_xxl_on_v3_512_lowers_whole():
    settings = planning.read(
        *planning.on_slice("v3-512", 8),
        "run.sequence_length = {'inputs': 1024, 'targets': 256}",
        "run.batch_size = ('sequences_per_batch', 1024)",
        "serialize_num_microbatches.tokens_per_microbatch_per_replica = 2048",
        files=("models/t5.1.1.lm100k.xxl.gin",),
        vocabulary_size=32100,
    )
    settings = dataclasses.replace(settings, batch_sequences=1024, microbatches=8)
    real = quantities.by_lowering(settings)
    fast = quantities.by_formulas(settings, formulas.model_sizes(lowering.build_model(settings)))
    assert real.operations["CrossReplicaSum"] == 2375
    assert real.parameters == fast.parameters == 11_135_332_352
    assert (real.flops, real.weights_bytes) == (fast.flops, fast.weights_bytes)
    assert real.optimizer_bytes == fast.optimizer_bytes
