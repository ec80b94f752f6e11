"""Trains SentencePiece models of a few dozen pieces in milliseconds.

path = train_vocabulary(folder / "tiny.model", ["rain in Oslo.", "snow in Lima."] * 50)
with_sentinels(path, folder / "tiny.100extra.model")
"""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_OPTIONS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "hard_vocab_limit": False}


def train_vocabulary(path: Path, text: Iterable[str], *, size: int = 60, **options: Any) -> Path:
    """Trains a SentencePiece model that begins with T5's pieces: padding, end of text, unknown.

    As in T5's model, no piece stands for the start of a text.

    Args:
      path: the file to write.
      text: the sentences to train on. The same sentences always give the same model.
      size: the largest number of pieces. The model has fewer pieces if the text is too short for
        this number.
      options: more options for `SentencePieceTrainer.train`.

    Returns:
      `path`.
    """
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        vocab_size=size,
        minloglevel=2,
        **{**_OPTIONS, **options},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.getvalue())
    return path


def with_sentinels(source: Path, path: Path, *, count: int = 100, before: str = "\u2581") -> Path:
    """Writes a copy of a model and appends sentinels as its last pieces, as in T5's `.100extra`.

    Args:
      source: the file of the model to copy.
      path: the file to write.
      count: the number of sentinels.
      before: the prefix of each sentinel's text. In T5's model, the prefix is SentencePiece's mark
        for a space.

    Returns:
      `path`.
    """
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(source.read_bytes())
    kind = sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED
    for number in reversed(range(count)):
        model.pieces.add(piece=f"{before}<extra_id_{number}>", score=0.0, type=kind)
    path.write_bytes(model.SerializeToString())
    return path
