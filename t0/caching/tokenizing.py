r"""Tokenises texts by the words that were tokenised before, with SentencePiece's ids.

    tokenizer = Tokenizer(model, eos_id=1)
    tokenizer.encode([b"A film."])       # [(b"G\xae\x06\x05", 3)]: ids 71, 814, 5 as varints

The pieces of a unigram model such as T5's do not cross white space, so the best pieces of a text
are those of its words: a word that is known is not searched again. What could differ is a tie.
SentencePiece adds scores from the text's start in float32, so that of two ways to cut a word whose
scores are nearly equal either may win, by what stands before. A word is therefore known only if its
best pieces beat the second best by more than such sums can be off; a text with another word is
given to SentencePiece as a whole.

Whether the best pieces win by a margin m is seen from the entropy of all ways to cut the word, each
as likely as exp(score / m), which SentencePiece computes without searching the second best: if
another way is within m, the best has at most the probability 1 / (1 + 1/e), and the entropy is at
least -log of that, 0.31.

Many new words are others with a comma or a full stop. Where no piece has a letter before such a
mark, the word's pieces are those of the other, and the mark's.
"""

import math
import string
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t0.files import protobuf_wire

# Texts that SentencePiece encodes at once: a batch's overhead is that of encoding a short text.
TEXTS_AT_ONCE = 512
# The longest texts, in bytes, that are tokenised by words: sums of scores are rounded more coarsely
# the larger they are, so words of longer texts need a clearer winner.
LONGEST_TEXTS = (2_000, 16_000)
MOST_WORDS = 100_000
_LONGEST_WORD = 40  # bytes; longer ones seldom come again
# The largest score of a known word, in nats for each of its bytes and the space before it.
_LARGEST_SCORE = 8.0
# The largest entropy of a known word, in nats. SentencePiece's is a float32 of sums of scores up to
# 4,096 margins, which are off by less than 0.05; at 0.1 the second best way is 1.5 margins away,
# enough for a mark at the word's end, too.
_LARGEST_ENTROPY = 0.1
_MARKS = ".,?!:;"
# The most characters that normalisation makes of a byte: U+FDFA, three bytes, becomes 18.
_LONGEST_EXPANSION = 6
# Normalisations that read tab, line feed, form feed and carriage return as spaces.
_NORMALISATIONS = ("nmt_nfkc", "nmt_nfkc_cf")
_SPACE = "\u2581"
# The bytes of a varint but for its last one.
_CONTINUED = bytes(range(0x80, 0x100))


class _Model(NamedTuple):
    """A SentencePiece model.

    Attributes:
      processor: the model's processor.
      varints: id -> varint.
      scores: id -> the size of its score; infinite for unknown characters, as SentencePiece joins
        those that stand together, so that their number is not known.
      marks: a letter or digit with a mark, which no piece has -> the id of the mark's piece.
    """

    processor: sentencepiece.SentencePieceProcessor
    varints: Sequence[bytes]
    scores: Sequence[float]
    marks: Mapping[bytes, int]


class Tokenizer:
    """A SentencePiece model, and the ids of the words that it has met.

    Args:
      model: the model as SeqIO holds it, in which T5's sentinels are pieces.
      eos_id: the id of EOS.
    """

    def __init__(self, model: bytes, eos_id: int) -> None:
        parsed = sentencepiece_model_pb2.ModelProto.FromString(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        unknown = processor.unk_id()
        self._model = _Model(
            processor,
            [protobuf_wire.varint(index) for index in range(len(parsed.pieces))],
            [math.inf if i == unknown else abs(p.score) for i, p in enumerate(parsed.pieces)],
            _marks(parsed),
        )
        self.eos = self._model.varints[eos_id]
        lengths = LONGEST_TEXTS if _is_cut_at_spaces(parsed) else ()
        self._words = [_Words(self._model, length) for length in lengths]

    def encode(self, texts: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """Returns, for each text (UTF-8), its ids as concatenated varints, and their number."""
        found = [self._by_words(text) for text in texts]
        rest = [index for index, one in enumerate(found) if one is None]
        for start in range(0, len(rest), TEXTS_AT_ONCE):
            batch = rest[start : start + TEXTS_AT_ONCE]
            # One thread, because there are as many workers as cores.
            every = self._model.processor.encode(
                [texts[index] for index in batch], out_type=int, num_threads=1
            )
            for index, ids in zip(batch, every, strict=True):
                found[index] = b"".join([self._model.varints[i] for i in ids]), len(ids)
        return found

    def _by_words(self, text: bytes) -> tuple[bytes, int] | None:
        """Returns the entry of a text, or None if SentencePiece has to read it."""
        words = next((one for one in self._words if len(text) <= one.longest_text), None)
        # Python splits at a vertical tab, too, which the normalisation removes.
        if words is None or b"\v" in text:
            return None
        try:
            ids = b"".join(map(words.__getitem__, text.split()))
        except TypeError:  # a word is None
            return None
        return ids, len(ids.translate(None, _CONTINUED))


class _Words(dict[bytes, bytes | None]):
    """Word -> its ids as varints; None if what stands before it may decide about its pieces.

    Args:
      model: the SentencePiece model.
      longest_text: the bytes of the longest text in which the words stand.
    """

    def __init__(self, model: _Model, longest_text: int) -> None:
        super().__init__()
        self.longest_text = longest_text
        self._model = model
        # The distance of neighbouring float32 numbers as large as a text's largest score.
        self._rounding = float(np.spacing(np.float32(_LARGEST_SCORE * (longest_text + 1))))

    def __missing__(self, word: bytes) -> bytes | None:
        if len(self) >= MOST_WORDS:
            self.clear()
        self[word] = ids = self._ids(word)
        return ids

    def _ids(self, word: bytes) -> bytes | None:
        size = len(word)
        if size > _LONGEST_WORD:
            return None
        processor, varints, scores, marks = self._model
        if word[-2:] in marks:
            before = self[word[:-1]]
            return before and before + varints[marks[word[-2:]]]
        # Each of at most so many additions is off by half the distance, of either way.
        additions = (size if word.isascii() else size * _LONGEST_EXPANSION) + 1
        margin = 2 * additions * self._rounding
        if processor.calculate_entropy(word, 1 / margin) > _LARGEST_ENTROPY:
            return None
        ids = processor.encode(word, out_type=int)
        if sum([scores[i] for i in ids]) > _LARGEST_SCORE * (size + 1):
            return None
        return b"".join([varints[i] for i in ids])


def _marks(model: sentencepiece_model_pb2.ModelProto) -> dict[bytes, int]:
    """Returns a letter or digit with a mark, which no piece has -> the id of the mark's piece."""
    ids = {piece.piece: index for index, piece in enumerate(model.pieces)}
    within = {two for piece in ids for two in zip(piece, piece[1:], strict=False)}
    return {
        f"{letter}{mark}".encode(): ids[mark]
        for letter in string.ascii_letters + string.digits
        for mark in _MARKS
        if mark in ids and (letter, mark) not in within
    }


def _is_cut_at_spaces(model: sentencepiece_model_pb2.ModelProto) -> bool:
    """Returns whether the pieces of a text are those of its words, each read by itself."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    return (
        trainer.model_type == trainer.UNIGRAM
        and not trainer.treat_whitespace_as_suffix
        and normalizer.name in _NORMALISATIONS
        and normalizer.add_dummy_prefix
        and normalizer.remove_extra_whitespaces
        and normalizer.escape_whitespaces
        and not any(_SPACE in piece.piece[1:] for piece in model.pieces)
    )
