"""Slices have what their names say, and their gin files say the same."""

from pathlib import Path

import pytest

from t0.config.bindings import bound
from t0.mesh.topology import GENERATIONS, SLICES, device_assignment, topology
from tests.mesh import planning

GIN = Path(__file__).resolve().parents[2] / "gin"


@pytest.mark.parametrize("name", SLICES)
def test_tpu_topology_has_the_cores_of_its_name(name):
    slice_ = topology(name)
    assert slice_.cores == int(name.partition("-")[2])
    assert slice_.hosts == max(1, slice_.cores // 8)
    assert name[:2] in GENERATIONS


def test_tpu_zones_are_those_of_the_page():
    page = (GIN.parent / "docs" / "tpu.md").read_text()
    zones = {
        name: "`, `".join(topology(name).zones) for name in ("v3-8", "v3-32", "v3-2048", "v4-8")
    }
    assert f"| v3-8 | `{zones['v3-8']}` |" in page
    assert f"| v3-32 and larger v3 | `{zones['v3-32']}` |" in page
    assert f"| all v4 | `{zones['v4-8']}` |" in page
    assert zones["v3-2048"] == zones["v3-32"]
    assert topology("v4-4096").zones == topology("v4-8").zones
    assert topology("16x16").zones == topology("v3-512").zones
    assert topology("v2-8").zones == ()


def test_device_assignment_is_in_order():
    slice_ = topology("v3-32")
    assignment = device_assignment(slice_)
    assert assignment.num_replicas == 32
    # The order in which costs.rings_on_busiest_link takes the numbers: Z, Y, X, core.
    places = [tuple(assignment.coordinates(n, 0)) for n in (0, 1, 2, 8)]
    assert places == [(0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, 0)]


def test_mesh_file_exists_for_every_slice():
    assert {path.stem for path in (GIN / "mesh").glob("v*.gin")} == set(SLICES)


@pytest.mark.parametrize("name", SLICES)
def test_mesh_file_header_describes_the_slice(name):
    header = (GIN / "mesh" / f"{name}.gin").read_text()
    slice_ = topology(name)
    hosts = f"{slice_.hosts} host{'s' if slice_.hosts > 1 else ''}"
    hbm = f"{slice_.generation.hbm_bytes // 2**30} GiB of HBM per core"
    for part in (f"{slice_.cores} cores", hosts, hbm):
        assert part in header, part
    planning.configure(files=("models/t5.1.1.tiny.gin", str(GIN / "mesh" / f"{name}.gin")))
    assert bound("tpu_mesh_shape.tpu_topology") == name
    assert bound("run.mesh_shape").size == slice_.cores


@pytest.mark.parametrize("name", ["cpu", "gpu-1", "gpu-2", "gpu-4", "gpu-8"])
def test_mesh_files_of_one_machine(name):
    planning.configure(files=("models/t5.1.1.tiny.gin", str(GIN / "mesh" / f"{name}.gin")))
    devices = bound("run.mesh_devices")
    assert len(devices) == (int(name[4:]) if name.startswith("gpu") else 1)
    assert bound("run.mesh_shape") == (f"batch:{len(devices)}" if len(devices) > 1 else "")
    assert bound("get_variable_dtype.activation_dtype") == "float32"
