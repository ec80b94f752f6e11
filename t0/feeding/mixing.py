"""Draws examples of a mixture's tasks by their rates, for ever, from a position that can be kept.

mixture = MixedStream(sources, rates, seed=7)
examples = mixture.take(256)
state = mixture.state()             # small: four numbers for each task that was drawn from
mixture.restore(state)              # goes on as if it had never stopped
"""

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.errors import UserError
from t0.feeding.reading import Block, Source

# Tasks are drawn this many at a time from a generator of their own.
DRAWS = 256
_MIXING = zlib.crc32(b"mixing")


class TaskStream:
    """The examples of one task, epoch after epoch, each in another order.

    Args:
      source: where they come from.
      seed: of the orders; None keeps the dataset's.
    """

    def __init__(self, source: Source, seed: int | None) -> None:
        self.source = source
        self._seed = seed
        self._epoch = self._number = self._offset = self._served = 0
        self._blocks: Iterator[Block] | None = None
        self._block: Block | None = None

    @property
    def served(self) -> int:
        """Examples given so far."""
        return self._served

    def state(self) -> list[int]:
        """Returns [epoch, block, offset, examples given]."""
        return [self._epoch, self._number, self._offset, self._served]

    def restore(self, state: Sequence[int]) -> None:
        """Goes to a state."""
        self._epoch, self._number, self._offset, self._served = state
        self._blocks = self._block = None

    def following(self) -> dict[str, np.ndarray]:
        """Returns the next example.

        Raises:
          UserError: if the task has none.
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
            self._blocks = self._opened()
        if self._opened_block():
            return
        if self._number == 0:
            raise UserError(
                f"the training data of task {self.source.name} has no examples: too few examples "
                "to fill a batch. Is its cache, or its text, empty?"
            )
        self._epoch, self._number, self._offset = self._epoch + 1, 0, 0
        self._blocks = self._opened()
        if not self._opened_block():
            raise UserError(f"the training data of task {self.source.name} has gone")

    def _opened_block(self) -> bool:
        self._block = next(self._blocks, None)
        if self._block is not None and self._block.number is not None:
            self._number = self._block.number
        return self._block is not None

    def _opened(self) -> Iterator[Block]:
        return self.source.blocks(epoch=self._epoch, first=self._number, seed=self._seed)


@dataclasses.dataclass(frozen=True)
class Share:
    """One task of a mixture.

    Attributes:
      name: of the task; rate: its share of the examples drawn.
      examples: of its split, None if unknown; served: examples drawn so far.
    """

    name: str
    rate: float
    examples: int | None
    served: int

    @property
    def passes(self) -> float | None:
        """How often its examples have been gone through."""
        return self.served / self.examples if self.examples else None


class MixedStream:
    """Examples of several tasks, drawn by rates.

    Args:
      sources: of the tasks.
      rates: in the same order, of any sum.
      seed: of the draws and of the orders within tasks.
      shuffle: False keeps the order within tasks.
    """

    def __init__(
        self, sources: Sequence[Source], rates: Sequence[float], *, seed: int, shuffle: bool = True
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
        chosen = generator.choice(len(self._streams), size=DRAWS, p=self._shares)
        self._drawn += 1
        return [self._streams[number].following() for number in chosen.tolist()]

    def state(self) -> dict[str, Any]:
        """Returns where the stream stands, as JSON can hold it."""
        tasks = {s.source.name: s.state() for s in self._streams if s.served}
        return {"drawn": self._drawn, "tasks": tasks}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes to a state that `state` gave.

        Raises:
          UserError: if it is of another mixture.
        """
        known = {stream.source.name for stream in self._streams}
        unknown = sorted(set(state["tasks"]) - known)
        if unknown:
            raise UserError(
                f"the checkpoint's data position is of another mixture: it has read {unknown[0]}"
            )
        self._drawn = state["drawn"]
        for stream in self._streams:
            stream.restore(state["tasks"].get(stream.source.name, [0, 0, 0, 0]))

    def shares(self) -> list[Share]:
        """Returns what was drawn of each task."""
        return [
            Share(stream.source.name, float(share), stream.source.examples, stream.served)
            for stream, share in zip(self._streams, self._shares, strict=True)
        ]
