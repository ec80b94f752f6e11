"""Texts become token ids, in batches, without TensorFlow.

    tokenizer = Tokenizer(model=vocabulary.sp_model, eos_id=1)
    tokenizer.encode([b"It rains."])   # [(bytes, 4)]: the ids as varints, and how many

The ids are those of `tf_text.SentencepieceTokenizer` over the same model, which SeqIO tokenises
with; both call the same library, here for many texts at once.
"""

from collections.abc import Sequence

import sentencepiece

from t0.files.protobuf_wire import varint

# Encoded at once: a batch's start costs as much as encoding a short text.
BATCH = 512


class Tokenizer:
    """A SentencePiece model, and the varint of each of its ids.

    Args:
      model: the model as SeqIO holds it: with T5's sentinels among its pieces.
      eos_id: the id that ends a text.
    """

    def __init__(self, model: bytes, eos_id: int) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._varints = [varint(index) for index in range(self._processor.vocab_size())]
        self.eos = self._varints[eos_id]

    def encode(self, texts: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """Returns, for each text (UTF-8), its ids as varints in a row, and their number."""
        varints = self._varints
        encoded = []
        for start in range(0, len(texts), BATCH):
            batch = list(texts[start : start + BATCH])
            # One thread: the workers are as many as the cores.
            for ids in self._processor.encode(batch, out_type=int, num_threads=1):
                encoded.append((b"".join([varints[index] for index in ids]), len(ids)))
        return encoded
