"""Makes the packed batches of a training run, each with a position that a checkpoint can hold.

    data = open_training_data(spec)              # spec: a DataSpec; all of its tasks are cached
    for batch, position in data.batches(16):
        ...                                      # position: the position of the next batch
    for batch, _ in data.batches(16, position):
        ...                                      # the batches from that position on

Examples are drawn in windows. All windows of the data draw the same number of examples, so a window
depends only on the specification and on its number. A window is packed, and its rows are shuffled.
The batches are consecutive rows of the windows. So a position consists of the number of a window,
and the number of that window's rows that were used. `locate` finds the position of any batch. For
tasks without a cache of examples, a position also holds their state at the start of the window.

A batch maps each feature to int32 [sequences, length]. If the tasks are read with their answer
choices, the targets are int32 [sequences, choices, length], and the right choice is the first.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from t0.config.plain_data import Count, Range, read_plain
from t0.config.specification import DataSpec, TaskSpec
from t0.errors import UserError
from t0.feeding import packing
from t0.feeding.cached_examples import (
    CHOICE_FEATURES,
    INSTRUCTION_FEATURES,
    ChoiceSource,
    EndedSource,
    InstructedSource,
)
from t0.feeding.mixing import DRAWS, MixedStream, TaskShare, TaskState
from t0.feeding.pretraining import CachedDocuments, PretrainingSource
from t0.feeding.reading import CachedSource, ExampleSource

Batch = dict[str, np.ndarray]
Position = dict[str, Any]
_UNKNOWN = 2  # T5's id of an unknown token
_ROWS = 0x726F7773  # part of the seed of the rows' order; other seeds do not have it


@dataclasses.dataclass(frozen=True)
class _Position:
    """A position in the data.

    Attributes:
      window: the number of the window.
      row: the number of the window's rows that were used.
      examples: the number of examples that were used so far.
      tasks: task -> its state at the start of the window, for tasks that need a state to continue.
    """

    window: Annotated[int, Range(0, 2**24)]
    row: Count
    examples: float = 0.0
    tasks: Mapping[str, TaskState] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Filling:
    """Statistics about the packing of a window.

    Attributes:
      rows: the number of rows in the window.
      examples: the number of examples in these rows.
      filled: feature -> the share of the feature's positions that hold a token.
      unknown: the share of targets in the first window that contain an unknown token.
    """

    rows: int
    examples: int
    filled: Mapping[str, float]
    unknown: float = 0.0


@dataclasses.dataclass(eq=False)
class TrainingData:
    """Makes endless batches of a mixture's examples.

    Attributes:
      mixture: an endless stream of examples.
      lengths: feature -> the number of tokens of a row, inputs first.
      seed: the seed of the order of rows.
      pack: whether several examples share a row.
      ends_in_eos: the features whose rows must end in EOS if they are full.
      window_rows: the number of rows that the examples of a window fill.
      spec: the specification of the data; None if there is no specification, such as in tests.
      choices: the largest number of answer choices of an example; None if examples have none.
      filling: statistics about the packing of the last window; None before the first window.
      window_sizes: number of a window -> the number of its rows, for the windows that are known.
    """

    mixture: MixedStream
    lengths: Mapping[str, int]
    _: dataclasses.KW_ONLY
    seed: int
    pack: bool = True
    ends_in_eos: tuple[str, ...] = ()
    window_rows: int = 512
    spec: DataSpec | None = None
    choices: int | None = None
    filling: Filling | None = dataclasses.field(default=None, init=False)
    window_sizes: dict[int, int] = dataclasses.field(default_factory=dict, init=False)
    _draws: int | None = dataclasses.field(default=None, init=False)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of a batch's arrays."""
        return tuple(self._pack_rows([{name: np.ones(1, np.int32) for name in self.lengths}], 0))

    def shares(self) -> list[TaskShare]:
        """Returns each task's share of the examples drawn so far, including the current window."""
        return self.mixture.shares()

    def read_position(self, position: Any) -> Position | None:
        """Checks a position from a checkpoint, and returns it for use with `batches`.

        Args:
          position: the position; None means the start of the data, and is returned as None.

        Raises:
          ValueError: if `position` was not returned by `batches`.
        """
        read = read_plain(position, _Position | None, "the position in the data")
        return read and dataclasses.asdict(read)

    def batches(
        self, rows: int, position: Position | None = None
    ) -> Iterator[tuple[Batch, Position]]:
        """Yields batches of `rows` sequences, each with the position of the next batch.

        Args:
          rows: the number of sequences of a batch.
          position: the position to start from; None for the start of the data.

        Raises:
          UserError: if the position belongs to other data, or if the data cannot be read.
        """
        window, used, states = 0, 0, {}
        if position is not None:
            window, used, states = position["window"], position["row"], position["tasks"]
        current = self.window(window, states)
        if used >= self.filling.rows:
            raise UserError(
                f"the checkpoint's position is row {used:,} of window {window:,}, which has only "
                f"{self.filling.rows:,} rows: the checkpoint is damaged, or the caches have "
                "changed. Resume from an older checkpoint"
            )
        while True:
            portions, missing = [], rows
            while missing:
                taken = min(missing, self.filling.rows - used)
                portions.append({name: x[used : used + taken] for name, x in current.items()})
                used, missing = used + taken, missing - taken
                if used == self.filling.rows:
                    window, used, states = window + 1, 0, self.mixture.states()
                    current = self.window(window, states)
            batch = {
                name: np.concatenate([portion[name] for portion in portions]) for name in current
            }
            examples = self.filling.examples * (window + used / self.filling.rows)
            yield batch, dataclasses.asdict(_Position(window, used, examples, states))

    def locate(self, batches: int, rows: int, window: int = 0, row: int = 0) -> Position:
        """Returns the position after a number of batches, for use with the method `batches`.

        If `window_sizes` does not have the size of an earlier window, this method computes it,
        which takes about as long as reading the data.

        Args:
          batches: the number of batches.
          rows: the number of sequences of a batch.
          window: the number of the window in which the first batch begins.
          row: the number of rows in that window before the first batch.

        Raises:
          UserError: if a task is not cached, or if the data cannot be read.
        """
        row += batches * rows
        while row >= (size := self.size_of(window)):
            window, row = window + 1, row - size
        examples = self.draws * DRAWS * (window + row / self.size_of(window))
        return dataclasses.asdict(_Position(window, row, examples))

    def size_of(self, window: int) -> int:
        """Returns the number of rows of a window."""
        if window not in self.window_sizes:
            examples = self.examples_in(window)
            self.window_sizes[window] = len(self.rows_in(examples, window))
        return self.window_sizes[window]

    @property
    def draws(self) -> int:
        """The number of takes from the `MixedStream` that make a window."""
        if self._draws is None:
            self.window(0)
        return self._draws

    def examples_in(
        self, window: int, states: Mapping[str, TaskState] | None = None
    ) -> list[dict[str, np.ndarray]]:
        """Returns the examples of a window, in the order in which they are drawn.

        Args:
          window: the number of the window.
          states: task -> its state at the start of the window, for tasks that are not cached.
        """
        self.mixture.seek(window * self.draws, states or {})
        return [example for _ in range(self.draws) for example in self.mixture.take()]

    def rows_in(self, examples: Sequence[Mapping[str, np.ndarray]], window: int) -> list[list[int]]:
        """Returns the indices of the examples in each row of a window."""
        if not self.pack:
            return [[number] for number in range(len(examples))]
        return packing.assign_shuffled(examples, self.lengths, self._row_order(window))

    def window(self, number: int, states: Mapping[str, TaskState] | None = None) -> Batch:
        """Returns the packed rows of a window; see `examples_in`."""
        if self._draws is None and number == 0:
            self.mixture.seek(0, {})
            examples, self._draws = self._draw_first_window()
        else:
            examples = self.examples_in(number, states)
        packed_rows = self._pack_rows(examples, number)
        self.window_sizes[number] = len(next(iter(packed_rows.values())))
        self.filling = Filling(
            rows=self.window_sizes[number],
            examples=len(examples),
            filled={name: packing.filled_share(packed_rows, name) for name in self.lengths},
            unknown=self.filling.unknown
            if self.filling
            else float(np.mean([_UNKNOWN in example.get("targets", ()) for example in examples])),
        )
        return packed_rows

    def _draw_first_window(self) -> tuple[list[dict[str, np.ndarray]], int]:
        """Draws examples until they fill a window; returns the examples and the number of takes."""
        examples: list[dict[str, np.ndarray]] = []
        tokens = dict.fromkeys(self.lengths, 0)
        takes, full = 0, 0.0
        while full < self.window_rows:
            new_examples = self.mixture.take()
            takes += 1
            examples += new_examples
            for name, length in self.lengths.items():
                tokens[name] += sum(min(len(example[name]), length) for example in new_examples)
            full = max(tokens[name] / length for name, length in self.lengths.items())
            full = full if self.pack else len(examples)
        return examples, takes

    def _row_order(self, window: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, _ROWS, window])

    def _pack_rows(self, examples: list[dict[str, np.ndarray]], number: int) -> Batch:
        if not self.pack:
            return packing.pad(
                examples, self.lengths, ends_in_eos=self.ends_in_eos, choices=self.choices
            )
        order = self._row_order(number)
        return packing.pack(examples, self.lengths, ends_in_eos=self.ends_in_eos, order=order)


def open_training_data(
    data: DataSpec, live: Callable[[TaskSpec, DataSpec], ExampleSource] | None = None
) -> TrainingData:
    """Opens the data of a specification.

    Args:
      data: the specification of the mixture and its packing.
      live: a function that opens a task without cache files through SeqIO. If it is None and there
        is such a task, an error is raised.

    Raises:
      UserError: if no feature has a length, if a task needs SeqIO and `live` is None, if the rates
        sum to zero, or if packing would split an example's answer choices.
    """
    if not data.lengths:
        raise UserError(
            f"the data of {data.mixture} has no lengths; expected a number of tokens for each feature"
        )
    if data.pack and any(task.choices for task in data.tasks):
        raise UserError(
            "packing would split the answer choices of an example, and choice_losses compares "
            "them. Set mesh_train_dataset_fn.pack = False"
        )
    sources = [open_source(task, data, live) for task in data.tasks]
    if not sources:
        raise UserError(f"no task of {data.mixture} has a split '{data.split}'")
    rates = [task.rate for task in data.tasks]
    return TrainingData(
        MixedStream(sources, rates, seed=data.seed, shuffle=data.shuffle),
        data.lengths,
        seed=data.seed,
        pack=data.pack,
        ends_in_eos=data.ends_in_eos,
        window_rows=data.window_rows,
        spec=data,
        choices=max((x.choices for x in sources if isinstance(x, ChoiceSource)), default=None),
    )


def open_source(
    task: TaskSpec,
    data: DataSpec,
    live: Callable[[TaskSpec, DataSpec], ExampleSource] | None = None,
) -> ExampleSource:
    """Returns the source of a task's examples.

    Args:
      task: a task of `data`.
      data: the specification of the data.
      live: a function that opens a task without cache files, as in `open_training_data`.

    Raises:
      UserError: if the task needs SeqIO, and `live` is None.
    """
    if not task.cache_files:
        if live is None:
            raise UserError(
                f"task {task.name} is not cached: its examples are made while they are read, which "
                "needs SeqIO. Cache it with seqio_cache_tasks"
            )
        return live(task, data)
    cache = task.name, task.cache_files, task.examples or 0
    source = CachedSource
    if task.eos is not None:
        source = functools.partial(EndedSource, eos=task.eos, lengths=data.lengths)
    if task.choices:
        return ChoiceSource(source(*cache, CHOICE_FEATURES))
    if task.objective is not None:
        documents = CachedDocuments(CachedSource(*cache, ("targets",)))
        return PretrainingSource(task.name, documents, task.objective, data.lengths)
    if task.instructions is not None:
        spec = task.instructions
        return InstructedSource(*cache, INSTRUCTION_FEATURES, spec=spec, lengths=data.lengths)
    return source(*cache, tuple(data.lengths))
