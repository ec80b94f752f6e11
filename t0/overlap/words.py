"""Splits texts into normalised words, and hashes words and n-grams to 64 bits with numpy.

    words = split_words(["The cat's mat.", "A mat"])
    words.hashes                       # uint64 [5]: the, cats, mat, a, mat
    words.ends                         # int64 [3]: 0, 3, 5
    positions, hashes = words.windows(2)     # 2-grams, each within one text
    word_list("The cat's mat.")        # ["the", "cats", "mat"], the same words as text

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
import unicodedata
from collections.abc import Sequence

import numpy as np

_SEPARATOR, _LETTER, _CHARACTER_WORD, _REMOVED = range(4)
_APOSTROPHES = "'`\u2018\u2019\u201b\u02bb\u02bc\u2032"
# The first and last code points of scripts without spaces between words.
_SCRIPTS_WITHOUT_SPACES = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x31F0, 0x31FF),
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
)  # fmt: skip
_BASE = 2**64
_TABLE_SIZE = 0x2100  # covers Latin, Greek, Cyrillic and most punctuation, and takes 66 kB
# The bases of the polynomials over a word's characters and over an n-gram's words. Both are odd, so
# they have inverses modulo 2**64.
_LETTER_BASE, _WORD_BASE = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93


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
        self._sums = _prefix_sums(hashes, _WORD_BASE)

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
        return _mix_bits(plain + np.asarray(lengths, np.uint64) * np.uint64(_LETTER_BASE))

    def stay_within_text(self, positions: np.ndarray, lengths: np.ndarray | int) -> np.ndarray:
        """Returns whether each sequence of `lengths` words at `positions` is within one text."""
        return self._words_left[positions] >= lengths


def split_words(texts: Sequence[str]) -> Words:
    """Splits texts into words.

    The arrays grow with the texts, so pass at most a few million characters per call.
    """
    normal = [text.lower() if text.isascii() else _normalize(text) for text in texts]
    combined = "\n".join([*normal, ""])
    ends = np.cumsum([0, *(len(text) + 1 for text in normal)])
    if combined.isascii():
        data = np.frombuffer(combined.encode("ascii"), np.uint8)
    else:
        data = np.frombuffer(combined.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = _kind_table().take(data)
    removed = np.flatnonzero(kinds == _REMOVED)
    if removed.size:
        data, kinds = np.delete(data, removed), np.delete(kinds, removed)
        ends = ends - np.searchsorted(removed, ends)
    values = _character_values(data)
    starts, stops = _word_bounds(kinds)
    sums = _prefix_sums(values, _LETTER_BASE)
    inverses = _powers(pow(_LETTER_BASE, -1, _BASE), len(values) + 1)
    hashes = _mix_bits((sums[stops] - sums[starts]) * inverses[starts])
    return Words(hashes, np.searchsorted(starts, ends))


def word_list(text: str) -> list[str]:
    """Returns the words of a text as strings. `split_words` finds the same words, but faster."""
    kinds, words, inside = _kind_table(), [], False
    for letter in _normalize(text):
        kind = kinds[ord(letter)]
        if kind == _REMOVED:
            continue
        if kind == _LETTER and inside:
            words[-1] += letter
        elif kind != _SEPARATOR:
            words.append(letter)
        inside = kind == _LETTER
    return words


def _normalize(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", folded)


def _word_bounds(kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positions at which words start and end.

    Args:
      kinds: the kind of each character, such as `_LETTER`.
    """
    inside, is_single = kinds != _SEPARATOR, kinds == _CHARACTER_WORD
    # Whether each character belongs to the same word as the next character.
    continues = inside[:-1] & inside[1:] & ~is_single[:-1] & ~is_single[1:]
    starts, stops = inside.copy(), inside.copy()
    starts[1:] &= ~continues
    stops[:-1] &= ~continues
    return np.flatnonzero(starts), np.flatnonzero(stops) + 1


def _prefix_sums(values: np.ndarray, base: int) -> np.ndarray:
    """Returns the prefix sums of values[i] * base**i modulo 2**64, uint64 [values + 1]."""
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values * _powers(base, len(values)), out=sums[1:])
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


def _character_values(code_points: np.ndarray) -> np.ndarray:
    """Returns a pseudorandom number for each character, uint64."""
    if code_points.max(initial=0) < _TABLE_SIZE:
        return _value_table().take(code_points)
    # A table of all code points would not fit in the processor's cache.
    values = _value_table().take(code_points, mode="clip")
    others = np.flatnonzero(code_points >= _TABLE_SIZE)
    values[others] = _mix_bits(code_points[others].astype(np.uint64) + np.uint64(_WORD_BASE))
    return values


@functools.cache
def _value_table() -> np.ndarray:
    return _mix_bits(np.arange(_TABLE_SIZE, dtype=np.uint64) + np.uint64(_WORD_BASE))


@functools.cache
def _kind_table() -> np.ndarray:
    """Returns the kind of every code point, such as `_LETTER`, uint8 [0x110000]."""
    kinds = np.full(0x110000, _SEPARATOR, np.uint8)
    # Only the characters of Unicode's first two planes are classified one by one. The other planes
    # contain only ideographs, invisible tags and selectors.
    kinds[:0x20000] = [_classify(chr(code)) for code in range(0x20000)]
    kinds[0x20000:0x40000] = _LETTER
    kinds[0xE0000:0xE1000] = _REMOVED
    for first, last in _SCRIPTS_WITHOUT_SPACES:
        block = kinds[first : last + 1]
        block[block == _LETTER] = _CHARACTER_WORD
    return kinds


def _classify(character: str) -> int:
    if character in _APOSTROPHES:
        return _REMOVED
    category = unicodedata.category(character)
    if category == "Cf":
        return _REMOVED
    return _LETTER if category[0] in "LNM" else _SEPARATOR
