"""SentencePiece models of a few dozen pieces, trained in milliseconds.

path = train_vocabulary(folder / "tiny.model", ["rain in Oslo.", "snow in Lima."] * 50)
with_sentinels(path, folder / "tiny.100extra.model")
"""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_OPTIONS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "hard_vocab_limit": False}


def train_vocabulary(path: Path, text: Iterable[str], *, size: int = 60, **options: Any) -> Path:
    """Trains a model whose first pieces are T5's: padding, end, unknown; no start.

    Args:
      path: of the model to write.
      text: sentences to train on; the same sentences give the same model.
      size: pieces; fewer where the text has no more.
      options: of `SentencePieceTrainer.train`.

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
    """Writes a model's edition with sentinels as its last pieces, as T5's `.100extra` has them.

    Args:
      source: the model to read.
      path: of the model to write.
      count: sentinels.
      before: what their text begins with; T5's begins with SentencePiece's mark of a blank.

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
