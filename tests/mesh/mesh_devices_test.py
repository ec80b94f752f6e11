import gin
import pytest

import t0.training  # noqa: F401 (registers with gin what is parsed below)
from t0.errors import UserError
from t0.mesh import devices
from t0.mesh.devices import check_batch, explain_undivided


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
        ([], "", [""]),
        (["gpu:0"], "", ["gpu:0"]),
        (["gpu:0", "gpu:1", "gpu:2"], "batch:3", ["gpu:0", "gpu:1", "gpu:2"]),
    ],
)
def test_local_mesh_is_data_parallel(gpus, shape, names):
    assert devices.local_mesh(gpus) == {"mesh_shape": shape, "mesh_devices": names}


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


LAYOUT = "batch:batch,heads:model"
LENGTHS = {"inputs": 1024, "targets": 256}


def sequences(batch_size, *, lengths=LENGTHS, mesh=""):
    import mesh_tensorflow as mtf

    return check_batch(
        batch_size,
        sequence_length=lengths,
        mesh_shape=mtf.convert_to_shape(mesh),
        layout_rules=mtf.convert_to_layout_rules(LAYOUT),
    )


@pytest.mark.parametrize("mesh", ["", "batch:4", "batch:4,model:2"])
@pytest.mark.parametrize(
    "batch_size",
    [
        8,
        ("sequences_per_batch", 8),
        ("tokens_per_batch", 65536),
        ["sequences_per_replica", 3],
        ("tokens_per_replica", 2048),
    ],
)
def test_batch_size_equals_mesh_tensorflow(batch_size, mesh):
    from mesh_tensorflow.transformer.utils import compute_batch_size

    wanted = batch_size
    if not isinstance(batch_size, int):
        wanted = compute_batch_size(LENGTHS, mesh, LAYOUT, batch_size)
    assert sequences(batch_size, mesh=mesh) == wanted


@pytest.mark.parametrize(
    ("batch_size", "mesh", "message"),
    [
        (
            ("tokens_per_batch", 1_048_000),
            "",
            r"1048000 is not a multiple of 1024 \(the longest sequence, 1024 tokens\). "
            "The nearest that work: 1047552 or 1048576",
        ),
        (("tokens_per_batch", 500), "", "500 is not a multiple.*that work: 1024$"),
        (("tokens_per_replica", 2000), "batch:4", "nearest that work: 1024 or 2048"),
        (
            ("tokens_per_batch", 2048),
            "batch:4",
            "not a multiple of 4096 .*1024 tokens times the 4 replicas of the mesh.*work: 4096",
        ),
        (6, "batch:4,model:2", "6 is not a multiple of 4 .the 4 replicas.*work: 4 or 8"),
        (2, "batch:4", "2 is not a multiple of 4 .the 4 replicas of the mesh.*work: 4$"),
        (("token_per_batch", 2048), "", "'token_per_batch'.*mean 'tokens_per_batch'"),
        (("tokens_per_batch", 0), "", "expected a whole number above 0"),
        (("tokens_per_batch", 1e6), "", "expected a whole number above 0"),
        ("tokens_per_batch", "", "expected a number of sequences or a pair"),
        (0, "", "above 0"),
    ],
)
def test_batch_size_that_does_not_divide_is_named(batch_size, mesh, message):
    with pytest.raises(UserError, match=message):
        sequences(batch_size, mesh=mesh)


def test_batch_size_in_tokens_needs_sequence_length():
    assert sequences(8, lengths=None) == 8
    with pytest.raises(UserError, match="counts tokens, which needs run.sequence_length"):
        sequences(("tokens_per_batch", 1024), lengths=None)


def test_mesh_shape_that_cannot_split_a_tensor_is_named():
    import mesh_tensorflow as mtf
    import mesh_tensorflow.transformer.utils

    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "m")
    tensor = mtf.zeros(mesh, mtf.Shape([mtf.Dimension("heads", 6), mtf.Dimension("d_kv", 8)]))
    mesh_impl = mtf.placement_mesh_impl.PlacementMeshImpl(
        mtf.convert_to_shape("model:4"), mtf.convert_to_layout_rules(LAYOUT), [""] * 4
    )
    with pytest.raises(ValueError, match="not divisible") as caught:
        mesh_impl.slice_shape(tensor.shape)
    found = explain_undivided(caught.value, "model:4")
    assert "the mesh model:4 cannot split a tensor of dimensions heads=6, d_kv=8" in str(found)
    assert explain_undivided(ValueError("something else"), "model:4") is None
