"""The groups of collectives on every slice of gin/mesh; groups that the mesh does not have."""

from pathlib import Path

import numpy as np
import pytest

from t0.compat import simd_mesh_impl
from t0.mesh.lowering import COLLECTIVES, lower, read_program
from tests.mesh import planning
from tests.rehearsal.collective_groups import faults_of_groups, group_faults

ROOT = Path(__file__).resolve().parents[2]


def cores_of(name):
    return int(name.partition("-")[2].partition(".")[0])


SLICES = sorted((p.name for p in (ROOT / "gin" / "mesh").glob("v*.gin")), key=cores_of)
SMALL = (
    "d_model = 64",
    "d_ff = 128",
    "d_kv = 8",
    "num_heads = 32",
    "num_layers = 1",
    "run.sequence_length = {'inputs': 8, 'targets': 4}",
    "run.batch_size = ('sequences_per_replica', 1)",
    "serialize_num_microbatches.tokens_per_microbatch_per_replica = None",
)


def lowered_with(name, parallelism, *params):
    files = ("models/t5.1.1.tiny.gin", f"mesh/{name}")
    parallel = f"tpu_mesh_shape.model_parallelism = {parallelism}"
    run = planning.read(*SMALL, parallel, *params, files=files, vocabulary_size=256)
    return lower(run)


def cases():
    for name in SLICES:
        slow = cores_of(name) <= 64
        yield pytest.param(name, marks=pytest.mark.slow if slow else pytest.mark.exhaustive)


@pytest.mark.parametrize("name", list(cases()))
def test_collective_groups_of_every_slice_match_its_mesh(name):
    lowered = lowered_with(name, parallelism=4 if cores_of(name) == 8 else 8)
    assert lowered.mesh_impl.size == cores_of(name)
    assert group_faults(lowered) == []


def sums(lowered):
    program = read_program(lowered.graph, lowered.fetches)
    return [step.detail.tolist() for step in program.steps if step.kind in COLLECTIVES]


@pytest.mark.slow
def test_collective_groups_of_v3_8():
    lowered = lowered_with("v3-8.gin", 2)
    assert group_faults(lowered) == []
    found = sums(lowered)
    model, batch = [[0, 1], [2, 3], [6, 7], [4, 5]], [[0, 2, 6, 4], [1, 3, 7, 5]]
    assert model in found
    assert batch in found


# batch:2,model:2 on four cores, which are numbered along the model first.
PLACES = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])


@pytest.mark.parametrize(
    ("kind", "groups", "said"),
    [
        ("CrossReplicaSum", [[0, 1], [2, 3]], None),
        ("CrossReplicaSum", [[2, 0, 3, 1]], None),
        ("AllToAll", [[0, 2], [1, 3]], None),
        ("CollectivePermute", [[0, 2], [2, 0]], None),
        ("CrossReplicaSum", [[0, 1]], "do not have each of the 4 cores once"),
        ("CrossReplicaSum", [[0, 1], [1, 3]], "do not have each of the 4 cores once"),
        ("CrossReplicaSum", [[0, 3], [1, 2]], "[0, 3] is not all cores that differ in the same"),
        ("AllToAll", [[0, 1], [3, 2], [4, 5]], "do not have each of the 4 cores once"),
        ("AllToAll", [[2, 0], [1, 3]], "[2, 0] is not in the order of the mesh"),
        ("CollectivePermute", [[0, 2], [1, 2]], "core 2 receives twice"),
    ],
)
def test_collective_groups_that_a_mesh_does_not_have(kind, groups, said):
    found = " ".join(faults_of_groups(kind, groups, PLACES))
    assert said in found if said else found == ""


@pytest.mark.slow
def test_collective_groups_detect_cores_in_another_order(monkeypatch):
    order = [0, 2, 1, 3, 4, 5, 6, 7]
    monkeypatch.setattr(simd_mesh_impl.SimdMeshImpl, "l2p", lambda self, logical: order[logical])
    (fault, *_) = group_faults(lowered_with("v3-8.gin", 2))
    assert "is not all cores that differ in the same axes alone" in fault


@pytest.mark.slow
def test_collective_groups_detect_a_missing_sum(monkeypatch):
    published = simd_mesh_impl.SimdMeshImpl.allreduce

    def without_model(self, x, mesh_axes, reduction_fn_string):
        return published(self, x, [axis for axis in mesh_axes if axis == 0], reduction_fn_string)

    monkeypatch.setattr(simd_mesh_impl.SimdMeshImpl, "allreduce", without_model)
    assert group_faults(lowered_with("v3-8.gin", 2)) == [
        "no collective joins cores along the axis model"
    ]
