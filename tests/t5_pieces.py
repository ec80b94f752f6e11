"""Trains small SentencePiece models whose first ids are T5's: padding, end, unknown; no start.

t5_pieces.train(input="corpus.txt", model_prefix="vocab", vocab_size=60, hard_vocab_limit=False)
"""

import sentencepiece


def train(**given):
    """Trains; takes what `SentencePieceTrainer.train` takes, the special ids apart."""
    sentencepiece.SentencePieceTrainer.train(
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2, **given
    )
