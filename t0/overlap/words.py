"""Splits texts into normalised words, and hashes words and n-grams to 64 bits.

    words = split_words(["The cat's mat.", "A mat"])
    words.hashes                       # uint64 [5]: the, cats, mat, a, mat
    words.ends                         # int64 [3]: 0, 3, 5
    positions, hashes = words.windows(2)     # 2-grams, each within one text
    word_list("The cat's mat.")        # ["the", "cats", "mat"]

Two texts have the same words if they differ only in case, punctuation, spaces, apostrophes and
compatibility characters, such as ligatures and full-width letters (Unicode's form NFKC). A word is
a sequence of letters, marks and digits. Apostrophes and invisible characters are removed without
ending the word. Every other character, such as a space, ends the word. In scripts without spaces
between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese), each character is a word.

The hash of an n-gram is a polynomial of its words' hashes modulo 2**64, mixed with the number of
words. So hashing all n-grams of one length takes only a few numpy operations per word. Equal
n-grams have equal hashes in every process and on every machine.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import regex
import xxhash

# Apostrophes, invisible characters, tags and selectors of variants.
_REMOVED = regex.compile("['`\u2018\u2019\u201b\u02bb\u02bc\u2032\\p{Cf}\U000e0000-\U000e0fff]+")
_LETTERS = r"[\p{L}\p{M}\p{N}]"
# Scripts without spaces between words.
_SCRIPTS = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_WORD = regex.compile(f"[{_LETTERS}--{_SCRIPTS}]+|[{_LETTERS}&&{_SCRIPTS}]", regex.V1)
_ASCII_WORD = re.compile("[a-z0-9]+")
_BASE = 2**64
_WORDS_KEPT = 2**18
# Constants of the polynomial over an n-gram's words. The base is odd, so it has an inverse modulo
# 2**64.
_WORD_BASE, _LENGTH_FACTOR = 0xD6E8FEB86659FD93, 0x9E3779B97F4A7C15


class Words:
    """The words of several texts, concatenated.

    Attributes:
      hashes: the hash of each word, uint64 [W].
      ends: 0, followed by the offset in `hashes` at which each text ends, int64 [texts + 1].
      text_of: the index of each word's text, int64 [W].
    """

    def __init__(self, hashes: np.ndarray, ends: np.ndarray) -> None:
        self.hashes, self.ends = hashes, ends
        sizes = np.diff(ends)
        self.text_of = np.repeat(np.arange(len(sizes)), sizes)
        self._words_left = np.repeat(ends[1:], sizes) - np.arange(len(hashes))
        self._sums = _prefix_sums(hashes)

    def windows(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns all sequences of `length` words that do not cross the end of a text.

        Returns:
          the positions of the first words, int64 [N], and the hashes of the sequences, uint64 [N].
        """
        positions = np.flatnonzero(self._words_left >= length)
        return positions, self.hash_sequences(positions, length)

    def hash_sequences(self, positions: np.ndarray, lengths: np.ndarray | int) -> np.ndarray:
        """Returns the hashes of the sequences of `lengths` words that begin at `positions`."""
        inverses = _powers(pow(_WORD_BASE, -1, _BASE), len(self.hashes) + 1)
        plain = (self._sums[positions + lengths] - self._sums[positions]) * inverses[positions]
        return _mix_bits(plain + np.asarray(lengths, np.uint64) * np.uint64(_LENGTH_FACTOR))

    def stay_within_text(self, positions: np.ndarray, lengths: np.ndarray | int) -> np.ndarray:
        """Returns whether each sequence of `lengths` words at `positions` is within one text."""
        return self._words_left[positions] >= lengths


def split_words(texts: Sequence[str]) -> Words:
    """Splits texts into words, and hashes the words."""
    lists = [word_list(text) for text in texts]
    ends = np.cumsum([0, *map(len, lists)])
    every = itertools.chain.from_iterable(lists)
    return Words(np.fromiter(map(_hash_word, every), np.uint64, ends[-1]), ends)


def word_list(text: str) -> list[str]:
    """Returns the words of a text."""
    if text.isascii():  # the same words, but found faster
        return _ASCII_WORD.findall(text.lower().replace("'", "").replace("`", ""))
    return _WORD.findall(_REMOVED.sub("", _normalize(text)))


@functools.lru_cache(_WORDS_KEPT)
def _hash_word(word: str) -> int:
    return xxhash.xxh3_64_intdigest(word.encode())


def _normalize(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", folded)


def _prefix_sums(values: np.ndarray) -> np.ndarray:
    """Returns the prefix sums of values[i] * _WORD_BASE**i modulo 2**64, uint64 [values + 1]."""
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values * _powers(_WORD_BASE, len(values)), out=sums[1:])
    return sums


_powers_cache: dict[int, np.ndarray] = {}


def _powers(base: int, count: int) -> np.ndarray:
    """Returns the first `count` powers of a base modulo 2**64, uint64 [count]."""
    powers = _powers_cache.get(base)
    if powers is None or len(powers) < count:
        factors = np.full(max(2 * count, 2**16), base, np.uint64)
        factors[0] = 1
        powers = _powers_cache[base] = np.cumprod(factors, dtype=np.uint64)
    return powers[:count]


def _mix_bits(values: np.ndarray) -> np.ndarray:
    """Mixes the bits of each number with the finaliser of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
