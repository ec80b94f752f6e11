"""T5X's checkpoints: against the libraries that T5X writes with, and one that T5X itself wrote."""

import json

import ml_dtypes
import msgpack
import numpy as np
import pytest

from t0.checkpoints import ConversionOptions, convert, names, open_source
from t0.checkpoints.t5x import chunk_shape, leaves, read_index
from t0.errors import UserError
from tests.checkpoints.tiny_checkpoints import (
    BFLOAT16,
    V11,
    bits,
    loaded,
    model_shape,
    nested,
    slots,
    weights,
    write_inline,
    write_mtf,
)

FACTORED_FROM = 24


def target_of(tensors, shared_bias=True):
    flat = {f"target/{names.t5x_name(name)}": array for name, array in tensors.items()}
    if shared_bias:
        flat = {path.replace("layers_0/relpos_bias", "relpos_bias"): a for path, a in flat.items()}
    return {**flat, "state/step": np.asarray(77, np.int32)}


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_t5x_arrays_within_the_index_are_read(tmp_path, dtype):
    tensors = weights(V11, dtype)
    folder = write_inline(tmp_path / "checkpoint_77", target_of(tensors))
    assert loaded(folder) == {name: bits(array) for name, array in tensors.items()}
    assert open_source(tmp_path).facts.step == 77


def test_t5x_chunked_arrays_within_the_index_are_read(tmp_path, monkeypatch):
    from flax import serialization

    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 1000)
    tensors = weights(V11)
    folder = write_inline(tmp_path / "checkpoint_77", target_of(tensors))
    assert b"__msgpack_chunked_array__" in (folder / "checkpoint").read_bytes()
    assert loaded(folder) == {name: bits(array) for name, array in tensors.items()}


def test_t5x_flax_checkpoint_without_version_is_read(tmp_path):
    from flax import serialization

    tensors = weights(V11)
    folder = tmp_path / "checkpoint_77"
    folder.mkdir()
    data = serialization.msgpack_serialize(nested(target_of(tensors)))
    (folder / "checkpoint").write_bytes(data)
    assert set(loaded(folder)) == set(tensors)


def test_t5x_stacked_layers_with_unshared_biases(tmp_path):
    tensors = weights(model_shape(shared_bias=False))
    flat = {}
    for name, array in tensors.items():
        path = f"target/{names.t5x_name(name)}"
        side = name.partition("/")[0]
        if "/layers_0/" in path:
            count = {"encoder": 2, "decoder": 3}[side]
            layers = [tensors[name.replace("block_000", f"block_{i:03d}")] for i in range(count)]
            flat[path.replace("/layers_0/", f"/{side}/")] = np.stack(layers, axis=1)
        elif "/layers_" not in path:
            flat[path] = array
    folder = write_inline(tmp_path / "checkpoint_1", {**flat, "state/step": np.asarray(1)})
    source = open_source(folder)
    assert not source.model.shared_bias
    assert loaded(folder) == {name: bits(array) for name, array in tensors.items()}


def test_t5x_export_is_read_by_flax_and_tensorstore(tmp_path, mtf_v11):
    from flax import serialization

    convert(mtf_v11, tmp_path / "t5x", to="t5x")
    folder = tmp_path / "t5x" / "checkpoint_1000"
    index = serialization.msgpack_restore((folder / "checkpoint").read_bytes())
    assert index["version"] == 3
    assert int(index["optimizer"]["state"]["step"]) == 1000
    import tensorstore

    for name, array in weights(V11).items():
        path = names.t5x_name(name).replace("/layers_0/relpos", "/relpos")
        spec = index["optimizer"]["target"]
        for key in path.split("/"):
            spec = spec[key]
        spec["kvstore"]["path"] = f"{folder}/{spec['kvstore']['path']}"
        got = tensorstore.open(spec, open=True).result().read().result()
        np.testing.assert_array_equal(got, array)


def adafactor_shapes(shape):
    """Which of T5X's slots a parameter has, by T5X's rule: v_row averages over the largest
    dimension, the last of equals."""
    if len(shape) == 2 and min(shape) >= FACTORED_FROM:
        order = np.argsort(shape, kind="stable")
        return {"v_row": np.delete(shape, order[-1]), "v_col": np.delete(shape, order[-2])}
    return {"v": np.asarray(shape)}


def test_t5x_export_adafactor_slots_match_their_axes(tmp_path):
    tensors = weights(model_shape(inner=32, d_ff=32))
    moments = slots(tensors)
    # A factor that tells which axis it belongs to: row i of the parameter has i, column j 100 + j.
    for name in moments:
        parameter, slot = names.split_slot(name)
        shape = tensors[parameter].shape
        if slot in ("vr", "vc"):
            largest = 0 if shape[0] >= shape[1] else 1
            axis = {"vr": 1 - largest, "vc": largest}[slot]
            moments[name] = (np.arange(shape[axis]) + 100 * axis).astype(np.float32)
    source = write_mtf(tmp_path / "mtf", tensors | moments)
    convert(source, tmp_path / "t5x", to="t5x")
    folder = tmp_path / "t5x" / "checkpoint_1000"
    tree = read_index(folder / "checkpoint")["optimizer"]
    seen = 0
    for path, leaf in leaves(tree["target"]):
        states = tree["state"]["param_states"]
        for key in path.split("/"):
            states = states[key]
        assert set(states) == {"m", "v", "v_row", "v_col"}
        wanted = adafactor_shapes(leaf.shape)
        for slot, state in states.items():
            assert state.shape == tuple(wanted.get(slot, (1,))), (path, slot)
        if "v_row" in wanted:
            row_axis = 0 if leaf.shape[0] <= leaf.shape[1] else 1
            from t0.checkpoints.t5x import read_zarr

            row = read_zarr(folder / states["v_row"].folder, states["v_row"])
            assert row[0] == 100 * row_axis, path
            seen += leaf.shape[0] == leaf.shape[1]
    assert seen > 5


def test_t5x_old_version_bfloat16_stored_as_uint16(tmp_path, mtf_v11):
    # T5X before its version 3 kept bfloat16 as uint16.
    convert(mtf_v11, tmp_path / "t5x", to="t5x", options=ConversionOptions(dtype="bfloat16"))
    before = loaded(tmp_path / "t5x")
    folder = tmp_path / "t5x" / "checkpoint_1000"
    index = folder / "checkpoint"
    data = msgpack.unpackb(index.read_bytes(), strict_map_key=False)
    data["version"] = 2

    def disguise(tree):
        if "driver" not in tree:
            for value in tree.values():
                disguise(value)
            return
        zarray = folder / tree["kvstore"]["path"] / ".zarray"
        zarray.write_text(json.dumps(json.loads(zarray.read_text()) | {"dtype": "<u2"}))
        tree["dtype"] = "uint16"

    disguise(data["optimizer"]["target"])
    index.write_bytes(msgpack.packb(data))
    assert loaded(tmp_path / "t5x") == before


@pytest.fixture
def written(tmp_path, mtf_v11):
    convert(mtf_v11, tmp_path / "t5x", to="t5x")
    return tmp_path / "t5x" / "checkpoint_1000"


@pytest.mark.parametrize("damage", ["remove", "cut", "folder"])
def test_t5x_missing_or_truncated_chunk_is_refused(written, tmp_path, damage):
    folder = written / "target.token_embedder.embedding"
    chunk = folder / "0.0"
    if damage == "cut":
        chunk.write_bytes(chunk.read_bytes()[:-100])
    else:
        (chunk if damage == "remove" else folder / ".zarray").unlink()
    with pytest.raises(UserError, match=r"target\.token_embedder\.embedding"):
        convert(written, tmp_path / "out", to="hf")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("keep", [0, 1, 100, 2000, -1])
def test_t5x_truncated_index_is_refused(written, keep):
    index = written / "checkpoint"
    index.write_bytes(index.read_bytes()[:keep])
    with pytest.raises(UserError, match="truncated or not a T5X checkpoint"):
        open_source(written)


def test_t5x_missing_index_is_refused(written):
    (written / "checkpoint").unlink()
    with pytest.raises(UserError, match="index: the file checkpoint in it is missing"):
        open_source(written.parent)


def test_t5x_array_that_differs_from_the_index_is_refused(written):
    zarray = written / "target.decoder.decoder_norm.scale" / ".zarray"
    zarray.write_text(json.dumps(json.loads(zarray.read_text()) | {"dtype": "<i4"}))
    source = open_source(written)
    with pytest.raises(
        UserError, match=r"decoder_norm\.scale has int32 \[32\], the index says float32"
    ):
        source.load("decoder/rms_norm/scale")


def test_t5x_path_outside_the_checkpoint_is_refused(written):
    index = written / "checkpoint"
    data = msgpack.unpackb(index.read_bytes(), strict_map_key=False)
    scale = data["optimizer"]["target"]["decoder"]["decoder_norm"]["scale"]
    scale["kvstore"]["path"] = "../../secret/"
    index.write_bytes(msgpack.packb(data))
    with pytest.raises(UserError, match="outside the checkpoint's folder"):
        open_source(written)


def test_t5x_unknown_parameters_or_states_are_refused(tmp_path):
    flat = target_of(weights(V11))
    odd = flat | {"target/decoder/adapter/kernel": np.zeros((2, 2), np.float32)}
    with pytest.raises(UserError, match="(?s)unknown.*decoder/adapter/kernel"):
        open_source(write_inline(tmp_path / "a", odd))
    adam = flat | {"state/param_states/decoder/decoder_norm/scale/mu": np.zeros(32, np.float32)}
    # Slots of another optimizer than Adafactor are left out.
    assert len(open_source(write_inline(tmp_path / "b", adam)).unused) == 1
    assert open_source(tmp_path / "b", keep_slots=False).unused


def test_t5x_scan_layers_with_optimizer_slots_is_refused(tmp_path):
    tensors = weights(V11)
    source = write_mtf(tmp_path / "mtf", tensors | slots(tensors))
    options = ConversionOptions(scan_layers=True)
    with pytest.raises(UserError, match="--drop_slots"):
        convert(source, tmp_path / "out", to="t5x", options=options)
    options = ConversionOptions(scan_layers=True, drop_slots=True)
    convert(source, tmp_path / "out", to="t5x", options=options)
    assert set(loaded(tmp_path / "out")) == set(tensors)


@pytest.mark.parametrize(
    ("shape", "elements", "wanted"),
    [
        ((32128, 4096), 1 << 24, (4016, 4096)),
        ((4096, 10240), 1 << 24, (4096, 2560)),
        ((64, 64), 1 << 24, (64, 64)),
        ((7, 5), 10, (1, 5)),
    ],
)
def test_t5x_chunk_shape_follows_the_size_limit(shape, elements, wanted):
    assert chunk_shape(shape, elements) == wanted


def test_t5x_array_in_several_chunks_round_trip(tmp_path, monkeypatch):
    from t0.checkpoints import t5x

    monkeypatch.setattr(t5x, "CHUNK_BYTES", 700)
    tensors = weights(V11)
    convert(write_mtf(tmp_path / "v11", tensors), tmp_path / "t5x", to="t5x")
    chunks = list((tmp_path / "t5x/checkpoint_1000/target.token_embedder.embedding").iterdir())
    assert len(chunks) > 20
    assert loaded(tmp_path / "t5x") == {name: bits(array) for name, array in tensors.items()}


class TestAsT5xWritesIt:
    def test_t5x_parameters_are_read(self, facts):
        source = open_source(facts)
        expected = np.load(facts / "params.npz")
        found = {
            source.entries[name].native.removeprefix("target/").replace("/", "."): source.load(name)
            for name in source.parameters
        }
        assert set(found) == set(expected)
        for name, array in found.items():
            np.testing.assert_array_equal(array, expected[name])

    def test_t5x_export_equals_t5x_byte_by_byte(self, facts, tmp_path, monkeypatch):
        from t0.checkpoints import t5x

        monkeypatch.setattr(t5x, "GZIP_LEVEL", 1)  # T5X compresses
        convert(facts, tmp_path / "t5x", to="t5x")
        theirs, ours = facts / "checkpoint_1000", tmp_path / "t5x" / "checkpoint_1000"
        paths = {path.relative_to(theirs) for path in theirs.rglob("*") if path.is_file()}
        assert paths == {path.relative_to(ours) for path in ours.rglob("*") if path.is_file()}
        different = [p for p in paths if (theirs / p).read_bytes() != (ours / p).read_bytes()]
        # The step is an array in ours, as T5X's current loader wants it, and a number in theirs.
        assert [path.name for path in different] == ["checkpoint"]
        read = [
            msgpack.unpackb((folder / "checkpoint").read_bytes(), strict_map_key=False)
            for folder in (theirs, ours)
        ]
        for tree in read:
            tree["optimizer"]["state"]["step"] = None
        assert read[0] == read[1]
        assert list(read[0]["optimizer"]["target"]) == list(read[1]["optimizer"]["target"])

    def test_t5x_logits_agree_with_mesh_tensorflow(self, facts, tmp_path):
        from tests.checkpoints.mesh_forward import mesh_logits

        convert(facts, tmp_path / "mtf", to="mtf")
        source = open_source(tmp_path / "mtf")
        expected = np.load(facts / "forward.npz")
        inputs, targets = expected["encoder_inputs"], expected["targets"]
        logits = mesh_logits(source.model, "gelu", source.path, inputs, targets)
        real = targets > 0
        assert np.abs(logits - expected["logits"])[real].max() < 1e-4

    def test_t5x_optimizer_slots_and_step_survive_conversion(self, facts, tmp_path):
        convert(facts, tmp_path / "mtf", to="mtf")
        assert (tmp_path / "mtf" / "model.ckpt-1000.index").is_file()
        assert loaded(tmp_path / "mtf") == loaded(facts)
        assert any("_slot_v" in name for name in loaded(facts))


def test_t5x_bfloat16_dtype_is_in_ml_dtypes():
    assert np.dtype(ml_dtypes.bfloat16).name == "bfloat16"
