"""StepCosts: what a core holds, computes and sends in a step, and how long that takes.

`t0.mesh.step_costs` computes them by formulas or takes them from a lowered program. The docstrings
give each formula with its unit. Times are estimates from a stated peak, utilization and link speed;
nothing here has been measured on a TPU.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from t0.compat import simd_mesh_impl
from t0.mesh.lowering import COLLECTIVES, Program, Step
from t0.mesh.pod_run import PodRun

# Model FLOPs utilisation of T5- and GPT-sized models on TPU v3 and v4 in published runs is 0.3 to
# 0.5 (Chowdhery et al. 2022, table 3: Gopher on v3 0.325, PaLM on v4 0.462).
DEFAULT_UTILISATION = 0.4


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collective operations of one kind over the same mesh axes in one step.

    Attributes:
      kind: "all-reduce", "all-to-all" or "permute".
      axes: names of the mesh axes whose cores take part together.
      group_size: cores that take part together.
      dtype: the type that is sent; by default SimdMeshImpl sends bfloat16 as float32 in groups
        above 8.
      count: the number of operations in one step.
      payload_bytes: bytes of one core's operands in one step.
      wire_bytes: bytes that one core sends over links in one step.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    dtype: str
    count: int
    payload_bytes: int
    wire_bytes: int


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """A costly part of the model, by its layer's name: an amount, summed over all blocks."""

    name: str
    amount: int


@dataclasses.dataclass(frozen=True)
class StepCosts:
    """What one core holds, computes and sends in one step.

    Attributes:
      method: "lowering" or "formulas".
      parameters: the number of the whole model's parameters.
      weights_bytes: bytes of the core's weights.
      optimizer_bytes: bytes of the core's optimizer slots.
      temporary_bytes: the other memory at the fullest moment, by kind: "weight copies",
        "gradients", "activations".
      recomputed_bytes: the sum of `temporary_bytes` where XLA recomputes element-wise values.
      flops: FLOPs of matrix products.
      collectives: the collectives, one for each kind, axes and type.
      tile_bytes: the position bias and mask that all layers share, in a TPU's tiles.
      largest_memory: the layers that hold the most activation bytes, largest first.
      largest_flops: the layers with the most FLOPs, largest first.
      largest_communication: the layers that send the most bytes, largest first.
      operations: the number of operations in the lowered graph, and in the core's program; empty
        for formulas.
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
    largest_memory: tuple[LayerCost, ...] = ()
    largest_flops: tuple[LayerCost, ...] = ()
    largest_communication: tuple[LayerCost, ...] = ()
    operations: Mapping[str, int] = dataclasses.field(default_factory=dict)


_KINDS = dict(zip(COLLECTIVES, ("all-reduce", "all-to-all", "permute"), strict=True))


def einsum_flops(equation: str, shapes: Sequence[Sequence[int]]) -> int:
    """Returns 2 x the product of all dimensions of an einsum: a multiplication and an addition.

    >>> einsum_flops("bld,df->blf", [(2, 3, 4), (4, 5)])
    240
    """
    terms = equation.partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        sizes.update(zip(term, shape, strict=True))
    return 2 * math.prod(sizes.values())


def ring_wire_bytes(kind: str, payload_bytes: int, group_size: int) -> int:
    """Returns the bytes that one core sends in a ring of n cores.

    All-reduce sends 2 (n - 1) / n of its operand (reduce-scatter, then all-gather), all-to-all
    sends (n - 1) / n of it, permute sends all of it.

    >>> ring_wire_bytes("all-reduce", 800, 8)
    1400
    """
    share = {
        "all-reduce": 2 * (group_size - 1) / group_size,
        "all-to-all": (group_size - 1) / group_size,
        "permute": 1.0,
    }[kind]
    return round(payload_bytes * share)


def flops_and_collectives(
    program: Program, *, microbatches: int, axes_of_group: Callable[[np.ndarray], tuple[str, ...]]
) -> tuple[int, tuple[Collective, ...]]:
    """Returns the FLOPs of a program's matrix products, and its collectives, for one step.

    Args:
      program: the program of one core.
      microbatches: the number of iterations of the microbatch loop.
      axes_of_group: maps the physical core numbers of a group to the mesh axes along which the
        group's cores differ.
    """
    flops = 0
    found: dict[tuple[str, tuple[str, ...], int, str], list[int]] = {}
    axes_known: dict[int, tuple[str, ...]] = {}
    for step in program.steps:
        times = microbatches if step.in_loop else 1
        if step.kind == "Einsum":
            flops += times * einsum_flops(
                step.detail, [program.values[value].shape for value in step.inputs]
            )
        elif step.kind in COLLECTIVES:
            value = program.values[step.inputs[0]]
            axes = axes_known.setdefault(id(step.detail), axes_of_group(_group(step)))
            key = (_KINDS[step.kind], axes, _group(step).size, value.dtype)
            entry = found.setdefault(key, [0, 0])
            entry[0] += times
            entry[1] += times * value.bytes
    collectives = [
        Collective(*key, count, payload, ring_wire_bytes(key[0], payload, key[2]))
        for key, (count, payload) in found.items()
    ]
    collectives.sort(key=lambda collective: -collective.wire_bytes)
    return flops, tuple(collectives)


def _group(step: Step) -> np.ndarray:
    # A permute names pairs of cores; its group is the first pair.
    return np.asarray(step.detail)[0]


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
    """Returns the physical core of each logical core, as a TPU run of Mesh TensorFlow places it."""
    shape = simd_mesh_impl.physical_shape_3d_from_topology_proto_4d(list(run.slice_.shape))
    return simd_mesh_impl.auto_logical_to_physical_tpu(run.mesh_shape.to_integer_list, shape)


def compute_seconds(flops: int, peak_flops: float, utilisation: float) -> float:
    """Returns FLOPs / (peak FLOP/s x utilisation)."""
    return flops / (peak_flops * utilisation)


def communication_seconds(
    collective: Collective, link_bytes_per_second: float, sharing: float
) -> float:
    """Returns wire bytes / (link speed both ways / cores that share the busiest link).

    Args:
      collective: the collective operations of one step.
      link_bytes_per_second: speed of one link in one direction; a ring uses both directions.
      sharing: the result of `link_sharing` for the collective's axes.
    """
    if not sharing:
        return 0.0
    return collective.wire_bytes * sharing / (2 * link_bytes_per_second)


def link_sharing(rings: Sequence[Sequence[int]], shape: Sequence[int]) -> float:
    """Returns how many rings cross the busiest inter-chip link, counting one direction.

    Neighbours in a ring send to each other along Z, then Y, then X, without wrap-around. Cores of
    one chip send without a link, so the result is 0 where no ring leaves its chip.

    Args:
      rings: physical core numbers of each group, in ring order; all groups send at once.
      shape: the slice's shape in the order in which cores are numbered: Z, Y, X, cores of a chip.
    """
    load: dict[tuple[tuple[int, ...], int, int], int] = {}
    for ring in rings:
        places = [tuple(int(i) for i in np.unravel_index(core, shape))[:3] for core in ring]
        for here, there in zip(places, places[1:] + places[:1], strict=True):
            position = list(here)
            for axis in range(3):
                direction = 1 if there[axis] > position[axis] else -1
                while position[axis] != there[axis]:
                    link = (tuple(position), axis, direction)
                    load[link] = load.get(link, 0) + 1
                    position[axis] += direction
    return float(max(load.values(), default=0))
