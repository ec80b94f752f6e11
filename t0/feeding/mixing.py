"""Draws examples endlessly from a mixture's tasks, by their rates, with a state that can be saved.

    mixture = MixedStream(sources, rates, seed=7)
    examples = mixture.take()           # the next 256 examples
    state = mixture.state()             # four numbers for each task that was drawn from
    mixture.restore(state)              # continues from this state

Restoring a state does not read the earlier examples again.
"""

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.config.specification import Count
from t0.errors import UserError
from t0.feeding.reading import ExampleBlock, ExampleSource

# The number of examples for which tasks are drawn together, with a new random generator each time.
DRAWS = 256
_MIXING = zlib.crc32(b"mixing")


@dataclasses.dataclass(frozen=True)
class MixtureState:
    """A state of `MixedStream` in a checkpoint.

    Attributes:
      drawn: how many times `DRAWS` examples were drawn.
      tasks: task name -> [epoch, block, offset, number of examples so far].
    """

    drawn: Count
    tasks: Mapping[str, tuple[Count, Count, Count, Count]]


class TaskStream:
    """The examples of one task, epoch after epoch, in a different order in each epoch.

    Args:
      source: the source of the examples.
      seed: the seed of the orders; None for the dataset's own order.
    """

    def __init__(self, source: ExampleSource, seed: int | None) -> None:
        self.source = source
        self._seed = seed
        self._epoch = self._number = self._offset = self._served = 0
        self._blocks: Iterator[ExampleBlock] | None = None
        self._block: ExampleBlock | None = None

    @property
    def served(self) -> int:
        """The number of examples returned so far."""
        return self._served

    def state(self) -> list[int]:
        """Returns [epoch, block, offset, number of examples returned so far]."""
        return [self._epoch, self._number, self._offset, self._served]

    def restore(self, state: Sequence[int]) -> None:
        """Continues from a result of `state`."""
        self._epoch, self._number, self._offset, self._served = state
        self._blocks = self._block = None

    def next_example(self) -> dict[str, np.ndarray]:
        """Returns the next example.

        Raises:
          UserError: if the task has no examples.
        """
        while self._block is None or self._offset >= len(self._block):
            self._next_block()
        example = self._block[self._offset]
        self._offset += 1
        self._served += 1
        return example

    def _next_block(self) -> None:
        if self._block is not None:  # used up
            self._number, self._offset = self._number + 1, 0
        if self._blocks is None:
            self._blocks = self._open_blocks()
        if self._advance_block():
            return
        if self._number == 0:
            raise UserError(
                f"the training data of task {self.source.name} has no examples: too few examples "
                "to fill a batch. Is its cache, or its text, empty?"
            )
        self._epoch, self._number, self._offset = self._epoch + 1, 0, 0
        self._blocks = self._open_blocks()
        if not self._advance_block():
            raise UserError(f"the training data of task {self.source.name} has disappeared")

    def _advance_block(self) -> bool:
        self._block = next(self._blocks, None)
        if self._block is not None and self._block.number is not None:
            self._number = self._block.number
        return self._block is not None

    def _open_blocks(self) -> Iterator[ExampleBlock]:
        return self.source.blocks(epoch=self._epoch, first=self._number, seed=self._seed)


@dataclasses.dataclass(frozen=True)
class TaskShare:
    """The share of one task in a mixture.

    Attributes:
      name: the task's name.
      rate: the task's share of the drawn examples.
      examples: the number of examples of its split; None if it is unknown.
      served: the number of its examples that were drawn so far.
    """

    name: str
    rate: float
    examples: int | None
    served: int

    @property
    def passes(self) -> float | None:
        """The average number of times that an example was drawn; None if it is unknown."""
        return self.served / self.examples if self.examples else None


class MixedStream:
    """An endless stream of examples of several tasks, drawn by rates.

    Args:
      sources: the tasks' sources.
      rates: the tasks' rates, in the same order; they need not sum to 1.
      seed: the seed of the draws and of the order within each task.
      shuffle: whether to shuffle within each task.
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
        self._streams = [TaskStream(source, seed if shuffle else None) for source in sources]
        self._shares = np.array(rates, np.float64) / total
        self._seed = seed
        self._drawn = 0  # in units of DRAWS

    def take(self) -> list[dict[str, np.ndarray]]:
        """Returns the next `DRAWS` examples."""
        generator = np.random.default_rng([self._seed, _MIXING, self._drawn])
        stream_numbers = generator.choice(len(self._streams), size=DRAWS, p=self._shares)
        self._drawn += 1
        return [self._streams[number].next_example() for number in stream_numbers.tolist()]

    def state(self) -> dict[str, Any]:
        """Returns the stream's state, which can be written as JSON."""
        tasks = {s.source.name: s.state() for s in self._streams if s.served}
        return {"drawn": self._drawn, "tasks": tasks}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a result of `state`.

        Raises:
          UserError: if the state belongs to another mixture.
        """
        names = {stream.source.name for stream in self._streams}
        unknown = sorted(set(state["tasks"]) - names)
        if unknown:
            raise UserError(
                "the checkpoint's data position belongs to another mixture: it has read "
                f"{unknown[0]}"
            )
        self._drawn = state["drawn"]
        for stream in self._streams:
            stream.restore(state["tasks"].get(stream.source.name, [0, 0, 0, 0]))

    def shares(self) -> list[TaskShare]:
        """Returns the share of each task."""
        return [
            TaskShare(stream.source.name, float(share), stream.source.examples, stream.served)
            for stream, share in zip(self._streams, self._shares, strict=True)
        ]
