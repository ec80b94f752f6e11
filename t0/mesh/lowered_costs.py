"""What a core's program holds, computes and sends in a step, by lowering a few of its blocks.

    from t0.mesh.pod_run import read_pod_run

    costs = costs_by_lowering(read_pod_run(vocabulary_size=32100))    # after gin has been parsed
    costs.flops                          # of one core, for each step
    costs.collectives[0].wire_bytes      # bytes that a core sends over its links, for each step

A T5 is one block again and again, and each further block adds the same to every amount. So a model
of equal blocks is lowered twice, with two and with three of them, and the amounts of the others
follow: what 24 blocks have is what 2 have, and 22 times the difference. For parameters, bytes of
variables, FLOPs and collectives that is exact. Memory beside the variables is extended for each
part of the program (a layer's product, the loss), and the fullest part is the peak. That is exact
where it is in the forward or backward pass, as it was in T5.1.1 from small to xxl. In the optimizer
it is not, for Mesh TensorFlow stacks variables of one shape there, up to a size, and stacks do not
grow evenly with blocks: a model whose peak is there is lowered whole, and where only the memory
after recomputation has its peak there (0.7% too high for t5.1.1.xxl on a v3-512), it is near.
tests/mesh/mesh_lowered_costs_test.py compares with whole lowering, which `every_block` asks for; a
model of other than equal blocks, or of few, is lowered whole anyway.
"""

import dataclasses
import re
from collections import Counter
from typing import Any

import numpy as np

from t0.mesh.costs import (
    Collective,
    LayerCost,
    StepCosts,
    einsum_flops,
    flops_and_collectives,
    group_axes,
    ring_wire_bytes,
)
from t0.mesh.lowering import (
    COLLECTIVES,
    Program,
    build_model,
    equal_blocks,
    lower,
    read_program,
)
from t0.mesh.memory import LiveMemory, Peak, live_memory
from t0.mesh.pod_run import PodRun
from t0.mesh.tiles import lowered_bias_and_mask_bytes

_BLOCK = re.compile(r"block_\d+")
_LOOP = re.compile(r"^while_loop/while/")
_COUNTED = re.compile(r"^(\w+?)_\d+/")  # an operation outside of the model, such as to_float_32/
_FEW = 2  # blocks of the smaller of the two models that are lowered; the other has one more
_LARGEST = 8  # layers that a plan lists
_Numbers = Counter[Any]


@dataclasses.dataclass(frozen=True)
class _Amounts:
    """What a program amounts to.

    Attributes:
      numbers: what each further block adds the same to: (attribute of StepCosts, part) -> amount.
        A collective is two of them, its count and its payload.
      memory: what is in memory at each moment.
      recomputed: the same where XLA recomputes element-wise values.
    """

    numbers: _Numbers
    memory: LiveMemory
    recomputed: LiveMemory


def costs_by_lowering(
    run: PodRun, *, every_slice: bool = False, every_block: bool = False
) -> StepCosts:
    """Returns the costs of a run, from the core's program that lowering gives.

    Args:
      run: the run that gin configures.
      every_slice: whether each variable's slice is made on every core.
      every_block: whether all blocks are lowered; by default three of many equal ones.
    """
    blocks = None if every_block else equal_blocks(build_model(run))
    if blocks is not None and blocks > 2 * _FEW + 1:
        fewer, more = (_amounts(run, every_slice, _FEW + further) for further in (0, 1))
        peak = _fullest_part(fewer.memory, more.memory, blocks - _FEW)
        if fewer.numbers.keys() == more.numbers.keys() and _is_of_the_model(peak):
            return _extended(fewer, more, blocks - _FEW)
    whole = _amounts(run, every_slice)
    return _extended(whole, whole, 0)


def _amounts(run: PodRun, every_slice: bool, blocks: int | None = None) -> _Amounts:
    lowered = lower(run, every_slice=every_slice, blocks=blocks)
    program = read_program(lowered.graph, lowered.fetches)
    mesh_impl = lowered.mesh_impl
    names = [dim.name for dim in run.mesh_shape.dims]
    sizes = run.mesh_shape.to_integer_list

    def axes_of_group(physical: np.ndarray) -> tuple[str, ...]:
        return group_axes([mesh_impl.p2l(int(core)) for core in physical], names, sizes)

    numbers: _Numbers = Counter()
    numbers["flops",], collectives = flops_and_collectives(
        program, microbatches=run.microbatches, axes_of_group=axes_of_group
    )
    for made in collectives:
        key = made.kind, made.axes, made.group_size, made.dtype
        numbers[("count", *key)], numbers[("payload", *key)] = made.count, made.payload_bytes
    mtf_graph = lowered.lowering.graph
    for variable in mtf_graph.all_variables:
        size = mesh_impl.slice_size(variable.shape) * variable.slice_dtype.size
        numbers["weights_bytes" if variable.trainable else "optimizer_bytes",] += size
        numbers["parameters",] += variable.size if variable.trainable else 0
    numbers["tile_bytes",] = lowered_bias_and_mask_bytes(program, run)
    for kind, amount in Counter(step.kind for step in program.steps).items():
        if kind in ("Einsum", *COLLECTIVES):
            numbers["operations", kind] = amount
    numbers.update(_by_layer(program, run.microbatches))
    return _Amounts(numbers, live_memory(program), live_memory(program, recompute=True))


def _by_layer(program: Program, microbatches: int) -> _Numbers:
    """Returns the FLOPs and the communicated bytes of each layer, summed over all blocks."""
    amounts: _Numbers = Counter()
    for step in program.steps:
        inputs = [program.values[value] for value in step.inputs]
        times = microbatches if step.in_loop else 1
        if step.kind == "Einsum":
            flops = einsum_flops(step.detail, [value.shape for value in inputs])
            amounts["largest_flops", _common_name(step.name)] += flops * times
        elif step.kind in COLLECTIVES:
            update = not step.in_loop and microbatches > 1
            name = "gradients and optimizer, after the microbatches" if update else step.name
            amounts["largest_communication", _common_name(name)] += inputs[0].bytes * times
    return amounts


def _common_name(name: str) -> str:
    return _BLOCK.sub("block_*", _COUNTED.sub(r"\1/", _LOOP.sub("", name)))


def _extended(fewer: _Amounts, more: _Amounts, times: int) -> StepCosts:
    """Returns the costs of `fewer` and `times` the difference between it and `more`."""
    numbers = _extended_numbers(fewer.numbers, more.numbers, times)
    held = _extended_peak(fewer.memory, more.memory, times)
    recomputed = _extended_peak(fewer.recomputed, more.recomputed, times)
    temporary = {part: size for (name, part), size in held.items() if name == "kind"}
    return StepCosts(
        method="lowering",
        parameters=numbers["parameters",],
        weights_bytes=numbers["weights_bytes",],
        optimizer_bytes=numbers["optimizer_bytes",],
        temporary_bytes=temporary,
        recomputed_bytes=min(
            sum(temporary.values()),
            sum(size for (name, _), size in recomputed.items() if name == "kind"),
        ),
        flops=numbers["flops",],
        collectives=_collectives(numbers),
        tile_bytes=numbers["tile_bytes",],
        largest_memory=_largest(held, "layer"),
        largest_flops=_largest(numbers, "largest_flops"),
        largest_communication=_largest(numbers, "largest_communication"),
        operations={key[1]: amount for key, amount in numbers.items() if key[0] == "operations"},
    )


def _extended_numbers(fewer: _Numbers, more: _Numbers, times: int) -> _Numbers:
    return Counter({key: amount + times * (more[key] - amount) for key, amount in fewer.items()})


def _extended_peak(fewer: LiveMemory, more: LiveMemory, times: int) -> _Numbers:
    """Returns the bytes of each kind, and of each layer's activations, at the fullest moment."""
    part = _fullest_part(fewer, more, times)
    peaks = (memory.peak(memory.fullest_moments[part][1]) for memory in (fewer, more))
    return _extended_numbers(*map(_in_memory, peaks), times)


def _fullest_part(fewer: LiveMemory, more: LiveMemory, times: int) -> str:
    of_fewer, of_more = fewer.fullest_moments, more.fullest_moments
    sizes = _extended_numbers(
        Counter({part: size for part, (size, _) in of_fewer.items() if part in of_more}),
        Counter({part: size for part, (size, _) in of_more.items()}),
        times,
    )
    return max(sizes, key=lambda part: sizes[part])


def _is_of_the_model(part: str) -> bool:
    """Returns whether a part is of the forward or backward pass, not of the optimizer."""
    return part.startswith("while_loop/") or ("/einsum" in part and "/adafactor" not in part)


def _in_memory(peak: Peak) -> _Numbers:
    numbers = Counter({("kind", kind): size for kind, size in peak.by_kind.items()})
    for buffer in peak.live:
        if buffer.kind == "activations":
            numbers["layer", _common_name(buffer.name)] += buffer.bytes
    return numbers


def _collectives(numbers: _Numbers) -> tuple[Collective, ...]:
    made = []
    for (name, *key), count in numbers.items():
        if name == "count":
            kind, _, group_size, _ = key
            payload = numbers[("payload", *key)]
            wire = ring_wire_bytes(kind, payload, group_size)
            made.append(Collective(*key, count, payload, wire))
    return tuple(sorted(made, key=lambda collective: -collective.wire_bytes))


def _largest(numbers: _Numbers, name: str) -> tuple[LayerCost, ...]:
    amounts = Counter({key[1]: amount for key, amount in numbers.items() if key[0] == name})
    return tuple(LayerCost(*item) for item in amounts.most_common(_LARGEST))
