"""Hugging Face's `transformers` loads our folders, and computes what Mesh TensorFlow does."""

import dataclasses
import logging

import numpy as np
import pytest
from tiny_checkpoints import BFLOAT16, V10, V11, bits, loaded, model_shape, weights, write_mtf

from t0.checkpoints import convert, open_source

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
def test_logits_agree(tmp_path, model, dtype, ids):
    from t0.checkpoints.compare import hf_logits, mesh_logits

    source = write_mtf(tmp_path / "mtf", weights(model, dtype))
    convert(source, tmp_path / "hf", to="hf", progress=False)
    activation = "gelu" if model.gated else "relu"
    mesh = mesh_logits(model, activation, open_source(source).path, *ids)
    theirs = hf_logits(tmp_path / "hf", *ids)
    real = ids[1] > 0
    assert mesh[real].std() > 0.3
    assert np.abs(mesh - theirs)[real].max() < 1e-4


def test_logits_agree_where_the_vocabulary_is_padded(tmp_path, ids):
    from t0.checkpoints import as_mesh_checkpoint
    from t0.checkpoints.compare import hf_logits, mesh_logits

    for number, fields in enumerate([{}, {"tied": True, "gated": False}]):
        model = model_shape(vocabulary=100, **fields)
        folder = tmp_path / f"hf{number}"
        convert(write_mtf(tmp_path / str(number), weights(model)), folder, to="hf", progress=False)
        prefix = as_mesh_checkpoint(str(folder), tmp_path / "work", progress=False)
        padded = open_source(prefix).model
        assert padded.vocabulary == 128
        mesh = mesh_logits(padded, "gelu" if model.gated else "relu", prefix, *ids)
        theirs = hf_logits(folder, *ids)
        assert theirs.shape[-1] == 100
        assert np.abs(mesh[..., :100] - theirs)[ids[1] > 0].max() < 1e-4


@pytest.mark.parametrize("model", [V10, V11], ids=["1.0", "1.1"])
def test_every_weight_is_loaded_and_it_generates(tmp_path, model, messages):
    # generate() of transformers 5.23 fails where the decoder has more layers than the encoder.
    model = dataclasses.replace(model, decoder_layers=model.encoder_layers)
    convert(write_mtf(tmp_path / "mtf", weights(model)), tmp_path / "hf", to="hf", progress=False)
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
def test_we_read_what_transformers_saves(tmp_path, model):
    convert(write_mtf(tmp_path / "mtf", weights(model)), tmp_path / "hf", to="hf", progress=False)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    theirs.save_pretrained(tmp_path / "saved")
    assert loaded(tmp_path / "saved") == loaded(tmp_path / "mtf")
    assert open_source(tmp_path / "saved").model == model


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_a_pickle_of_weights_only(tmp_path, dtype):
    tensors = weights(V10, dtype)
    convert(write_mtf(tmp_path / "mtf", tensors), tmp_path / "hf", to="hf", progress=False)
    state = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").state_dict()
    (tmp_path / "hf" / "model.safetensors").unlink()
    torch.save(state, tmp_path / "hf" / "pytorch_model.bin")
    assert loaded(tmp_path / "hf") == {name: bits(array) for name, array in tensors.items()}


def test_a_pickle_of_more_than_weights(tmp_path, mtf_v11):
    from t0.errors import UserError

    convert(mtf_v11, tmp_path / "hf", to="hf", progress=False)
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


def test_the_tokenizer_gives_sentencepieces_ids(tmp_path, mtf_v11):
    from pathlib import Path

    import sentencepiece

    model = Path(__file__).resolve().parents[3] / "shared" / "vocab" / "t5.spiece.model"
    if not model.is_file():
        pytest.skip(f"needs {model}, which is not part of this project")
    from t0.checkpoints import Options

    source = write_mtf(tmp_path / "mtf", weights(model_shape(vocabulary=32128, d_model=8)))
    options = Options(tokenizer=model)
    convert(source, tmp_path / "hf", to="hf", options=options, progress=False)
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


def test_sentinels_have_one_id_in_every_edition(tmp_path):
    from tiny_checkpoints import train_pieces, with_sentinels

    from t0.checkpoints import tokenizer

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
