"""Makes the packed batches of a training run, each with a position that a checkpoint can hold.

    data = open_training_data(spec)              # spec: a DataSpec whose tasks are all cached
    for batch, position in data.batches(16):
        ...                                      # position: the position of the next batch
    for batch, _ in data.batches(16, position):
        ...                                      # the batches from that position on

Examples are drawn in windows. A window is packed, and its rows are shuffled. A position holds the
state of the streams at the start of the window, and the number of the window's rows that were used.
So it has only a few numbers for each task, whatever the size of the window. A batch maps each
feature to int32 [sequences, length].
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.config.specification import Count, DataSpec, TaskSpec, read_plain
from t0.errors import UserError
from t0.feeding import packing
from t0.feeding.instructed import FEATURES, InstructedSource
from t0.feeding.mixing import MixedStream, MixtureState, TaskShare
from t0.feeding.pretraining import CachedDocuments, PretrainingSource
from t0.feeding.reading import CachedSource, ExampleSource

Batch = dict[str, np.ndarray]
Position = dict[str, Any]
_UNKNOWN = 2  # T5's id of an unknown token
_ROWS = 0x726F7773  # distinguishes the generator of the rows' order from the other generators


@dataclasses.dataclass(frozen=True)
class _Position:
    """A position in the data.

    Attributes:
      mixture: the state of the streams at the start of the window.
      window: the number of the window.
      row: the number of the window's rows that were used.
      examples: the number of examples that were used so far.
    """

    mixture: MixtureState
    window: Count
    row: Count
    examples: float = 0.0


@dataclasses.dataclass(frozen=True)
class Filling:
    """Statistics about the packing of a window.

    Attributes:
      rows: the number of the window's rows.
      examples: the number of examples in these rows.
      filled: feature -> the share of its positions that hold a token.
      unknown: the share of targets in the first window that contain an unknown token.
    """

    rows: int
    examples: int
    filled: Mapping[str, float]
    unknown: float = 0.0


class TrainingData:
    """Endless batches of a mixture.

    Args:
      mixture: an endless stream of examples.
      lengths: feature -> the number of tokens of a row, inputs first.
      seed: the seed of the order of rows.
      pack: whether several examples share a row.
      ends_in_eos: the features of which a full row must end in EOS.
      window_rows: the number of rows whose examples are packed together.
      spec: the specification of the data; None for data without one, such as in tests.
    """

    def __init__(
        self,
        mixture: MixedStream,
        lengths: Mapping[str, int],
        *,
        seed: int,
        pack: bool = True,
        ends_in_eos: tuple[str, ...] = (),
        window_rows: int = 512,
        spec: DataSpec | None = None,
    ) -> None:
        self._mixture = mixture
        self._lengths = dict(lengths)
        self._seed = seed
        self._pack = pack
        self._ends_in_eos = ends_in_eos
        self._window_rows = window_rows
        self._filling: Filling | None = None
        self.spec = spec

    @property
    def features(self) -> tuple[str, ...]:
        """The names of a batch's arrays."""
        return tuple(self._pack_rows([{name: np.ones(1, np.int32) for name in self._lengths}], 0))

    @property
    def packed(self) -> bool:
        """Whether several examples share a row."""
        return self._pack

    @property
    def filling(self) -> Filling | None:
        """Statistics about the packing of the last window; None before the first window."""
        return self._filling

    def shares(self) -> list[TaskShare]:
        """Returns each task's share of the examples drawn so far, including the current window."""
        return self._mixture.shares()

    def read_position(self, position: Any) -> Position | None:
        """Checks a position from a checkpoint, and returns it for use with `batches`.

        Args:
          position: the position; None means the start of the data, and is returned as None.

        Raises:
          ValueError: if it is not a position from `batches`.
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
        window, used = 0, 0
        if position is not None:
            self._mixture.restore(position["mixture"])
            window, used = position["window"], position["row"]
        started = self._mixture.state()
        current = self._draw_window(window)
        if used >= len(next(iter(current.values()))):
            raise UserError(
                f"the checkpoint's position is row {used:,} of window {window:,}, which has only "
                f"{len(next(iter(current.values()))):,} rows: the checkpoint is damaged, or the "
                "caches have changed. Resume from an older checkpoint"
            )
        while True:
            portions, missing = [], rows
            while missing:
                available = len(next(iter(current.values())))
                taken = min(missing, available - used)
                portions.append({name: x[used : used + taken] for name, x in current.items()})
                used, missing = used + taken, missing - taken
                if used == available:
                    started, window, used = self._mixture.state(), window + 1, 0
                    current = self._draw_window(window)
            batch = {
                name: np.concatenate([portion[name] for portion in portions]) for name in current
            }
            served = sum(state[-1] for state in started["tasks"].values())
            portion = self._filling.examples * used / len(next(iter(current.values())))
            yield (
                batch,
                {"mixture": started, "window": window, "row": used, "examples": served + portion},
            )

    def _draw_window(self, number: int) -> Batch:
        examples: list[dict[str, np.ndarray]] = []
        tokens = dict.fromkeys(self._lengths, 0)
        while True:
            new_examples = self._mixture.take()
            examples += new_examples
            for name, length in self._lengths.items():
                tokens[name] += sum(min(len(example[name]), length) for example in new_examples)
            full = max(tokens[name] / length for name, length in self._lengths.items())
            if (full if self._pack else len(examples)) >= self._window_rows:
                break
        packed_rows = self._pack_rows(examples, number)
        self._filling = Filling(
            rows=len(next(iter(packed_rows.values()))),
            examples=len(examples),
            filled={name: packing.filled_share(packed_rows, name) for name in self._lengths},
            unknown=self._filling.unknown if self._filling else _share_of_unknown(examples),
        )
        return packed_rows

    def _pack_rows(self, examples: list[dict[str, np.ndarray]], number: int) -> Batch:
        if not self._pack:
            return packing.pad(examples, self._lengths, ends_in_eos=self._ends_in_eos)
        order = np.random.default_rng([self._seed, _ROWS, number])
        return packing.pack(examples, self._lengths, ends_in_eos=self._ends_in_eos, order=order)


def _share_of_unknown(examples: Sequence[Mapping[str, np.ndarray]]) -> float:
    """Returns the share of examples whose targets have an unknown token."""
    return sum(_UNKNOWN in example.get("targets", ()) for example in examples) / max(
        1, len(examples)
    )


def open_training_data(
    data: DataSpec, live: Callable[[TaskSpec, DataSpec], ExampleSource] | None = None
) -> TrainingData:
    """Opens the data of a specification.

    Args:
      data: the specification: the mixture and its packing.
      live: a function that opens a task without cache files, through SeqIO. If it is None, such a
        task is an error.

    Raises:
      UserError: if a task needs SeqIO and `live` is None, or if the rates sum to zero.
    """
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
    )


def open_source(
    task: TaskSpec,
    data: DataSpec,
    live: Callable[[TaskSpec, DataSpec], ExampleSource] | None = None,
) -> ExampleSource:
    """Returns the source of a task's examples.

    Args:
      task: a task of `data`.
      data: the specification.
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
    examples = task.examples or 0

    def cached(*features: str) -> CachedSource:
        return CachedSource(task.name, task.cache_files, examples, features)

    if task.objective is not None:
        documents = CachedDocuments(cached("targets"))
        return PretrainingSource(task.name, documents, task.objective, data.lengths)
    if task.instructions is not None:
        return InstructedSource(cached(*FEATURES), task.instructions, data.lengths)
    return cached(*data.lengths)
