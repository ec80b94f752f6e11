"""Hugging Face's `transformers` loads our folders, and computes what Mesh TensorFlow does."""

import dataclasses
import json
import logging

import numpy as np
import pytest

from t0.checkpoints import convert, open_source
from tests.checkpoints.tiny_checkpoints import (
    BFLOAT16,
    V10,
    V11,
    bits,
    loaded,
    model_shape,
    weights,
    write_mtf,
)

torch = pytest.importorskip("torch", reason="needs torch and transformers: bin/setup --with hf")
transformers = pytest.importorskip("transformers", reason="needs transformers: bin/setup --with hf")

ONE_LAYER = model_shape(encoder_layers=1, decoder_layers=1)


@pytest.fixture
def ids():
    rng = np.random.default_rng(3)
    # Longer than the 16 exact buckets, and past the 128 of the last one.
    inputs, targets = rng.integers(2, 100, (2, 140)), rng.integers(2, 100, (2, 40))
    inputs[1, 90:] = targets[1, 25:] = 0
    return inputs.astype(np.int32), targets.astype(np.int32)


@pytest.fixture
def messages(caplog):
    """What transformers logs: its logger does not hand on to the root's handlers."""
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    yield lambda: [record.getMessage() for record in caplog.records]
    logger.removeHandler(caplog.handler)


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
@pytest.mark.parametrize("model", [V10, V11, ONE_LAYER], ids=["1.0", "1.1", "one layer"])
def test_transformers_logits_agree_with_mesh_tensorflow(tmp_path, model, dtype, ids):
    from tests.checkpoints.mesh_forward import hf_logits, mesh_logits

    source = write_mtf(tmp_path / "mtf", weights(model, dtype))
    convert(source, tmp_path / "hf", to="hf")
    activation = "gelu" if model.gated else "relu"
    mesh = mesh_logits(model, activation, open_source(source).path, *ids)
    theirs = hf_logits(tmp_path / "hf", *ids)
    real = ids[1] > 0
    assert mesh[real].std() > 0.3
    assert np.abs(mesh - theirs)[real].max() < 1e-4


def test_transformers_logits_agree_with_padded_vocabulary(tmp_path, ids):
    from t0.checkpoints import as_mesh_checkpoint
    from tests.checkpoints.mesh_forward import hf_logits, mesh_logits

    for number, fields in enumerate([{}, {"tied": True, "gated": False}]):
        model = model_shape(vocabulary=100, **fields)
        folder = tmp_path / f"hf{number}"
        convert(write_mtf(tmp_path / str(number), weights(model)), folder, to="hf")
        prefix = as_mesh_checkpoint(str(folder), tmp_path / "work")
        padded = open_source(prefix).model
        assert padded.vocabulary == 128
        mesh = mesh_logits(padded, "gelu" if model.gated else "relu", prefix, *ids)
        theirs = hf_logits(folder, *ids)
        assert theirs.shape[-1] == 100
        assert np.abs(mesh[..., :100] - theirs)[ids[1] > 0].max() < 1e-4


@pytest.mark.parametrize("model", [V10, V11], ids=["1.0", "1.1"])
def test_transformers_loads_every_weight_and_generates(tmp_path, model, messages):
    # generate() of transformers 5.23 fails where the decoder has more layers than the encoder.
    model = dataclasses.replace(model, decoder_layers=model.encoder_layers)
    convert(write_mtf(tmp_path / "mtf", weights(model)), tmp_path / "hf", to="hf")
    assert not list((tmp_path / "hf").glob("*.bin"))
    loaded_model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True, use_safetensors=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert not [text for text in messages() if "newly initialized" in text.lower()]
    tied = loaded_model.lm_head.weight.data_ptr() == loaded_model.shared.weight.data_ptr()
    assert tied == model.tied
    tokens = loaded_model.generate(torch.tensor([[5, 9, 1]]), max_new_tokens=4, min_new_tokens=4)
    assert tokens.shape == (1, 5)


@pytest.mark.parametrize("model", [V10, V11], ids=["1.0", "1.1"])
def test_transformers_saved_model_is_read(tmp_path, model):
    convert(write_mtf(tmp_path / "mtf", weights(model)), tmp_path / "hf", to="hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    theirs.save_pretrained(tmp_path / "saved")
    assert loaded(tmp_path / "saved") == loaded(tmp_path / "mtf")
    assert open_source(tmp_path / "saved").model == model


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_transformers_pickle_of_weights_only_is_read(tmp_path, dtype):
    tensors = weights(V10, dtype)
    convert(write_mtf(tmp_path / "mtf", tensors), tmp_path / "hf", to="hf")
    state = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").state_dict()
    (tmp_path / "hf" / "model.safetensors").unlink()
    torch.save(state, tmp_path / "hf" / "pytorch_model.bin")
    assert loaded(tmp_path / "hf") == {name: bits(array) for name, array in tensors.items()}


def test_transformers_pickle_with_code_is_refused(tmp_path, mtf_v11):
    from t0.errors import UserError

    convert(mtf_v11, tmp_path / "hf", to="hf")
    (tmp_path / "hf" / "model.safetensors").unlink()
    torch.save({"shared.weight": Runs(tmp_path / "owned")}, tmp_path / "hf" / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot be read as weights only"):
        open_source(tmp_path / "hf")
    assert not (tmp_path / "owned").exists()


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_transformers_tokenizer_ids_equal_sentencepiece(tmp_path, mtf_v11):
    from pathlib import Path

    import sentencepiece

    model = Path(__file__).resolve().parents[3] / "shared" / "vocab" / "t5.spiece.model"
    if not model.is_file():
        pytest.skip(f"needs {model}, which is not part of this project")
    from t0.checkpoints import ConversionOptions

    source = write_mtf(tmp_path / "mtf", weights(model_shape(vocabulary=32128, d_model=8)))
    options = ConversionOptions(tokenizer=model)
    convert(source, tmp_path / "hf", to="hf", options=options)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert len(theirs) == 32100
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for text in (
        "Hello world, this is it.",
        "tabs\tand\nlines  twice  ",
        "Ünïcödé “quotes” … 日本",
    ):
        assert theirs(text).input_ids == [*pieces.encode(text), 1]
    assert theirs("<extra_id_0> x").input_ids[0] == 32099


def test_transformers_tokenizer_sentinels_have_one_id(tmp_path):
    from t0.checkpoints import tokenizer
    from tests.checkpoints.tiny_checkpoints import train_pieces, with_sentinels

    pieces = train_pieces(tmp_path / "pieces")
    found = []
    for number, path in enumerate(
        [pieces, with_sentinels(pieces), with_sentinels(pieces, 100, "")]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        tokenizer.write_hf(folder, path)
        theirs = transformers.T5Tokenizer.from_pretrained(folder)
        ids = theirs.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_99>"])
        found.append((len(theirs), ids, theirs("rain <extra_id_0> and snow").input_ids))
    assert found[1:] == found[:1] * 2
    size = found[0][0]
    assert found[0][1] == [size - 1, size - 100]


def hf_equals_ours(folder, tmp_path, ids):
    """Checks that transformers and our reader have the same model in a folder, by its logits."""
    from tests.checkpoints.mesh_forward import hf_logits, mesh_logits

    report = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)[1]
    assert not report["missing_keys"]
    convert(folder, tmp_path / f"{folder.name}_mtf", to="mtf")
    source = open_source(tmp_path / f"{folder.name}_mtf")
    ours = mesh_logits(source.model, source.facts.activation, source.path, *ids)
    assert np.abs(ours - hf_logits(folder, *ids))[ids[1] > 0].max() < 1e-4


@pytest.mark.parametrize("model", [V10, V11], ids=["1.0", "1.1"])
def test_transformers_model_saved_in_shards_then_as_one_file(tmp_path, ids, model):
    first, second = (write_mtf(tmp_path / str(n), weights(model, seed=n)) for n in (0, 1))
    for source in (first, second):
        convert(source, tmp_path / f"{source.name}_hf", to="hf")
    load = transformers.AutoModelForSeq2SeqLM.from_pretrained
    load(tmp_path / "0_hf").save_pretrained(tmp_path / "saved", max_shard_size="20KB")
    assert loaded(tmp_path / "saved") == loaded(first)
    load(tmp_path / "1_hf").save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors.index.json").is_file()
    assert loaded(tmp_path / "saved") == loaded(second)
    hf_equals_ours(tmp_path / "saved", tmp_path, ids)


@pytest.mark.parametrize("model", [V10, V11], ids=["1.0", "1.1"])
def test_transformers_safetensors_save_keeps_one_embedding_name(tmp_path, ids, model):
    import safetensors.torch

    convert(write_mtf(tmp_path / "mtf", weights(model)), tmp_path / "hf", to="hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    safetensors.torch.save_model(theirs, str(path))
    assert "shared.weight" not in safetensors.torch.load_file(path)
    assert loaded(tmp_path / "hf") == loaded(tmp_path / "mtf")
    hf_equals_ours(tmp_path / "hf", tmp_path, ids)


@pytest.mark.parametrize("kind", ["before 1.6", "parameters", "in two files"])
def test_transformers_older_pickles_of_weights_are_read(tmp_path, ids, kind):
    tensors = weights(V11)
    convert(write_mtf(tmp_path / "mtf", tensors), tmp_path / "hf", to="hf")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    state = dict(model.named_parameters()) if kind == "parameters" else model.state_dict()
    (tmp_path / "hf" / "model.safetensors").unlink()
    path = tmp_path / "hf" / "pytorch_model.bin"
    if kind == "in two files":
        keys = sorted(state)
        where = {key: f"part{number % 2}.bin" for number, key in enumerate(keys)}
        for name in set(where.values()):
            part = {key: state[key] for key in keys if where[key] == name}
            torch.save(part, path.parent / name)
        path.with_suffix(".bin.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": where})
        )
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind != "before 1.6")
    assert loaded(tmp_path / "hf") == {name: bits(array) for name, array in tensors.items()}
    hf_equals_ours(tmp_path / "hf", tmp_path, ids)


def test_transformers_pickle_of_nested_weights_lists_its_keys(tmp_path, mtf_v11):
    from t0.errors import UserError

    convert(mtf_v11, tmp_path / "hf", to="hf")
    (tmp_path / "hf" / "model.safetensors").unlink()
    torch.save({"epoch": 3, "state_dict": {}}, tmp_path / "hf" / "pytorch_model.bin")
    with pytest.raises(UserError, match="(?s)more than tensors: save only.*epoch.*state_dict"):
        open_source(tmp_path / "hf")


def test_transformers_saved_tokenizer_is_read(tmp_path):
    import sentencepiece

    from t0.checkpoints import tokenizer
    from tests.checkpoints.tiny_checkpoints import train_pieces

    pieces = train_pieces(tmp_path / "pieces")
    tokenizer.write_hf(tmp_path, pieces)
    ours = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").unlink()
    theirs = transformers.T5Tokenizer.from_pretrained(tmp_path)  # from spiece.model
    theirs.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "tokenizer.json").read_text()) == ours
    assert not (tmp_path / "saved" / "spiece.model").exists()
    path, fault = tokenizer.find(tmp_path / "saved")
    assert not fault
    read, trained = (
        sentencepiece.SentencePieceProcessor(model_proto=content)
        for content in (tokenizer.model_bytes(path), pieces.read_bytes())
    )
    for text in ("rain and snow in 77 places", "  two  spaces\tand\nlines ", "Ünïcödé １２"):
        assert theirs(text).input_ids == [*read.encode(text), 1] == [*trained.encode(text), 1]
    theirs.add_tokens(["<newline>"])
    theirs.save_pretrained(tmp_path / "added")
    path, fault = tokenizer.find(tmp_path / "added")
    assert path is None
    assert "<newline>" in fault


def test_transformers_reads_tokenizer_without_sentencepiece(tmp_path):
    import subprocess
    import sys

    from t0.checkpoints import tokenizer
    from tests.checkpoints.tiny_checkpoints import train_pieces

    pieces = train_pieces(tmp_path / "pieces")
    tokenizer.write_hf(tmp_path, pieces)
    program = (
        "import sys; sys.modules.update(sentencepiece=None, tiktoken=None); import transformers; "
        "t = transformers.AutoTokenizer.from_pretrained(sys.argv[1]); "
        "print(type(t).__name__, len(t), t('rain and snow').input_ids)"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    encoded = [*sentencepiece_ids(pieces, "rain and snow"), 1]
    assert done.stdout.strip() == f"T5Tokenizer {tokenizer.ids(pieces)} {encoded}"


def sentencepiece_ids(path, text):
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(path)).encode(text)


@pytest.mark.parametrize("kind", ["T5", "T5 1.1", "MT5"])
def test_transformers_new_model_logits_agree(tmp_path, ids, kind):
    name = kind.partition(" ")[0]
    gated = {} if kind == "T5" else {"feed_forward_proj": "gated-gelu"}
    untied = {"tie_word_embeddings": False} if kind == "T5 1.1" else {}
    sizes = {"vocab_size": 128, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 2}
    config = getattr(transformers, f"{name}Config")(num_layers=2, **sizes, **gated, **untied)
    torch.manual_seed(5)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    model.save_pretrained(tmp_path / "new")
    hf_equals_ours(tmp_path / "new", tmp_path, ids)
