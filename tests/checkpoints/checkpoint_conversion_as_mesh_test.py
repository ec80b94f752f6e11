"""A checkpoint of any format, as what training and scoring read."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from t0.checkpoints import as_mesh_checkpoint, convert, names, open_source
from t0.errors import UserError
from tests.checkpoints.tiny_checkpoints import (
    BFLOAT16,
    V11,
    bits,
    loaded,
    model_shape,
    slots,
    weights,
    write_inline,
    write_mtf,
)


def taken(source, folder, **options):
    return as_mesh_checkpoint(str(source), folder / "work", **options)


def hugging_face(folder, tensors):
    convert(write_mtf(folder / "source", tensors), folder / "hf", to="hf")
    return folder / "hf"


def of_dtypes(folder, kinds):
    """Rewrites a folder's weights, each in the next of the dtypes."""
    path = folder / "model.safetensors"
    tensors = {k: v.copy() for k, v in safetensors.numpy.load_file(path).items()}
    for number, (key, array) in enumerate(tensors.items()):
        tensors[key] = array.astype(kinds[number % len(kinds)])
    safetensors.numpy.save_file(tensors, path)
    return tensors


def test_as_mesh_checkpoint_uses_mesh_tensorflow_in_place(tmp_path, mtf_v11):
    prefix = str(mtf_v11 / "model.ckpt-1000")
    for path in (mtf_v11, prefix, f"{prefix}.index"):
        assert taken(path, tmp_path) == prefix
    remote = "gs://bucket/model.ckpt-5"
    assert taken(remote, tmp_path) == remote
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("kind", ["hf", "t5x"])
def test_as_mesh_checkpoint_converts_other_formats_once(tmp_path, mtf_v11, kind, capsys):
    convert(mtf_v11, tmp_path / kind, to=kind)
    got = taken(tmp_path / kind, tmp_path)
    assert Path(got).name == "model.ckpt-1000"
    assert loaded(got) == loaded(mtf_v11)
    assert f"converting {tmp_path / kind}" in capsys.readouterr().err
    before = Path(f"{got}.index").stat().st_mtime_ns
    # What else lies in the folder is of no account: it may be a model directory.
    (tmp_path / kind / "events.out").write_text("x")
    assert taken(tmp_path / kind, tmp_path) == got
    assert Path(f"{got}.index").stat().st_mtime_ns == before
    assert capsys.readouterr().err == ""


def test_as_mesh_checkpoint_converts_a_changed_source_again(tmp_path):
    folder = hugging_face(tmp_path, weights(V11))
    first = taken(folder, tmp_path)
    of_dtypes(folder, [np.float32])
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"abcd")
    second = taken(folder, tmp_path)
    assert second != first
    assert loaded(second) != loaded(first)


def test_as_mesh_checkpoint_pads_the_vocabulary(tmp_path, capsys):
    folder = hugging_face(tmp_path, weights(model_shape(vocabulary=100)))
    assert open_source(taken(folder, tmp_path)).model.vocabulary == 128
    assert "from 100 rows to 128" in capsys.readouterr().err


@pytest.mark.parametrize("kinds", [[np.float16], [np.float32, np.float16]])
def test_as_mesh_checkpoint_float16_weights_become_float32(tmp_path, kinds):
    folder = hugging_face(tmp_path, weights(V11))
    tensors = of_dtypes(folder, kinds)
    found = loaded(taken(folder, tmp_path))
    for name in weights(V11):
        array = tensors[names.hf_name(name)]
        turned = array.T if names.row_of(name).transposed else array
        assert found[name] == bits(turned.astype(np.float32))


def test_as_mesh_checkpoint_keeps_bfloat16(tmp_path):
    folder = hugging_face(tmp_path, weights(V11, BFLOAT16))
    assert loaded(taken(folder, tmp_path)) == loaded(folder)


def test_as_mesh_checkpoint_float64_weights_are_refused(tmp_path):
    folder = hugging_face(tmp_path, weights(V11))
    of_dtypes(folder, [np.float64])
    with pytest.raises(UserError, match="(?s)dtype that weights cannot have.*float64"):
        taken(folder, tmp_path)


def test_as_mesh_checkpoint_unknown_step_becomes_0(tmp_path, capsys):
    folder = hugging_face(tmp_path, weights(V11))
    of_dtypes(folder, [np.float32])  # the library's own file says no step
    assert open_source(folder).facts.step is None
    assert Path(taken(folder, tmp_path)).name == "model.ckpt-0"
    # No hint at flags that only `t0 convert` has.
    assert "--" not in capsys.readouterr().err


def test_as_mesh_checkpoint_keeps_readable_optimizer_slots(tmp_path):
    tensors = weights(V11)
    source = write_mtf(tmp_path / "mtf", tensors | slots(tensors))
    convert(source, tmp_path / "t5x", to="t5x")
    assert loaded(taken(tmp_path / "t5x", tmp_path)) == loaded(source)
    bare = {name: bits(array) for name, array in tensors.items()}
    assert loaded(taken(tmp_path / "t5x", tmp_path, slots=False)) == bare

    flat = {f"target/{names.t5x_name(name)}": array for name, array in tensors.items()}
    flat["state/param_states/decoder/decoder_norm/scale/mu"] = np.zeros(32, np.float32)
    write_inline(tmp_path / "adam" / "checkpoint_3", flat)
    assert loaded(taken(tmp_path / "adam", tmp_path)) == bare


def test_as_mesh_checkpoint_remote_model_directory_is_refused(tmp_path, mtf_v11):
    folder = hugging_face(tmp_path, weights(V11))
    with pytest.raises(UserError, match="gs://b/m/converted, which is not on this.*--to mtf"):
        as_mesh_checkpoint(folder, "gs://b/m/converted")
    assert as_mesh_checkpoint(mtf_v11, "gs://b/m/converted").endswith("model.ckpt-1000")


def test_as_mesh_checkpoint_damaged_or_missing_source_is_refused(tmp_path):
    folder = hugging_face(tmp_path, weights(V11))
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    for source, message in ((folder, "truncated"), (tmp_path / "none", "does not exist")):
        with pytest.raises(UserError, match=message):
            taken(source, tmp_path)
    assert not (tmp_path / "work").exists()
