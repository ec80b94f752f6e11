"""What lies beside a checkpoint brings no code into gin, and no value but numbers and words."""

import ast
import json
import os
import re
import subprocess
import sys
import time
import types
from pathlib import Path

import msgpack
import numpy as np
import pytest

from t0.checkpoints import (
    ConversionOptions,
    convert,
    open_source,
    operative_config,
    prepared_checkpoint,
)
from t0.checkpoints.bundle import BundleEntry, BundleReader, BundleWriter, write_index
from t0.config.bindings import bound
from t0.errors import UserError
from tests.checkpoints.tiny_checkpoints import (
    V10,
    V11,
    model_shape,
    weights,
    write_inline,
    write_mtf,
)

INJECTED = "0.1\nimport this"
NO_RATES = [
    INJECTED,
    "0.1",
    "0.1  # import this",
    "'",
    float("nan"),
    float("inf"),
    1,
    1.5,
    -0.1,
    10**400,
    True,
    [0.1],
    {"a": 0.1},
    "%dropout_rate",
]


@pytest.fixture(scope="module")
def hf_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    convert(write_mtf(folder / "mtf", weights(V11)), folder / "hf", to="hf")
    return folder / "hf"


@pytest.fixture
def changed(hf_folder, tmp_path):
    """The folder with other values in its config.json."""

    def change(**values):
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / "model.safetensors").symlink_to(hf_folder / "model.safetensors")
        config = json.loads((hf_folder / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, **values}))
        return copy

    return change


def refused(source, tmp_path, words):
    with pytest.raises(UserError) as error:
        convert(source, tmp_path / "out", to="mtf")
    message = str(error.value)
    assert words in message
    assert len(message) < 500
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", NO_RATES, ids=lambda value: ascii(value)[:20])
def test_hugging_face_config_invalid_dropout_rate_is_refused(changed, tmp_path, value):
    refused(changed(dropout_rate=value), tmp_path, "dropout_rate = ")


@pytest.mark.parametrize(("value", "read"), [(0, 0.0), (0.05, 0.05), (None, None)])
def test_hugging_face_dropout_rate_goes_to_operative_config(changed, tmp_path, value, read):
    convert(changed(dropout_rate=value), tmp_path / "out", to="mtf")
    bound = operative_config.read_operative(tmp_path / "out" / operative_config.FILE)
    assert bound.get("dropout_rate") == read


@pytest.mark.parametrize("value", [INJECTED, ["relu"], {}, 7, True, None])
@pytest.mark.parametrize("key", ["feed_forward_proj", "model_type"])
def test_hugging_face_config_unknown_words_are_refused(changed, tmp_path, key, value):
    refused(changed(**{key: value}), tmp_path, key)


@pytest.mark.parametrize("value", [INJECTED, "32", True, [32], 10**400, float("nan"), 31])
@pytest.mark.parametrize("key", ["d_model", "num_layers", "num_decoder_layers", "vocab_size"])
def test_hugging_face_config_sizes_must_match_the_tensors(changed, tmp_path, key, value):
    refused(changed(**{key: value}), tmp_path, f"{key} = ")


def test_hugging_face_config_true_is_not_the_number_one(tmp_path):
    one = weights(model_shape(encoder_layers=1))
    convert(write_mtf(tmp_path / "mtf", one), tmp_path / "hf", to="hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**config, "num_layers": True}))
    refused(tmp_path / "hf", tmp_path, "num_layers = True")


@pytest.mark.parametrize("metadata", [{"step": 5}, {"step": ["5"]}, "text", {"step": str(2**40)}])
def test_safetensors_invalid_step_metadata_is_refused(changed, tmp_path, metadata):
    folder = changed()
    rewritten(folder, lambda header: header.update(__metadata__=metadata))
    refused(folder, tmp_path, "copy")


@pytest.mark.parametrize("step", ["²", INJECTED, "-1", "1e3", "0x10"])
def test_safetensors_unknown_step_text_becomes_step_0(changed, tmp_path, step):
    folder = changed()
    rewritten(folder, lambda header: header.update(__metadata__={"step": step}))
    convert(folder, tmp_path / "out", to="mtf")
    assert (tmp_path / "out" / "model.ckpt-0.index").is_file()


@pytest.mark.parametrize("size", [True, 32.0, "32", [32], 2**70, -32, None])
def test_safetensors_invalid_tensor_sizes_are_refused(changed, tmp_path, size):
    folder = changed()
    norm = "encoder.final_layer_norm.weight"
    rewritten(folder, lambda header: header[norm].update(shape=[size]))
    refused(folder, tmp_path, "model.safetensors")


def rewritten(folder, change):
    """Changes the header of the folder's safetensors file, its tensors left as they are."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.unlink()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


@pytest.mark.parametrize("value", ["1e999", "2", "True", "'0.1'", "[0.1]", "-1", '"""\nx"""'])
def test_operative_config_invalid_dropout_rate_is_refused(tmp_path, value):
    source = write_mtf(tmp_path / "mtf", weights(V11))
    (source / operative_config.FILE).write_text(f"dropout_rate = {value}\n")
    if "\n" in value:  # no literal on one line: as if it were not there
        convert(source, tmp_path / "out", to="hf")
    else:
        refused(source, tmp_path, "dropout_rate = ")


@pytest.mark.parametrize(
    "line",
    [
        "DenseReluDense.activation = [['gelu'], 'linear']",
        "DenseReluDense.activation = []",
        "DenseReluDense.activation = {}",
        "DenseReluDense.activation = 7",
        "SelfAttention.num_heads = True",
        "Unitransformer.shared_embedding_and_softmax_weights = 0",
        "SelfAttention.num_heads = '2'",
    ],
)
def test_operative_config_values_of_no_t5_are_refused(tmp_path, line):
    source = write_mtf(tmp_path / "mtf", weights(V11))
    (source / operative_config.FILE).write_text(line + "\n")
    refused(source, tmp_path, line.split(" =")[0])


@pytest.mark.parametrize(
    "text", ["a = {[]: 1}", "a = " + "[" * 5000, "a = " + "-" * 100_000 + "1", "a = " + "9" * 9000]
)
def test_operative_config_unreadable_values_are_ignored(tmp_path, text):
    source = write_mtf(tmp_path / "mtf", weights(V11))
    (source / operative_config.FILE).write_text(text)
    convert(source, tmp_path / "out", to="hf")


def test_operative_config_too_large_is_refused(tmp_path):
    source = write_mtf(tmp_path / "mtf", weights(V11))
    (source / operative_config.FILE).write_text("#" * (1 << 21))
    refused(source, tmp_path, "too large for an operative config")


@pytest.mark.parametrize("step", [-1, 2**40, float("nan"), INJECTED, True, [1], None])
def test_t5x_invalid_step_is_refused(tmp_path, step):
    folder = write_inline(tmp_path / "checkpoint_1", {"state/step": step, "target/x": np.ones(2)})
    refused(folder, tmp_path, "step")


@pytest.mark.parametrize("version", ["2", [3], 1])
def test_t5x_invalid_version_is_refused(tmp_path, version):
    folder = write_inline(tmp_path / "checkpoint_1", {"target/x": np.ones(2)}, version=version)
    refused(folder, tmp_path, "version")


@pytest.mark.parametrize("step", [np.asarray(-1), np.asarray([1, 2]), np.asarray(1.5)])
def test_mesh_tensorflow_invalid_global_step_is_refused(tmp_path, step):
    writer = BundleWriter(tmp_path / "model.ckpt-1")
    for name, array in {**weights(V10), "global_step": step}.items():
        writer.add(name, array)
    writer.finish()
    refused(tmp_path / "model.ckpt-1", tmp_path, "step")


def test_operative_config_folder_name_cannot_inject_gin_code(changed, tmp_path):
    source = tmp_path / "model\nimport this\r#"
    changed().rename(source)
    convert(source, tmp_path / "out", to="mtf")
    text = (tmp_path / "out" / operative_config.FILE).read_text()
    assert "\nimport" not in text
    assert "\r" not in text


@pytest.mark.parametrize("source", ["x\nimport this", "x\nrun.mode = 'train'"])
def test_operative_config_source_name_cannot_inject_gin_line(tmp_path, source):
    path = tmp_path / operative_config.FILE
    known = {"activation": "gelu", "dropout_rate": 0.1, "master_dtype": "float32"}
    operative_config.write_operative(path, V11, legacy_norms=True, source="x", **known)
    lines = path.read_text().count("\n")
    operative_config.write_operative(path, V11, legacy_norms=True, source=source, **known)
    assert path.read_text().count("\n") == lines


HOSTILE_IMPORTS = [
    "import beside",
    "import beside as that",
    "from beside import path",
    "import a.b",
]


@pytest.mark.parametrize("text", [*HOSTILE_IMPORTS, "import os", "a = 1\n\\\nimport beside"])
def test_operative_config_imports_are_left_out(tmp_path, monkeypatch, capsys, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "beside.py").write_text("open('EXECUTED', 'w')\n")
    path = tmp_path / operative_config.FILE
    path.write_text(f"d_model = 4\n{text}\nSelfAttention.num_heads = 2\n")
    plain = operative_config.plain_bindings(str(path)).splitlines()
    assert [line for line in plain if line != "a = 1"] == [
        "d_model = 4",
        "SelfAttention.num_heads = 2",
    ]
    assert not (tmp_path / "EXECUTED").exists()
    noted = capsys.readouterr().err
    assert ("--module_import=" in noted) == ("os" not in text)  # os is imported already


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from __gin__ import dynamic_registration", "line 2, uses gin's dynamic registration"),
        ("include 'other.gin'", "line 2, includes 'other.gin'; expected at most 20 installed gin"),
        ("include '{folder}/other.gin'", "line 2, includes"),
        ("include '../other.gin'", "line 2, includes"),
        ("include 'gs://theirs/other.gin'", "line 2, includes"),
        ("include 'dataset.gin'\n" * 21, "line 22, includes"),
        ("a = 1e999", "not a gin file"),
        ("a = [" * 5000, "not a gin file"),
        ("import os; x", "not a gin file"),
        ("\udcff = 1", "not a gin file"),
        ("#" * (1 << 17), "too large"),
        ("a = " + "'x' " * 30_000, "one text of more than 1000 parts"),
    ],
)
def test_operative_config_other_statements_are_refused(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.gin").write_text("import os\n")
    path = tmp_path / operative_config.FILE
    text = "d_model = 4\n" + text.replace("{folder}", str(tmp_path)) + "\n"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=re.escape(message)):
        operative_config.plain_bindings(str(path))


def test_operative_config_bindings_are_kept_and_paths_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()  # gin would search the working directory first
    (tmp_path / "models" / "t5.1.1.small.gin").write_text("import os\nd_ff = 3\n")
    (tmp_path / operative_config.OURS).write_text("t0.packing.rows = 3\n")
    path = tmp_path / operative_config.FILE
    path.write_text(
        "import mesh_tensorflow.transformer.utils\nimport t5.models.mesh_transformer\n"
        "import mesh_tensorflow.transformer.evolved_transformer\n"
        "include 'models/t5.1.1.small.gin'\n"
        "init_checkpoint = 'gs://t5-data/model.ckpt-1'\nrun.init_checkpoint = %init_checkpoint\n"
        "tpu_estimator_model_fn.model_info_file = '/home/me/.bashrc'\nt0.stream.folder = '/tmp'\n"
        "run.model_type = 'lm'\nrun.vocabulary = ['gs://theirs/v.model']\n"
        "a/b:\n    c = [1, 'import os', (@x/f(), @g), {'k': %y}]\n"
    )
    lines = operative_config.plain_bindings(str(path)).splitlines()
    assert "import mesh_tensorflow.transformer.evolved_transformer" in lines
    assert "d_ff = 1024" in lines
    assert "init_checkpoint = None" in lines
    assert "run.model_type = 'lm'" in lines
    assert lines[-2:] == [
        "a/b.c = [1, 'import os', (@x/f(), @g), {'k': %y}]",
        "t0.packing.rows = 3",
    ]
    unread = ("gs://", "bashrc", "stream.folder", "import os\n", "include", "t5.models.mesh_")
    assert not [word for word in unread if word in "\n".join(lines)]
    with_ours = operative_config.plain_bindings(str(path), with_companion=False)
    assert "t0.packing" not in with_ours


def test_operative_config_of_other_models_is_read_without_its_imports(tmp_path, capsys):
    (tmp_path / "model").mkdir()
    writer = BundleWriter(tmp_path / "model" / "model.ckpt-3", shard_bytes=1 << 40)
    writer.add("odd", np.zeros((2, 2), np.float32))
    writer.add("global_step", np.asarray(3, np.int64))
    writer.finish()
    config = tmp_path / "model" / operative_config.FILE
    config.write_text("import beside\nrun.model_type = 'lm'\n")
    ready = prepared_checkpoint.find(str(tmp_path / "model"), "theirs", tmp_path / "out").prepare()
    assert Path(ready.gin_file) == tmp_path / "out" / prepared_checkpoint.MODEL_FILE
    assert Path(ready.gin_file).read_text() == "run.model_type = 'lm'\n"
    assert "imports beside, which is not run" in capsys.readouterr().err


# File -> the functions of gin in it that parse statements. Only these files may call gin's parser:
# `parse` for the files and bindings of the command line, `operative_config` for files that may come
# from anybody, and the others for text that this project has made.
PARSERS = {
    "t0/caching/workers.py": {"parse_config"},
    "t0/checkpoints/operative_config.py": {"ConfigParser"},
    "t0/config/parse.py": {"parse_config_file", "parse_config_files_and_bindings"},
    "t0/config/t5x_names.py": {"ConfigParser"},
    "t0/rehearsal/rehearse.py": {"parse_config"},
    "t0/run/model_api.py": {"parse_config"},
}


def test_gin_parses_untrusted_files_in_one_function_only():
    root = Path(__file__).resolve().parents[2]
    calls = {}
    readers = set()
    for path in sorted((root / "t0").rglob("*.py")):
        name = str(path.relative_to(root))
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in (
                *("ConfigParser", "parse_config", "parse_config_file", "parse_value"),
                *("parse_config_files_and_bindings", "process_import"),
            ):
                calls.setdefault(name, set()).add(node.attr)
            if isinstance(node, ast.Attribute | ast.Name) and "plain_bindings" in ast.unparse(node):
                readers.add(name)
    assert calls == PARSERS
    assert readers == {"t0/checkpoints/prepared_checkpoint.py", "t0/run/model_api.py"}


def test_operative_config_long_gin_macro_chains_are_read(tmp_path):
    path = tmp_path / operative_config.FILE
    chain = "".join(f"a{n} = %a{n + 1}\n" for n in range(20_000))
    path.write_text(f"{chain}rate = %b0\nb0 = %b1\nb1 = 0.1\nc = %c\n")
    began = time.thread_time()
    found = operative_config.read_operative(path)
    assert (found["rate"], found["c"], found["a0"]) == (0.1, None, None)
    assert time.thread_time() - began < 20


@pytest.mark.parametrize("mode", ["finetune", "eval", "predict", "score", "export_predict"])
def test_operative_config_is_copied_without_imports_by_the_model_api(tmp_path, mode):
    from t0.run import model_api

    path = tmp_path / operative_config.FILE
    path.write_text("import beside\nd_ff = 12\n")
    flags = {"mode": mode, "model_dir": "elsewhere", "pretrained_model_dir": "elsewhere"}
    flags["pretrained_model_dir" if mode == "finetune" else "model_dir"] = str(tmp_path)
    given = types.SimpleNamespace(**flags, gin_file=[])
    (copy,) = model_api.operative_config(given)
    assert Path(copy).read_text() == "d_ff = 12\n"
    given.gin_file = [str(path)]  # the user trusts the file
    assert model_api.operative_config(given) == [str(path)]


@pytest.mark.parametrize("named", [False, True])
def test_model_api_t5_parses_the_plain_bindings(tmp_path, monkeypatch, named):
    from t0.compat import t5_mtf_model
    from t0.run import model_api

    module = f"beside_a_model_{named}"
    path = tmp_path / operative_config.FILE
    path.write_text(f"import {module}\nd_ff = {11 + named}\n")
    (tmp_path / f"{module}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    parse = lambda flags, argv: t5_mtf_model._parse_operative_config(flags.model_dir)  # noqa: E731
    monkeypatch.setattr(model_api, "_run", parse)
    gin_file = [str(path)] if named else []
    flags = types.SimpleNamespace(mode="eval", model_dir=str(tmp_path), gin_file=gin_file)
    model_api.run(flags, ["t5_mesh_transformer"])
    assert (module in sys.modules) == named
    assert bound("%d_ff", evaluate=False) == 11 + named


def test_checkpoints_import_does_not_patch_tensorflow():
    code = "import sys, t0.checkpoints; print('t0.compat' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def entry_fields(shape, **fields):
    return {"shape": {"dim": [{"size": size} for size in shape]}, **fields}


@pytest.mark.parametrize(
    ("entries", "shards", "words"),
    [
        ({"a": {}}, 2**31, "counts 2147483648 data files"),
        ({"a": {"shape": (2**31, 2**31)}}, 1, "which do not match"),
        ({"a": {"shape": (2**63,)}}, 1, "which do not match"),
        ({"a": {"shard_id": 7}}, 1, "more data files than it declares"),
        ({"a": {"offset": 2**62}}, 1, "truncated"),
    ],
)
def test_mesh_tensorflow_index_with_impossible_sizes_is_refused(tmp_path, entries, shards, words):
    plain = {"dtype": 1, "shape": (2,), "size": 8}
    entries = {
        name: BundleEntry(**entry_fields(**plain | change)) for name, change in entries.items()
    }
    (tmp_path / "m.index").write_bytes(write_index(entries, shards=shards))
    (tmp_path / "m.data-00000-of-00001").write_bytes(bytes(8))
    with pytest.raises(UserError, match=words):
        BundleReader(tmp_path / "m").load("a")


def zarr_of(folder, path, **changes):
    """Changes what a T5X checkpoint's folder of an array says about it."""
    described = folder / f"target.{path}" / ".zarray"
    described.write_text(json.dumps(json.loads(described.read_text()) | changes))


def test_t5x_zarr_larger_than_the_index_says_is_refused(tmp_path):
    convert(write_mtf(tmp_path / "mtf", weights(V11)), tmp_path / "t5x", to="t5x")
    folder = tmp_path / "t5x" / "checkpoint_1000"
    zarr_of(folder, "token_embedder.embedding", shape=[2**40, 2**20], chunks=[2**30, 2**20])
    refused(tmp_path / "t5x", tmp_path, "the index says float32")


@pytest.mark.parametrize("layers", [2**31 - 1, 2**40, True, "2", -1])
def test_t5x_invalid_count_of_stacked_layers_is_refused(tmp_path, layers):
    source = write_mtf(tmp_path / "mtf", weights(V11))
    options = ConversionOptions(scan_layers=True)
    convert(source, tmp_path / "t5x", to="t5x", options=options)
    index = tmp_path / "t5x" / "checkpoint_1000" / "checkpoint"
    tree = msgpack.unpackb(index.read_bytes(), strict_map_key=False)
    query = tree["optimizer"]["target"]["encoder"]["encoder"]["attention"]["query"]["kernel"]
    query["metadata"]["shape"][1] = layers
    index.write_bytes(msgpack.packb(tree))
    refused(tmp_path / "t5x", tmp_path, "checkpoint")


@pytest.mark.parametrize(
    "data",
    [
        b"\x81\xa1a" * 100_000,
        b"\x91" * 100_000,
        msgpack.packb({"__msgpack_chunked_array__": True}),
        msgpack.packb({"__msgpack_chunked_array__": True, "shape": {"0": 1}, "chunks": {"0": 1}}),
        msgpack.packb({"a": msgpack.ExtType(1, msgpack.packb(([2**62, 8], "float32", b"")))}),
        msgpack.packb({"a": msgpack.ExtType(1, msgpack.packb(([True], "object", b"12345678")))}),
        msgpack.packb({"a": {"driver": "zarr", "kvstore": 1, "metadata": 2}}),
        msgpack.packb({"a": {"driver": [], "kvstore": {}, "metadata": {}}}),
        msgpack.packb({"optimizer": [1]}),
        msgpack.packb([1]),
    ],
)
def test_t5x_index_with_hostile_content_is_refused(tmp_path, data):
    (tmp_path / "checkpoint_1").mkdir()
    (tmp_path / "checkpoint_1" / "checkpoint").write_bytes(data)
    with pytest.raises(UserError):
        open_source(tmp_path / "checkpoint_1")


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 100_000, '{"a": 1e999999}', "\0", "", "[]"])
def test_hugging_face_config_with_hostile_json_is_refused(changed, tmp_path, text):
    folder = changed()
    (folder / "config.json").write_text(text)
    refused(folder, tmp_path, "config.json")


def overlap(header):
    norms = [key for key in header if key.endswith("final_layer_norm.weight")]
    header[norms[0]]["data_offsets"] = header[norms[1]]["data_offsets"]


def surplus(header):
    del header["encoder.final_layer_norm.weight"]


@pytest.mark.parametrize("change", [overlap, surplus])
def test_safetensors_overlap_or_surplus_bytes_are_refused(changed, tmp_path, change):
    folder = changed()
    rewritten(folder, change)
    refused(folder, tmp_path, "truncated or not a safetensors file")


@pytest.mark.parametrize("block", ["9" * 6000, "9" * 10])
def test_safetensors_block_number_with_too_many_digits(changed, tmp_path, block):
    def named(header):
        header[f"encoder.block.{block}.layer.0.SelfAttention.q.weight"] = header.pop(
            "encoder.block.0.layer.0.SelfAttention.q.weight"
        )

    folder = changed()
    rewritten(folder, named)
    refused(folder, tmp_path, "tensors are unknown")


def test_safetensors_too_many_tensors_are_refused(changed, tmp_path):
    def many(header):
        empty = {"dtype": "F32", "shape": [0]} | {"data_offsets": [0, 0]}
        header |= {f"x{n}": empty for n in range(20_001)}

    folder = changed()
    rewritten(folder, many)
    refused(folder, tmp_path, "tensors; a T5 has a few hundred")


@pytest.mark.parametrize("shard", ["a\0b", "\ud800", "..", "", "x/y", 5, None])
def test_safetensors_index_hostile_shard_names_are_refused(changed, tmp_path, shard):
    folder = changed()
    index = json.dumps({"weight_map": {"shared.weight": shard}})
    (folder / "model.safetensors.index.json").write_text(index)
    (folder / "model.safetensors").unlink()
    refused(folder, tmp_path, "index.json")


@pytest.mark.parametrize("kind", ["pipe", "zero"])
def test_checkpoint_index_pipe_or_device_is_refused(tmp_path, kind):
    source = write_mtf(tmp_path / "mtf", weights(V11))
    index = next(source.glob("*.index"))
    index.unlink()
    os.mkfifo(index) if kind == "pipe" else index.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="a pipe or a device, not a file"):
        BundleReader(index.with_suffix(""))
