"""Rules of tokenizers that make texts very long are found before a text is tokenized."""

import base64
import json

import pytest
from sentencepiece import sentencepiece_model_pb2

from t0.catalogue.text_growth import check_growth, check_model, growth_of
from t0.errors import UserError


def replace(old, new, kind="String"):
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def table(*texts):
    trie = bytes(8)
    return len(trie).to_bytes(4, "little") + trie + b"".join(text + b"\0" for text in texts)


def compiled(*texts):
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table(*texts)).decode()}


def chain(*steps, name="normalizers"):
    return {"type": "Sequence", name: list(steps)}


@pytest.mark.parametrize(
    ("step", "growth"),
    [
        (None, 1),
        ({"type": "NFKC"}, 1),
        (replace("a", "aa"), 2),
        (replace("``", '"'), 1),
        (replace(" ", "\u2581"), 3),
        (replace("", "ab"), 3),
        (replace(" {2,}", "\u2581", "Regex"), 4),
        (chain({"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")), 12),
        (chain(*[replace("a", "aa")] * 40), 2**40),
        (chain(chain(*[replace("a", "aaa")] * 3), replace("a", "aa")), 54),
        (chain(*[replace("a", "aa")] * 5, name="decoders"), 32),
        (compiled(b"a", b"b" * 33, b"cc"), 33),
        (chain(compiled(b"b" * 33), compiled(b"bb")), 66),
        ({"type": "Precompiled", "precompiled_charsmap": "a"}, 1),
        ({"type": "Sequence", "normalizers": "x"}, 1),
        ({"pattern": [], "content": "ab"}, 3),
    ],
)
def test_growth_of_rules_is_their_product(step, growth):
    assert growth_of(step) == growth


def test_growth_of_a_folder_is_limited(tmp_path):
    check_growth(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"normalizer": chain(compiled(b"b" * 33), replace(" ", "\u2581"))}))
    check_growth(tmp_path)
    for name in ("normalizer", "decoder"):
        path.write_text(json.dumps({name: chain(*[replace("a", "aa")] * 10)}))
        with pytest.raises(UserError, match=r"tokenizer.json: .* 1.02e\+03 times as long"):
            check_growth(tmp_path)
    path.unlink()
    model = sentencepiece_model_pb2.ModelProto()
    model.normalizer_spec.precompiled_charsmap = table(b"x" * 1000)
    (tmp_path / "spiece.model").write_bytes(model.SerializeToString())
    check_growth(tmp_path)
    model.normalizer_spec.precompiled_charsmap = table(b"x" * 1001)
    for name in ("spiece.model", "source.spm"):
        (tmp_path / name).write_bytes(model.SerializeToString())
        with pytest.raises(UserError, match=name):
            check_growth(tmp_path)
        (tmp_path / name).unlink()
    check_model("x", b"no model")
