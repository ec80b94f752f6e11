"""Conversions between the formats: bit-exact, complete, atomic, in bounded memory."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from t0.checkpoints import ConversionOptions, convert, names, open_source
from t0.errors import UserError
from tests.checkpoints.tiny_checkpoints import (
    BFLOAT16,
    V10,
    V11,
    bits,
    loaded,
    model_shape,
    slots,
    weights,
    write_mtf,
)

MODULE = sys.modules["t0.checkpoints.conversion"]
LARGE = model_shape(d_model=64, inner=64, d_ff=64)


def move(source, folder, *kinds, **options):
    """Converts along a chain of formats and returns the last folder."""
    for number, kind in enumerate(kinds):
        target = folder / f"{number}-{kind}"
        convert(source, target, to=kind, options=ConversionOptions(**options))
        source = target
    return source


def parameters(found):
    return {name: value for name, value in found.items() if "_slot_" not in name}


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
@pytest.mark.parametrize(
    "model",
    [
        V10,
        V11,
        LARGE,
        model_shape(encoder_layers=1, decoder_layers=1),
        model_shape(shared_bias=False),
    ],
    ids=["1.0", "1.1", "square", "one layer", "own biases"],
)
@pytest.mark.parametrize(
    "chain",
    [("mtf",), ("hf", "mtf"), ("t5x", "mtf"), ("hf", "t5x", "hf"), ("t5x", "hf", "t5x", "mtf")],
    ids="-".join,
)
def test_checkpoint_conversion_round_trips_are_exact(tmp_path, model, dtype, chain):
    tensors = weights(model, dtype)
    source = write_mtf(tmp_path / "source", tensors)
    found = loaded(move(source, tmp_path, *chain))
    assert found == {name: bits(array) for name, array in tensors.items()}


@pytest.mark.parametrize("model", [V10, LARGE], ids=["1.0", "square"])
def test_checkpoint_conversion_t5x_keeps_optimizer_slots(tmp_path, model):
    tensors = weights(model, BFLOAT16)
    tensors |= slots(tensors)
    found = loaded(move(write_mtf(tmp_path / "source", tensors), tmp_path, "t5x", "mtf"))
    assert found == {name: bits(array) for name, array in tensors.items()}


def test_hugging_face_conversion_round_trip_is_byte_identical(tmp_path, mtf_v11):
    first = move(mtf_v11, tmp_path, "hf")
    again = move(first, tmp_path / "again", "t5x", "mtf", "hf")
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        assert (again / name).read_bytes() == (first / name).read_bytes(), name


def test_t5x_conversion_scan_layers_stacks_layers(tmp_path, mtf_v11):
    stacked = move(mtf_v11, tmp_path, "t5x", scan_layers=True)
    folders = {path.name for path in (stacked / "checkpoint_1000").iterdir() if path.is_dir()}
    assert "target.encoder.encoder.attention.query.kernel" in folders
    assert not [name for name in folders if "layers_" in name]
    assert loaded(stacked) == loaded(mtf_v11)


def test_t5x_conversion_scan_layers_with_unshared_biases(tmp_path):
    source = write_mtf(tmp_path / "source", weights(model_shape(shared_bias=False)))
    assert loaded(move(source, tmp_path, "t5x", scan_layers=True)) == loaded(source)


def test_checkpoint_conversion_three_dimensional_attention_weights(tmp_path):
    tensors = weights(V11)
    split = {}
    for name, array in tensors.items():
        dims = names.row_of(name).dims
        shape = {"DI": (32, 2, 8), "ID": (2, 8, 32)}.get(dims, array.shape)
        split[name] = array.reshape(shape)
    found = loaded(move(write_mtf(tmp_path / "source", split), tmp_path, "hf"))
    assert found == {name: bits(array) for name, array in tensors.items()}


def test_hugging_face_conversion_writes_shards(tmp_path, mtf_v11):
    folder = move(mtf_v11, tmp_path, "hf", shard_bytes=20_000)
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(shards) > 3
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert not (folder / "model.safetensors").exists()
    assert loaded(folder) == loaded(mtf_v11)


def test_checkpoint_conversion_keeps_legacy_layer_norm_names(tmp_path):
    source = write_mtf(tmp_path / "source", weights(V10), legacy_norms=True)
    back = open_source(move(source, tmp_path, "hf", "mtf"))
    assert back.entries["encoder/rms_norm/scale"].native == "encoder/final_layer_norm/scale"


def test_checkpoint_conversion_selects_latest_or_given_step(tmp_path):
    for step in (5, 40, 100):
        write_mtf(tmp_path / "run", weights(V11, seed=step), step=step)
    assert open_source(tmp_path / "run").facts.step == 100
    chosen = move(tmp_path / "run", tmp_path, "hf", "t5x", "mtf", step=40)
    assert (chosen / "model.ckpt-40.index").is_file()
    assert loaded(chosen) == {name: bits(a) for name, a in weights(V11, seed=40).items()}
    with pytest.raises(UserError, match="no checkpoint of step 41; it has 5, 40, 100"):
        open_source(tmp_path / "run", step=41)


def test_checkpoint_conversion_dtype_option_keeps_slots(tmp_path):
    tensors = weights(V11)
    tensors |= slots(tensors)
    source = write_mtf(tmp_path / "source", tensors)
    found = loaded(move(source, tmp_path, "mtf", dtype="bfloat16"))
    for name, array in tensors.items():
        wanted = array if "_slot_" in name else array.astype(BFLOAT16)
        assert found[name] == bits(wanted)


def test_checkpoint_conversion_float16_needs_dtype_option(tmp_path):
    tensors = {name: array.astype(np.float16) for name, array in weights(V11).items()}
    source = write_mtf(tmp_path / "source", tensors)
    with pytest.raises(UserError, match="neither float32 nor bfloat16.*--dtype float32"):
        convert(source, tmp_path / "out", to="hf")
    found = loaded(move(source, tmp_path, "hf", dtype="float32"))
    assert found == {name: bits(array.astype(np.float32)) for name, array in tensors.items()}


def test_checkpoint_conversion_integer_weights_are_refused(tmp_path):
    tensors = weights(V11)
    tensors["shared/embedding"] = tensors["shared/embedding"].astype(np.int64)
    with pytest.raises(
        UserError, match="(?s)dtype that weights cannot have.*shared/embedding int64"
    ):
        open_source(write_mtf(tmp_path / "source", tensors))


def test_checkpoint_conversion_vocabulary_rows_pads_and_cuts(tmp_path):
    tensors = weights(model_shape(vocabulary=100))
    source = write_mtf(tmp_path / "source", tensors)
    with pytest.raises(UserError, match="100 rows.*--vocabulary_rows 128"):
        convert(source, tmp_path / "out", to="mtf")
    assert not (tmp_path / "out").exists()
    wide = open_source(move(source, tmp_path, "mtf", vocabulary_rows=128))
    embedding, head = wide.load("shared/embedding"), wide.load("decoder/logits/kernel")
    np.testing.assert_array_equal(embedding[:100], tensors["shared/embedding"])
    np.testing.assert_array_equal(head[:, :100], tensors["decoder/logits/kernel"])
    assert (embedding[100:] == embedding[0]).all()
    assert (head[:, 100:] == head[:, :1]).all()
    narrow = loaded(move(wide.path, tmp_path / "back", "hf", vocabulary_rows=100))
    assert narrow == {name: bits(array) for name, array in tensors.items()}


def test_checkpoint_conversion_report_counts_every_tensor_once(tmp_path):
    tensors = weights(V11)
    source = write_mtf(tmp_path / "source", tensors | slots(tensors))
    reports = [convert(source, tmp_path / to, to=to) for to in ("hf", "t5x")]
    hf, t5x = ({row.name: row for row in report.rows} for report in reports)
    assert set(hf) == set(tensors)
    assert len(reports[0].left_out) == len(slots(tensors))
    assert all(hf[name].checksum == t5x[name].checksum for name in hf)
    assert len({row.checksum for row in hf.values()}) == len(hf)
    assert "optimizer slots are left out" in " ".join(reports[0].notes)


@pytest.mark.parametrize("to", ["mtf", "hf", "t5x"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_checkpoint_conversion_interrupted_leaves_nothing(
    tmp_path, mtf_v11, monkeypatch, to, error
):
    from t0.checkpoints import FORMATS

    target = FORMATS[to]
    monkeypatch.setattr(target, "finish", _raise(error))
    with pytest.raises((KeyboardInterrupt, UserError)):
        convert(mtf_v11, tmp_path / "new" / "out", to=to)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("to", ["mtf", "hf", "t5x"])
def test_checkpoint_conversion_killed_leaves_incomplete_folder(tmp_path, mtf_v11, to):
    code = (
        "import os, sys\nfrom t0.checkpoints import convert\n"
        "from t0.checkpoints import FORMATS\n"
        f"FORMATS[{to!r}].finish = lambda self: os._exit(9)\n"
        f"convert(sys.argv[1], sys.argv[2], to={to!r})"
    )
    done = subprocess.run([sys.executable, "-c", code, mtf_v11, tmp_path / "out"], timeout=60)
    assert done.returncode == 9
    assert not (tmp_path / "out").exists()
    (rest,) = tmp_path.glob(".out.*.incomplete-*")
    with pytest.raises(UserError):
        open_source(rest)
    # What is not of a dead process of this machine is not ours to remove.
    others = [tmp_path / ".out.1.incomplete-elsewhere-1-1", tmp_path / f"visible{rest.name}"]
    for other in others:
        other.mkdir()
    convert(mtf_v11, tmp_path / "next", to=to)
    assert not rest.exists()
    assert all(other.exists() for other in others)


def _raise(error):
    def function(*args):
        raise error

    return function


def test_checkpoint_conversion_destination_not_empty_is_refused(tmp_path, mtf_v11):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(UserError, match="exists and is not empty"):
        convert(mtf_v11, tmp_path / "out", to="hf")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_checkpoint_conversion_to_a_link_or_the_current_folder_is_refused_first(
    tmp_path, mtf_v11, monkeypatch
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    monkeypatch.setattr(MODULE, "_copy_tensors", None)  # it may take hours
    monkeypatch.chdir(tmp_path / "empty")
    for destination in (tmp_path / "link", "."):
        with pytest.raises(UserError, match="choose a new folder in it"):
            convert(mtf_v11, destination, to="hf")
    assert not any((tmp_path / "empty").iterdir())


def test_checkpoint_conversion_checks_disk_space_first(tmp_path, mtf_v11, monkeypatch):
    usage = type("Usage", (), {"free": 10_000})
    monkeypatch.setattr(MODULE.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(
        UserError, match=r"needs 0\.\d+ GB, but the disk of .* has only 0\.00 GB free"
    ):
        convert(mtf_v11, tmp_path / "new" / "out", to="hf")
    assert not (tmp_path / "new").exists()


def test_checkpoint_conversion_unknown_format_or_activation(tmp_path, mtf_v11):
    with pytest.raises(UserError, match="unknown format 'h5'"):
        convert(mtf_v11, tmp_path / "out", to="h5")
    with pytest.raises(UserError, match="unknown activation 'gelo'.*'gelu'"):
        convert(mtf_v11, tmp_path / "out", to="hf", options=ConversionOptions(activation="gelo"))


def test_checkpoint_conversion_notes_assumed_activation(tmp_path, mtf_v11):
    report = convert(mtf_v11, tmp_path / "out", to="hf")
    assert any("using gelu, as in" in note for note in report.notes)
    again = convert(tmp_path / "out", tmp_path / "back", to="mtf")
    assert not again.notes
    assert open_source(tmp_path / "back").facts.activation == "gelu"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "encoder/SelfAttention.num_heads = 4",
            "num_heads = 4, but the checkpoint next to it has 2",
        ),
        ("DenseReluDense.activation = 'relu'", "activation = 'relu'; expected one of"),
    ],
)
def test_operative_config_of_another_model_is_refused(mtf_v11, line, message):
    (mtf_v11 / "operative_config.gin").write_text(f"{line}\n")
    with pytest.raises(UserError, match=message):
        open_source(mtf_v11)


def test_operative_config_activation_and_dropout_are_read(mtf_v11):
    text = "function = 'swish'\nd_ff = 48\ndecoder/DenseReluDense.hidden_size = %d_ff\n"
    text += "decoder/DenseReluDense.activation = \\\n    ['swish', 'linear']\ndropout_rate = 0.05\n"
    (mtf_v11 / "operative_config.gin").write_text(text)
    facts = open_source(mtf_v11).facts
    assert (facts.activation, facts.dropout_rate) == ("silu", 0.05)


def test_checkpoint_conversion_unknown_tensors_are_listed(tmp_path):
    extra = {"encoder/block_000/layer_001/MoE/gate": np.zeros((32, 4), np.float32)}
    source = write_mtf(tmp_path / "source", weights(V11) | extra)
    with pytest.raises(UserError, match="(?s)1 tensors are unknown.*MoE/gate"):
        open_source(source)


def test_checkpoint_conversion_adamw_slots_only_to_mesh_tensorflow(tmp_path):
    tensors = weights(V11)
    moments = {f"{name}/adam_{kind}": array + 1 for name, array in tensors.items() for kind in "mv"}
    source = write_mtf(tmp_path / "source", tensors | moments)
    everything = {name: bits(array) for name, array in (tensors | moments).items()}
    bare = {name: bits(array) for name, array in tensors.items()}
    assert loaded(move(source, tmp_path, "mtf")) == everything
    assert loaded(move(source, tmp_path, "t5x")) == bare
    assert loaded(move(source, tmp_path, "hf", drop_slots=True)) == bare


@pytest.mark.slow
@pytest.mark.parametrize("chain", [("hf", "mtf", "t5x", "hf"), ("t5x", "mtf")], ids="-".join)
def test_checkpoint_conversion_memory_is_bounded_by_one_tensor(tmp_path, monkeypatch, chain):
    model = model_shape(vocabulary=128 * 400, d_model=128, inner=128, d_ff=1024)
    source = write_mtf(tmp_path / "source", weights(model))
    largest, total = (
        128 * 400 * 128 * 4,
        (source / "model.ckpt-1000.data-00000-of-00001").stat().st_size,
    )
    assert total > 2.2 * largest
    tracemalloc.start()
    move(source, tmp_path, *chain)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2 * largest


def test_checkpoint_conversion_imports_no_tensorflow(tmp_path, mtf_v11):
    code = (
        "import sys\nfrom t0.checkpoints import convert\n"
        "convert(sys.argv[1], sys.argv[2] + '/hf', to='hf')\n"
        "convert(sys.argv[2] + '/hf', sys.argv[2] + '/t5x', to='t5x')\n"
        "convert(sys.argv[2] + '/t5x', sys.argv[2] + '/mtf', to='mtf')\n"
        "heavy = {'tensorflow', 'jax', 'torch', 't5', 'seqio', 'flax'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    words = [sys.executable, "-c", code, str(mtf_v11), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize("path", ["nowhere", "empty"])
def test_checkpoint_missing_or_empty_folder_is_refused(tmp_path, path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="does not exist|has no checkpoint"):
        open_source(tmp_path / path)


def test_mesh_tensorflow_checkpoint_missing_index_is_refused(mtf_v11):
    (mtf_v11 / "model.ckpt-1000.index").unlink()
    with pytest.raises(UserError, match="index.*missing"):
        open_source(mtf_v11 / "model.ckpt-1000")
    with pytest.raises(UserError, match="has no checkpoint"):
        open_source(mtf_v11)
