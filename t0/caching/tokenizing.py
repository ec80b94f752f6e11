r"""Tokenizes texts with a cache of words, and returns the same ids as SentencePiece.

    tokenizer = Tokenizer(model, eos_id=1)
    tokenizer.encode([b"A film."])       # [(b"G\xae\x06\x05", 3)]: ids 71, 814, 5 as varints

The pieces of a unigram model such as T5's do not cross white space. So the best pieces of a text
are the best pieces of its words. The pieces of each word have to be searched only once. There is
one exception. SentencePiece adds the scores of pieces in float32, from the start of the text. If
two segmentations of a word have nearly equal scores, the rounding of this sum decides which one
wins. So the cached pieces of a word are only used if their score is better than that of the
second-best pieces by more than the rounding error. If a text contains any other word, SentencePiece
encodes the whole text.

The rounding error grows with the score of the text. To know this score, the scores of the words
must be added, which takes longer than joining their ids. So a second table contains the words whose
pieces win in every text with at most `_FEW_IDS` ids. If all words of such a text are in this table,
no scores are added.

Learning the pieces of a word takes several times as long as encoding it with SentencePiece. So a
process learns at most `_SEARCHES_AT_FIRST` words, plus one for every `_WORDS_A_SEARCH` words of
text. If a text, such as a table of numbers, has more new words than this, SentencePiece encodes the
text.

Many new words are known words followed by a comma or a full stop. If no piece contains a letter
followed by this mark, the pieces of the new word are the pieces of the known word, followed by the
mark.
"""

import math
import string
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import sentencepiece
from sentencepiece import sentencepiece_model_pb2, sentencepiece_pb2

from t0.files import protobuf_wire

# Number of texts that SentencePiece encodes in one call. The overhead of a call is about as long as
# encoding one short text.
TEXTS_AT_ONCE = 512
MOST_WORDS = 300_000
# SentencePiece encodes texts of more than this many bytes as a whole. For other texts, the error of
# the float32 sum of the scores is less than 1%, because the sum has about this many additions at
# most.
LONGEST_TEXT = 100_000
_LONGEST_WORD = 40  # bytes; longer words rarely occur again
_SEARCHES_AT_FIRST = 50_000
_WORDS_A_SEARCH = 32
# If a text has at most `_FEW_IDS` ids, and its words have at most `_NATS_AN_ID` nats per id, its
# ids are joined without adding scores. T5's pieces have up to 13.6 nats, and an unknown character
# has 23.6.
_FEW_IDS = 640
_NATS_AN_ID = 25.6
_MARKS = ".,?!:;"
_FLOAT32_BITS = 24  # of a float32's significand
# Normalisations that turn tab, line feed, form feed and carriage return into spaces.
_NORMALISATIONS = ("nmt_nfkc", "nmt_nfkc_cf")
_SPACE = "\u2581"
# The bytes of a varint except its last one.
_CONTINUED = bytes(range(0x80, 0x100))


class _KnownWord(NamedTuple):
    """The best pieces of a word.

    Attributes:
      ids: the ids of the pieces as varints.
      count: the number of pieces.
      score: the absolute value of the sum of their scores, in nats.
      lead: the difference between this sum and that of the second-best pieces, in nats.
      additions: the maximum number of scores that SentencePiece adds for the word, which is the
        maximum number of pieces in any of its segmentations.
    """

    ids: bytes
    count: int
    score: float
    lead: float
    additions: int

    def wins_in(self, score: float) -> bool:
        """Returns whether these pieces win in every text with at most this score, in nats."""
        # Each addition has an error of at most half the distance between neighbouring numbers. Two
        # sums are compared. So for each addition, their errors together are at most the whole
        # distance.
        return self.lead > self.additions * _distance(score)


class Tokenizer:
    """A SentencePiece model, and the ids of the words that it has learned.

    Args:
      model: the model as SeqIO loads it, in which T5's sentinels are pieces.
      eos_id: the id of EOS.
    """

    def __init__(self, model: bytes, eos_id: int) -> None:
        parsed = sentencepiece_model_pb2.ModelProto.FromString(model)
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._varints = [protobuf_wire.varint(index) for index in range(len(parsed.pieces))]
        self.eos = self._varints[eos_id]
        self._by_words = _is_cut_at_spaces(parsed)
        self._words = _KnownWords(self._processor, self._varints, _marks(parsed))
        self._in_few_ids = _InFewIds(self._words)

    def encode(self, texts: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """Returns (ids as concatenated varints, number of ids) for each text (UTF-8)."""
        encoded = [self._join(text) if self._by_words else None for text in texts]
        rest = [index for index, ids in enumerate(encoded) if ids is None]
        for start in range(0, len(rest), TEXTS_AT_ONCE):
            batch = rest[start : start + TEXTS_AT_ONCE]
            # One thread, because there are as many workers as cores.
            every = self._processor.encode(
                [texts[index] for index in batch], out_type=int, num_threads=1
            )
            for index, ids in zip(batch, every, strict=True):
                encoded[index] = b"".join([self._varints[i] for i in ids]), len(ids)
        return encoded

    def _join(self, text: bytes) -> tuple[bytes, int] | None:
        """Returns the ids of a text's words; None if SentencePiece has to encode the text."""
        # `bytes.split` also splits at a vertical tab, but the normalisation removes this character.
        if b"\v" in text or len(text) > LONGEST_TEXT:
            return None
        words = text.split()
        self._words.searches_left += len(words) / _WORDS_A_SEARCH
        try:
            ids = b"".join(map(self._in_few_ids.__getitem__, words))
        except TypeError:  # a word is None
            pass
        else:
            count = len(ids.translate(None, _CONTINUED))
            if count <= _FEW_IDS:
                return ids, count
        return self._join_by_score(words)

    def _join_by_score(self, words: Sequence[bytes]) -> tuple[bytes, int] | None:
        # `_join` has looked up all words. So a word that is missing now was not learned.
        entries = [*map(self._words.get, words)]
        if None in entries:
            return None
        score = sum([word.score for word in entries])
        if not all(word.wins_in(score) for word in set(entries)):
            return None
        return b"".join([word.ids for word in entries]), sum([word.count for word in entries])


class _KnownWords(dict[bytes, _KnownWord]):
    """The words that have been learned: word -> its best pieces.

    If a word is looked up for the first time, its pieces are learned. If they cannot be learned,
    the result is None, which is not stored.

    Args:
      processor: a SentencePiece model.
      varints: id -> varint.
      marks: the result of `_marks`.

    Attributes:
      searches_left: the number of words that may still be learned.
    """

    def __init__(
        self,
        processor: sentencepiece.SentencePieceProcessor,
        varints: Sequence[bytes],
        marks: Mapping[bytes, int],
    ) -> None:
        super().__init__()
        self._processor = processor
        self._varints = varints
        self._marks = marks
        self.searches_left: float = _SEARCHES_AT_FIRST

    def __missing__(self, word: bytes) -> _KnownWord | None:
        learned = self._learn(word)
        if learned:
            if len(self) >= MOST_WORDS:
                self.clear()
            self[word] = learned
        return learned

    def _learn(self, word: bytes) -> _KnownWord | None:
        if len(word) > _LONGEST_WORD:
            return None
        mark = self._marks.get(word[-2:])
        if mark is not None:
            before = self[word[:-1]]
            return before and self._with_mark(before, mark)
        if self.searches_left < 1:
            return None
        self.searches_left -= 1
        return self._search(word)

    def _with_mark(self, word: _KnownWord, mark: int) -> _KnownWord:
        ids, count, score, lead, additions = word
        cost = -self._processor.get_score(mark)
        return _KnownWord(ids + self._varints[mark], count + 1, score + cost, lead, additions + 1)

    def _search(self, word: bytes) -> _KnownWord:
        # The other output types of `nbest_encode` have no scores, or take longer to read.
        serialized = self._processor.nbest_encode(word, nbest_size=2, out_type="serialized_proto")
        best, *others = sentencepiece_pb2.NBestSentencePieceText.FromString(serialized).nbests
        ids = [piece.id for piece in best.pieces]
        # Every piece has at least one character, so the word has no more pieces than characters.
        additions = sum([len(piece.piece) for piece in best.pieces])
        # The two scores are also float32 sums, so their rounding errors reduce the lead.
        off = 2 * additions * _distance(best.score)
        lead = best.score - others[0].score - off if others else math.inf
        return _KnownWord(
            b"".join([self._varints[i] for i in ids]), len(ids), -best.score, lead, additions
        )


class _InFewIds(dict[bytes, bytes | None]):
    """Word -> its ids as varints, for texts of at most `_FEW_IDS` ids.

    The value is None if the word may have different ids in different texts of this length.
    """

    def __init__(self, words: _KnownWords) -> None:
        super().__init__()
        self._words = words

    def __missing__(self, word: bytes) -> bytes | None:
        entry = self._words[word]
        if entry is None:  # it may be learned later
            return None
        if len(self) >= len(self._words):  # `_words` was full, and has been cleared
            self.clear()
        small = entry.score <= _NATS_AN_ID * entry.count
        self[word] = ids = entry.ids if small and entry.wins_in(_NATS_AN_ID * _FEW_IDS) else None
        return ids


def _distance(score: float) -> float:
    """Returns the distance between neighbouring float32 numbers of the size of a score.

    The distance is computed for 101% of the score, because the sums that are compared can be larger
    than the score. Their rounding error is less than 1%. The sum of the second-best segmentation
    also exceeds the score by the lead. If the lead is more than 1%, it is larger than any rounding
    error anyway.
    """
    return math.ldexp(1.0, math.frexp(1.01 * score)[1] - _FLOAT32_BITS)


def _marks(model: sentencepiece_model_pb2.ModelProto) -> dict[bytes, int]:
    """Returns the marks that are always separate pieces after a letter or digit.

    Returns:
      letter or digit followed by a mark -> the id of the mark, for pairs that no piece contains.
    """
    ids = {piece.piece: index for index, piece in enumerate(model.pieces)}
    pairs = {pair for piece in ids for pair in zip(piece, piece[1:], strict=False)}
    return {
        f"{letter}{mark}".encode(): ids[mark]
        for letter in string.ascii_letters + string.digits
        for mark in _MARKS
        if mark in ids and (letter, mark) not in pairs
    }


def _is_cut_at_spaces(model: sentencepiece_model_pb2.ModelProto) -> bool:
    """Returns whether the pieces of a text equal the pieces of its separately encoded words."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    return (
        trainer.model_type == trainer.UNIGRAM
        and not trainer.treat_whitespace_as_suffix
        and normalizer.name in _NORMALISATIONS
        and normalizer.add_dummy_prefix
        and normalizer.remove_extra_whitespaces
        and normalizer.escape_whitespaces
        and not any(_SPACE in piece.piece[1:] for piece in model.pieces)
        # Without this piece, an unknown character could be joined with an unknown character of the
        # previous word.
        and any(piece.piece == _SPACE for piece in model.pieces)
        and all(piece.score <= 0 for piece in model.pieces)
    )
