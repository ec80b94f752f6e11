"""Indexes the n-grams of evaluation rows, and searches training texts for them.

    write_index(folder, criteria, batches)     # batches of evaluation rows, see `evaluation_rows`
    index = Index(folder, criteria)
    index.lookup(hashes)                   # int64 [hashes]: positions in the index, -1 if missing
    merge_matches([scan(job, index, (0, 0, 1), None) for job in jobs]).table    # the matches

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

`Scanner` prepares a process that searches jobs, which are files or ranges of rows. For each match
and training dataset, its result has the number of occurrences and the location of the first
occurrence (the numbers of its source and record). The result does not depend on the order of the
jobs.

The writer keeps the distinct hashes in memory, 8 bytes each. Readers map the file of hashes into
memory, so processes share it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t0.errors import UserError
from t0.files import paths
from t0.overlap.evaluation_rows import RowBatch
from t0.overlap.training_texts import Job, text_batches
from t0.overlap.words import Words, split_words

_PENDING = 2**19
# `Index.lookup` first asks a filter, whose slots have one byte. The filter has at least 16 slots
# for each hash. If that would be more than 2**26 slots, it has 2**26 slots.
_FILTER_SHARE, _LARGEST_FILTER_BITS = 16, 26
FILES = ("hashes", "anchors", "lengths")
# If this many consecutive words of a prompted text also occur in one of the row's fields, these
# words count as the row's.
_FIELD_RUN = 3
# A location in the training data is stored in one integer. These low bits hold the record's number,
# and the bits above them hold the source's number.
_RECORD_BITS = 40
# The number of matches to collect before they are merged.
_PENDING_MATCHES = 2**20
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


def write_index(folder: str, criteria: OverlapCriteria, batches: Iterable[RowBatch]) -> None:
    """Writes the index of evaluation rows into an existing folder.

    Args:
      folder: the folder of the index.
      criteria: the criteria that decide which word sequences count as an overlap.
      batches: all rows.
    """
    runs, anchors = _DistinctRecords(_HASH), _DistinctRecords(_ANCHOR)
    lengths = set(criteria.ngrams)
    anchor_words = criteria.anchor_words
    for batch in batches:
        words = split_words(batch.texts)
        before = np.append(0, np.cumsum(row_words(batch, words)))
        for length in criteria.ngrams:
            positions, hashes = words.windows(length)
            runs.add(hashes[before[positions + length] - before[positions] == length])
        sizes = np.diff(words.ends)
        fields = np.flatnonzero(batch.is_field & (sizes >= criteria.min_words))
        runs.add(hash_whole_texts(words, fields))
        lengths |= set(sizes[fields][sizes[fields] < anchor_words].tolist())
        longer = fields[sizes[fields] > anchor_words]
        new = np.zeros(len(longer), _ANCHOR)
        new["hash"] = words.hash_sequences(words.ends[longer], anchor_words)
        new["words"] = sizes[longer]
        anchors.add(new)
    for name, values in zip(FILES, (runs.merge(), anchors.merge(), sorted(lengths)), strict=True):
        np.save(Path(folder, f"{name}.npy"), values)


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

    Args:
      criteria: the criteria with which the index was written.

    Attributes:
      settings: the criteria that decide which word sequences count as an overlap.
      lengths: the lengths of the word sequences to look up in training texts. These are the n-gram
        lengths, and the lengths of fields that are shorter than an n-gram.
      hashes: the hashes, ascending, uint64 [H].
    """

    def __init__(self, folder: str, criteria: OverlapCriteria) -> None:
        self.settings = criteria
        hashes, anchors, lengths = (Path(folder, f"{name}.npy") for name in FILES)
        paths.check_folder(folder)
        self.lengths: list[int] = np.load(lengths).tolist()
        # Processes share the memory into which the file is mapped.
        self.hashes = np.load(hashes, mmap_mode="r")
        anchors = np.load(anchors)
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


def hash_whole_texts(words: Words, texts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns, for each selected text, the hash of the sequence of all its words, uint64."""
    chosen = np.asarray(texts, np.int64)
    return words.hash_sequences(words.ends[chosen], np.diff(words.ends)[chosen])


@dataclasses.dataclass(frozen=True)
class Matches:
    """N-grams and fields of the index that occur in the training data.

    Attributes:
      table: one row for each match and training dataset, sorted by its first two columns, int64
        [M, 4]. The columns are the match's position in the index, the number of the dataset, the
        location of its first occurrence in that dataset (see `unpack_location`), and the number of
        its occurrences in that dataset.
      texts: the number of texts that were searched.
      words: the number of words in these texts.
    """

    table: np.ndarray
    texts: int = 0
    words: int = 0


def unpack_location(first: int) -> tuple[int, int]:
    """Unpacks a location into the number of its source and the number of its record."""
    return int(first) >> _RECORD_BITS, int(first) & (2**_RECORD_BITS - 1)


def merge_matches(results: Iterable[Matches]) -> Matches:
    """Merges matches: adds the counts of equal matches, and keeps their first location.

    The memory grows only with the number of distinct matches.
    """
    tables = [np.zeros((0, 4), np.int64)]
    texts = words = 0
    for result in results:
        tables.append(result.table)
        texts, words = texts + result.texts, words + result.words
        if sum(map(len, tables[1:])) >= max(_PENDING_MATCHES, len(tables[0])):
            tables = [_merge_tables(tables)]
    return Matches(_merge_tables(tables), texts, words)


def _merge_tables(tables: Sequence[np.ndarray]) -> np.ndarray:
    rows = np.concatenate(tables)
    if not len(rows):
        return rows
    rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
    is_first = np.append(True, (rows[1:, :2] != rows[:-1, :2]).any(axis=1))
    merged = rows[is_first]
    merged[:, 3] = np.add.reduceat(rows[:, 3], np.flatnonzero(is_first))
    return merged


def scan(
    job: Job,
    index: Index,
    datasets: Sequence[int],
    vocabulary: Any | None,
    report: Callable[[int], None] = lambda texts: None,
) -> Matches:
    """Finds the n-grams and fields of the index in the texts of a job.

    Args:
      job: the file or the range of rows to search.
      index: the index of the evaluation rows.
      datasets: the dataset number of each source.
      vocabulary: a SentencePiece processor that decodes records without texts, or None.
      report: a function that is called with the number of texts searched since the last call.

    Raises:
      UserError: if the data cannot be read.
    """
    try:
        return merge_matches(_scan_batches(job, index, np.asarray(datasets), vocabulary, report))
    except UserError as error:
        raise UserError(f"{error} ({job})" if str(job) not in str(error) else str(error)) from error


def _scan_batches(
    job: Job, index: Index, datasets: np.ndarray, vocabulary: Any | None, report: Any
) -> Iterator[Matches]:
    for texts, sources, records in text_batches(job, vocabulary):
        words = split_words(texts)
        starts, entries = index.find_matches(words)
        numbers = words.text_of[starts]
        location = sources[numbers] << _RECORD_BITS | records[numbers]
        columns = (entries, datasets[sources[numbers]], location, np.ones_like(entries))
        table = _merge_tables([np.stack(columns, axis=1)])
        yield Matches(table, len(texts), len(words.hashes))
        report(len(texts))


@dataclasses.dataclass(frozen=True)
class Scanner:
    """Prepares a process that searches jobs.

    Attributes:
      index: the index's local folder.
      criteria: the criteria with which the index was written.
      datasets: the dataset number of each source.
      vocabulary: the SentencePiece model that decodes records without texts, or None.
      data_dirs: the folders of datasets; if empty, the folders that the environment sets.
    """

    index: str
    criteria: OverlapCriteria
    datasets: tuple[int, ...]
    vocabulary: bytes | None = None
    data_dirs: tuple[str, ...] = ()

    def __call__(self) -> Callable[[Job, Callable[[int], None]], Matches]:
        """Opens the index, and returns a function that searches a job; see `scan`."""
        from t0 import sources

        if self.data_dirs:
            sources.set_data_dirs(list(self.data_dirs))
        index, vocabulary = Index(self.index, self.criteria), load_processor(self.vocabulary)
        return lambda job, count: scan(job, index, self.datasets, vocabulary, count)


def load_processor(model: bytes | None) -> Any | None:
    """Returns a SentencePiece processor for the bytes of a model; None if there is no model."""
    if model is None:
        return None
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=model)
