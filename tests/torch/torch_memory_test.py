"""The memory and FLOPs of the PyTorch engine by formula."""

import dataclasses
import math

import pytest

from t0.config.model_spec import ModelShape
from t0.config.specification import AdapterSpec, ConfiguredSpec
from t0.mesh import formulas
from t0.torch import gpus, memory

SHAPE = ModelShape(1000, 64, 160, 64, 4, 32, 2, 2, True, False, True)
DEEP = dataclasses.replace(SHAPE, encoder_layers=24, decoder_layers=24)
PLAIN = dataclasses.replace(SHAPE, gated=False, tied=True)
ADAFACTOR = ConfiguredSpec(
    "mesh_tensorflow.optimize.AdafactorOptimizer",
    {"factored": True, "min_dim_size_to_factor": 128, "beta1": 0.0},
)
ADAMW = ConfiguredSpec("t0.AdamWScaleOptimizer")
PART = memory.MicrobatchShare(rows=2, inputs=64, targets=32, bytes_each=4)


def needed(shape=SHAPE, part=PART, optimizer=ADAFACTOR, processes=1, parts=1, **switches):
    switches = dataclasses.replace(memory.NEITHER, **switches)
    return memory.needed(shape, optimizer, part, switches, processes=processes, microbatches=parts)


def test_flops_of_a_step_are_six_per_parameter_and_token():
    # Attention with one token attends to itself; lookups and scales multiply nothing.
    count = formulas.parameters(PLAIN) - PLAIN.buckets * PLAIN.heads * 2 - 7 * PLAIN.d_model
    flops = memory.model_flops(PLAIN, rows=1, inputs=1, targets=1)
    inner = PLAIN.inner * (PLAIN.encoder_layers + 2 * PLAIN.decoder_layers)
    assert flops == pytest.approx(6 * count + 12 * inner, rel=0.01)


def test_flops_count_logits_only_for_predicted_tokens():
    lengths = {"rows": 3, "inputs": 64, "targets": 32}
    whole, none = (memory.model_flops(SHAPE, **lengths, predicted=x) for x in (1.0, 0.0))
    assert whole - none == 6 * 3 * 32 * 64 * 1000


def test_memory_sharding_divides_weights_and_gradients():
    # With few tokens, the peak is the update of AdamW, and with one process the end of Adafactor's
    # backward pass; with many tokens, the loss.
    few = memory.MicrobatchShare(rows=1, inputs=8, targets=4)
    many = dataclasses.replace(PART, rows=16)
    one, four = (needed(DEEP, few, ADAMW, processes=n) for n in (1, 4))
    assert one.weights == one.gradients == one.slots // 2 > 0 < one.update
    assert (four.weights, four.slots) == (one.weights // 4, one.slots // 4)
    end = needed(DEEP, few)
    assert end.gradients == end.weights and not end.activations + end.logits + end.update
    assert end.gathered == 8 * (2 * 1000 * 64 + 2 * 64)  # embeddings, logits, last norms
    one, four = needed(part=many), needed(part=many, processes=4)
    assert four.weights == one.weights // 4 and not four.gradients
    assert (four.activations, four.logits) == (one.activations, 5 * 4 * 16 * 32 * 1000)
    # Gradients of several microbatches are summed on each process before they are divided.
    assert needed(part=many, processes=4, parts=2).gradients == one.weights
    assert four.total == four.weights + four.slots + four.step


def test_memory_of_replayed_steps_has_copy_of_weights():
    many = dataclasses.replace(PART, rows=16)
    count = formulas.parameters(SHAPE)
    one, two = (
        memory.needed(
            SHAPE, ADAFACTOR, many, memory.NEITHER, processes=1, microbatches=n, replays=True
        )
        for n in (1, 2)
    )
    assert one.gathered == two.gathered == 4 * count
    assert (one.gradients, two.gradients) == (0, 4 * count)
    assert one.activations + one.logits == formulas.stored_bytes(SHAPE, many, formulas.TORCH_FUSED)


def test_equal_times_keep_the_gradients():
    last_digits = {"keep": 1.0 + 1e-12, "offload": 1.0}
    kinds = tuple(last_digits)
    choices = memory.memory_switches(gradients=kinds, time=lambda each: last_digits[each.gradients])
    assert choices == memory.memory_switches(gradients=kinds, time=lambda each: 1.0)
    assert (choices[0].gradients, choices[0].recompute) == ("keep", False)


def test_memory_fit_chooses_fastest_recompute_settings():
    deep, part = DEEP, dataclasses.replace(PART, rows=16)
    without, with_ = needed(deep, part), needed(deep, part, recompute=True)
    assert with_.activations < without.activations / 4
    assert with_.total < without.total / 4
    # All weights, in place of embeddings, logits, last norms, and the decoder's first block.
    kept, count = needed(deep, part, keep=True), formulas.parameters(deep)
    block = 3 * 64 * 160 + 8 * 64 * 64 + 3 * 64 + 32 * 4
    more = 4 * (count - 2 * 1000 * 64 - 2 * 64 - block)
    assert kept.gathered - without.gathered == more
    assert dataclasses.replace(kept, gathered=without.gathered) == without

    choices = memory.memory_switches()
    needs = [needed(deep, part, **dataclasses.asdict(each)) for each in choices]
    assert needs[:2] == [kept, without] and needs[3] == with_
    for number in (0, 1, 3):
        assert memory.first_that_fits(needs, needs[number].total) == number
    assert memory.first_that_fits(needs, 0) == 3
    for wanted, on in (("on", True), ("off", False)):
        assert {each.recompute for each in memory.memory_switches(wanted)} == {on}
        assert {each.keep for each in memory.memory_switches(keep=wanted)} == {on}


def test_microbatch_rows_per_process_do_not_exceed_single_process():
    for rows, alone, processes in ((1024, 512, 8), (64, 4, 2), (64, 1, 4), (60, 7, 4), (8, 3, 8)):
        parts = memory.count_microbatches(rows, alone, processes)
        own = rows // processes
        assert own % parts == 0
        assert own // parts <= math.ceil(rows / alone)


def test_gpu_table_finds_gpus_by_short_and_device_name():
    assert gpus.find_gpu("A100-80") is gpus.find_gpu_by_device_name("NVIDIA A100 80GB PCIe")
    assert gpus.find_gpu_by_device_name("NVIDIA A10G") is None
    names = [device for gpu in gpus.GPUS for device in gpu.devices]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_memory_activations_formula_equals_pytorch_saved_tensors(gated, name):
    torch = pytest.importorskip("torch")
    dtype, drawn = getattr(torch, name), []
    part = memory.MicrobatchShare(2, 128, 32, dtype.itemsize, kernel="auto")
    for layers in (1, 2):
        shape = dataclasses.replace(
            SHAPE if gated else PLAIN, encoder_layers=layers, decoder_layers=layers
        )
        whole = formulas.stored_bytes(shape, part, formulas.TORCH_PLAIN)
        formula = whole - formulas.logit_bytes(shape, part, formulas.TORCH_PLAIN)
        drawn.append((_kept(torch, shape, part, dtype), formula))
    (one, one_formula), (two, two_formula) = drawn
    # What another layer keeps, exactly but for small factors; the rest is bounded from above.
    assert two_formula - one_formula == pytest.approx(two - one, rel=0.03)
    logits = part.rows * part.targets * SHAPE.vocabulary * (4 + dtype.itemsize)
    assert two - logits < two_formula


def _kept(torch, shape, part, dtype):
    """The bytes that autograd keeps after the forward pass of a batch, without the weights."""
    from t0.config.model_spec import Dropout, T5Spec
    from t0.torch.model import T5

    activation = "gelu" if shape.gated else "relu"
    model = T5(T5Spec(shape, activation, Dropout(0.1, 0.1, 0.1), 0.0, 1e-4, None)).to(dtype)
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = (
            storage.nbytes(),
            tensor,
        )  # held, so that no other has its place
        return tensor

    draw = torch.randint
    batch = {
        "inputs": draw(2, 900, (part.rows, part.inputs)),
        "targets": draw(2, 900, (part.rows, part.targets)),
    }
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(batch)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    return sum(size for place, (size, _) in kept.items() if place not in own)


@pytest.mark.parametrize(
    ("optimizer", "bytes_each", "replays"),
    [(ADAFACTOR, 2, False), (ADAFACTOR, 2, True), (ADAMW, 2, False), (ADAMW, 4, False)],
)
def test_memory_of_an_adapter_is_at_most_40_percent_of_full_training(
    optimizer, bytes_each, replays
):
    base = ModelShape(32128, 768, 2048, 768, 12, 32, 12, 12, True, False, True)
    # With so few tokens, the memory of activations and logits is negligible.
    share = memory.MicrobatchShare(rows=1, inputs=1, targets=1, bytes_each=bytes_each)
    given = {"processes": 1, "microbatches": 1, "replays": replays}
    full, reduced = (
        memory.needed(base, optimizer, share, memory.NEITHER, **given, adapter=adapter)
        for adapter in (None, AdapterSpec("ia3"))
    )
    assert full.total > 2.5 * reduced.total
