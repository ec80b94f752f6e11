"""Finds and checks the SentencePiece model of a checkpoint, and writes Hugging Face's tokenizer.

    check(Path("spiece.model"), rows=32128)
    write_hf(folder, Path("spiece.model"))
    find(Path("/models/t5_nl"))     # (Path("/models/t5_nl/tokenizer.json"), "")

Every function that reads a SentencePiece model also accepts a `tokenizer.json`.

T5 has an id for each piece of the model, followed by ids for 100 sentinels (`<extra_id_0>` has the
last id). Some model files, such as T5's own `.100extra`, contain the sentinels as pieces.
`transformers` adds the sentinels to any model file, so `write_hf` writes the file without them.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t0.checkpoints import tokenizer_json
from t0.checkpoints.formats import CheckpointFacts, write_json
from t0.checkpoints.shape import listed, shown
from t0.errors import UserError
from t0.files.any_path import any_path
from t0.files.untrusted import read_json

FILE = "spiece.model"
# The SHA-256 of the vocabulary of T5, T0 and the LM-adapted models.
T5_SHA256 = "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86"
_EXTRA_IDS = 100
_PADDED_TO = 128
_SENTINEL = re.compile(r"\u2581?<extra_id_([0-9]{1,6})>")
_CONFIG = "tokenizer_config.json"
# The files of a folder whose fields may add tokens to its tokenizer.
_ADDING = (tokenizer_json.FILE, _CONFIG, "special_tokens_map.json")
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
        return path.read_bytes()
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
    if first != tuple(zip(tokenizer_json.SPECIAL, tokenizer_json.FIRST_KINDS, strict=True)):
        names, expected = (", ".join(x) for x in ([p for p, _ in first], tokenizer_json.SPECIAL))
        return f"has the ids 0, 1, 2 for {names}; T5Tokenizer needs {expected}"
    return f"has symbols that T5Tokenizer splits: {', '.join(odd[:8])}" if odd else ""


def ids(path: Path) -> int:
    """Returns the number of ids that T5 has for a SentencePiece model, including the sentinels.

    Raises:
      UserError: if the file is not a SentencePiece model.
    """
    model = _read(path)
    return len(model.pieces) + (0 if _count_sentinels(model) else _EXTRA_IDS)


def fits(path: Path, rows: int) -> bool:
    """Returns whether a model with `rows` embeddings, padded or not, can have this vocabulary."""
    count = ids(path)
    return rows in (count, -(-count // _PADDED_TO) * _PADDED_TO)


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


def caution(path: Path) -> str:
    """Returns a warning about a vocabulary that came with a checkpoint; "" for T5's own.

    Commands that load the file with SentencePiece print this warning. Conversion does not need it,
    because it only parses the file.

    A crafted model file can make SentencePiece before 0.2.1 write outside its memory
    (CVE-2026-1260). Later versions need protobuf 5, but TensorFlow 2.15 needs protobuf 4.
    """
    if hashlib.sha256(path.read_bytes()).hexdigest() == T5_SHA256:
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
    tokenizer_json.write(folder / tokenizer_json.FILE, model, sentinels[::-1])
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
    files = [path for path in (folder / FILE, folder / tokenizer_json.FILE) if path.is_file()]
    if not files and (folder / _CONFIG).is_file():
        kind = shown(read_json(folder / _CONFIG).get("tokenizer_class"))
        raise UserError(
            f"{folder / _CONFIG} names the tokenizer {kind}, and the folder has neither {FILE} nor "
            f"{tokenizer_json.FILE}: set its SentencePiece model with --vocab"
        )
    if not files:
        return None
    _check_added(folder, files[0])
    exported = _extract_essence(files[-1]) if files[-1].suffix == ".json" else None
    if exported and len(files) == 2 and _extract_essence(files[0]) != exported:
        raise UserError(
            f"{files[0]} and {tokenizer_json.FILE} next to it are different tokenizers; "
            "transformers reads the second. Remove the wrong one, or set the vocabulary with "
            "--vocab"
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
    return text not in tokenizer_json.SPECIAL and not _SENTINEL.fullmatch(text)


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
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except (OSError, DecodeError) as error:
        raise UserError(f"{path} is not a SentencePiece model: {error}") from error
    # Arbitrary bytes may parse as a message with unknown fields and without pieces.
    if not model.pieces:
        raise UserError(f"{path} is not a SentencePiece model: it has no pieces")
    return model


def _convert_json(path: Path) -> Any:
    """Converts a `tokenizer.json` to a SentencePiece model with T5's convention for sentinels."""
    model = tokenizer_json.read(path)
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
