"""Which cores each collective of a core's program joins, checked against the mesh.

    group_faults(lower(run))                             # []: every group is as the mesh says

It needs no virtual core: one lowered program names the groups of all cores. So it covers slices
that are too large to run here.

A sum or an exchange over some axes of the mesh joins those cores that have the same place on all
other axes. XLA needs groups of one size that have each core once, or else it compiles no program.
A training step adds gradients along each axis that splits the batch, and activations along each
axis that splits the model. An axis that nothing is joined along means that a sum is missing.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from t0.mesh.lowering import COLLECTIVES, LoweredRun, read_program

_PERMUTE, _EXCHANGE = "CollectivePermute", "AllToAll"


def group_faults(lowered: LoweredRun) -> list[str]:
    """Returns what is wrong with the groups of a program's collectives, one clause each.

    Args:
      lowered: the program of a core; the first core's slices are enough.
    """
    mesh_impl = lowered.mesh_impl
    sizes = mesh_impl.shape.to_integer_list
    places = np.array(
        [np.unravel_index(mesh_impl.p2l(core), sizes) for core in range(mesh_impl.size)]
    ).reshape(mesh_impl.size, len(sizes))
    program = read_program(lowered.graph, lowered.fetches)
    steps = [step for step in program.steps if step.kind in COLLECTIVES]
    # A program of hundreds of collectives has few assignments; the first that has one is named.
    first = {id(step.detail): step for step in reversed(steps)}.values()
    faults = [
        f"{step.kind} {step.name}: {fault}"
        for step in first
        for fault in faults_of_groups(step.kind, step.detail, places)
    ]
    joined = {axis for step in first for axis in _axes(np.asarray(step.detail)[0], places)}
    names = mesh_impl.shape.dimension_names
    faults += [
        f"no collective joins cores along the axis {names[axis]}"
        for axis, size in enumerate(sizes)
        if size > 1 and axis not in joined
    ]
    return faults


def faults_of_groups(
    kind: str, groups: Sequence[Sequence[int]], places: np.ndarray
) -> Iterator[str]:
    """Yields what is wrong with one assignment of cores to groups.

    Args:
      kind: the collective, such as "CrossReplicaSum".
      groups: physical cores [groups, members]; of a permutation pairs of source and target.
      places: int [cores, axes], where each physical core is in the mesh.
    """
    groups = np.asarray(groups)
    cores, axes_of_mesh = places.shape
    if kind == _PERMUTE:
        for side, name in enumerate(("sends", "receives")):
            twice = [core for core in range(cores) if (groups[:, side] == core).sum() > 1]
            if twice:
                yield f"core {twice[0]} {name} twice"
        return
    if sorted(groups.flat) != list(range(cores)):
        yield f"its groups do not have each of the {cores} cores once"
        return
    axes = _axes(groups[0], places)
    others = [axis for axis in range(axes_of_mesh) if axis not in axes]
    wanted = _cores_by_place(places, others)
    for group in groups.tolist():
        if set(group) != wanted[tuple(places[group[0], others])]:
            yield f"the group {group} is not all cores that differ in the same axes alone"
            return
        if kind == _EXCHANGE and group != sorted(group, key=lambda core: tuple(places[core])):
            yield f"the group {group} is not in the order of the mesh, so parts change places"
            return


def _axes(group: np.ndarray, places: np.ndarray) -> set[int]:
    """Returns the axes of the mesh that the members of a group differ in."""
    return {axis for axis in range(places.shape[1]) if np.ptp(places[group, axis])}


def _cores_by_place(places: np.ndarray, axes: Sequence[int]) -> dict[tuple[int, ...], set[int]]:
    """Returns place on the given axes -> the cores there."""
    keyed = sorted((tuple(place[axes]), core) for core, place in enumerate(places))
    return {
        place: {core for _, core in cores}
        for place, cores in itertools.groupby(keyed, key=lambda pair: pair[0])
    }
