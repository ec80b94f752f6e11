"""Searches the training data for the n-grams and fields in the index, one job at a time.

    table = MatchTable()
    for matches in search(jobs, Scanner(folder, (0, 0, 1)), workers=2, on_texts=progress.count):
        table.add(matches)
    merged = table.merge()
    merged.keys, merged.first                # the matches, and the first location of each

For each match and training dataset, the result has the number of occurrences and the location of
the first occurrence (the numbers of its source and record). The result does not depend on the order
of the jobs, so local processes and Apache Beam's workers give the same result.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from t0.caching.workers import in_processes
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
      keys: for each match, its position in the index and the number of the training dataset, packed
        into one integer by `pack_keys`; ascending and unique, uint64 [M].
      first: the location of its first occurrence in that dataset, which `unpack_location` unpacks,
        uint64 [M].
      counts: the number of its occurrences in that dataset, int64 [M].
      texts: the number of texts that were searched.
      words: the number of words in these texts.
    """

    keys: np.ndarray
    first: np.ndarray
    counts: np.ndarray
    texts: int = 0
    words: int = 0


_DATASET_BITS = 16


def pack_keys(entries: np.ndarray, dataset: int | np.ndarray) -> np.ndarray:
    """Packs positions in the index (below 2**48) and the number of a dataset into keys, uint64."""
    shifted = np.asarray(entries).astype(np.uint64) << np.uint64(_DATASET_BITS)
    return shifted | np.asarray(dataset, np.uint64)


def unpack_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unpacks keys into positions in the index and numbers of datasets, both int64."""
    low = np.uint64(2**_DATASET_BITS - 1)
    return (keys >> np.uint64(_DATASET_BITS)).astype(np.int64), (keys & low).astype(np.int64)


def unpack_location(first: int) -> tuple[int, int]:
    """Unpacks a location into the number of its source and the number of its record."""
    return int(first) >> _RECORD_BITS, int(first) & (2**_RECORD_BITS - 1)


def merge_matches(results: Sequence[Matches]) -> Matches:
    """Merges matches: adds the counts of equal keys, and keeps their first location."""
    keys = np.concatenate([np.zeros(0, np.uint64), *(matches.keys for matches in results)])
    first = np.concatenate([np.zeros(0, np.uint64), *(matches.first for matches in results)])
    counts = np.concatenate([np.zeros(0, np.int64), *(matches.counts for matches in results)])
    order = np.lexsort((first, keys))
    keys, first, counts = keys[order], first[order], counts[order]
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    return Matches(
        keys[begins],
        first[begins],
        np.add.reduceat(counts, begins) if len(begins) else counts,
        sum(matches.texts for matches in results),
        sum(matches.words for matches in results),
    )


class MatchTable:
    """Merges the matches of jobs, in memory that grows only with the number of distinct matches."""

    def __init__(self) -> None:
        self._merged = merge_matches([])
        self._pending: list[Matches] = []
        self._count = 0

    def add(self, matches: Matches) -> None:
        """Adds the matches of another job."""
        self._pending.append(matches)
        self._count += len(matches.keys) + 1
        if self._count >= _PENDING:
            self.merge()

    def merge(self) -> Matches:
        """Returns the merged matches of all jobs that were added so far."""
        self._merged = merge_matches([self._merged, *self._pending])
        self._pending, self._count = [], 0
        return self._merged


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
    table, texts_seen, words_seen = MatchTable(), 0, 0
    dataset_of_source = np.asarray(datasets, np.int64)
    for texts, sources, records in text_batches(job, vocabulary):
        words = split_words(texts)
        starts, entries = index.find_matches(words)
        text_number = words.text_of[starts]
        first = (sources[text_number] << _RECORD_BITS | records[text_number]).astype(np.uint64)
        keys = pack_keys(entries, dataset_of_source[sources[text_number]])
        table.add(merge_matches([Matches(keys, first, np.ones(len(keys), np.int64))]))
        texts_seen, words_seen = texts_seen + len(texts), words_seen + len(words.hashes)
        report(len(texts))
    return dataclasses.replace(table.merge(), texts=texts_seen, words=words_seen)


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


def search(
    jobs: Sequence[Job], scanner: Scanner, *, workers: int, on_texts: Callable[[int], None]
) -> Iterator[Matches]:
    """Yields the matches of each job as soon as the job is done.

    Args:
      jobs: the files and row ranges to search, one for each job.
      scanner: the scanner, which prepares each process.
      workers: the number of processes. With 0, this process does the search.
      on_texts: a function that is called with the number of texts searched since the last call.

    Raises:
      UserError: if data cannot be read, or a process dies.
    """

    def on_report(job: Any, report: Any) -> None:
        del job
        on_texts(report or 0)

    if workers:
        done = in_processes(
            collections.deque(jobs),
            scanner,
            on_report,
            workers=workers,
            doing="searching",
            kept="Nothing was written.",
        )
    else:
        execute = scanner()
        done = ((job, execute(job, lambda report: on_report(None, report))) for job in jobs)
    for _, result in done:
        if isinstance(result, str):
            raise UserError(result)
        yield result
