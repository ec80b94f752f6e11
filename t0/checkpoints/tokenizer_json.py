"""Converts between a SentencePiece model and Hugging Face's `tokenizer.json`.

    model = read(Path("tokenizer.json"))          # a SentencePiece model with the same pieces
    write(Path("tokenizer.json"), model, ["<extra_id_0>"])

`transformers` 5 writes only `tokenizer.json`. The `Unigram` model in this file has SentencePiece's
pieces and scores, and the normalizer has SentencePiece's character table, so the SentencePiece
model can be restored. A file with any other model or processing step is refused, because
SentencePiece cannot represent it.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from t0.checkpoints.formats import write_json
from t0.checkpoints.shape import shown
from t0.errors import UserError
from t0.files.untrusted import read_json

FILE = "tokenizer.json"
SPECIAL = ("<pad>", "</s>", "<unk>")  # T5's ids 0, 1 and 2
_SPACE = "\u2581"
_PIECE = sentencepiece_model_pb2.ModelProto.SentencePiece
FIRST_KINDS = (_PIECE.CONTROL, _PIECE.CONTROL, _PIECE.UNKNOWN)
_LARGEST_SCORE = 1e38  # float32 can hold it; a comparison with NaN is False
_BYTE = re.compile("<0x[0-9A-F]{2}>")
# The processing steps that SentencePiece can also do.
_NORMALIZERS = {"Precompiled", "Strip", "Replace"}
_SPLITTERS = {"WhitespaceSplit", "Metaspace"}


def read(path: Path) -> Any:
    """Reads a `tokenizer.json` as a SentencePiece model with equal pieces and scores.

    The model also has the same normalization. If the file has sentinels, they become the last
    pieces of the model.

    Raises:
      UserError: if SentencePiece cannot represent the file.
    """
    content = read_json(path)
    try:
        return _model(content)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read as a SentencePiece model: {shown(str(error))[1:-1]}. Put the "
            "model's spiece.model next to it, or set a SentencePiece model with --vocab"
        ) from error


def write(path: Path, model: Any, sentinels: Sequence[str]) -> None:
    """Writes the `tokenizer.json` that `transformers` makes from a SentencePiece model for T5.

    Args:
      path: the file to write.
      model: the SentencePiece model, without sentinels.
      sentinels: the texts of the sentinels, in the order of their ids.
    """
    vocabulary = [[piece.piece, piece.score] for piece in model.pieces]
    vocabulary += [[sentinel, 0.0] for sentinel in sentinels]
    special = [*enumerate(SPECIAL), *enumerate(sentinels, start=len(model.pieces))]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    space = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "always", "split": True}
    texts = [{"Sequence": {"id": kind, "type_id": 0}} for kind in "AB"]
    end = {"SpecialToken": {"id": SPECIAL[1], "type_id": 0}}
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    scored = {"unk_id": 2, "vocab": vocabulary, "byte_fallback": model.trainer_spec.byte_fallback}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": text, **flags, "special": True} for number, text in special
        ],
        "normalizer": (
            {"type": "Precompiled", "precompiled_charsmap": charsmap} if charsmap else None
        ),
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, space],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [texts[0], end],
            "pair": [texts[0], end, texts[1], end],
            "special_tokens": {SPECIAL[1]: {"id": SPECIAL[1], "ids": [1], "tokens": [SPECIAL[1]]}},
        },
        "decoder": space,
        "model": {"type": "Unigram", **scored},
    }
    write_json(path, content)


def _model(content: dict[str, Any]) -> Any:
    vocabulary = _vocabulary(content)
    if len({piece for piece, _ in vocabulary}) < len(vocabulary):
        raise ValueError("a piece occurs twice")
    model = sentencepiece_model_pb2.ModelProto()
    model.normalizer_spec.precompiled_charsmap = _charsmap(content)
    spec = model.trainer_spec
    spec.byte_fallback = content["model"].get("byte_fallback") is True
    for number, (piece, score) in enumerate(vocabulary):
        kind = _PIECE.BYTE if spec.byte_fallback and _BYTE.fullmatch(piece) else _PIECE.NORMAL
        kind = FIRST_KINDS[number] if number < 3 else kind
        model.pieces.add(piece=piece, score=score, type=kind)
    spec.model_type, spec.vocab_size = spec.UNIGRAM, len(vocabulary)
    spec.pad_id, spec.eos_id, spec.unk_id, spec.bos_id = 0, 1, 2, -1
    spec.pad_piece, spec.eos_piece, spec.unk_piece = SPECIAL
    return model


def _vocabulary(content: dict[str, Any]) -> list[tuple[str, float]]:
    """Returns the pieces with their scores; raises ValueError if T5's engines cannot use them."""
    model = content["model"]
    if model.get("type") != "Unigram":
        raise ValueError(f"its model is {model.get('type')}, expected Unigram")
    vocabulary = [(piece, float(score)) for piece, score in model["vocab"]]
    if not all(isinstance(p, str) and p and abs(score) < _LARGEST_SCORE for p, score in vocabulary):
        raise ValueError("a piece is not text, or a score is not a number")
    first = tuple(piece for piece, _ in vocabulary[:3])
    if first != SPECIAL or model.get("unk_id") != 2:
        raise ValueError(f"its ids 0, 1, 2 are {', '.join(first)}, expected {', '.join(SPECIAL)}")
    added = sorted((token["id"], token["content"]) for token in content.get("added_tokens") or ())
    for number, text in added:
        if number == len(vocabulary):  # a sentinel that is not among the pieces
            vocabulary.append((text, 0.0))
        if number > len(vocabulary) or vocabulary[number][0] != text:
            raise ValueError(f"it adds {text} as id {number}, which does not follow the pieces")
    return vocabulary


def _charsmap(content: dict[str, Any]) -> bytes:
    """Returns SentencePiece's character table; raises ValueError for steps that it cannot do."""
    steps = _steps(content.get("normalizer"), "normalizers")
    splitters = _steps(content.get("pre_tokenizer"), "pretokenizers")
    for step in [*steps, *splitters]:
        space = step.get("replacement", _SPACE) == step.get("str_rep", _SPACE) == _SPACE
        scheme = step.get("prepend_scheme", "always")
        if (
            step["type"] not in (_NORMALIZERS if step in steps else _SPLITTERS)
            or (step["type"] == "Metaspace" and (not space or scheme != "always"))
            or (step["type"] == "Replace" and step.get("pattern") != {"Regex": " {2,}"})
        ):
            raise ValueError(f"it has the step {step['type']}, unlike SentencePiece")
    kinds = [step["type"] for step in [*steps, *splitters]]
    if kinds.count("Precompiled") != 1 or kinds.count("Metaspace") != 1:
        raise ValueError("it has no Precompiled normalizer, or no Metaspace: it needs both")
    if "WhitespaceSplit" not in kinds and "Replace" not in kinds:
        raise ValueError("it keeps repeated spaces")
    table = next(step for step in steps if step["type"] == "Precompiled")["precompiled_charsmap"]
    try:
        return base64.b64decode(table, validate=True)
    except binascii.Error as error:
        raise ValueError("its precompiled_charsmap is not base64") from error


def _steps(step: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    return step[name] if step["type"] == "Sequence" else [step]
