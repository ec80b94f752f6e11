"""Computes how much longer a tokenizer's rules can make a text, before any text is tokenized.

    check_growth(Path("/models/llama"))             # a UserError if its files have harmful rules
    growth_of({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})     # 2

A tokenizer first normalizes a text: it replaces characters by rules in its files. Rules that follow
each other multiply, so 40 rules that replace `a` with `aa` make a terabyte of one letter.
"""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from t0.errors import UserError
from t0.files.paths import read_bytes
from t0.files.untrusted import read_json

# SentencePiece's own rules make one character at most 33 bytes long. Known tokenizers have at most
# one such step, and steps that replace a space with a character of 3 bytes.
MOST_GROWTH = 1000
_JSON, _MODELS = "tokenizer.json", ("*.model", "*.spm")


def check_growth(folder: Path) -> None:
    """Checks that a folder's tokenizer makes no text longer than `MOST_GROWTH` times its length.

    Raises:
      UserError: if it may. The message names the file.
    """
    if (folder / _JSON).is_file():
        content = read_json(folder / _JSON)
        _check(folder / _JSON, max(growth_of(content.get(n)) for n in ("normalizer", "decoder")))
    for path in sorted(path for pattern in _MODELS for path in folder.glob(pattern)):
        if path.is_file():
            check_model(path, read_bytes(path))


def check_model(path: str | Path, content: bytes) -> None:
    """Checks the bytes of a SentencePiece model as `check_growth` does.

    Bytes that are no such model are accepted, because the tokenizer refuses or ignores them.
    """
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        return
    for spec in (model.normalizer_spec, model.denormalizer_spec):
        _check(path, _growth_of_table(spec.precompiled_charsmap))


def _check(path: str | Path, growth: int) -> None:
    if growth > MOST_GROWTH:
        raise UserError(
            f"{path}: its rules can make a text {growth:.3g} times as long; expected at most "
            f"{MOST_GROWTH:,} times. Copy the tokenizer's files again"
        )


def growth_of(step: Any) -> int:
    """Returns the largest factor by which a step of tokenizer.json can multiply a text's bytes.

    Only rules that the file defines count. Fixed rules, such as those of Unicode, make a character
    at most 18 times as long, and more than one of them has no further effect.
    """
    if not isinstance(step, Mapping):
        return 1
    growth = 1
    for inner in [*_listed(step.get("normalizers")), *_listed(step.get("decoders"))]:
        growth *= growth_of(inner)
    text = step.get("content", step.get("prepend"))
    if isinstance(text, str):
        pattern = step.get("pattern")
        literal = pattern.get("String") if isinstance(pattern, Mapping) else None
        size = len(text.encode("utf-8", "replace"))
        if isinstance(literal, str) and literal:
            growth *= max(1, -(-size // len(literal.encode("utf-8", "replace"))))
        else:  # an expression may match an empty text, next to each character
            growth *= 1 + size
    table = step.get("precompiled_charsmap")
    if isinstance(table, str):
        try:
            growth *= _growth_of_table(base64.b64decode(table))
        except binascii.Error:
            return growth  # the tokenizer refuses it
    return growth


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _growth_of_table(table: bytes) -> int:
    """Returns the length of the longest text that SentencePiece's compiled rules write.

    The table has the size of a trie, the trie, and the texts, each of which ends with a zero byte.
    """
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1, *map(len, texts.split(b"\0")))
