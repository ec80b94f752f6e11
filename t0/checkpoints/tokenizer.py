"""Finds and checks the SentencePiece model of a checkpoint, and writes Hugging Face's tokenizer.

    check(Path("spiece.model"), rows=32128)
    write_hf(folder, Path("spiece.model"))
    find(Path("/models/t5_nl"))     # (Path("/models/t5_nl/tokenizer.json"), "")

Every function that reads a SentencePiece model also accepts a `tokenizer.json`, the only file that
`transformers` 5 writes. The `Unigram` model in this file has SentencePiece's pieces and scores, and
the normalizer has SentencePiece's character table, so the SentencePiece model can be restored. A
file with any other model or processing step is refused, because SentencePiece cannot represent it.

T5 has an id for each piece of the model, followed by ids for 100 sentinels (`<extra_id_0>` has the
last id). Some model files, such as T5's own `.100extra`, contain the sentinels as pieces.
`transformers` adds the sentinels to any model file, so `write_hf` writes the file without them.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from t0.checkpoints.formats import CheckpointFacts, write_json
from t0.checkpoints.shape import listed, shown
from t0.errors import UserError
from t0.files.any_path import any_path
from t0.files.paths import read_bytes
from t0.files.untrusted import read_json

FILE = "spiece.model"
JSON_FILE = "tokenizer.json"
_SPECIAL = ("<pad>", "</s>", "<unk>")  # T5's ids 0, 1 and 2
_SPACE = "\u2581"
_PIECE = sentencepiece_model_pb2.ModelProto.SentencePiece
_FIRST_KINDS = (_PIECE.CONTROL, _PIECE.CONTROL, _PIECE.UNKNOWN)
_LARGEST_SCORE = 1e38  # float32 can hold it; a comparison with NaN is False
_BYTE = re.compile("<0x[0-9A-F]{2}>")
# The processing steps that SentencePiece can also do.
_NORMALIZERS = {"Precompiled", "Strip", "Replace"}
_SPLITTERS = {"WhitespaceSplit", "Metaspace"}
# The SHA-256 of the vocabulary of T5, T0 and the LM-adapted models.
T5_SHA256 = "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86"
_EXTRA_IDS = 100
_PADDED = 128  # Mesh TensorFlow pads an embedding to a multiple of this number of rows
_SENTINEL = re.compile(r"\u2581?<extra_id_([0-9]{1,6})>")
_CONFIG = "tokenizer_config.json"
# The files of a folder whose fields may add tokens to its tokenizer.
_ADDING = (JSON_FILE, _CONFIG, "special_tokens_map.json")
_TOKEN_FIELDS = ("_token", "_tokens", "added_tokens_decoder")  # the ends of such fields' names
_ADDED = "added_tokens.json"  # the keys in this file are the texts of the tokens


def find(folder: Path) -> tuple[Path | None, str]:
    """Finds the tokenizer of a Hugging Face folder, or the reason why it cannot be read.

    Returns:
      (path, "") for a readable tokenizer, which is `spiece.model` or, if that file is missing,
      `tokenizer.json`. (None, reason) if these two files differ, if the folder adds tokens to the
      tokenizer, or if the folder only has another kind of tokenizer. (None, "") if the folder has
      no tokenizer.
    """
    try:
        return _find(folder), ""
    except UserError as error:
        return None, str(error)


def model_bytes(path: Path) -> bytes:
    """Returns the bytes of a SentencePiece model, converted from `tokenizer.json` if necessary.

    Raises:
      UserError: if SentencePiece cannot represent that tokenizer.
    """
    if path.suffix != ".json":
        return read_bytes(path)
    return _read(path).SerializeToString(deterministic=True)


def same(one: Path, other: Path) -> bool:
    """Returns whether two files give the same ids: equal pieces, scores and normalization.

    Raises:
      UserError: if one of the files cannot be read.
    """
    return _extract_essence(one) == _extract_essence(other)


def difference(facts: CheckpointFacts, vocabulary: str | None) -> str:
    """Describes how a vocabulary differs from a checkpoint's own tokenizer; "" if they are equal.

    Args:
      facts: the checkpoint's facts.
      vocabulary: the path of a SentencePiece model, local or gs://. If it is None, the checkpoint's
        own tokenizer is used, so the result is "".

    Raises:
      UserError: if the vocabulary or the tokenizer cannot be read.
    """
    if not vocabulary or not (facts.tokenizer or facts.tokenizer_fault):
        return ""
    if facts.tokenizer_fault:
        return f"{vocabulary} is not compared with the checkpoint's: {facts.tokenizer_fault}"
    if same(facts.tokenizer, any_path(vocabulary)):
        return ""
    return (
        f"the vocabulary {vocabulary} is not the checkpoint's own, {facts.tokenizer}: its pieces, "
        "scores or normalization differ"
    )


def unexportable(path: Path) -> str:
    """Returns the reason why T5Tokenizer cannot give the ids of a SentencePiece model, or "".

    Raises:
      UserError: if the file is not a SentencePiece model.
    """
    model = _read(path)
    pieces = model.pieces[: len(model.pieces) - _count_sentinels(model)]
    kinds = (pieces[0].NORMAL, pieces[0].BYTE)
    odd = [piece.piece for piece in pieces[3:] if piece.type not in kinds]
    first = tuple((piece.piece, piece.type) for piece in pieces[:3])
    if model.trainer_spec.model_type != model.trainer_spec.UNIGRAM:
        kind = model.trainer_spec.ModelType.Name(model.trainer_spec.model_type)
        return f"is a {kind} model; T5Tokenizer reads only UNIGRAM"
    if first != tuple(zip(_SPECIAL, _FIRST_KINDS, strict=True)):
        names, expected = (", ".join(x) for x in ([p for p, _ in first], _SPECIAL))
        return f"has the ids 0, 1, 2 for {names}; T5Tokenizer needs {expected}"
    return f"has symbols that T5Tokenizer splits: {', '.join(odd[:8])}" if odd else ""


def ids(path: Path) -> int:
    """Returns the number of ids that T5 has for a SentencePiece model, including the sentinels.

    Raises:
      UserError: if the file is not a SentencePiece model.
    """
    model = _read(path)
    return len(model.pieces) + (0 if _count_sentinels(model) else _EXTRA_IDS)


def check(path: Path, rows: int) -> None:
    """Checks that every id of a SentencePiece model, including sentinels, has an embedding.

    Raises:
      UserError: if there are too few embeddings, or the file is not a SentencePiece model.
    """
    count = ids(path)
    if count > rows:
        raise UserError(
            f"the tokenizer {path} has {count:,} ids (with T5's sentinels), but the checkpoint has "
            f"only {rows:,} embeddings: use the vocabulary that it was trained with"
        )


def misfit(path: Path, rows: int) -> str:
    """Returns the reason why a SentencePiece model is not that of `rows` embeddings, or "".

    A model's embedding has a row for each id and, as padding, less than `_PADDED` further rows.

    Raises:
      UserError: if the file is not a SentencePiece model.
    """
    count = ids(path)
    if rows - _PADDED < count <= rows:
        return ""
    return f"has {count:,} ids (with T5's sentinels), but the checkpoint has {rows:,} embeddings"


def caution(path: Path) -> str:
    """Returns a warning about a vocabulary that came with a checkpoint; "" for T5's own.

    Commands that load the file with SentencePiece print this warning. Conversion does not need it,
    because it only parses the file.

    A crafted model file can make SentencePiece before 0.2.1 write outside its memory
    (CVE-2026-1260). Later versions need protobuf 5, but TensorFlow 2.15 needs protobuf 4.
    """
    if hashlib.sha256(read_bytes(path)).hexdigest() == T5_SHA256:
        return ""
    return (
        f"vocabulary: {path}, which is not T5's. A crafted file can make SentencePiece 0.2.0 run "
        "code (CVE-2026-1260): set your own copy with --vocab unless you trust its author"
    )


def write_hf(folder: Path, path: Path) -> None:
    """Writes a tokenizer that `transformers` can read with or without `sentencepiece`."""
    model = _read(path)
    inside = _count_sentinels(model)
    if inside:
        del model.pieces[-inside:]
        (folder / FILE).write_bytes(model.SerializeToString(deterministic=True))
    else:
        (folder / FILE).write_bytes(model_bytes(path))
    count = inside or _EXTRA_IDS
    sentinels = [f"<extra_id_{i}>" for i in range(count)]
    _write_json_file(folder / JSON_FILE, model, sentinels[::-1])
    special = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    write_json(
        folder / "special_tokens_map.json", {"additional_special_tokens": sentinels, **special}
    )
    write_json(
        folder / _CONFIG,
        {
            "additional_special_tokens": sentinels,
            "clean_up_tokenization_spaces": False,
            "extra_ids": count,
            "model_max_length": 1_000_000_000_000,
            "tokenizer_class": "T5Tokenizer",
            **special,
        },
    )


def _find(folder: Path) -> Path | None:
    files = [path for path in (folder / FILE, folder / JSON_FILE) if path.is_file()]
    if not files and (folder / _CONFIG).is_file():
        kind = shown(read_json(folder / _CONFIG).get("tokenizer_class"))
        raise UserError(
            f"{folder / _CONFIG} names the tokenizer {kind}, and the folder has neither {FILE} nor "
            f"{JSON_FILE}: set its SentencePiece model with --vocab"
        )
    if not files:
        return None
    _check_added(folder, files[0])
    exported = _extract_essence(files[-1]) if files[-1].suffix == ".json" else None
    if exported and len(files) == 2 and _extract_essence(files[0]) != exported:
        raise UserError(
            f"{files[0]} and {JSON_FILE} next to it are different tokenizers; transformers reads "
            "the second. Remove the wrong one, or set the vocabulary with --vocab"
        )
    return files[0]


def _check_added(folder: Path, path: Path) -> None:
    """Checks that a folder adds no tokens to its tokenizer except T5's sentinels.

    Raises:
      UserError: if the folder adds other tokens. The message names these tokens.
    """
    added = sorted(
        {(f"{name}: {shown(text)}", text) for name, text in _list_added(folder) if _is_new(text)}
    )
    model = _read(path) if added and path.suffix != ".json" else None
    pieces = {piece.piece for piece in model.pieces if piece.type != piece.NORMAL} if model else ()
    wrong = [line for line, text in added if text not in pieces]
    if wrong:
        raise UserError(
            f"{folder} adds tokens to its tokenizer, which a SentencePiece model cannot store. If "
            f"no text has them, remove them; or set a vocabulary with --vocab:{listed(wrong)}"
        )


def _is_new(text: str) -> bool:
    return text not in _SPECIAL and not _SENTINEL.fullmatch(text)


def _list_added(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields (file, text) for each token that a folder's files add to its tokenizer."""
    if (folder / _ADDED).is_file():
        yield from ((_ADDED, text) for text in read_json(folder / _ADDED))
    for name in _ADDING:
        content = read_json(folder / name) if (folder / name).is_file() else {}
        for field, value in content.items():
            if field.endswith(_TOKEN_FIELDS):
                yield from ((name, text) for text in _list_texts(value))


def _list_texts(value: Any) -> Iterator[str]:
    """Yields the texts of tokens in a text, an object with `content`, or a collection of these."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and "content" in value:
        yield str(value["content"])
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(inner)


def _extract_essence(path: Path) -> tuple:
    model = _read(path)
    count = len(model.pieces) - _count_sentinels(model)
    pieces = [(piece.piece, piece.score) for piece in model.pieces[:count]]
    return pieces, model.normalizer_spec.precompiled_charsmap, model.trainer_spec.model_type


def _read(path: Path) -> Any:
    if path.suffix == ".json":
        return _convert_json(path)
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(read_bytes(path))
    except (OSError, DecodeError) as error:
        raise UserError(f"{path} is not a SentencePiece model: {error}") from error
    # Arbitrary bytes may parse as a message with unknown fields and without pieces.
    if not model.pieces:
        raise UserError(f"{path} is not a SentencePiece model: it has no pieces")
    return model


def _convert_json(path: Path) -> Any:
    """Converts a `tokenizer.json` to a SentencePiece model with T5's convention for sentinels."""
    model = _read_json_file(path)
    inside = _count_sentinels(model)
    count = len(model.pieces) - inside
    if any(_SENTINEL.fullmatch(piece.piece) for piece in model.pieces[:count]):
        raise UserError(
            f"{path} does not have T5's sentinels as the last ids, with <extra_id_0> at the end. "
            "Set the SentencePiece model that the model was trained with, with --vocab"
        )
    if inside == _EXTRA_IDS:  # T5 adds 100 sentinels when it loads a model
        del model.pieces[count:]
        inside = 0
    for number in range(inside):
        piece = model.pieces[count + number]
        piece.piece, piece.type = f"\u2581<extra_id_{inside - 1 - number}>", piece.USER_DEFINED
    return model


def _count_sentinels(model: Any) -> int:
    """Counts the sentinels at the end of a model, whose last piece must be `<extra_id_0>`."""
    count = 0
    for piece in reversed(model.pieces):
        match = _SENTINEL.fullmatch(piece.piece)
        if not match or int(match[1]) != count:
            break
        count += 1
    return count


def _read_json_file(path: Path) -> Any:
    """Reads a `tokenizer.json` as a SentencePiece model with equal pieces and scores.

    The model also has the same normalization. If the file has sentinels, they become the last
    pieces of the model.

    Raises:
      UserError: if SentencePiece cannot represent the file.
    """
    content = read_json(path)
    try:
        return _build_model(content)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read as a SentencePiece model: {shown(str(error))[1:-1]}. Put the "
            "model's spiece.model next to it, or set a SentencePiece model with --vocab"
        ) from error


def _write_json_file(path: Path, model: Any, sentinels: Sequence[str]) -> None:
    """Writes the `tokenizer.json` that `transformers` makes from a SentencePiece model for T5.

    Args:
      path: the file to write.
      model: the SentencePiece model, without sentinels.
      sentinels: the texts of the sentinels, in the order of their ids.
    """
    vocabulary = [[piece.piece, piece.score] for piece in model.pieces]
    vocabulary += [[sentinel, 0.0] for sentinel in sentinels]
    special = [*enumerate(_SPECIAL), *enumerate(sentinels, start=len(model.pieces))]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    space = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "always", "split": True}
    texts = [{"Sequence": {"id": kind, "type_id": 0}} for kind in "AB"]
    end = {"SpecialToken": {"id": _SPECIAL[1], "type_id": 0}}
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
            "special_tokens": {
                _SPECIAL[1]: {"id": _SPECIAL[1], "ids": [1], "tokens": [_SPECIAL[1]]}
            },
        },
        "decoder": space,
        "model": {"type": "Unigram", **scored},
    }
    write_json(path, content)


def _build_model(content: dict[str, Any]) -> Any:
    vocabulary = _vocabulary(content)
    if len({piece for piece, _ in vocabulary}) < len(vocabulary):
        raise ValueError("a piece occurs twice")
    model = sentencepiece_model_pb2.ModelProto()
    model.normalizer_spec.precompiled_charsmap = _charsmap(content)
    spec = model.trainer_spec
    spec.byte_fallback = content["model"].get("byte_fallback") is True
    for number, (piece, score) in enumerate(vocabulary):
        kind = _PIECE.BYTE if spec.byte_fallback and _BYTE.fullmatch(piece) else _PIECE.NORMAL
        kind = _FIRST_KINDS[number] if number < 3 else kind
        model.pieces.add(piece=piece, score=score, type=kind)
    spec.model_type, spec.vocab_size = spec.UNIGRAM, len(vocabulary)
    spec.pad_id, spec.eos_id, spec.unk_id, spec.bos_id = 0, 1, 2, -1
    spec.pad_piece, spec.eos_piece, spec.unk_piece = _SPECIAL
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
    if first != _SPECIAL or model.get("unk_id") != 2:
        raise ValueError(f"its ids 0, 1, 2 are {', '.join(first)}, expected {', '.join(_SPECIAL)}")
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
