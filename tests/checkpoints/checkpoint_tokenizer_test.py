"""Tokenizer files that go with the weights."""

import hashlib
import json

import pytest
import sentencepiece

from t0.checkpoints import ConversionOptions, convert, tokenizer
from t0.cli.main import main
from t0.errors import UserError
from tests.checkpoints.tiny_checkpoints import (
    V11,
    model_shape,
    train_pieces,
    weights,
    with_sentinels,
    write_mtf,
)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    return train_pieces(tmp_path_factory.mktemp("vocabulary"))


def size(path):
    return sentencepiece.SentencePieceProcessor(model_file=str(path)).get_piece_size()


def test_tokenizer_larger_than_the_model_is_refused(tmp_path, pieces):
    source = write_mtf(tmp_path / "v11", weights(V11))
    options = ConversionOptions(tokenizer=pieces)
    with pytest.raises(UserError, match=f"has {size(pieces) + 100} ids.*has only 128 embeddings"):
        convert(source, tmp_path / "out", to="hf", options=options)
    assert not (tmp_path / "out").exists()


def test_tokenizer_is_copied_in_checkpoint_conversion(tmp_path, pieces):
    source = write_mtf(tmp_path / "v11", weights(model_shape(vocabulary=256)))
    options = ConversionOptions(tokenizer=pieces)
    convert(source, tmp_path / "hf", to="hf", options=options)
    config = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "T5Tokenizer"
    convert(tmp_path / "hf", tmp_path / "t5x", to="t5x")
    convert(tmp_path / "t5x", tmp_path / "mtf", to="mtf")
    assert (tmp_path / "mtf" / "spiece.model").read_bytes() == pieces.read_bytes()


@pytest.mark.parametrize("before", ["", "\u2581"], ids=["as it is", "with a space before"])
def test_tokenizer_sentinels_are_counted_once(tmp_path, pieces, before):
    plain, ids = size(pieces), size(pieces) + 100
    wider = with_sentinels(pieces, before=before)
    for path in (pieces, wider):
        tokenizer.check(path, ids)
        with pytest.raises(UserError, match=f"has {ids} ids"):
            tokenizer.check(path, ids - 1)
    # transformers adds them to the pieces that it finds.
    tokenizer.write_hf(tmp_path, wider)
    assert size(tmp_path / "spiece.model") == plain
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["extra_ids"] == len(config["additional_special_tokens"]) == 100


def test_tokenizer_with_another_number_of_sentinels(tmp_path, pieces):
    wider = with_sentinels(pieces, count=7)
    tokenizer.check(wider, size(pieces) + 7)
    tokenizer.write_hf(tmp_path, wider)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["extra_ids"] == 7
    assert size(tmp_path / "spiece.model") == size(pieces)


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02", b"no model", None])
def test_tokenizer_that_is_no_sentencepiece_model_is_refused(tmp_path, content):
    path = tmp_path / "spiece.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match="is not a SentencePiece model"):
        tokenizer.check(path, 128)


def test_tokenizer_caution_names_vocabulary_other_than_t5(tmp_path, monkeypatch):
    path = tmp_path / "spiece.model"
    path.write_bytes(b"somebody's")
    assert f"vocabulary: {path}, which is not T5's" in tokenizer.caution(path)
    own = hashlib.sha256(b"somebody's").hexdigest()
    monkeypatch.setattr(tokenizer, "T5_SHA256", own)
    assert tokenizer.caution(path) == ""


@pytest.mark.parametrize(("rows", "written"), [(0, True), (127, True), (128, False), (-1, False)])
def test_convert_to_hf_uses_t0_vocab_only_if_it_fits(
    tmp_path, pieces, monkeypatch, capsys, rows, written
):
    model = model_shape(vocabulary=tokenizer.ids(pieces) + rows)
    source = write_mtf(tmp_path / "mtf", weights(model))
    monkeypatch.setenv("T0_VOCAB", str(pieces))
    assert main(["convert", str(source), str(tmp_path / "hf"), "--to", "hf"]) == 0
    notes = capsys.readouterr().err
    assert (tmp_path / "hf" / tokenizer.FILE).exists() == written
    assert ("the new folder has no tokenizer" in notes) != written
    if not written:
        assert f"{pieces} has {tokenizer.ids(pieces):,} ids" in notes
        assert not (tmp_path / "hf" / tokenizer.JSON_FILE).exists()


@pytest.mark.parametrize(
    ("given", "reason"),
    [(None, "neither the source nor --vocab or T0_VOCAB has one"), ("missing", "No such file")],
)
def test_convert_to_hf_without_a_vocabulary_says_so(tmp_path, monkeypatch, capsys, given, reason):
    source = write_mtf(tmp_path / "mtf", weights(V11))
    monkeypatch.delenv("T0_VOCAB", raising=False)
    if given:
        monkeypatch.setenv("T0_VOCAB", str(tmp_path / given))
    assert main(["convert", str(source), str(tmp_path / "hf"), "--to", "hf"]) == 0
    (note,) = (line for line in capsys.readouterr().err.splitlines() if "no tokenizer" in line)
    assert reason in note and "Convert again with --vocab=" in note
