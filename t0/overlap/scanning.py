"""Searches the training data for the index's runs of words: a job at a time, in many processes.

    table = MatchTable()
    for found in search(jobs, Scanner(folder, (0, 0, 1)), workers=2, on_texts=progress.count):
        table.add(found)
    table.all().keys, table.all().first      # which runs were found, and where first

What is found of a run is the same whatever order jobs are done in, and wherever: the number of
times it occurs in a dataset, and the first place there by source and record. So processes of this
machine and Apache Beam's workers give one result.
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

# A place in the training data: the number of the source, and that of the record in the low bits.
_RECORD_BITS = 40
# Matches that are joined at once.
_PENDING = 2**20


@dataclasses.dataclass(frozen=True)
class Matches:
    """Runs of the index that were found.

    Attributes:
      keys: the run's place in the index and the dataset's number, one above the other, ascending
        and different, uint64 [M]; see `key_of`.
      first: the first place, see `place_of`, uint64 [M].
      counts: how often, int64 [M].
      texts: the number of texts that were searched.
      words: the number of their words.
    """

    keys: np.ndarray
    first: np.ndarray
    counts: np.ndarray
    texts: int = 0
    words: int = 0


_DATASET_BITS = 16


def key_of(places: np.ndarray, dataset: int | np.ndarray) -> np.ndarray:
    """Returns the keys of runs in a dataset; places in the index are below 2**48."""
    shifted = np.asarray(places).astype(np.uint64) << np.uint64(_DATASET_BITS)
    return shifted | np.asarray(dataset, np.uint64)


def places_and_datasets(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the places in the index, and the datasets' numbers, int64, of keys."""
    low = np.uint64(2**_DATASET_BITS - 1)
    return (keys >> np.uint64(_DATASET_BITS)).astype(np.int64), (keys & low).astype(np.int64)


def place_of(first: int) -> tuple[int, int]:
    """Returns the source's number, and the record's, of a first place."""
    return int(first) >> _RECORD_BITS, int(first) & (2**_RECORD_BITS - 1)


def joined(several: Sequence[Matches]) -> Matches:
    """Returns what was found in all of several searches."""
    keys = np.concatenate([np.zeros(0, np.uint64), *(one.keys for one in several)])
    first = np.concatenate([np.zeros(0, np.uint64), *(one.first for one in several)])
    counts = np.concatenate([np.zeros(0, np.int64), *(one.counts for one in several)])
    order = np.lexsort((first, keys))
    keys, first, counts = keys[order], first[order], counts[order]
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    return Matches(
        keys[begins],
        first[begins],
        np.add.reduceat(counts, begins) if len(begins) else counts,
        sum(one.texts for one in several),
        sum(one.words for one in several),
    )


class MatchTable:
    """Joins what jobs found; its memory grows with the different runs found, not with the jobs."""

    def __init__(self) -> None:
        self._joined = joined([])
        self._pending: list[Matches] = []
        self._count = 0

    def add(self, found: Matches) -> None:
        """Adds what one more job found."""
        self._pending.append(found)
        self._count += len(found.keys) + 1
        if self._count >= _PENDING:
            self.all()

    def all(self) -> Matches:
        """Returns everything that was found."""
        self._joined = joined([self._joined, *self._pending])
        self._pending, self._count = [], 0
        return self._joined


def scan(
    job: Job,
    index: Index,
    datasets: Sequence[int],
    vocabulary: Any | None,
    report: Callable[[int], None] = lambda texts: None,
) -> Matches:
    """Returns what the texts of a job hold of the index.

    Args:
      job: the job.
      index: the index.
      datasets: the number of each source's dataset.
      vocabulary: a SentencePiece processor for records without texts, or None.
      report: takes the number of texts that were searched since it was called last.

    Raises:
      UserError: if the data cannot be read.
    """
    table, texts_seen, words_seen = MatchTable(), 0, 0
    of_source = np.asarray(datasets, np.int64)
    for texts, sources, records in text_batches(job, vocabulary):
        words = split_words(texts)
        starts, places = index.found_in(words)
        number = words.text_of[starts]
        first = (sources[number] << _RECORD_BITS | records[number]).astype(np.uint64)
        keys = key_of(places, of_source[sources[number]])
        table.add(joined([Matches(keys, first, np.ones(len(keys), np.int64))]))
        texts_seen, words_seen = texts_seen + len(texts), words_seen + len(words.hashes)
        report(len(texts))
    return dataclasses.replace(table.all(), texts=texts_seen, words=words_seen)


@dataclasses.dataclass(frozen=True)
class Scanner:
    """Prepares a process that searches jobs.

    Attributes:
      index: the index's folder, on this machine.
      datasets: the number of each source's dataset.
      vocabulary: the SentencePiece model for records without texts, or None.
      data_dirs: folders of datasets; those of the environment if empty.
    """

    index: str
    datasets: tuple[int, ...]
    vocabulary: bytes | None = None
    data_dirs: tuple[str, ...] = ()

    def __call__(self) -> Callable[[Job, Callable[[Any], None]], Matches | str]:
        """Opens the index, and returns the function that does a job; a mistake is its text."""
        from t0 import sources

        if self.data_dirs:
            sources.set_data_dirs(list(self.data_dirs))
        index, vocabulary = Index(self.index), processor(self.vocabulary)

        def execute(job: Job, report: Callable[[Any], None]) -> Matches | str:
            try:
                return scan(job, index, self.datasets, vocabulary, report)
            except UserError as error:
                return f"{error} ({job})" if str(job) not in str(error) else str(error)

        return execute


def processor(model: bytes | None) -> Any | None:
    """Returns the SentencePiece processor of a model."""
    if model is None:
        return None
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=model)


def search(
    jobs: Sequence[Job], scanner: Scanner, *, workers: int, on_texts: Callable[[int], None]
) -> Iterator[Matches]:
    """Yields what each job found, as jobs end.

    Args:
      jobs: the jobs.
      scanner: prepares a process.
      workers: the number of processes; 0 for this one.
      on_texts: takes the number of texts that were searched since it was called last.

    Raises:
      UserError: if data cannot be read, or a process ends.
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
    for _, found in done:
        if isinstance(found, str):
            raise UserError(found)
        yield found
