"""The unit of work of the general engine: source shards of one split of a task, one or several.

    [(0, 1), (1, 2)] == bounds(2)          # a source of two files: two units
    ShardRun(output, 1, 2, 2, "/out/unfinished-parts...")

SeqIO gives each shard of a source a seed of its own and caches one after the other. So a shard can
be read alone, in any process, and the parts, joined in order, are what reading them all gives.
"""

import dataclasses
import math
from collections.abc import Sequence

from t0.caching.ranges import Output

# A part for each of a million small files would be a burden on the output's file system.
MOST_RUNS = 1024


@dataclasses.dataclass(frozen=True)
class ShardRun:
    """A unit of work.

    Attributes:
      output: the split of the task.
      start, stop: the shards' numbers in the source.
      shards: how many the source has.
      directory: where the part goes.
    """

    output: Output
    start: int
    stop: int
    shards: int
    directory: str

    def __str__(self) -> str:
        if self.shards == 1:
            return str(self.output.unit)
        last = f" to {self.stop}" if self.stop > self.start + 1 else ""
        return f"{self.output.unit}, source shard {self.start + 1}{last} of {self.shards}"

    @property
    def outputs(self) -> list[Output]:
        """The one output, as a `Range` may have several."""
        return [self.output]

    def only(self, outputs: Sequence[Output]) -> "ShardRun":
        """Returns what is left of the job for these outputs: all of it."""
        del outputs
        return self


def bounds(shards: int) -> tuple[tuple[int, int], ...]:
    """Returns the runs of a source: one shard each, or several of very many.

    >>> bounds(3)
    ((0, 1), (1, 2), (2, 3))
    """
    size = math.ceil(shards / MOST_RUNS)
    return tuple((start, min(start + size, shards)) for start in range(0, shards, size or 1))
