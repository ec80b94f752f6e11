"""The SentencePiece model beside a checkpoint, and the tokenizer files for Hugging Face.

    check(Path("spiece.model"), rows=32128)
    write_hf(folder, Path("spiece.model"))

T5's ids are the model's pieces and 100 sentinels (`<extra_id_0>` is the last id). Some model files
contain the sentinels as pieces (T5's own `.100extra`). `transformers` adds the sentinels to any
model file, so `write_hf` writes the file without them.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

from t0.checkpoints.formats import write_json
from t0.errors import UserError

FILE = "spiece.model"
# Of the file that T5's, T0's and the LM-adapted models have.
T5_SHA256 = "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86"
_EXTRA_IDS = 100
_PADDED_TO = 128
_SENTINEL = re.compile(r"\u2581?<extra_id_([0-9]{1,6})>")


def ids(path: Path) -> int:
    """Returns the number of T5's ids for a SentencePiece model: its pieces and the sentinels.

    Raises:
      UserError: if the file is not a SentencePiece model.
    """
    model = _read(path)
    return len(model.pieces) + (0 if _sentinels_inside(model) else _EXTRA_IDS)


def fits(path: Path, rows: int) -> bool:
    """Returns whether a model with `rows` embeddings, padded or not, may have this vocabulary."""
    count = ids(path)
    return rows in (count, -(-count // _PADDED_TO) * _PADDED_TO)


def check(path: Path, rows: int) -> None:
    """Checks that every id of a SentencePiece model, sentinels included, has an embedding.

    Raises:
      UserError: with both numbers, or if the file is not a SentencePiece model.
    """
    count = ids(path)
    if count > rows:
        raise UserError(
            f"the tokenizer {path} gives {count:,} ids (with T5's sentinels), the checkpoint has "
            f"{rows:,} embeddings: name the vocabulary that it was trained with"
        )


def caution(path: Path) -> str:
    """Returns a line about a vocabulary that came with a checkpoint; "" for T5's own.

    It is for commands that hand the file to SentencePiece; conversion only parses it.

    A crafted model file can make SentencePiece before 0.2.1 write outside its memory
    (CVE-2026-1260). Later ones need protobuf 5, and TensorFlow 2.15 needs protobuf 4.
    """
    if hashlib.sha256(path.read_bytes()).hexdigest() == T5_SHA256:
        return ""
    return (
        f"vocabulary: {path}, which is not T5's. SentencePiece 0.2.0 trusts such a file as it "
        "trusts a program (CVE-2026-1260): name your own copy by --vocab unless you trust its maker"
    )


def write_hf(folder: Path, path: Path) -> None:
    """Writes the tokenizer files that `transformers` reads."""
    model = _read(path)
    inside = _sentinels_inside(model)
    if inside:
        del model.pieces[-inside:]
        (folder / FILE).write_bytes(model.SerializeToString(deterministic=True))
    else:
        (folder / FILE).write_bytes(path.read_bytes())
    count = inside or _EXTRA_IDS
    sentinels = [f"<extra_id_{i}>" for i in range(count)]
    special = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    write_json(
        folder / "special_tokens_map.json", {"additional_special_tokens": sentinels, **special}
    )
    write_json(
        folder / "tokenizer_config.json",
        {
            "additional_special_tokens": sentinels,
            "clean_up_tokenization_spaces": False,
            "extra_ids": count,
            "model_max_length": 1_000_000_000_000,
            "tokenizer_class": "T5Tokenizer",
            **special,
        },
    )


def _read(path: Path) -> Any:
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except (OSError, DecodeError) as error:
        raise UserError(f"{path} is no SentencePiece model: {error}") from error
    # Arbitrary bytes may parse as a message with unknown fields and without pieces.
    if not model.pieces:
        raise UserError(f"{path} is no SentencePiece model: it has no pieces")
    return model


def _sentinels_inside(model: Any) -> int:
    """Returns the number of sentinels at the model's end: pieces that count down to 0."""
    count = 0
    for piece in reversed(model.pieces):
        match = _SENTINEL.fullmatch(piece.piece)
        if not match or int(match[1]) != count:
            break
        count += 1
    return count
