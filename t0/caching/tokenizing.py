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
as likely as exp(score / m), which SentencePiece computes in a third of the time that it takes to
search the second best: if another way is within m, the best has at most the probability
1 / (1 + 1/e), and the entropy is at least -log of that, 0.31.

A third of new words are others with a comma or a full stop. Where no piece has a letter before such
a mark, the word's pieces are those of the other, and the mark's.
"""

import math
import string
from collections.abc import Mapping, Sequence

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


class Tokenizer:
    """A SentencePiece model, and the ids of the words that it has met.

    Args:
      model: the model as SeqIO holds it, in which T5's sentinels are pieces.
      eos_id: the id of EOS.
    """

    def __init__(self, model: bytes, eos_id: int) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._varints = [
            protobuf_wire.varint(index) for index in range(self._processor.vocab_size())
        ]
        self.eos = self._varints[eos_id]
        parsed = sentencepiece_model_pb2.ModelProto.FromString(model)
        lengths = LONGEST_TEXTS if _is_cut_at_spaces(parsed) else ()
        marks = _marks(parsed)
        self._words = [_Words(self._processor, self._varints, marks, length) for length in lengths]

    def encode(self, texts: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """Returns, for each text (UTF-8), its ids as concatenated varints, and their number."""
        found = [self._by_words(text) for text in texts]
        rest = [index for index, one in enumerate(found) if one is None]
        for start in range(0, len(rest), TEXTS_AT_ONCE):
            batch = rest[start : start + TEXTS_AT_ONCE]
            # One thread, because there are as many workers as cores.
            every = self._processor.encode(
                [texts[index] for index in batch], out_type=int, num_threads=1
            )
            for index, ids in zip(batch, every, strict=True):
                found[index] = b"".join([self._varints[i] for i in ids]), len(ids)
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
      processor: the SentencePiece model.
      varints: id -> varint.
      marks: (last byte of a word, mark) -> the id of the mark, where no piece has both.
      longest_text: the bytes of the longest text in which the words stand.
    """

    def __init__(
        self,
        processor: sentencepiece.SentencePieceProcessor,
        varints: Sequence[bytes],
        marks: Mapping[bytes, int],
        longest_text: int,
    ) -> None:
        super().__init__()
        self._marks = marks
        self.longest_text = longest_text
        self._processor = processor
        self._varints = varints
        self._scores = [abs(processor.get_score(index)) for index in range(len(varints))]
        # SentencePiece joins unknown characters that stand together: their number is not known.
        self._scores[processor.unk_id()] = math.inf
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
        if word[-2:] in self._marks:
            ids = self[word[:-1]]
            return ids and ids + self._varints[self._marks[word[-2:]]]
        # Each of at most so many additions is off by half the distance, of either way.
        additions = (size if word.isascii() else size * _LONGEST_EXPANSION) + 1
        margin = 2 * additions * self._rounding
        if self._processor.calculate_entropy(word, 1 / margin) > _LARGEST_ENTROPY:
            return None
        ids = self._processor.encode(word, out_type=int)
        if sum([self._scores[i] for i in ids]) > _LARGEST_SCORE * (size + 1):
            return None
        return b"".join([self._varints[i] for i in ids])


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
