"""What gin says of a run on a slice; what cannot work is an error before anything is lowered."""

import pytest

from t0.errors import UserError
from t0.mesh import costs, pod_run
from t0.mesh.plan import plan_configured_run
from t0.mesh.pod_run import divisors
from t0.training import checkpointing  # noqa: F401  registers t0.adapter
from tests.mesh import planning


@pytest.fixture(autouse=True)
def nothing_is_lowered(monkeypatch):
    def lower(*args, **kwargs):
        raise AssertionError("lowered before the check")

    monkeypatch.setattr(costs, "lower", lower)


def message(*params, **kwargs):
    planning.configure(*params, **kwargs)
    with pytest.raises(UserError) as caught:
        plan_configured_run()
    return str(caught.value)


def test_model_parallelism_must_divide_the_heads_of_small():
    text = message(*planning.on_slice("v3-8", 8), files=("models/t5.1.1.small.gin",))
    assert "heads = 6 does not divide by 8" in text
    # Of what divides the heads, only these divide v3-8's cores, d_ff and the vocabulary too.
    assert text.endswith("v3-8: [1, 2]")


def test_model_parallelism_error_names_all_indivisible_sizes():
    text = message(*planning.on_slice("v3-32", 16), "d_ff = 100", "num_heads = 12")
    assert "heads = 12 does not divide by 16" in text
    assert "d_ff = 100 does not divide by 16" in text


def test_model_parallelism_must_divide_the_vocabulary():
    text = message(
        *planning.on_slice("v3-8", 8),
        "num_heads = 8",
        "encoder/Unitransformer.vocab_divisor = 2",
        "decoder/Unitransformer.vocab_divisor = 2",
    )
    assert "vocab = 32100 does not divide by 8. " in text


def test_model_parallelism_must_divide_the_slice():
    text = message(*planning.on_slice("v3-8", 3))
    assert "the mesh batch:2,model:3 has 6 cores, but v3-8 has 8" in text
    assert "model_parallelism = 3 must be one of [1, 2, 4, 8]" in text


def test_tpu_topology_unknown_error_lists_known_slices():
    text = message(*planning.on_slice("v3-500", 8))
    assert "unknown TPU topology 'v3-500'" in text
    assert "v3-512" in text
    assert "v4-128" in text


def test_tpu_topology_missing_error_names_a_mesh_file():
    assert "--gin_file=mesh/v3-8.gin" in message()


def test_batch_size_needs_one_sequence_per_replica():
    text = message(*planning.on_slice("v3-32", 1), "run.batch_size = ('sequences_per_batch', 16)")
    assert "the 32 replicas of the mesh" in text
    assert "The nearest that work: 32" in text


def test_batch_size_in_tokens_must_be_multiple_of_sequence():
    text = message(*planning.on_slice("v3-8", 1), "run.batch_size = ('tokens_per_batch', 1000)")
    assert "1000 is not a multiple of 256" in text


def test_mesh_shape_with_other_core_count_is_refused():
    text = message(*planning.on_slice("v3-8", 1), "run.mesh_shape = 'batch:16,model:2'")
    assert "batch:16,model:2 has 32 cores, but v3-8 has 8" in text
    assert "@mesh_tensorflow.transformer.utils.tpu_mesh_shape()" in text


def test_plan_of_unsupported_mode_is_refused():
    text = message(*planning.on_slice("v3-8", 1), "run.mode = 'infer'")
    assert "train, score_eval" in text


def test_plan_of_an_adapter_is_refused_on_a_tpu():
    text = message(*planning.on_slice("v3-8", 1), "t0.adapter.method = 'lora'")
    assert "only the PyTorch engine trains adapters" in text


def test_divisors():
    assert divisors(6) == [1, 2, 3, 6]
    assert divisors(12, 8) == [1, 2, 4]


def test_vocabulary_size_of_mt5_is_known_by_its_name():
    planning.configure(*planning.on_slice("v3-8", 1), files=("models/mt5.small.gin",))
    size, source = pod_run.configured_vocabulary_size()
    assert size == 250_100
    assert "mc4.250000.100extra" in source


def test_batch_size_replicas_and_microbatches_of_the_recipe():
    run = planning.read(
        *planning.on_slice("v3-512", 8),
        "run.sequence_length = {'inputs': 1024, 'targets': 256}",
        "run.batch_size = ('tokens_per_batch', 1048576)",
        "serialize_num_microbatches.tokens_per_microbatch_per_replica = 2048",
        files=("models/t5.1.1.xxl.gin",),
    )
    # 1,048,576 / 1,024 = 1,024 sequences; 512 cores / 8 = 64 replicas; 1,024 / 64 = 16 sequences
    # for each; 2,048 tokens are 2 sequences of 1,024; 16 / 2 = 8 microbatches.
    assert run.batch_sequences == 1024
    assert run.replicas == 64
    assert run.microbatches == 8
    # 1,024 x (1,024 + 256)
    assert run.tokens_of_batch == 1_310_720
    assert {dim.name: dim.size for dim in run.mesh_shape.dims} == {"batch": 64, "model": 8}
