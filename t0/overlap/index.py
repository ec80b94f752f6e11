"""Stores the sorted hashes of the evaluation rows' n-grams on disk, and looks up hashes in them.

    with IndexWriter(folder, settings) as writer:
        writer.add(batch)                  # batches of evaluation rows, see `evaluation_rows`
    index = Index(folder)
    index.lookup(hashes)                   # int64 [hashes]: positions in the index, -1 if missing

The index has a hash for each of these word sequences:

- n-grams: all sequences of n words in a row's fields. The index also has a sequence of a prompted
  text if all its words come from the row (`row_words`). Such a sequence may span two fields that
  the prompt joins. A prompt's own words are not indexed, because the prompts of other datasets may
  share them.
- whole fields: the sequence of all words of a field. If a field is longer than the shortest n-gram,
  the search first looks for the n-gram at the start of the field, its anchor. Wherever the anchor
  occurs, the search compares the whole field.

Hashes have 64 bits. Among T word sequences of the training data, about T * H / 2**64 equal one of
the H hashes of the index by chance. For T = 10**12 and H = 10**8, that is 5 sequences.

The writer keeps the distinct hashes in memory, 8 bytes each. Readers map the file of hashes into
memory, so processes share it.
"""

import dataclasses
import json
import posixpath
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from t0.files.untrusted import parsed_json
from t0.overlap.evaluation_rows import RowBatch
from t0.overlap.words import Words, split_words

_PENDING = 2**19
# `Index.lookup` first asks a filter, whose slots have one byte. The filter has at least 16 slots
# for each hash. If that would be more than 2**26 slots, it has 2**26 slots.
_FILTER_SHARE, _LARGEST_FILTER_BITS = 16, 26
FILES = ("hashes", "anchors", "index.json")
# If this many consecutive words of a prompted text also occur in one of the row's fields, these
# words count as the row's.
_FIELD_RUN = 3
_HASH = np.dtype("<u8")
_ANCHOR = np.dtype([("hash", "<u8"), ("words", "<i8")])


@dataclasses.dataclass(frozen=True)
class OverlapCriteria:
    """Criteria that decide which word sequences count as an overlap.

    Attributes:
      ngrams: the lengths of n-grams, in words. Headline results use the first length.
      min_words: the minimum number of words in a field. Shorter fields are not searched for as a
        whole.
    """

    ngrams: tuple[int, ...] = (13, 8)
    min_words: int = 5

    @property
    def anchor_words(self) -> int:
        """The number of words in an anchor. The header of this module explains anchors."""
        return min(self.ngrams)


class _DistinctRecords:
    """A set of numpy records, from which `merge` makes a sorted array."""

    def __init__(self, kind: np.dtype) -> None:
        self._sorted = np.zeros(0, kind)
        self._pending: list[np.ndarray] = []
        self._count = 0

    def add(self, records: np.ndarray) -> None:
        self._pending.append(records)
        self._count += len(records)
        if self._count >= max(_PENDING, len(self._sorted)):
            self.merge()

    def merge(self) -> np.ndarray:
        """Returns all records, in ascending order and without duplicates."""
        self._sorted = np.unique(np.concatenate([self._sorted, *self._pending]))
        self._pending, self._count = [], 0
        return self._sorted


class IndexWriter:
    """Writes an index into an existing folder.

    The index is complete when the `with` block ends.

    Args:
      folder: the folder of the index.
      settings: the criteria that decide which word sequences count as an overlap.
    """

    def __init__(self, folder: str, settings: OverlapCriteria) -> None:
        self._folder, self._settings = Path(folder), settings

    def __enter__(self) -> "IndexWriter":
        self._runs = _DistinctRecords(_HASH)
        self._anchors = _DistinctRecords(_ANCHOR)
        self._short_lengths: set[int] = set()
        return self

    def add(self, batch: RowBatch) -> None:
        """Adds the n-grams and fields of a batch of rows."""
        words = split_words(batch.texts)
        before = np.append(0, np.cumsum(row_words(batch, words)))
        for length in self._settings.ngrams:
            positions, hashes = words.windows(length)
            self._runs.add(hashes[before[positions + length] - before[positions] == length])
        self._add_whole_fields(words, np.flatnonzero(batch.is_field))

    def _add_whole_fields(self, words: Words, fields: np.ndarray) -> None:
        starts, sizes = words.ends[fields], np.diff(words.ends)[fields]
        long_enough = sizes >= self._settings.min_words
        starts, sizes = starts[long_enough], sizes[long_enough]
        self._runs.add(words.hash_sequences(starts, sizes))
        anchor_words = self._settings.anchor_words
        self._short_lengths |= set(sizes[sizes < anchor_words].tolist())
        longer = sizes > anchor_words
        anchors = np.zeros(longer.sum(), _ANCHOR)
        anchors["hash"], anchors["words"] = (
            words.hash_sequences(starts[longer], anchor_words),
            sizes[longer],
        )
        self._anchors.add(anchors)

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:
            return
        hashes = self._runs.merge()
        hashes.tofile(self._folder / "hashes")
        self._anchors.merge().tofile(self._folder / "anchors")
        lengths = sorted({*self._settings.ngrams, *self._short_lengths})
        facts = {"size": len(hashes), "lengths": lengths, **dataclasses.asdict(self._settings)}
        (self._folder / "index.json").write_text(json.dumps(facts), encoding="utf-8")


def row_words(batch: RowBatch, words: Words) -> np.ndarray:
    """Returns whether each word comes from a row instead of a prompt, bool [W].

    All words of fields come from a row. In a prompted text, a word comes from the row if it belongs
    to a sequence of three words that also occurs in one of the row's fields, or to a sequence that
    equals a whole field of one or two words.

    Args:
      batch: rows and their texts.
      words: the words of the batch's texts.
    """
    in_field = batch.is_field[words.text_of]
    marks = np.zeros(len(in_field) + _FIELD_RUN + 1, np.int64)
    sizes = np.diff(words.ends)
    for length in range(1, _FIELD_RUN + 1):
        positions, hashes = words.windows(length)
        keys = _mix_in_row(hashes, batch.owner[words.text_of[positions]])
        is_field = in_field[positions]
        if length < _FIELD_RUN:
            is_field = is_field & (sizes[words.text_of[positions]] == length)
        matching = positions[np.isin(keys, np.unique(keys[is_field]))]
        marks[matching] += 1
        marks[matching + length] -= 1
    return in_field | (np.cumsum(marks)[: len(in_field)] > 0)


def _mix_in_row(hashes: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return hashes ^ ((rows + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


class Index:
    """An index in a local folder.

    Attributes:
      settings: the criteria that decide which word sequences count as an overlap.
      lengths: the lengths of the word sequences to look up in training texts. These are the n-gram
        lengths, and the lengths of fields that are shorter than an n-gram.
      hashes: the hashes, ascending, uint64 [H].
    """

    def __init__(self, folder: str) -> None:
        facts = parsed_json((Path(folder) / "index.json").read_bytes())
        self.settings = OverlapCriteria(tuple(facts["ngrams"]), facts["min_words"])
        self.lengths: list[int] = facts["lengths"]
        self.hashes = _map_file(posixpath.join(folder, "hashes"), "<u8", facts["size"])
        anchors = np.fromfile(posixpath.join(folder, "anchors"), _ANCHOR)
        self._anchor_hashes, self._anchor_words = anchors["hash"].copy(), anchors["words"].copy()
        bits = min(max(16, (len(self.hashes) * _FILTER_SHARE).bit_length()), _LARGEST_FILTER_BITS)
        self._shift = np.uint64(64 - bits)
        self._filter = np.zeros(2**bits, bool)
        for start in range(0, len(self.hashes), _PENDING):
            self._filter[self.hashes[start : start + _PENDING] >> self._shift] = True

    def __len__(self) -> int:
        return len(self.hashes)

    def lookup(self, hashes: np.ndarray) -> np.ndarray:
        """Returns the position of each hash in the index, int64; -1 for hashes that are missing."""
        entries = np.full(len(hashes), -1, np.int64)
        candidates = np.flatnonzero(self._filter.take((hashes >> self._shift).astype(np.int64)))
        if candidates.size and len(self.hashes):
            candidate_hashes = hashes[candidates]
            nearest = np.searchsorted(self.hashes, candidate_hashes)
            nearest[nearest == len(self.hashes)] = 0
            equal = self.hashes[nearest] == candidate_hashes
            entries[candidates[equal]] = nearest[equal]
        return entries

    def find_matches(self, words: Words) -> tuple[np.ndarray, np.ndarray]:
        """Finds each occurrence of an indexed word sequence in texts.

        Args:
          words: the words of the texts.

        Returns:
          for each match, the position of its first word in `words`, and the position of its hash in
          the index; both int64 [matches].
        """
        starts, entries = [], []
        for length in self.lengths:
            positions, hashes = words.windows(length)
            found_entries = self.lookup(hashes)
            hits = np.flatnonzero(found_entries >= 0)
            starts.append(positions[hits])
            entries.append(found_entries[hits])
            if length == self.settings.anchor_words:
                long_fields = self._match_long_fields(words, positions[hits], hashes[hits])
                starts.append(long_fields[0])
                entries.append(long_fields[1])
        return np.concatenate(starts), np.concatenate(entries)

    def _match_long_fields(
        self, words: Words, positions: np.ndarray, hashes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds whole fields that are longer than an anchor.

        Args:
          words: the words of the texts.
          positions: the positions of matching n-grams that may be anchors.
          hashes: the hashes of these n-grams.

        Returns:
          the same as `find_matches`.
        """
        first = np.searchsorted(self._anchor_hashes, hashes)
        counts = np.searchsorted(self._anchor_hashes, hashes, "right") - first
        starts = np.repeat(positions, counts)
        ends = np.cumsum(counts)
        numbers = np.repeat(first - np.append(0, ends[:-1])[: len(first)], counts)
        lengths = self._anchor_words[numbers + np.arange(len(starts))]
        within_text = words.stay_within_text(starts, lengths)
        starts = starts[within_text]
        entries = self.lookup(words.hash_sequences(starts, lengths[within_text]))
        return starts[entries >= 0], entries[entries >= 0]


def _map_file(path: str, kind: str, size: int) -> np.ndarray:
    # An empty file cannot be mapped into memory.
    return np.memmap(path, kind, "r", shape=(size,)) if size else np.zeros(0, kind)


def hash_whole_texts(words: Words, texts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns, for each selected text, the hash of the sequence of all its words, uint64."""
    chosen = np.asarray(texts, np.int64)
    return words.hash_sequences(words.ends[chosen], np.diff(words.ends)[chosen])
