"""Computes the cost of a step on one TPU core, from formulas or by lowering the whole model.

    from t0.mesh.pod_run import read_pod_run

    run = read_pod_run(vocabulary_size=32100)     # after gin has been parsed
    costs = costs_by_formulas(run, t5_model.sizes(build_model(run)))
    costs.flops                                   # of one core, for each step
    costs_by_lowering(run, heads=32).collectives[0].wire_bytes    # t0 plan --exact

"Lowering" means building the program that each core would run. The docstrings give each formula
with its unit. Times are estimates from a stated peak FLOP/s, utilization and link speed. No number
here has been measured on a TPU. tests/mesh/mesh_formulas_test.py compares the results of formulas
with those of lowering, and states the tolerances.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t0.checkpoints.shape import expected_shapes
from t0.compat import simd_mesh_impl
from t0.config.bindings import bound
from t0.config.model_spec import ModelShape
from t0.mesh import formulas
from t0.mesh.formulas import Share, bias_and_mask_bytes
from t0.mesh.liveness import peak_memory
from t0.mesh.lowering import COLLECTIVES, CoreProgram, lower, read_program
from t0.mesh.pod_run import PodRun

# Published runs of T5- and GPT-sized models on TPU v3 and v4 reach a model FLOPs utilization of 0.3
# to 0.5 (Chowdhery et al. 2022, table 3: Gopher on v3 0.325, PaLM on v4 0.462).
DEFAULT_UTILISATION = 0.4
_KINDS = dict(zip(COLLECTIVES, ("all-reduce", "all-to-all", "permute"), strict=True))
_BLOCK = re.compile(r"block_\d+")
_LOOP = re.compile(r"^while_loop/while/")
# The prefix of a numbered operation outside the model, such as "to_float_32/".
_COUNTED = re.compile(r"^(\w+?)_\d+/")
_LARGEST = 8  # the number of layers that a plan lists
_LARGEST_COSTS = ("activation_bytes", "flops", "communicated_bytes")
_LAYERS = ("SelfAttention", "EncDecAttention", "DenseReluDense")


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collective operations of one kind over the same mesh axes in one step.

    Attributes:
      kind: "all-reduce", "all-to-all" or "permute".
      axes: the mesh axes along which the participating cores differ.
      group_size: the number of cores in a group.
      dtype: the type in which values are sent. By default, SimdMeshImpl sends bfloat16 values as
        float32 if a group has more than 8 cores.
      count: the number of operations in one step.
      payload_bytes: the bytes of one core's operands in one step.
      wire_bytes: the bytes that one core sends over links in one step.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    dtype: str
    count: int
    payload_bytes: int
    wire_bytes: int


@dataclasses.dataclass(frozen=True)
class StepCosts:
    """The memory, FLOPs and communication of one core in one step.

    Attributes:
      method: "lowering" or "formulas".
      parameters: the number of parameters of the whole model.
      weights_bytes: bytes of the core's weights.
      optimizer_bytes: bytes of the core's optimizer slots.
      temporary_bytes: the other bytes at peak memory, by kind: "weight copies", "gradients",
        "activations".
      recomputed_bytes: the sum that `temporary_bytes` would have if XLA recomputed element-wise
        values instead of storing them.
      flops: FLOPs of matrix products.
      collectives: the collectives, with one entry for each combination of kind, axes and type.
      tile_bytes: bytes of the position bias and of the mask, which all layers share. Both are
        padded to a TPU's tiles.
      largest: kind of cost -> the names and amounts of the layers with the largest cost, each
        summed over all blocks, largest first; empty for formulas.
      operations: operation type -> count in the core's lowered program; empty for formulas.
    """

    method: str
    parameters: int
    weights_bytes: int
    optimizer_bytes: int
    temporary_bytes: Mapping[str, int]
    recomputed_bytes: int
    flops: int
    collectives: tuple[Collective, ...]
    tile_bytes: int = 0
    largest: Mapping[str, list[dict[str, Any]]] = dataclasses.field(
        default_factory=lambda: {name: [] for name in _LARGEST_COSTS}
    )
    operations: Mapping[str, int] = dataclasses.field(default_factory=dict)


def einsum_flops(equation: str, shapes: Sequence[Sequence[int]]) -> int:
    """Returns the FLOPs of an einsum: 2 x the product of its dimensions (multiply and add).

    >>> einsum_flops("bld,df->blf", [(2, 3, 4), (4, 5)])
    240
    """
    terms = equation.partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        sizes.update(zip(term, shape, strict=True))
    return 2 * math.prod(sizes.values())


def ring_wire_bytes(kind: str, payload_bytes: int, group_size: int) -> int:
    """Returns the bytes that one core sends for a collective in a ring of n cores.

    In an all-reduce, a core sends 2 (n - 1) / n times its operand (reduce-scatter, then
    all-gather). In an all-to-all, it sends (n - 1) / n of its operand. In a permute, it sends the
    whole operand.

    >>> ring_wire_bytes("all-reduce", 800, 8)
    1400
    """
    share = {
        "all-reduce": 2 * (group_size - 1) / group_size,
        "all-to-all": (group_size - 1) / group_size,
        "permute": 1.0,
    }[kind]
    return round(payload_bytes * share)


def group_axes(
    logical_numbers: Sequence[int], names: Sequence[str], sizes: Sequence[int]
) -> tuple[str, ...]:
    """Returns the names of the mesh axes along which a group of logical cores differs.

    >>> group_axes([0, 1], ["batch", "model"], [4, 2])
    ('model',)
    """
    coordinates = np.array(np.unravel_index(np.asarray(logical_numbers), sizes))
    return tuple(
        name for name, along in zip(names, coordinates, strict=True) if len(set(along.tolist())) > 1
    )


def logical_to_physical(run: PodRun) -> list[int]:
    """Returns, for each logical core, the physical core on which Mesh TensorFlow places it."""
    shape = simd_mesh_impl.physical_shape_3d_from_topology_proto_4d(list(run.slice_.shape))
    return simd_mesh_impl.auto_logical_to_physical_tpu(run.mesh_shape.to_integer_list, shape)


def rings_on_busiest_link(rings: Sequence[Sequence[int]], shape: Sequence[int]) -> float:
    """Returns the number of rings that use the busiest inter-chip link in one direction.

    Each core sends to the next core of its ring along Z, then Y, then X, without wrap-around links.
    Cores of one chip need no link, so the result is 0 if every ring is within one chip.

    Args:
      rings: the physical core numbers of each group, in ring order. All groups send at the same
        time.
      shape: the slice's shape in the order in which cores are numbered: Z, Y, X, cores of a chip.
    """
    load: dict[tuple[tuple[int, ...], int, int], int] = {}
    for ring in rings:
        places = [tuple(int(i) for i in np.unravel_index(core, shape))[:3] for core in ring]
        for source, target in zip(places, places[1:] + places[:1], strict=True):
            position = list(source)
            for axis in range(3):
                direction = 1 if target[axis] > position[axis] else -1
                while position[axis] != target[axis]:
                    link = (tuple(position), axis, direction)
                    load[link] = load.get(link, 0) + 1
                    position[axis] += direction
    return float(max(load.values(), default=0))


def costs_by_formulas(run: PodRun, shape: ModelShape) -> StepCosts:
    """Computes the costs of a run from formulas, which takes milliseconds."""
    train = run.mode == "train"
    types = run.variable_dtype
    activation_bytes = types.activation_dtype.size
    share = Share(
        rows=run.batch_sequences // run.replicas // run.microbatches,
        inputs=run.sequence_length["inputs"],
        targets=run.sequence_length["targets"],
        bytes_each=activation_bytes,
        split={name: run.split(name) for name in ("heads", "d_ff", "vocab", "d_model")},
    )
    weights = formulas.weights_on_device(shape, share.split)
    slots = formulas.slots_on_device(shape, share.split) if train else 0
    stored = formulas.stored_bytes(shape, share, formulas.XLA)
    temporary = {
        "weight copies": weights * activation_bytes
        if activation_bytes != types.slice_dtype.size and train
        else 0,
        "gradients": weights * activation_bytes if run.microbatches > 1 else 0,
        "activations": stored if train else formulas.scoring_bytes(shape, share),
    }
    recomputed = formulas.recomputed_bytes(shape, share) if train else temporary["activations"]
    products = formulas.product_flops(shape, share)
    lookups = formulas.lookup_flops(shape, share)
    return StepCosts(
        method="formulas",
        parameters=formulas.parameters(shape),
        weights_bytes=weights * types.slice_dtype.size,
        optimizer_bytes=slots * formulas.FLOAT32_BYTES,
        temporary_bytes=temporary,
        recomputed_bytes=sum(temporary.values()) - temporary["activations"] + recomputed,
        flops=run.microbatches * (3 * products + 2 * lookups if train else products + lookups),
        collectives=_formula_collectives(run, shape, share, weights),
        tile_bytes=_tile_bytes(run, shape.heads),
    )


def _formula_collectives(
    run: PodRun, shape: ModelShape, share: Share, weights: int
) -> tuple[Collective, ...]:
    train = run.mode == "train"
    activations = formulas.model_axis_elements(shape, share, train=train)
    amounts = []
    axes = {name: run.axis(name) for name in ("heads", "batch")}
    if axes["heads"]:
        sublayers = 2 * shape.encoder_layers + 3 * shape.decoder_layers + 2
        count = run.microbatches * sublayers * (2 if train else 1)
        amounts.append((axes["heads"], count, run.microbatches * activations))
    if axes["batch"] and train:
        bias = formulas.position_bias_elements(shape, share)
        layers = shape.encoder_layers + shape.decoder_layers
        count = len(expected_shapes(shape)) + run.microbatches * layers
        amounts.append((axes["batch"], count, run.microbatches * bias + weights))
    return tuple(_all_reduce(run, *amount) for amount in amounts)


def _all_reduce(run: PodRun, axis: str, count: int, elements: int) -> Collective:
    size = run.mesh_shape.get_dim_by_name(axis).size
    # The size of the largest group in which SimdMeshImpl sums in bfloat16.
    limit = bound("SimdMeshImpl.allreduce_in_bfloat16_max_group_size", 8)
    narrow = run.variable_dtype.activation_dtype.size == 2 and size <= limit
    payload = elements * (2 if narrow else 4)
    return Collective(
        kind="all-reduce",
        axes=(axis,),
        group_size=size,
        dtype="bfloat16" if narrow else "float32",
        count=count,
        payload_bytes=payload,
        wire_bytes=ring_wire_bytes("all-reduce", payload, size),
    )


def _tile_bytes(run: PodRun, heads: int) -> int:
    rows = run.batch_sequences // run.replicas // run.microbatches
    lengths = tuple(run.sequence_length.values())
    train = run.mode == "train"
    return bias_and_mask_bytes(rows, lengths, heads // run.split("heads"), train=train)


def costs_by_lowering(run: PodRun, heads: int) -> StepCosts:
    """Computes the costs of a run from the lowered program of a core.

    Args:
      run: the run on a slice.
      heads: the number of attention heads; 0 if the model has none.
    """
    lowered = lower(run)
    program = read_program(lowered.graph, lowered.fetches)
    mesh_impl = lowered.mesh_impl
    variables: Counter[bool] = Counter()
    for variable in lowered.lowering.graph.all_variables:
        size = mesh_impl.slice_size(variable.shape) * variable.slice_dtype.size
        variables[variable.trainable] += size
    trainable = lowered.lowering.graph.trainable_variables
    peak, recomputed = (peak_memory(program, recompute=again) for again in (False, True))
    activations: Counter[str] = Counter()
    for buffer in peak.live:
        if buffer.kind == "activations":
            activations[_common_name(buffer.name)] += buffer.bytes
    flops, sent, collectives = _walk(program, run, mesh_impl)
    return StepCosts(
        method="lowering",
        parameters=sum(variable.size for variable in trainable),
        weights_bytes=variables[True],
        optimizer_bytes=variables[False],
        temporary_bytes=peak.by_kind,
        recomputed_bytes=min(peak.bytes, recomputed.bytes),
        flops=sum(flops.values()),
        collectives=collectives,
        tile_bytes=_tile_bytes(run, heads),
        largest={
            cost: [{"name": name, "amount": n} for name, n in amounts.most_common(_LARGEST)]
            for cost, amounts in zip(_LARGEST_COSTS, (activations, flops, sent), strict=True)
        },
        operations={
            kind: count
            for kind, count in Counter(step.kind for step in program.steps).items()
            if kind in ("Einsum", *COLLECTIVES)
        },
    )


def _walk(
    program: CoreProgram, run: PodRun, mesh_impl: Any
) -> tuple[Counter[str], Counter[str], tuple[Collective, ...]]:
    """Returns the FLOPs and sent bytes of each layer, summed over all blocks, and collectives."""
    names, sizes = run.mesh_shape.dimension_names, run.mesh_shape.to_integer_list
    flops: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    counts: Counter[tuple[str, tuple[str, ...], int, str]] = Counter()
    payloads = counts.copy()
    for step in program.steps:
        inputs = [program.values[value] for value in step.inputs]
        times = run.microbatches if step.in_loop else 1
        if step.kind == "Einsum":
            amount = einsum_flops(step.detail, [value.shape for value in inputs])
            flops[_common_name(step.name)] += amount * times
        elif step.kind in COLLECTIVES:
            operand, group = inputs[0], np.asarray(step.detail)[0]  # of a permute, the first pair
            update = not step.in_loop and run.microbatches > 1
            name = "gradients and optimizer, after the microbatches" if update else step.name
            sent[_common_name(name)] += operand.bytes * times
            axes = group_axes([mesh_impl.p2l(int(core)) for core in group], names, sizes)
            key = (_KINDS[step.kind], axes, group.size, operand.dtype)
            counts[key] += times
            payloads[key] += times * operand.bytes
    collectives = [
        Collective(*key, count, payloads[key], ring_wire_bytes(key[0], payloads[key], key[2]))
        for key, count in counts.items()
    ]
    return flops, sent, tuple(sorted(collectives, key=lambda c: -c.wire_bytes))


def _common_name(name: str) -> str:
    return _BLOCK.sub("block_*", _COUNTED.sub(r"\1/", _LOOP.sub("", name)))
