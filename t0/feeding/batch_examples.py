"""Finds the examples in a run's batches, and the cached records from which they come.

    run = open_run("/models/tiny")                 # reads the run's data manifest
    for example in run.examples(step=7):           # the step that ends with model.ckpt-7
        example.task.name, example.record, example.ids["inputs"]
    run.count_uses(step=7)                         # task -> how often each record was used
    run.find("Dana Reeve", last=7, decode=decode)  # examples with this text in steps up to 7

A run does not store which examples a step saw. This module computes the batches again from the
manifest. A window is a group of examples that are packed together.
"""

import dataclasses
import functools
import posixpath
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.caching.row_numbers import ExampleRows, cached_rows
from t0.config.specification import TaskSpec
from t0.errors import UserError
from t0.feeding import manifest, packing, token_files
from t0.feeding.manifest import Manifest
from t0.feeding.random_access import CachedRecords
from t0.feeding.training_data import TrainingData, open_training_data
from t0.files.untrusted import check_buckets


@dataclasses.dataclass(frozen=True)
class BatchExample:
    """An example in a batch.

    Attributes:
      step: the number of the step.
      row: the number of the row in the batch, from 0.
      task: the task to which the example belongs.
      record: the number of the example's record in the task's cached split, from 0.
      ids: feature -> the token ids in the batch, int32.
    """

    step: int
    row: int
    task: TaskSpec
    record: int
    ids: Mapping[str, np.ndarray]


def open_run(model_dir: str) -> "RunData":
    """Opens the data of a run.

    Raises:
      UserError: if the model directory has no manifest, if a task is not cached, or if a file of a
        cache has changed.
    """
    recorded = manifest.read(model_dir)
    if recorded is None:
        raise UserError(
            f"{model_dir} has no {manifest.MANIFEST}, so its batches are unknown. Runs of "
            "t5_mesh_transformer and of --write_stream write it"
        )
    check_buckets(
        dataclasses.asdict(recorded.data),
        posixpath.join(model_dir, manifest.MANIFEST),
        "add --bucket={bucket}",
    )
    for task in recorded.data.tasks:
        if not manifest.is_indexed(task):
            raise UserError(
                f"the examples of task {task.name} are made while training, so their records are "
                "unknown. Only runs whose tasks are cached examples can be looked up"
            )
    data = open_training_data(recorded.data)
    current = manifest.build(data, recorded.batch, recorded.start, recorded)
    if change := manifest.find_difference(recorded, current):
        raise UserError(
            f"the caches are not those of {model_dir}/{manifest.MANIFEST}: {change}. Restore them"
        )
    manifest.load_windows(model_dir, recorded, data)
    return RunData(recorded, data)


class RunData:
    """Finds the batch of each step of a run.

    Args:
      recorded: the run's manifest.
      data: the run's opened data.

    Attributes:
      tasks: the tasks, in the order of the manifest.
    """

    def __init__(self, recorded: Manifest, data: TrainingData) -> None:
        self._manifest, self._data = recorded, data
        self.tasks = recorded.data.tasks

    def examples(self, step: int) -> Iterator[BatchExample]:
        """Yields the examples in the batch of a step. The first step is 1.

        Raises:
          UserError: if the run has no such step.
        """
        position = manifest.locate(self._manifest, self._data, step - 1)
        end = (step - self._manifest.start.step) * self._manifest.batch
        window, before = position["window"], end - self._manifest.batch - position["row"]
        while before < end:
            for example in self._examples_in(window, before):
                if example.step == step:
                    yield example
            window, before = window + 1, before + self._data.size_of(window)

    def _examples_in(self, window: int, before: int) -> Iterator[BatchExample]:
        """Yields the examples of a window, row by row.

        Args:
          window: the number of the window.
          before: the number of the run's rows before this window.
        """
        examples = self._data.examples_in(window)
        tasks, records = self._records_in(window)
        lengths, ends_in_eos = self._manifest.data.lengths, self._manifest.data.ends_in_eos
        for number, members in enumerate(self._data.rows_in(examples, window), start=before):
            steps, row = divmod(number, self._manifest.batch)
            step = self._manifest.start.step + steps + 1
            for index in members:
                ids = {n: np.array(examples[index][n][:length]) for n, length in lengths.items()}
                for name in ends_in_eos:
                    if ids[name].size == lengths[name]:
                        packing.end_in_eos(ids[name][None])
                yield BatchExample(step, row, self.tasks[tasks[index]], int(records[index]), ids)

    def _records_in(self, window: int) -> tuple[np.ndarray, np.ndarray]:
        return self._data.mixture.records_of(window * self._data.draws, self._data.draws)

    def count_uses(self, step: int) -> dict[str, np.ndarray]:
        """Returns task -> how often each record was used in the steps up to this one, int64."""
        end = manifest.locate(self._manifest, self._data, step)
        start = self._manifest.start
        after = self._uses_before(end["window"], end["row"])
        before = self._uses_before(start.window, start.row)
        names = [task.name for task in self.tasks]
        return {n: x - y for n, x, y in zip(names, after, before, strict=True)}

    def _uses_before(self, window: int, row: int) -> list[np.ndarray]:
        """Returns, for each task, the number of uses of each record before a row of a window."""
        streams = self._data.mixture.streams
        uses = []
        for stream, served in zip(
            streams, self._data.mixture.count_served(window * self._data.draws), strict=True
        ):
            epochs, rest = divmod(int(served), max(1, stream.source.examples))
            of_records = np.full(stream.source.examples, epochs)
            of_records[stream.records(served - rest + np.arange(rest))] += 1
            uses.append(of_records)
        if row:
            tasks, records = self._records_in(window)
            rows = self._data.rows_in(self._data.examples_in(window), window)
            used = np.array([index for members in rows[:row] for index in members], np.int64)
            for number, of_records in enumerate(uses):
                np.add.at(of_records, records[used][tasks[used] == number], 1)
        return uses

    def find(
        self, text: str, last: int, decode: Callable[[Sequence[int]], str]
    ) -> Iterator[BatchExample]:
        """Yields the examples that contain a text, from the batches of all steps up to `last`.

        Args:
          text: the text, which may be a part of an example. Consecutive whitespace counts as one
            space, and characters are compared in the Unicode form NFKC, which SentencePiece uses.
          last: the last step to search.
          decode: a function that decodes token ids.
        """
        text = _spaced(text)
        start, end = self._manifest.start, manifest.locate(self._manifest, self._data, last)
        matches = {task.name: _records_with(task, text, decode) for task in self.tasks}
        before = -start.row
        for window in range(start.window, end["window"] + 1):
            examples = self._examples_in(window, before) if self._draws(window, matches) else ()
            for example in examples:
                if (
                    start.step < example.step <= last
                    and example.record in matches[example.task.name]
                    and (
                        self._is_whole(example)
                        or any(
                            text in _spaced(decode(ids.tolist())) for ids in example.ids.values()
                        )
                    )
                ):
                    yield example
            before += self._data.size_of(window)

    def _is_whole(self, example: BatchExample) -> bool:
        """Returns whether an example has all tokens of its record, so that it needs no decoding.

        Unknown tokens have no text, so decoded ids may not contain a text that the record has.
        """
        lengths = self._manifest.data.lengths
        cut = any(len(ids) >= lengths[name] for name, ids in example.ids.items())
        return not cut and example.task.instructions is None

    def _draws(self, window: int, records: Mapping[str, set[int]]) -> bool:
        """Returns whether a window draws at least one of the given records (task -> records)."""
        mixture, first = self._data.mixture, window * self._data.draws
        drawn, served = mixture.tasks_of(first, self._data.draws), mixture.count_served(first)
        return any(
            not records[task.name].isdisjoint(
                mixture.streams[n].records(served[n] + np.arange(np.sum(drawn == n))).tolist()
            )
            for n, task in enumerate(self.tasks)
            if records[task.name]
        )


def _spaced(text: str) -> str:
    """Replaces each run of whitespace in a text with one space, and normalizes its characters."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def _records_with(task: TaskSpec, text: str, decode: Callable[[Sequence[int]], str]) -> set[int]:
    """Returns the numbers of a task's records that contain a text."""
    # The cache of an instruction task has all outputs of a record. Each epoch draws one as targets.
    names = ["inputs", "outputs"] if task.instructions else list(task.features)
    matches, number = set(), 0
    for file in task.cache_files:
        for records in token_files.record_batches(file):
            ids = token_files.ids_of(records, names)
            for name in names:
                # `texts_of` returns only the first text of a record, but a record of an instruction
                # task can have several outputs. So these records are decoded from their ids.
                key = f"{name}_pretokenized"
                texts = token_files.texts_of(records, [key])[key]
                for index, raw in enumerate(texts):
                    if raw is None or task.instructions:
                        content = decode(ids[name].sequence(index).tolist())
                    else:
                        content = raw.decode("utf-8", "replace")
                    if text in _spaced(content):
                        matches.add(number + index)
            number += len(records)
    return matches


def find_origin(task: TaskSpec, record: int) -> dict[str, Any]:
    """Returns the dataset, split, row and prompt of a record; {} if the cache does not store them.

    Raises:
      UserError: if the file in which the cache stores them is damaged.
    """
    rows, records = _open_origins(task.cache_files[0])
    if rows is None:
        return {}
    source = rows.source
    number = int(records[record]["idx"][0]) if source.choices else record
    return {
        "dataset": f"{source.dataset}/{source.subset}" if source.subset else source.dataset,
        "split": source.split,
        "dataset_row": rows.of(number),
        "prompt": source.prompt,
    }


@functools.lru_cache(maxsize=1024)
def _open_origins(file: str) -> tuple[ExampleRows | None, CachedRecords]:
    folder, name = posixpath.split(file)
    return cached_rows([file]), CachedRecords(folder, name.partition(".tfrecord-")[0])
