import gin
import pytest

import t0.training  # noqa: F401 (registers with gin what is parsed below)
from t0.mesh import devices


@pytest.fixture(autouse=True)
def parsed_gin():
    from t0.config import parse

    gin.clear_config()
    parse.parse([], [])
    yield
    gin.clear_config()


@pytest.mark.parametrize(
    ("gpus", "shape", "names"),
    [
        ([], "", ("",)),
        (["gpu:0"], "", ("gpu:0",)),
        (["gpu:0", "gpu:1", "gpu:2"], "batch:3", ("gpu:0", "gpu:1", "gpu:2")),
    ],
)
def test_local_mesh_is_data_parallel(gpus, shape, names):
    assert devices.local_mesh(gpus) == devices.LocalMesh(shape, names)


def test_local_mesh_ignores_tpu_topology_with_a_note(monkeypatch):
    monkeypatch.setattr(devices, "visible_gpus", list)
    assert devices.local_arguments() == (
        {"mesh_shape": "", "mesh_devices": [""]},
        "no --tpu: running on one device",
    )
    gin.bind_parameter("utils.tpu_mesh_shape.tpu_topology", "v3-512")
    arguments, note = devices.local_arguments()
    assert arguments == {"mesh_shape": "", "mesh_devices": [""]}
    assert note == "no --tpu: running on one device (the TPU topology 'v3-512' is ignored)"


def test_local_mesh_uses_visible_gpus(monkeypatch):
    monkeypatch.setattr(devices, "visible_gpus", lambda: ["gpu:0", "gpu:1"])
    arguments, note = devices.local_arguments()
    assert arguments == {"mesh_shape": "batch:2", "mesh_devices": ["gpu:0", "gpu:1"]}
    assert note == "no --tpu: running on gpu:0, gpu:1"


@pytest.mark.parametrize("shape", ["model:2,batch:2", "", []])
def test_local_mesh_keeps_explicit_mesh_shape(monkeypatch, shape):
    monkeypatch.setattr(devices, "visible_gpus", lambda: ["gpu:0", "gpu:1"])
    gin.bind_parameter("run.mesh_shape", shape)
    arguments, note = devices.local_arguments()
    assert arguments == {}
    assert ("model:2,batch:2" in note) == bool(shape)
