"""Searches the training data for the n-grams and fields in the index, one job at a time.

    execute = Scanner(folder, (0, 0, 1))()         # in each process that searches
    merged = merge_matches([execute(job, progress.count) for job in jobs])
    merged.table                                   # the matches, and the first location of each

For each match and training dataset, the result has the number of occurrences and the location of
the first occurrence (the numbers of its source and record). The result does not depend on the order
of the jobs.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from t0.errors import UserError
from t0.overlap.index import Index
from t0.overlap.training_texts import Job, text_batches
from t0.overlap.words import split_words

# A location in the training data is stored in one integer. These low bits hold the record's number,
# and the bits above them hold the source's number.
_RECORD_BITS = 40
# The number of matches to collect before they are merged.
_PENDING = 2**20


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
        if sum(map(len, tables[1:])) >= max(_PENDING, len(tables[0])):
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
    return merge_matches(_scan_batches(job, index, np.asarray(datasets), vocabulary, report))


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
      datasets: the dataset number of each source.
      vocabulary: the SentencePiece model that decodes records without texts, or None.
      data_dirs: the folders of datasets; if empty, the folders that the environment sets.
    """

    index: str
    datasets: tuple[int, ...]
    vocabulary: bytes | None = None
    data_dirs: tuple[str, ...] = ()

    def __call__(self) -> Callable[[Job, Callable[[Any], None]], Matches | str]:
        """Opens the index and returns a function that searches a job.

        The function returns the matches, or the message of a user error.
        """
        from t0 import sources

        if self.data_dirs:
            sources.set_data_dirs(list(self.data_dirs))
        index, vocabulary = Index(self.index), load_processor(self.vocabulary)

        def execute(job: Job, report: Callable[[Any], None]) -> Matches | str:
            try:
                return scan(job, index, self.datasets, vocabulary, report)
            except UserError as error:
                return f"{error} ({job})" if str(job) not in str(error) else str(error)

        return execute


def load_processor(model: bytes | None) -> Any | None:
    """Returns a SentencePiece processor for the bytes of a model; None if there is no model."""
    if model is None:
        return None
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=model)
