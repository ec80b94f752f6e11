"""Hugging Face folders: against the safetensors library, and what is refused."""

import json
import struct

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from t0.checkpoints import ConversionOptions, convert, names, open_source
from t0.errors import UserError
from tests.checkpoints.tiny_checkpoints import V10, V11, bits, loaded, weights, write_mtf

HEAD = "decoder/logits/kernel"


@pytest.fixture
def folder(tmp_path, mtf_v11):
    convert(mtf_v11, tmp_path / "hf", to="hf")
    return tmp_path / "hf"


@pytest.fixture
def tied(tmp_path):
    source = write_mtf(tmp_path / "v10", weights(V10))
    convert(source, tmp_path / "tied", to="hf")
    return tmp_path / "tied"


def edit_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def edit_weights(folder, change):
    path = folder / "model.safetensors"
    tensors = dict(safetensors.numpy.load_file(path))
    change(tensors)
    safetensors.numpy.save_file({k: v.copy() for k, v in tensors.items()}, path, {"format": "pt"})


def test_hugging_face_export_is_read_by_safetensors(folder):
    found = safetensors.numpy.load_file(folder / "model.safetensors")
    expected = weights(V11)
    assert set(found) == {names.hf_name(name) for name in expected}
    for name, array in expected.items():
        # PyTorch's linear layers keep [out, in]; its embeddings, the bias too, [ids, features].
        turned = array if name == "shared/embedding" else array.T
        np.testing.assert_array_equal(found[names.hf_name(name)], turned)
    with safetensors.safe_open(folder / "model.safetensors", framework="np") as file:
        assert file.metadata()["format"] == "pt"


def test_hugging_face_export_equals_safetensors_byte_by_byte(folder, tmp_path):
    path = folder / "model.safetensors"
    with safetensors.safe_open(path, framework="np") as file:
        metadata = file.metadata()
    tensors = {k: np.ascontiguousarray(v) for k, v in safetensors.numpy.load_file(path).items()}
    safetensors.numpy.save_file(tensors, tmp_path / "theirs", metadata)
    ours, theirs = path.read_bytes(), (tmp_path / "theirs").read_bytes()
    size = struct.unpack("<Q", theirs[:8])[0]
    assert json.loads(ours[8 : 8 + size]) == json.loads(theirs[8 : 8 + size])
    assert ours[8 + size :] == theirs[8 + size :]


def test_hugging_face_import_reads_safetensors_files(folder):
    before = loaded(folder)
    edit_weights(folder, lambda tensors: None)
    assert loaded(folder) == before


def test_hugging_face_export_writes_model_config(folder, tied):
    gated, plain = (json.loads((f / "config.json").read_text()) for f in (folder, tied))
    assert (gated["feed_forward_proj"], gated["tie_word_embeddings"]) == ("gated-gelu", False)
    assert (plain["feed_forward_proj"], plain["tie_word_embeddings"]) == ("relu", True)
    sizes = {"d_model": 32, "d_kv": 8, "num_heads": 2, "num_layers": 2, "num_decoder_layers": 3}
    assert gated.items() >= sizes.items()
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["decoder_start_token_id"] == 0


def test_tied_embedding_copies_are_left_out(tied):
    before = loaded(tied)

    def copy(tensors):
        for key in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
            tensors[key] = tensors["shared.weight"].copy()

    edit_weights(tied, copy)
    source = open_source(tied)
    assert len(source.unused) == 3
    assert source.model.tied
    assert loaded(tied) == before


def test_tied_embedding_with_different_copies_is_refused(tied):
    def differ(tensors):
        tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"] + 1

    edit_weights(tied, differ)
    with pytest.raises(UserError, match="(?s)different embeddings.*encoder.embed_tokens.weight"):
        open_source(tied)


def test_untied_embedding_with_missing_lm_head_is_refused(folder):
    edit_weights(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(UserError, match="has no lm_head.weight.*tie_word_embeddings is false"):
        open_source(folder)


def test_tied_embedding_unscaled_lm_head_becomes_a_copy(folder, tmp_path):
    # What transformers 5.23 writes for a T5 1.1 whose head equals its embedding.
    edit_weights(folder, lambda tensors: tensors.pop("lm_head.weight"))
    edit_config(folder, tie_word_embeddings=True, scale_decoder_outputs=False)
    source = open_source(folder)
    assert not source.model.tied
    embedding = safetensors.numpy.load_file(folder / "model.safetensors")["shared.weight"]
    head = source.load(HEAD)
    assert (head == (embedding if head.shape == embedding.shape else embedding.T)).all()
    convert(folder, tmp_path / "mtf", to="mtf")
    assert loaded(tmp_path / "mtf")[HEAD] == loaded(folder)[HEAD]


def test_tied_embedding_config_with_separate_lm_head_is_refused(folder):
    edit_config(folder, tie_word_embeddings=True)
    with pytest.raises(UserError, match="untied lm_head.weight"):
        open_source(folder)
    # What newer releases of transformers save for T5 1.1.
    edit_config(folder, scale_decoder_outputs=False)
    assert not open_source(folder).model.tied


def test_hugging_face_missing_or_unknown_tensors_are_refused(folder):
    edit_weights(folder, lambda tensors: tensors.pop("decoder.block.1.layer.2.layer_norm.weight"))
    with pytest.raises(
        UserError, match="(?s)is missing 1 of .*decoder/block_001/layer_002/rms_norm/scale"
    ):
        open_source(folder)
    edit_weights(
        folder, lambda tensors: tensors.update({"adapter.weight": np.zeros(3, np.float32)})
    )
    with pytest.raises(UserError, match="(?s)unknown.*adapter.weight"):
        open_source(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type = 'llama'; expected one of t5"),
        ({"num_heads": 4}, "num_heads = 4, expected 2"),
        ({"num_layers": 5}, "num_layers = 5, expected 2"),
        ({"num_decoder_layers": ...}, "num_decoder_layers = 2, expected 3"),
        ({"feed_forward_proj": "relu"}, "feed_forward_proj = 'relu'; the tensors need gated-gelu"),
        ({"relative_attention_max_distance": 256}, "max_distance = 256, expected 128"),
    ],
)
def test_hugging_face_config_of_another_model_is_refused(folder, changes, message):
    edit_config(folder, **changes)
    with pytest.raises(UserError, match=message):
        open_source(folder)


def test_hugging_face_missing_config_is_refused(folder):
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"has no config\.json"):
        open_source(folder)


def test_hugging_face_weights_of_an_unknown_dtype_are_refused(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"F8X"', 1))
    with pytest.raises(UserError, match="is 'F8X'; expected F64, F32"):
        open_source(folder)


@pytest.mark.parametrize("keep", [0, 4, 30, 3000, -1])
def test_hugging_face_truncated_safetensors_is_refused(folder, tmp_path, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"model\.safetensors is (truncated|not a safetensors)"):
        convert(folder, tmp_path / "out", to="mtf")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def sharded(tmp_path, mtf_v11):
    options = ConversionOptions(shard_bytes=20_000)
    convert(mtf_v11, tmp_path / "sharded", to="hf", options=options)
    return tmp_path / "sharded"


def test_hugging_face_missing_shard_or_index_is_refused(sharded):
    first = min(sharded.glob("*.safetensors"))
    kept = first.read_bytes()
    first.unlink()
    with pytest.raises(UserError, match=first.name):
        open_source(sharded)
    first.write_bytes(kept)
    (sharded / "model.safetensors.index.json").unlink()
    with pytest.raises(UserError, match=r"has no weights; .*model\.safetensors\.index"):
        open_source(sharded)


def test_hugging_face_index_path_outside_folder_is_refused(sharded):
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    index["weight_map"]["shared.weight"] = "../../etc/passwd"
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="cannot be the name of a file"):
        open_source(sharded)


def test_hugging_face_export_shards_are_read_by_safetensors(sharded):
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    for key, shard in index["weight_map"].items():
        with safetensors.safe_open(sharded / shard, framework="np") as file:
            assert key in file.keys()  # noqa: SIM118 (the library's own class)
    expected = weights(V11)
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in expected.values())
    assert loaded(sharded) == {name: bits(array) for name, array in expected.items()}


def test_hugging_face_pickle_is_not_opened_without_torch(folder, monkeypatch):
    import builtins

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    imported = builtins.__import__

    def without_torch(name, *args, **kwargs):
        if name == "torch":
            raise ImportError(name)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(UserError, match="pickle, which can run any code.*not read.*weights_only"):
        open_source(folder)


def test_hugging_face_single_file_is_read_before_shard_index(folder, sharded):
    expected = loaded(folder)
    for path in sharded.glob("*.safetensors*"):
        path.rename(folder / path.name)
    assert loaded(folder) == expected  # equal sets of weights are no fault
    shards = sorted(folder.glob("model-*.safetensors"))
    tensors = dict(safetensors.numpy.load_file(shards[0]))
    key = min(tensors)
    tensors[key] = tensors[key] + 1
    safetensors.numpy.save_file(tensors, shards[0])
    with pytest.raises(UserError) as caught:
        open_source(folder)
    for word in ("model.safetensors, which", "model.safetensors.index.json", key):
        assert word in str(caught.value)
    # transformers leaves the index of an older, sharded model.
    shards[0].unlink()
    assert loaded(folder) == expected


def test_hugging_face_every_missing_shard_is_named(sharded):
    first, second, *_ = sorted(sharded.glob("model-*.safetensors"))
    first.unlink()
    second.unlink()
    with pytest.raises(UserError, match=f"(?s)names missing files.*{first.name}.*{second.name}"):
        open_source(sharded)


def test_hugging_face_tensor_in_two_shards_is_refused(sharded):
    first, second, *_ = sorted(sharded.glob("model-*.safetensors"))
    key, value = next(iter(safetensors.numpy.load_file(first).items()))
    safetensors.numpy.save_file(safetensors.numpy.load_file(second) | {key: value}, second)
    with pytest.raises(UserError, match=f"has two tensors '{key}', in two files"):
        open_source(sharded)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_hugging_face_wrapper_prefixes_are_removed(folder, prefix):
    expected = loaded(folder)
    path = folder / "model.safetensors"
    tensors = dict(safetensors.numpy.load_file(path))
    safetensors.numpy.save_file({prefix + key: value for key, value in tensors.items()}, path)
    assert loaded(folder) == expected
    # torch.compile of a part of the model
    inner = {key.replace(".layer.", "._orig_mod.layer."): value for key, value in tensors.items()}
    safetensors.numpy.save_file(inner, path)
    assert loaded(folder) == expected
    both = tensors | {f"{prefix}shared.weight": tensors["shared.weight"] + 1}
    safetensors.numpy.save_file(both, path)
    with pytest.raises(UserError, match="two tensors 'shared.weight', .* wrapper's prefix"):
        open_source(folder)


@pytest.mark.parametrize("key", ["encoder.embed_tokens.weight", "lm_head.weight"])
def test_tied_embedding_under_another_name_is_read(tied, key):
    expected = loaded(tied)
    edit_weights(tied, lambda tensors: tensors.update({key: tensors.pop("shared.weight")}))
    assert loaded(tied) == expected
    assert open_source(tied).model.tied


def test_untied_embedding_under_another_name_is_read(folder):
    expected = loaded(folder)
    key = "decoder.embed_tokens.weight"
    edit_weights(folder, lambda tensors: tensors.update({key: tensors.pop("shared.weight")}))
    assert loaded(folder) == expected
    # Its head is no embedding, and other names are not guessed but listed.
    edit_weights(folder, lambda tensors: tensors.update({"word.weight": tensors.pop(key)}))
    with pytest.raises(
        UserError, match="(?s)has no embedding; expected shared.weight.*word.weight"
    ):
        open_source(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eos_token_id": 2}, "eos_token_id = 2, expected 1"),
        ({"eos_token_id": [1, 5]}, r"eos_token_id = \[1, 5\], expected 1"),
        ({"pad_token_id": 1}, "pad_token_id = 1, expected 0"),
        ({"decoder_start_token_id": 2}, "decoder_start_token_id = 2, expected 0"),
        ({"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon = 1e-05, expected 1e-06"),
        ({"dense_act_fn": "gelu"}, "dense_act_fn = 'gelu', expected gelu_new"),
    ],
)
def test_hugging_face_config_unsupported_settings_are_refused(folder, changes, message):
    edit_config(folder, **changes)
    with pytest.raises(UserError, match=f"config.json: {message}"):
        open_source(folder)


def test_hugging_face_config_t5_settings_are_accepted(folder):
    expected = loaded(folder)
    edit_config(folder, decoder_start_token_id=None, eos_token_id=[1], dense_act_fn="gelu_new")
    assert loaded(folder) == expected
    edit_config(folder, decoder_start_token_id=..., eos_token_id=..., layer_norm_epsilon=...)
    assert loaded(folder) == expected


def test_hugging_face_generation_config_other_ids_are_refused(folder):
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": 2}))
    with pytest.raises(UserError, match=r"generation_config.json: eos_token_id = 2, expected 1"):
        open_source(folder)


def test_hugging_face_export_other_layer_norm_epsilon_is_refused(mtf_v11, tmp_path):
    (mtf_v11 / "operative_config.gin").write_text("sublayer_rms_norm.epsilon = 1e-05\n")
    with pytest.raises(UserError, match=r"sublayer_rms_norm.epsilon = 1e-05; expected 1e-06"):
        convert(mtf_v11, tmp_path / "out", to="hf")
    (mtf_v11 / "operative_config.gin").write_text("sublayer_rms_norm.epsilon = 1e-06\n")
    convert(mtf_v11, tmp_path / "out", to="hf")
