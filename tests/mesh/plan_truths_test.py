"""Published facts, and sums that a person can do."""

import planning
import pytest

from t0.mesh import costs, formulas, lowering, planner
from t0.mesh.lowering import Program, Step, Value
from t0.mesh.memory import peak_memory
from t0.mesh.quantities import by_formulas
from t0.mesh.topology import GENERATIONS, SLICES, device_assignment, topology


def sizes_of(model, vocabulary=32100, parallelism=1):
    settings = planning.read(
        *planning.on_slice("v3-8", parallelism), files=(model,), vocabulary_size=vocabulary
    )
    return formulas.model_sizes(lowering.build_model(settings))


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
def test_parameters_are_the_published(model, vocabulary, count, tolerance):
    assert formulas.parameters(sizes_of(model, vocabulary)) == pytest.approx(count, rel=tolerance)


def test_mt5_vocabulary_is_known_by_its_name():
    planning.configure(*planning.on_slice("v3-8", 1), files=("models/mt5.small.gin",))
    size, source = planner.vocabulary_size()
    assert size == 250_100
    assert "mc4.250000.100extra" in source


def test_batch_arithmetic_of_the_recipe():
    settings = planning.read(
        *planning.on_slice("v3-512", 8),
        "run.sequence_length = {'inputs': 1024, 'targets': 256}",
        "run.batch_size = ('tokens_per_batch', 1048576)",
        "serialize_num_microbatches.tokens_per_microbatch_per_replica = 2048",
        files=("models/t5.1.1.xxl.gin",),
    )
    # 1,048,576 / 1,024 = 1,024 sequences; 512 cores / 8 = 64 replicas; 1,024 / 64 = 16 sequences
    # for each; 2,048 tokens are 2 sequences of 1,024; 16 / 2 = 8 microbatches.
    assert settings.batch_sequences == 1024
    assert settings.replicas == 64
    assert settings.microbatches == 8
    # 1,024 x (1,024 + 256)
    assert settings.tokens_of_batch == 1_310_720
    assert {dim.name: dim.size for dim in settings.mesh_shape.dims} == {"batch": 64, "model": 8}


def test_collective_bytes_counted_by_hand():
    settings = planning.read(
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
    quantities = by_formulas(settings, formulas.model_sizes(lowering.build_model(settings)))
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


def test_ring_and_einsum_formulas():
    assert costs.ring_wire_bytes("all-reduce", 800, 8) == 1400
    assert costs.ring_wire_bytes("all-to-all", 800, 8) == 700
    assert costs.einsum_flops("bld,df->blf", [(2, 3, 4), (4, 5)]) == 2 * 2 * 3 * 4 * 5
    assert costs.group_axes([0, 2], ["batch", "model"], [2, 2]) == ("batch",)
    assert costs.group_axes([0, 1, 2, 3], ["batch", "model"], [2, 2]) == ("batch", "model")


def test_link_sharing_counts_rings_on_the_busiest_link():
    shape = (1, 2, 2, 2)  # Z, Y, X, cores: two rows of two chips
    assert costs.link_sharing([[0, 1], [2, 3]], shape) == 0  # within chips: no link
    assert costs.link_sharing([[0, 2]], shape) == 1
    assert costs.link_sharing([[0, 2], [1, 3]], shape) == 2


@pytest.mark.parametrize("name", SLICES)
def test_slices_have_the_cores_that_their_name_says(name):
    slice_ = topology(name)
    assert slice_.cores == int(name.partition("-")[2])
    assert slice_.hosts == max(1, slice_.cores // 8)
    assert name[:2] in GENERATIONS


def test_made_up_assignment_is_in_order():
    slice_ = topology("v3-32")
    assignment = device_assignment(slice_)
    assert assignment.num_replicas == 32
    # The order in which costs.link_sharing takes the numbers: Z, Y, X, core.
    places = [tuple(assignment.coordinates(n, 0)) for n in (0, 1, 2, 8)]
    assert places == [(0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, 0)]


def made_up(*steps, bytes_of):
    values = tuple(Value((size,), "float32", size) for size in bytes_of)
    return Program(tuple(Step(*step) for step in steps), values)


def test_liveness_of_a_chain_by_hand():
    program = made_up(
        ("x", "Placeholder", (), (0,), False),
        ("a", "MatMul", (0,), (1,), False),
        ("b", "Neg", (1,), (2,), False),
        ("c", "MatMul", (2,), (3,), False),
        ("d", "MatMul", (3, 1), (4,), False),
        bytes_of=(1000, 10, 20, 40, 80),
    )
    # Inputs do not count. At d: a (10), c (40) and d (80); b (20) was gone. Unfused the same.
    assert peak_memory(program).bytes == 130
    # At c: a, b, c = 70.
    assert (
        peak_memory(
            made_up(
                *[(s.name, s.kind, s.inputs, s.outputs, False) for s in program.steps[:4]],
                bytes_of=(1000, 10, 20, 40),
            )
        ).bytes
        == 70
    )


def test_fused_values_keep_what_they_are_made_of():
    steps = [
        ("a", "MatMul", (), (0,), False),
        ("n", "Neg", (0,), (1,), False),
        ("b", "MatMul", (), (2,), False),
        ("s", "Sum", (1,), (3,), False),
        ("c", "MatMul", (2, 3), (4,), False),
    ]
    program = made_up(*steps, bytes_of=(100, 100, 7, 1, 1))
    # n is never stored, but a lives until the sum that reads it: a, b, s.
    assert peak_memory(program).bytes == 108
    # TensorFlow's kernel writes n over a, which nobody else reads.
    assert peak_memory(program, fused=False).bytes == 108
    steps[4] = ("c", "MatMul", (2, 3, 0), (4,), False)
    read_again = made_up(*steps, bytes_of=(100, 100, 7, 1, 1))
    assert peak_memory(read_again, fused=False).bytes == 208
    assert peak_memory(read_again).bytes == 109
