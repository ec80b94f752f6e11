"""The `tokenizer.json` of a Hugging Face folder: read as a SentencePiece model, and written."""

import json
from pathlib import Path

import pytest
import sentencepiece

from t0 import testing
from t0.checkpoints import ConversionOptions, convert, open_source, prepared_checkpoint, tokenizer
from t0.checkpoints.compare import compare
from t0.errors import UserError
from tests.checkpoints.tiny_checkpoints import (
    model_shape,
    train_pieces,
    weights,
    with_sentinels,
    write_mtf,
)

TEXTS = ("rain and snow in 7 places", "  twice  the\tspace\nof lines ", "Ünïcödé “quotes” １２")
NAMES = ("spiece.model", "tokenizer.json")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    return train_pieces(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture
def folder(tmp_path, pieces):
    source = write_mtf(tmp_path / "mtf", weights(model_shape(vocabulary=256)))
    convert(source, tmp_path / "hf", to="hf", options=ConversionOptions(tokenizer=pieces))
    return tmp_path / "hf"


@pytest.fixture
def json_only(folder):
    (folder / "spiece.model").unlink()
    return folder


def edit(path, change):
    content = json.loads(path.read_text()) if path.is_file() else {}
    change(content)
    path.write_text(json.dumps(content))


def ids(content):
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    return [processor.encode(text) for text in TEXTS]


def fault(folder):
    facts = open_source(folder).facts
    assert facts.tokenizer is None
    return facts.tokenizer_fault


def test_tokenizer_json_is_read_without_sentencepiece_model(json_only, pieces, tmp_path):
    found = open_source(json_only).facts.tokenizer
    assert found == json_only / "tokenizer.json"
    assert ids(tokenizer.model_bytes(found)) == ids(pieces.read_bytes())
    assert tokenizer.ids(found) == tokenizer.ids(pieces)
    for kind in ("mtf", "t5x", "hf"):
        convert(json_only, tmp_path / kind / "new", to=kind)
        (written,) = (tmp_path / kind).rglob("spiece.model")
        assert ids(written.read_bytes()) == ids(pieces.read_bytes())
    found = prepared_checkpoint.find(str(json_only), str(json_only), tmp_path / "out")
    assert not (tmp_path / "out").exists()  # nothing is converted yet
    found.prepare()
    assert ids(Path(found.vocabulary).read_bytes()) == ids(pieces.read_bytes())


@pytest.mark.parametrize("count", [7, 100])
def test_tokenizer_json_sentinels_keep_their_ids(tmp_path, pieces, count):
    tokenizer.write_hf(tmp_path, with_sentinels(pieces, count=count))
    path = tmp_path / "tokenizer.json"
    assert tokenizer.same(path, tmp_path / "spiece.model")
    assert tokenizer.ids(path) == tokenizer.ids(pieces) - 100 + count
    vocabulary = json.loads(path.read_text())["model"]["vocab"]
    assert [vocabulary[-1][0], vocabulary[-count][0]] == ["<extra_id_0>", f"<extra_id_{count - 1}>"]
    # So they are in the edition with the sentinels inside.
    assert tokenizer.same(with_sentinels(pieces, count=count), path)
    edit(path, lambda content: content["model"]["vocab"].reverse())
    with pytest.raises(UserError, match="its ids 0, 1, 2 are <extra_id_0>"):
        tokenizer.ids(path)


def test_tokenizer_json_sentinels_in_other_order_are_refused(json_only):
    def ascend(content):
        content["model"]["vocab"][-100:] = content["model"]["vocab"][:-101:-1]
        content["added_tokens"] = content["added_tokens"][:3]

    edit(json_only / "tokenizer.json", ascend)
    assert "does not have T5's sentinels as the last ids" in fault(json_only)


@pytest.mark.parametrize("field", ["piece", "score", "charsmap"])
def test_tokenizer_json_unlike_spiece_model_is_refused(folder, field):
    def differ(content):
        vocabulary = content["model"]["vocab"]
        if field == "charsmap":
            content["normalizer"]["precompiled_charsmap"] = "AAAA"
        else:
            vocabulary[5] = (
                ["other", vocabulary[5][1]] if field == "piece" else [vocabulary[5][0], -1]
            )

    assert open_source(folder).facts.tokenizer == folder / "spiece.model"
    edit(folder / "tokenizer.json", differ)
    message = fault(folder)
    assert all(name in message for name in NAMES)
    assert "different tokenizers" in message


@pytest.mark.parametrize("keep", NAMES)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("added_tokens.json", {"<newline>": 250}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"250": {"content": "<newline>"}}}),
        ("tokenizer_config.json", {"extra_special_tokens": ["<extra_id_0>", "<newline>"]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"image": "<newline>"}}),
        ("special_tokens_map.json", {"additional_special_tokens": [{"content": "<newline>"}]}),
        ("special_tokens_map.json", {"bos_token": {"content": "<newline>", "lstrip": False}}),
    ],
)
def test_tokenizer_config_added_tokens_are_refused_by_name(folder, keep, name, change):
    for each in set(NAMES) - {keep}:
        (folder / each).unlink()
    edit(folder / name, lambda content: content.update(change))
    assert f"{name}: '<newline>'" in fault(folder)


def test_tokenizer_json_added_tokens_are_refused_by_name(folder):
    token = {"id": 250, "content": "<newline>", "special": False}
    edit(folder / "tokenizer.json", lambda content: content["added_tokens"].append(token))
    assert "tokenizer.json: '<newline>'" in fault(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["model"].update(type="BPE"), "its model is BPE, expected Unigram"),
        (lambda c: c.update(normalizer=None), "no Precompiled normalizer"),
        (lambda c: c.update(normalizer={"type": "NFKC"}), "the step NFKC, unlike SentencePiece"),
        (lambda c: c.update(pre_tokenizer=None), "no Metaspace"),
        (lambda c: c.update(pre_tokenizer={"type": "ByteLevel"}), "the step ByteLevel"),
        (lambda c: c["model"].update(unk_id=0), "its ids 0, 1, 2 are"),
        (lambda c: c["model"]["vocab"].append(["\u2581", -1]), "a piece occurs twice"),
        (lambda c: c["model"]["vocab"].append(["x", float("nan")]), "a score is not a number"),
        (lambda c: c["model"]["vocab"].append(["x", 1e300]), "a score is not a number"),
        (lambda c: c["model"]["vocab"].append(["\ud800", -1]), "surrogates not"),
        (lambda c: c["normalizer"].update(precompiled_charsmap="é"), "only ASCII characters"),
        (lambda c: c.update(added_tokens=3), "not iterable"),
        (lambda c: c.pop("model"), "model"),
    ],
)
def test_tokenizer_json_unlike_sentencepiece_is_refused(json_only, tmp_path, change, message):
    edit(json_only / "tokenizer.json", change)
    found = fault(json_only)
    assert f"{json_only}/tokenizer.json cannot be read as a SentencePiece model" in found
    assert message in found
    assert "--vocab" in found
    # The weights can be converted, without a tokenizer; an evaluation needs one.
    report = convert(json_only, tmp_path / "out", to="hf")
    assert any("no tokenizer is written" in note for note in report.notes)
    assert not (tmp_path / "out" / "spiece.model").exists()
    with pytest.raises(UserError, match="cannot be read as a SentencePiece model"):
        prepared_checkpoint.find(str(json_only), str(json_only), tmp_path / "evaluation")


def test_tokenizer_class_of_another_kind_is_named(json_only):
    (json_only / "tokenizer.json").unlink()
    edit(json_only / "tokenizer_config.json", lambda c: c.update(tokenizer_class="ByT5Tokenizer"))
    assert "names the tokenizer 'ByT5Tokenizer'" in fault(json_only)


def test_tokenizer_json_of_older_transformers_is_read(json_only, pieces):
    # What transformers 4 wrote after spaces were no longer split first.
    def change(content):
        steps = [content["normalizer"], {"type": "Strip", "strip_left": False, "strip_right": True}]
        double = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}
        content["normalizer"] = {"type": "Sequence", "normalizers": [*steps, double]}
        content["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581"}

    edit(json_only / "tokenizer.json", change)
    found = open_source(json_only).facts.tokenizer
    assert ids(tokenizer.model_bytes(found)) == ids(pieces.read_bytes())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model_type": "bpe"}, "is a BPE model"),
        ({"eos_piece": "<end>"}, "has the ids 0, 1, 2 for <pad>, <end>, <unk>"),
        ({"user_defined_symbols": ["<x>"]}, "has symbols that T5Tokenizer splits: .*<x>"),
    ],
)
def test_tokenizer_unlike_t5_is_not_exported(tmp_path, folder, options, reason):
    text = [f"rain and snow in {i} places" for i in range(99)]
    other = testing.train_vocabulary(tmp_path / "other.model", text, size=60, **options)
    settings = ConversionOptions(tokenizer=other, vocabulary_rows=tokenizer.ids(other))
    source, out = tmp_path / "mtf", tmp_path / "out"
    with pytest.raises(UserError, match=f"{other} {reason}"):
        convert(source, out, to="hf", options=settings)
    # Next to the source, it is left out.
    (source / "spiece.model").write_bytes(other.read_bytes())
    rows = ConversionOptions(vocabulary_rows=tokenizer.ids(other))
    notes = convert(source, out, to="hf", options=rows).notes
    assert any("no tokenizer is written" in note for note in notes)
    assert not list(out.glob("*token*")) + list(out.glob("spiece.model"))


def test_checkpoint_compare_different_tokenizer_or_activation(folder, tmp_path, pieces):
    other = testing.train_vocabulary(tmp_path / "other.model", ["snow and wind and rain"] * 9)
    options = ConversionOptions(tokenizer=other)
    convert(tmp_path / "mtf", tmp_path / "second", to="hf", options=options)
    assert compare(folder, folder).same
    found = compare(folder, tmp_path / "second")
    assert not found.same
    assert all(row.verdict == "same" for row in found.rows)
    assert "tokenizer" in found.settings[0]
    edit(folder / "config.json", lambda config: config.update(feed_forward_proj="gated-silu"))
    found = compare(folder, tmp_path / "mtf")
    assert found.same  # Mesh TensorFlow's folder does not say its activation
    (tmp_path / "mtf" / "operative_config.gin").write_text(
        "DenseReluDense.activation = ['gelu', 'linear']\n"
    )
    found = compare(folder, tmp_path / "mtf")
    assert found.settings == ["activation\tsilu and gelu"]
