"""The batches of a training run: a mixture, packed, with a position that a checkpoint can hold.

    data = training_data("t0_train", {"inputs": 1024, "targets": 256}, use_cached=True, seed=7)
    for batch, position in data.batches(16):
        ...                                    # position: of the batch after this one
    for batch, _ in data.batches(16, position):
        ...                                    # the same batches that would have come

Examples are drawn in windows; a window is packed and its rows shuffled. The position says where
the streams stood when the window began, and how many of its rows are used: a few numbers for each
task, whatever the window holds. Legend: a batch maps a feature to int32 [sequences, length].
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from t0 import compat
from t0.compat import gin, seqio
from t0.errors import UserError
from t0.feeding import packing
from t0.feeding.checks import known_mixture
from t0.feeding.mixing import MixedStream, Share
from t0.feeding.pretraining import PretrainingSource, pretraining_source
from t0.feeding.records import Source, open_source

Batch = dict[str, np.ndarray]
Position = dict[str, Any]
_ROWS = 0x726F7773  # a key for the order of rows, apart from those of tasks and mixing


@dataclasses.dataclass(frozen=True)
class Filling:
    """How well a window was packed.

    Attributes:
      rows: of the window; examples: in them.
      filled: feature -> share of its places that hold a token.
    """

    rows: int
    examples: int
    filled: Mapping[str, float]


class TrainingData:
    """Endless batches of a mixture.

    Args:
      mixture: an endless stream of examples.
      lengths: tokens of a row for each feature, inputs first.
      seed: of the order of rows.
      pack: whether several examples share a row.
      ends_in_eos: features whose full rows end in EOS.
      window_rows: rows' worth of examples that are packed together.
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
    ) -> None:
        self._mixture = mixture
        self._lengths = dict(lengths)
        self._seed = seed
        self._pack = pack
        self._ends_in_eos = ends_in_eos
        self._window_rows = window_rows
        self._filling: Filling | None = None
        # SeqIO's name of the mixture, and whether its caches are read; None for made-up data.
        self.mixture: str | None = None
        self.use_cached = False
        self._reopen: Callable[[str], TrainingData | None] = lambda split: None

    @property
    def features(self) -> tuple[str, ...]:
        """The names in a batch."""
        return tuple(self._packed([{name: np.ones(1, np.int32) for name in self._lengths}], 0))

    @property
    def packed(self) -> bool:
        """Whether several examples share a row."""
        return self._pack

    @property
    def filling(self) -> Filling | None:
        """How well the last window was packed."""
        return self._filling

    def of_split(self, split: str) -> "TrainingData | None":
        """Returns the same mixture's data of another split, None if no task has it."""
        return self._reopen(split)

    def shares(self) -> list[Share]:
        """What has been drawn of each task so far, the window in hand included."""
        return self._mixture.shares()

    def batches(
        self, rows: int, position: Position | None = None
    ) -> Iterator[tuple[Batch, Position]]:
        """Yields batches of `rows` sequences, each with the position that follows it."""
        window, used = 0, 0
        if position is not None:
            self._mixture.restore(position["mixture"])
            window, used = position["window"], position["row"]
        started = self._mixture.state()
        current = self._window(window)
        while True:
            parts, missing = [], rows
            while missing:
                there = len(next(iter(current.values())))
                taken = min(missing, there - used)
                parts.append({name: x[used : used + taken] for name, x in current.items()})
                used, missing = used + taken, missing - taken
                if used == there:
                    started, window, used = self._mixture.state(), window + 1, 0
                    current = self._window(window)
            batch = {name: np.concatenate([part[name] for part in parts]) for name in current}
            drawn = sum(state[-1] for state in started["tasks"].values())
            part = self._filling.examples * used / len(next(iter(current.values())))
            yield (
                batch,
                {"mixture": started, "window": window, "row": used, "examples": drawn + part},
            )

    def _window(self, number: int) -> Batch:
        examples: list[dict[str, np.ndarray]] = []
        tokens = dict.fromkeys(self._lengths, 0)
        while True:
            drawn = self._mixture.take()
            examples += drawn
            for name, length in self._lengths.items():
                tokens[name] += sum(min(len(example[name]), length) for example in drawn)
            full = max(tokens[name] / length for name, length in self._lengths.items())
            if (full if self._pack else len(examples)) >= self._window_rows:
                break
        made = self._packed(examples, number)
        self._filling = Filling(
            rows=len(next(iter(made.values()))),
            examples=len(examples),
            filled={name: packing.fill(made, name) for name in self._lengths},
        )
        return made

    def _packed(self, examples: list[dict[str, np.ndarray]], number: int) -> Batch:
        if not self._pack:
            return packing.pad(examples, self._lengths, ends_in_eos=self._ends_in_eos)
        order = np.random.default_rng([self._seed, _ROWS, number])
        return packing.pack(examples, self._lengths, ends_in_eos=self._ends_in_eos, order=order)


@gin.configurable("packing", module="t0")
def window(rows: int = 512) -> int:
    """Returns the rows' worth of examples that are packed together (gin: `packing.rows`)."""
    return rows


def training_data(
    mixture_or_task_name: str,
    sequence_length: Mapping[str, int],
    *,
    dataset_split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    use_cached: bool = False,
    pack: bool = True,
    default_seed: int = 0,
) -> TrainingData:
    """Opens a mixture for training; takes what T5's `mesh_train_dataset_fn` takes.

    Args:
      mixture_or_task_name: registered with SeqIO.
      sequence_length: tokens of a row for each feature.
      dataset_split: which split.
      shuffle: whether examples are shuffled.
      seed: of everything random about the data; `default_seed` where None.
      use_cached: whether the tasks' caches are read.
      pack: whether several examples share a row.
      default_seed: the run's.

    Raises:
      UserError: for an unknown mixture, or a cache that cannot be read.
    """
    mixture = known_mixture(mixture_or_task_name)
    tasks = [t for t in seqio.get_subtasks(mixture) if dataset_split in t.splits]
    given = mixture.output_features
    names = [name for name in given if name in sequence_length]
    names.sort(key=lambda name: name != "inputs")
    lengths = {name: sequence_length[name] for name in names}
    sources = [_source(task, dataset_split, lengths, use_cached=use_cached) for task in tasks]
    rates = [mixture.get_rate(task) if len(tasks) > 1 else 1.0 for task in tasks]
    chosen = default_seed if seed is None else int(seed)
    if not tasks:
        raise UserError(f"no task of {mixture_or_task_name} has a split '{dataset_split}'")
    data = TrainingData(
        MixedStream(sources, rates, seed=chosen, shuffle=shuffle),
        lengths,
        seed=chosen,
        pack=pack,
        ends_in_eos=tuple(name for name in names if given[name].add_eos),
        window_rows=window(),
    )

    def reopen(split: str) -> TrainingData | None:
        if not any(split in task.splits for task in seqio.get_subtasks(mixture)):
            return None
        return training_data(
            mixture_or_task_name, sequence_length, dataset_split=split, shuffle=False,
            seed=chosen, use_cached=use_cached, pack=pack,
        )  # fmt: skip

    data._reopen = reopen
    data.mixture, data.use_cached = mixture_or_task_name, use_cached
    return data


def _source(
    task: seqio.Task, split: str, lengths: Mapping[str, int], *, use_cached: bool
) -> Source | PretrainingSource:
    return pretraining_source(task, split, lengths, use_cached=use_cached) or open_source(
        task, split, tuple(lengths), use_cached=use_cached, lengths=lengths
    )


@gin.configurable("train_dataset_fn", module="t0")
def train_dataset_fn(mixture_or_task_name: str, sequence_length: Any, **arguments: Any) -> Any:
    """T5's `mesh_train_dataset_fn` under a name of ours; both give the same batches."""
    from t0.compat import t5_mesh

    return t5_mesh.mesh_train_dataset_fn(
        mixture_or_task_name=mixture_or_task_name, sequence_length=sequence_length, **arguments
    )


def opened_by(train_dataset_fn: Any, default_seed: int, **arguments: Any) -> Any:
    """Calls a run's dataset function; T5's own gives a `TrainingData`, any other what it gives."""
    with compat.t5_training_data(functools.partial(training_data, default_seed=default_seed)):
        return train_dataset_fn(**arguments)
