"""The quantities that a plan is made of, by real lowering or by formula.

    by_lowering(settings)                        # the graph of the exact configuration
    by_formulas(settings, model_sizes(model))    # milliseconds, for --fast and --sweep

Both give `Quantities` of one core and one step, so that a plan reads the same either way.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from t0.compat import simd_mesh_impl
from t0.mesh import formulas
from t0.mesh.costs import Collective, einsum_flops, group_axes, program_costs, ring_wire_bytes
from t0.mesh.lowering import COLLECTIVES, Program, lower, read_program
from t0.mesh.memory import Peak, peak_memory
from t0.mesh.settings import Settings, query

_BLOCK = re.compile(r"block_\d+")
_LOOP = re.compile(r"^while_loop/while/")


@dataclasses.dataclass(frozen=True)
class Pole:
    """Something that takes much, the same in all layers added up: its name, and how much."""

    name: str
    amount: int


@dataclasses.dataclass(frozen=True)
class Quantities:
    """What one core holds, computes and sends in one step.

    Attributes:
      method: "lowering" or "formulas".
      parameters: of the whole model.
      weights_bytes, optimizer_bytes: variables of the core.
      temporary_bytes: the rest at the fullest moment, by kind: "weight copies", "gradients",
        "activations".
      recomputed_bytes: the sum of that where XLA computes element-wise values again.
      flops: of matrix products.
      collectives: by kind, axes and type.
      memory_poles, flops_poles, communication_poles: the largest parts, largest first.
      operations: of the lowered graph: all, and the core's program; empty for formulas.
    """

    method: str
    parameters: int
    weights_bytes: int
    optimizer_bytes: int
    temporary_bytes: Mapping[str, int]
    recomputed_bytes: int
    flops: int
    collectives: tuple[Collective, ...]
    memory_poles: tuple[Pole, ...] = ()
    flops_poles: tuple[Pole, ...] = ()
    communication_poles: tuple[Pole, ...] = ()
    operations: Mapping[str, int] = dataclasses.field(default_factory=dict)


def logical_to_physical(settings: Settings) -> list[int]:
    """Returns the physical core of each logical core, as a TPU run of Mesh TensorFlow places it."""
    shape = simd_mesh_impl.physical_shape_3d_from_topology_proto_4d(list(settings.slice_.shape))
    return simd_mesh_impl.auto_logical_to_physical_tpu(settings.mesh_shape.to_integer_list, shape)


def by_lowering(settings: Settings, *, every_slice: bool = False) -> Quantities:
    """Lowers the configuration for its slice and reads the core's program."""
    lowered = lower(settings, every_slice=every_slice)
    program = read_program(lowered.graph, lowered.fetches)
    mesh_impl = lowered.mesh_impl
    names = [dim.name for dim in settings.mesh_shape.dims]
    sizes = settings.mesh_shape.to_integer_list

    def axes_of_group(physical: np.ndarray) -> tuple[str, ...]:
        return group_axes([mesh_impl.p2l(int(core)) for core in physical], names, sizes)

    costs = program_costs(program, microbatches=settings.microbatches, axes_of_group=axes_of_group)
    mtf_graph = lowered.lowering.graph
    held = {True: 0, False: 0}
    for variable in mtf_graph.all_variables:
        size = mesh_impl.slice_size(variable.shape) * variable.slice_dtype.size
        held[variable.trainable] += size
    peak = peak_memory(program)
    kinds = Counter(step.kind for step in program.steps)
    return Quantities(
        method="lowering",
        parameters=sum(variable.size for variable in mtf_graph.trainable_variables),
        weights_bytes=held[True],
        optimizer_bytes=held[False],
        temporary_bytes=peak.by_kind,
        recomputed_bytes=min(peak.bytes, peak_memory(program, recompute=True).bytes),
        flops=costs.flops,
        collectives=costs.collectives,
        memory_poles=_memory_poles(peak),
        flops_poles=_poles(program, settings.microbatches, ("Einsum",)),
        communication_poles=_poles(program, settings.microbatches, COLLECTIVES),
        operations={
            "graph": len(lowered.graph.get_operations()),
            "program": len(program.steps),
            **{kind: kinds[kind] for kind in ("Einsum", *COLLECTIVES) if kinds[kind]},
        },
    )


def _common_name(name: str) -> str:
    return _BLOCK.sub("block_*", _LOOP.sub("", name))


def _memory_poles(peak: Peak) -> tuple[Pole, ...]:
    amounts: Counter[str] = Counter()
    for buffer in peak.live:
        if buffer.kind == "activations":
            amounts[_common_name(buffer.name)] += buffer.bytes
    return tuple(Pole(*item) for item in amounts.most_common(8))


def _poles(program: Program, microbatches: int, kinds: Sequence[str]) -> tuple[Pole, ...]:
    amounts: Counter[str] = Counter()
    for step in program.steps:
        if step.kind not in kinds:
            continue
        inputs = [program.values[value] for value in step.inputs]
        amount = (
            einsum_flops(step.detail, [value.shape for value in inputs])
            if step.kind == "Einsum"
            else inputs[0].bytes
        )
        update = not step.in_loop and step.kind in COLLECTIVES and microbatches > 1
        name = "gradients and optimizer, after the microbatches" if update else step.name
        name = _common_name(name)
        amounts[name] += amount * (microbatches if step.in_loop else 1)
    return tuple(Pole(*item) for item in amounts.most_common(8))


def by_formulas(settings: Settings, sizes: formulas.ModelSizes) -> Quantities:
    """Computes the same from the model's sizes alone; see `t0.mesh.formulas`."""
    train = settings.mode == "train"
    split = {name: settings.split(name) for name in sizes.splittable}
    share = formulas.Share(
        sequences=settings.batch_sequences // settings.replicas // settings.microbatches,
        inputs=settings.sequence_length["inputs"],
        targets=settings.sequence_length["targets"],
        split=split,
    )
    types = settings.variable_dtype
    weights = formulas.weights_on_core(sizes, split)
    slots = formulas.adafactor_slots_on_core(sizes, split) if train else 0
    each = types.activation_dtype.size
    temporary = {
        "weight copies": weights * each if each != types.slice_dtype.size and train else 0,
        "gradients": weights * each if settings.microbatches > 1 else 0,
        "activations": formulas.activation_bytes(sizes, share, bytes_each=each, train=train),
    }
    kept = formulas.recomputed_activation_bytes(sizes, share, bytes_each=each, train=train)
    return Quantities(
        method="formulas",
        parameters=formulas.parameters(sizes),
        weights_bytes=weights * types.slice_dtype.size,
        optimizer_bytes=slots * 4,
        temporary_bytes=temporary,
        recomputed_bytes=sum(temporary.values()) - temporary["activations"] + kept,
        flops=settings.microbatches * formulas.flops(sizes, share, train=train),
        collectives=_formula_collectives(settings, sizes, share, weights),
    )


def _formula_collectives(
    settings: Settings, sizes: formulas.ModelSizes, share: formulas.Share, weights: int
) -> tuple[Collective, ...]:
    train = settings.mode == "train"
    activations = formulas.model_axis_elements(sizes, share, train=train)
    found = []
    axes = {name: settings.axis(name) for name in ("heads", "batch")}
    if axes["heads"]:
        sublayers = 2 * sizes.encoder_layers + 3 * sizes.decoder_layers + 2
        count = settings.microbatches * sublayers * (2 if train else 1)
        found.append((axes["heads"], count, settings.microbatches * activations))
    if axes["batch"] and train:
        bias = formulas.position_bias_elements(sizes, share)
        variables = sum(variable.count for variable in formulas.variables(sizes))
        layers = sizes.encoder_layers + sizes.decoder_layers
        count = variables + settings.microbatches * layers
        found.append((axes["batch"], count, settings.microbatches * bias + weights))
    return tuple(_collective(settings, *item) for item in found)


def _collective(settings: Settings, axis: str, count: int, elements: int) -> Collective:
    size = next(dim.size for dim in settings.mesh_shape.dims if dim.name == axis)
    narrow = settings.variable_dtype.activation_dtype.size == 2 and size <= bfloat16_limit()
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


def bfloat16_limit() -> int:
    """Returns the largest group that SimdMeshImpl sums in bfloat16, from gin or its default."""
    return query("SimdMeshImpl.allreduce_in_bfloat16_max_group_size", 8)
