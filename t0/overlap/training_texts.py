"""Reads training texts from caches in SeqIO's layout, or renders them from rows of datasets.

    training = TrainingTexts()
    add_cached(training, "/data/cache", "train")       # every task below the folder
    add_listed(training, read_listing(["/data/cache"]), "t0_train", "train")
    for texts, sources, records in text_batches(training.jobs[0], vocabulary=None):
        ...                            # ["It rains. Is it wet? Yes", ...], int64 [texts]

A text is an example as the model sees it: inputs, a space, targets. Caches of T0's tasks contain
these texts (`inputs_pretokenized`, `targets_pretokenized`). Other caches contain only token ids,
which are decoded with the cache's vocabulary. If a task of the catalogue has no cache, its rows are
rendered.

A job is a file of a cache, or a range of rows. Jobs may run in any order, on any machine that can
read the data. A source is a file of a cache, or a task whose rows are rendered. A text is
identified by the number of its source and the number of its record or row.
"""

import dataclasses
import itertools
import posixpath
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from t0 import sources
from t0.caching.cache_files import COMPLETED, cached_splits, is_finished
from t0.caching.verify import SHARD, find_caches, read_number
from t0.catalogue import PromptedTask
from t0.catalogue.listing import Listing
from t0.errors import UserError, reading
from t0.feeding.token_files import ids_of, record_batches, texts_of
from t0.files import paths
from t0.overlap.evaluation_rows import all_present, no_data, select_tasks
from t0.prompts import Template, compile_template

ROWS_OF_A_JOB = 5000
# A batch of texts ends when it has this many characters. Its arrays then take tens of MB.
_CHARACTERS_AT_ONCE = 2**19
_NAMES = ("inputs", "targets")
_TEXTS = tuple(f"{name}_pretokenized" for name in _NAMES)


@dataclasses.dataclass(frozen=True)
class TrainingSource:
    """A file of a cache, or a task whose rows are rendered.

    Attributes:
      dataset: the dataset's name; if the task is not in the catalogue, the task's name.
      task: the task's name.
      split: the name that the split has in the cache, or in the dataset if its rows are rendered.
      file: the path of the file; None for rendered rows.
    """

    dataset: str
    task: str
    split: str
    file: str | None = None


@dataclasses.dataclass(frozen=True)
class FileJob:
    """A file of a cache.

    Attributes:
      source: the source's number.
      path: the file.
    """

    source: int
    path: str

    def __str__(self) -> str:
        return self.path


@dataclasses.dataclass(frozen=True)
class RowsJob:
    """A range of rows of a dataset's split, and the prompts that render them.

    Attributes:
      split_id: the dataset, subset and split.
      start: the number of the first row.
      stop: the number after the last row.
      prompts: for each prompt, the number of its source, its template, and the name of its task,
        which seeds the template's random choices.
    """

    split_id: tuple[str, str | None, str]
    start: int
    stop: int
    prompts: tuple[tuple[int, Template, str], ...]

    def __str__(self) -> str:
        dataset, subset, split = self.split_id
        name = f"{dataset}/{subset}" if subset else dataset
        return f"{name} split '{split}', rows {self.start} to {self.stop}"


Job = FileJob | RowsJob


@dataclasses.dataclass
class TrainingTexts:
    """The training data of a search.

    Attributes:
      sources: the files of caches, and the tasks whose rows are rendered. A source's number is its
        index in this list.
      jobs: the files and row ranges to search, one for each job.
      texts: the number of texts; None if a cache does not state its number of texts.
      split_ids: (dataset, subset, split) of each split from which training rows come, if it is
        known.
      notes: one sentence for each task that was left out, with the reason.
    """

    sources: list[TrainingSource] = dataclasses.field(default_factory=list)
    jobs: list[Job] = dataclasses.field(default_factory=list)
    texts: int | None = 0
    split_ids: set[tuple[str, str | None, str]] = dataclasses.field(default_factory=set)
    notes: list[str] = dataclasses.field(default_factory=list)

    def add_cache(
        self, directory: str, name: str, split: str, task: PromptedTask | None = None
    ) -> None:
        """Adds the files of one split of a task's cache."""
        dataset = name
        if task is not None:
            dataset = "/".join(filter(None, (task.dataset, task.subset)))
            self.split_ids.add((task.dataset, task.subset, task.split_mapping.get(split, split)))
        for file in _list_shards(directory, split):
            path = posixpath.join(directory, file)
            self.jobs.append(FileJob(len(self.sources), path))
            self.sources.append(TrainingSource(dataset, name, split, path))
        self._add_count(read_number(posixpath.join(directory, f"stats.{split}.json"), "examples"))

    def add_rows(self, tasks: Sequence[PromptedTask], split: str) -> None:
        """Adds the rows of a dataset's split, which each task renders with its own prompt."""
        rows, first = tasks[0].open(split), tasks[0]
        dataset_split = first.split_mapping[split]
        split_id = (first.dataset, first.subset, dataset_split)
        name = "/".join(filter(None, (first.dataset, first.subset)))
        prompts = []
        for task in tasks:
            prompts.append((len(self.sources), task.template, task.name))
            self.sources.append(TrainingSource(name, task.name, dataset_split))
        for start in range(0, rows.num_rows, ROWS_OF_A_JOB):
            stop = min(start + ROWS_OF_A_JOB, rows.num_rows)
            self.jobs.append(RowsJob(split_id, start, stop, tuple(prompts)))
        self.split_ids.add(split_id)
        self._add_count(rows.num_rows * len(tasks))

    def _add_count(self, texts: int | None) -> None:
        self.texts = None if texts is None or self.texts is None else self.texts + texts


def _list_shards(directory: str, split: str) -> list[str]:
    """Returns the names of a split's files.

    Raises:
      UserError: if there are fewer files than the number that the files' names contain.
    """
    matches = [match for name in paths.list_names(directory) if (match := SHARD.fullmatch(name))]
    files = [match[0] for match in matches if match["split"] == split]
    shard_counts = {int(match["count"]) for match in matches if match["split"] == split}
    if files and shard_counts != {len(files)}:
        raise UserError(
            f"{directory} has {len(files)} of {max(shard_counts)} files of the split '{split}'. "
            f"To find all damage, run: t0 verify {directory}"
        )
    return files


def add_cached(
    training: TrainingTexts, folder: str, split: str, listing: Listing | None = None
) -> None:
    """Adds the training data of a task's cache, or of all caches below a folder.

    Args:
      folder: the folder of the task's cache, or a folder above several caches.
      split: the name of the split in the caches.
      listing: the known tasks. If a task is not among them, the dataset gets the task's name.

    Raises:
      UserError: if there is no cache, if a cache is unfinished, or if no cache has the split.
    """
    before, notes = len(training.jobs), []
    for directory in find_caches(folder):
        if not is_finished(directory):
            raise UserError(
                f"{directory} is not a finished cache: it has no {COMPLETED}. Finish it with the "
                "seqio_cache_tasks command that started it, or name only finished caches"
            )
        name = posixpath.basename(directory.rstrip("/"))
        splits = cached_splits(directory)
        if split not in splits:
            has = ", ".join(sorted(splits))
            notes.append(f"{name}: left out, its cache has no split '{split}' (it has {has})")
            continue
        listed_task = listing.tasks.get(name) if listing else None
        training.add_cache(directory, name, split, listed_task.task if listed_task else None)
    if len(training.jobs) == before:
        raise UserError(
            f"no cache in {folder} has records of a split '{split}'. Choose another with "
            f"--train_split. {'; '.join(notes[:3])}"
        )
    training.notes += notes


def add_listed(
    training: TrainingTexts,
    listing: Listing,
    expression: str,
    split: str,
    *,
    skip_absent: bool = False,
) -> None:
    """Adds the training data of a mixture, a task, or all tasks that match an expression.

    Args:
      listing: all tasks and mixtures, with their known caches.
      expression: the name of a mixture or task, or a regular expression that matches tasks.
      split: the name of the split in the tasks.
      skip_absent: whether to leave out tasks whose data is missing.

    Raises:
      UserError: if the name is unknown, if no task has the split, or if data is missing.
    """
    before = len(training.jobs)
    selected, notes = select_tasks(listing, [expression], split, flag="--train_split")
    groups: dict[tuple[Any, ...], dict[str, PromptedTask]] = {}
    for listed in selected:
        task, folder = listed.task, listed.cache_dir
        if folder and split in cached_splits(folder):
            training.add_cache(folder, listed.name, split, task)
        else:
            key = (task.dataset, task.subset, task.split_mapping[split])
            groups.setdefault(key, {})[task.name] = task
    for tasks in groups.values():
        if all_present(tasks.values(), split, notes, skip_absent=skip_absent):
            training.add_rows([*tasks.values()], split)
    if len(training.jobs) == before:
        raise no_data([expression])
    training.notes += notes


# The texts, the number of each text's source, and the number of each text's record or row.
TextBatch = tuple[list[str], np.ndarray, np.ndarray]


def text_batches(job: Job, vocabulary: Any | None) -> Iterator[TextBatch]:
    """Yields the texts of a job in batches.

    Args:
      job: the file or the range of rows to read.
      vocabulary: a SentencePiece processor that decodes records without texts, or None.

    Yields:
      the texts, the numbers of their sources, int64 [texts], and the numbers of their records or
      rows, int64 [texts].

    Raises:
      UserError: if the data cannot be read, or needs a vocabulary that was not given.
    """
    texts: list[str] = []
    locations: list[tuple[int, int]] = []
    size = 0
    for text, source, record in _read_texts(job, vocabulary):
        texts.append(text)
        locations.append((source, record))
        size += len(text)
        if size >= _CHARACTERS_AT_ONCE:
            yield texts, *np.array(locations, np.int64).T
            texts, locations, size = [], [], 0
    if texts:
        yield texts, *np.array(locations, np.int64).T


def _read_texts(job: Job, vocabulary: Any | None) -> Iterator[tuple[str, int, int]]:
    return _read_file_texts(job, vocabulary) if isinstance(job, FileJob) else _render_rows(job)


def _read_file_texts(job: FileJob, vocabulary: Any | None) -> Iterator[tuple[str, int, int]]:
    number = itertools.count()
    for records in record_batches(job.path):
        with reading(job.path, ValueError):
            inputs, targets = texts_of(records, _TEXTS).values()
            if not any(inputs) and not any(targets):
                inputs, targets = _decode_ids(records, job.path, vocabulary)
            for input_text, target_text in zip(inputs, targets, strict=True):
                text = b" ".join(filter(None, (input_text, target_text)))
                yield text.decode("utf-8", "replace"), job.source, next(number)


def _decode_ids(
    records: Sequence[bytes], path: str, vocabulary: Any | None
) -> Iterator[list[bytes]]:
    """Decodes token ids. Yields two lists: first all input texts, then all target texts."""
    if vocabulary is None:
        raise UserError(
            f"{path}: its records have token ids and no text. Name the vocabulary that they were "
            "made with: --vocab=FILE or T0_VOCAB=FILE"
        )
    for ids in ids_of(records, _NAMES).values():
        largest, size = int(ids.values.max(initial=0)), vocabulary.vocab_size()
        if largest >= size:
            raise UserError(
                f"{path}: has the token id {largest:,}, but the vocabulary has {size:,} pieces. "
                "The cache was made with another one; name that with --vocab=FILE"
            )
        rows = [
            ids.values[start:stop].tolist() for start, stop in itertools.pairwise(ids.ends.tolist())
        ]
        yield [text.encode() for text in vocabulary.decode(rows)]


def _render_rows(job: RowsJob) -> Iterator[tuple[str, int, int]]:
    dataset, subset, split = job.split_id
    compiled = [(number, compile_template(*prompt)) for number, *prompt in job.prompts]
    rows = sources.open_split(dataset, subset, split).rows(job.start, job.stop)
    for index, row in enumerate(rows, start=job.start):
        for number, template in compiled:
            example = template.example(row, index)
            if example is not None and (template.template.published or example.has_target):
                yield f"{example.inputs} {example.targets}", number, index


def text_at(
    training: TrainingTexts, source: int, record: int, vocabulary: Any | None
) -> str | None:
    """Reads a training text again; returns None if it no longer exists.

    Args:
      training: the training data.
      source: the number of the text's source.
      record: the number of the text's record or row.
      vocabulary: a SentencePiece processor that decodes records without texts, or None.

    Raises:
      UserError: if the data cannot be read.
    """
    for job in training.jobs:
        if isinstance(job, FileJob):
            has_text = job.source == source
        else:
            prompts = tuple(prompt for prompt in job.prompts if prompt[0] == source)
            has_text = prompts and job.start <= record < job.stop
            job = dataclasses.replace(job, start=record, stop=record + 1, prompts=prompts)
        if has_text:
            texts = _read_texts(job, vocabulary)
            return next((text for text, *location in texts if location == [source, record]), None)
    return None
