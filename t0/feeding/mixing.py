"""Draws an endless stream of examples from a mixture's tasks, in proportion to their rates.

    mixture = MixedStream(sources, rates, seed=7)
    examples = mixture.take()           # the next 256 examples
    mixture.seek(8, states={})          # continues after the first 8 * 256 examples

One take draws 256 examples. The stream can start at any take. The task of each draw depends only on
the seed and on the number of the draw. So the number of a task's examples before a draw is counted
without reading these examples. If the task is cached, this number determines its next example.
Other tasks need the state that `states` returns.
"""

import dataclasses
import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from t0.config.plain_data import Count
from t0.errors import UserError
from t0.feeding.reading import ExampleBlock, ExampleSource

# The number of examples of one take.
DRAWS = 256
# The number of examples that one random generator draws. It is a multiple of `DRAWS`.
_DRAWS_OF_GENERATOR = 2**16
_MIXING = zlib.crc32(b"mixing")

# (epoch, block, offset in the block, number of examples returned so far)
TaskState = tuple[Count, Count, Count, Count]


class TaskStream:
    """The endless examples of one task. Each epoch has a different order.

    Args:
      source: the source of the examples.
      seed: the seed of the epochs' orders; None for the dataset's own order.

    Attributes:
      source: the source of the examples.
      served: the number of examples returned so far.
    """

    def __init__(self, source: ExampleSource, seed: int | None) -> None:
        self.source = source
        self._seed = seed
        self._epoch = self._number = self._offset = self.served = 0
        self._blocks: Iterator[ExampleBlock] | None = None
        self._block: ExampleBlock | None = None

    def state(self) -> TaskState | None:
        """Returns the state for `restore`; None if `seek` needs no state."""
        if self.source.cache or not self.served:
            return None
        return self._epoch, self._number, self._offset, self.served

    def restore(self, state: TaskState) -> None:
        """Continues from a state that the method `state` returned."""
        self._epoch, self._number, self._offset, self.served = state
        self._blocks = self._block = None

    def seek(self, served: int) -> None:
        """Continues after the first `served` examples.

        Raises:
          UserError: if the place to continue could only be found by reading these examples.
        """
        if served == self.served:
            return
        if served and not self.source.cache:
            raise UserError(
                f"task {self.source.name} is not cached, so its data cannot be read from example "
                f"{served:,} on. Cache it with seqio_cache_tasks"
            )
        epoch, number, offset = (
            self.source.cache.locate(served, self._seed) if served else (0, 0, 0)
        )
        if self._block is not None and (epoch, number) == (self._epoch, self._number):
            self._offset, self.served = offset, served  # the block is already in memory
        else:
            self.restore((epoch, number, offset, served))

    def records(self, served: np.ndarray) -> np.ndarray:
        """Returns the record number of each example.

        Args:
          served: the number of the task's examples before each example, int64.
        """
        epochs, offsets = np.divmod(served, max(1, self.source.examples))
        numbers = np.empty_like(served)
        for epoch in np.unique(epochs).tolist():
            members = epochs == epoch
            numbers[members] = self.source.cache.records(epoch, self._seed, offsets[members])
        return numbers

    def next_example(self) -> dict[str, np.ndarray]:
        """Returns the next example.

        Raises:
          UserError: if the task has no examples.
        """
        while self._block is None or self._offset >= len(self._block):
            self._next_block()
        example = self._block[self._offset]
        self._offset += 1
        self.served += 1
        return example

    def _next_block(self) -> None:
        if self._block is not None:  # all examples of the block have been returned
            self._number, self._offset = self._number + 1, 0
        while True:
            if self._blocks is None:
                self._blocks = self.source.blocks(
                    epoch=self._epoch, first=self._number, seed=self._seed
                )
            self._block = next(self._blocks, None)
            if self._block is not None and self._block.number is not None:
                self._number = self._block.number
            if self._block is not None and (len(self._block) or self.source.examples != 0):
                return
            if self._number == 0:
                raise UserError(
                    f"the training data of task {self.source.name} has no examples: too few "
                    "examples to fill a batch. Is its cache, or its text, empty?"
                )
            self._epoch, self._number, self._offset, self._blocks = self._epoch + 1, 0, 0, None


@dataclasses.dataclass(frozen=True)
class TaskShare:
    """One task's share of a mixture.

    Attributes:
      name: the task's name.
      rate: the task's share of the drawn examples.
      examples: the number of examples in the task's split; None if it is unknown.
      served: the number of examples drawn from the task so far.
    """

    name: str
    rate: float
    examples: int | None
    served: int


class MixedStream:
    """An endless stream of examples of several tasks, drawn in proportion to their rates.

    Args:
      sources: the tasks' sources.
      rates: the tasks' rates, in the same order; they need not sum to 1.
      seed: the seed of the draws and of the order within each task.
      shuffle: whether to shuffle within each task.

    Attributes:
      streams: the tasks' streams, in the order of the tasks' numbers.
    """

    def __init__(
        self,
        sources: Sequence[ExampleSource],
        rates: Sequence[float],
        *,
        seed: int,
        shuffle: bool = True,
    ) -> None:
        total = float(sum(rates))
        if total <= 0:
            raise UserError("the mixture's rates sum to zero: no task would ever be drawn")
        self.streams = [TaskStream(source, seed if shuffle else None) for source in sources]
        self._shares = np.array(rates, np.float64) / total
        self._seed = seed
        self._drawn = 0  # the number of takes so far
        self._choose = functools.lru_cache(maxsize=1)(self._draw_tasks)
        # The number of generators counted so far, and how many of their draws chose each task.
        self._counted = 0, np.zeros(len(sources), np.int64)

    def take(self) -> list[dict[str, np.ndarray]]:
        """Returns the next `DRAWS` examples."""
        chosen = self.tasks_of(self._drawn, 1)
        self._drawn += 1
        return [self.streams[number].next_example() for number in chosen.tolist()]

    def tasks_of(self, first: int, count: int) -> np.ndarray:
        """Returns the task number of each example of some takes, int64 [count * DRAWS].

        Args:
          first: the number of takes before these examples.
          count: the number of takes.
        """
        chosen = []
        for drawn in range(first, first + count):
            generator, start = divmod(drawn * DRAWS, _DRAWS_OF_GENERATOR)
            chosen.append(self._choose(generator)[start : start + DRAWS])
        return np.concatenate([np.zeros(0, np.int64), *chosen])

    def _draw_tasks(self, generator: int) -> np.ndarray:
        counts, rng = self._draw_counts(generator)
        return rng.permutation(np.repeat(np.arange(len(counts)), counts))

    def _draw_counts(self, generator: int) -> tuple[np.ndarray, np.random.Generator]:
        """Returns how often a generator draws each task, without making all of its draws."""
        rng = np.random.default_rng([self._seed, _MIXING, generator])
        return rng.multinomial(_DRAWS_OF_GENERATOR, self._shares), rng

    def count_served(self, drawn: int) -> np.ndarray:
        """Returns the number of each task's examples in the first `drawn` takes, int64 [tasks].

        Args:
          drawn: the number of takes.
        """
        generators, rest = divmod(drawn * DRAWS, _DRAWS_OF_GENERATOR)
        counted, served = self._counted
        if counted > generators:
            counted, served = 0, np.zeros_like(served)
        for number in range(counted, generators):
            served = served + self._draw_counts(number)[0]
        self._counted = generators, served
        return served + np.bincount(self._choose(generators)[:rest], minlength=len(served))

    def states(self) -> dict[str, TaskState]:
        """Returns task -> its state, for the tasks that need a state to continue."""
        return {s.source.name: state for s in self.streams if (state := s.state())}

    def seek(self, drawn: int, states: Mapping[str, TaskState]) -> None:
        """Continues after the first `drawn` takes.

        Args:
          drawn: the number of takes.
          states: a result of `states` after these takes.

        Raises:
          UserError: if the states belong to another mixture, or if a state is missing.
        """
        unknown = sorted(set(states) - {stream.source.name for stream in self.streams})
        if unknown:
            raise UserError(
                "the checkpoint's data position belongs to another mixture: it has read "
                f"{unknown[0]}"
            )
        if drawn == self._drawn:
            return
        self._drawn = drawn
        for stream, served in zip(self.streams, self.count_served(drawn).tolist(), strict=True):
            if stream.source.name in states:
                stream.restore(states[stream.source.name])
            else:
                stream.seek(served)

    def records_of(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the task number and the record number of each example of some takes.

        Args:
          first: the number of takes before these examples.
          count: the number of takes.
        """
        tasks, before = self.tasks_of(first, count), self.count_served(first)
        records = np.zeros_like(tasks)
        for number in np.unique(tasks).tolist():
            members = np.flatnonzero(tasks == number)
            served = before[number] + np.arange(members.size)
            records[members] = self.streams[number].records(served)
        return tasks, records

    def shares(self) -> list[TaskShare]:
        """Returns the share of each task."""
        return [
            TaskShare(stream.source.name, float(share), stream.source.examples, stream.served)
            for stream, share in zip(self.streams, self._shares, strict=True)
        ]
