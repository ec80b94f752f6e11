"""The padding to a TPU's tiles: by hand, in a lowered program, and in the case that is known."""

import pytest
from absl import flags

from t0.config import parse
from t0.mesh import formulas, lowering, t5_model
from t0.mesh.costs import costs_by_formulas
from t0.mesh.plan import FITS, RECOMPUTES, TOO_LARGE, plan_configured_run
from tests.mesh import planning


@pytest.mark.parametrize(
    ("shape", "bytes_each", "padded"),
    [
        ((), 4, 8 * 128 * 4),
        ((3,), 4, 8 * 128 * 4),
        ((8, 128), 4, 8 * 128 * 4),
        ((9, 129), 4, 16 * 256 * 4),
        ((9, 129), 2, 16 * 256 * 2),
        ((5, 17, 16), 2, 5 * 32 * 128 * 2),
    ],
)
def test_tile_padding_equals_hand_count(shape, bytes_each, padded):
    assert formulas.padded_bytes(shape, bytes_each) == padded


def largest_bias_and_mask(program, sequences, lengths):
    """Returns the bytes, in tiles, of the largest position bias and its largest sum with a mask."""
    biases, sums = [0], [0]
    for step in program.steps:
        for shape in (program.values[value].shape for value in step.outputs):
            if len(shape) != 4 or shape[1] != shape[2] or shape[1] not in lengths:
                continue
            if shape[0] == sequences and step.kind in ("Cast", "Add", "AddV2"):
                sums.append(formulas.padded_bytes(shape, formulas.LOGITS_BYTES))
            elif shape[0] == 1 and step.kind == "ExpandDims":
                biases.append(formulas.padded_bytes(shape, formulas.BIAS_BYTES))
    return max(biases) + max(sums)


@pytest.mark.parametrize("score", [pytest.param(False, marks=pytest.mark.slow), True])
def test_tile_bytes_of_lowered_program_equal_formula(score):
    run = planning.read(*planning.LAYERS, *planning.on_slice("v3-8", 2), score=score)
    lowered = lowering.lower(run)
    program = lowering.read_program(lowered.graph, lowered.fetches)
    costs = costs_by_formulas(run, t5_model.sizes(lowering.build_model(run)))
    sequences = run.batch_sequences // run.replicas // run.microbatches
    found = largest_bias_and_mask(program, sequences, (32, 16))
    assert (
        found
        == costs.tile_bytes
        == formulas.bias_and_mask_bytes(sequences, (32, 16), 2, train=not score)
    )
    assert found > 0


def verdict_of(files, *params, exact=False):
    flags.FLAGS.mark_as_parsed()
    parse.parse(files, list(params))
    plan = plan_configured_run(exact=exact)
    return plan["verdict"]["word"], plan["per_core_bytes"]


@pytest.mark.parametrize(("tokens", "word"), [(65536, FITS), (262144, TOO_LARGE)])
@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_tile_memory_of_t0_evaluation_on_v3_128(empty_gin, tokens, word, exact):
    files = ["runs/t0_score_eval.gin", "mesh/v3-128.gin"]
    found, memory = verdict_of(
        files, f"run.batch_size = ('tokens_per_batch', {tokens})", exact=exact
    )
    assert found == word
    # A quarter of a GiB for the position bias, half of one for each sequence of a core.
    assert memory["tiles"] == (2**28 + 2**29 * tokens // 1024 // 32)


def test_tile_memory_of_t0_training_on_v3_512(empty_gin):
    found, memory = verdict_of(["runs/t0_train.gin", "mesh/v3-512.gin"])
    assert found == RECOMPUTES
    assert memory["tiles"] == 2**28
