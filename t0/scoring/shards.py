"""Shards of a rank evaluation: each scores some of the batches, on a machine of its own.

    shard = Shard(2, 8)                     # score_eval.shard_id = 2, score_eval.num_shards = 8
    shard.has(10), shard.has(11)            # True, False: the numbers of batches

Every shard plans the same batches over all examples of all tasks. So a choice is scored in the same
batch as by one evaluation, to the same bits, and `t0.scoring.merging` makes the same files.

A shard's folder is `shard-00002-of-00008` below the folder for results:

    scores/<task>_<step>.jsonl    a line for each example of which the shard scored a choice;
                                  log-likelihoods of other choices, and the prediction, are null
    shard_<step>.json             the run, and for each task what its entry in the results needs

While it scores, `unfinished_<step>/` has what it takes up if it is killed.

Assumptions: the shards read the same rows. Tasks have T5's rank classification as their metric;
another metric's function could not be found from files.
"""

import dataclasses
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.errors import UserError
from t0.scoring import results
from t0.scoring.batch_planning import BatchPlan
from t0.scoring.packed_batches import PackedPlan
from t0.scoring.rank_metrics import classes_of
from t0.scoring.reading import ScoringTask
from t0.scoring.results import CheckpointResults, Scored

SCHEMA = 1
KIND = "shard of a rank evaluation"


@dataclasses.dataclass(frozen=True)
class Shard:
    """A part of the batches.

    Attributes:
      id: from 0.
      of: the number of shards.
    """

    id: int = 0
    of: int = 1

    def check(self, name: str) -> None:
        """Raises a UserError unless there is such a shard; `name` is the settings' name in gin."""
        for field, value, least in (("shard_id", self.id, 0), ("num_shards", self.of, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(
                    f"{name}.{field} is {value!r}; wanted a whole number from {least} on"
                )
        if self.id >= self.of:
            raise UserError(
                f"{name}.shard_id is {self.id}; with {self.of} shard(s) wanted 0 to {self.of - 1} "
                "(--shard_id, --num_shards)"
            )

    def has(self, number: int) -> bool:
        """Returns whether the shard has a batch, by its number."""
        return number % self.of == self.id

    @property
    def folder(self) -> str:
        """The name of the shard's folder."""
        return f"shard-{self.id:05d}-of-{self.of:05d}"

    @property
    def words(self) -> str:
        """The shard in words, as the end of a sentence's part; empty if there is only one."""
        return "" if self.of == 1 else f" (shard {self.id} of {self.of})"


WHOLE = Shard()


def batches_digest(tasks: Sequence[ScoringTask], plan: BatchPlan | PackedPlan) -> str:
    """Returns a hash that shards have in common if they plan the same batches of the same tasks.

    Raises:
      UserError: if a task has a metric that is not T5's rank classification.
    """
    rows = []
    for task in tasks:
        if any(classes_of(metric) is None for metric in task.metric_fns):
            raise UserError(
                f"task {task.name} has a metric that is not T5's rank classification, which "
                "`t0 merge` cannot compute: evaluate it without --num_shards"
            )
        counts = (len(task.choices), int(task.choices.sum()), zlib.crc32(task.gold.tobytes()))
        sizes = [sorted(counted.items()) for counted in (task.sizes, task.tokens)]
        rows.append([task.name, counts, sizes, task.documents])
    shapes = [dataclasses.astuple(shape) for shape in plan.shapes]
    return hashlib.sha256(json.dumps([shapes, rows], default=int).encode()).hexdigest()[:16]


class ShardResults(CheckpointResults):
    """The results of one checkpoint in one shard; see `CheckpointResults`.

    Args:
      folder: the folder for the results of all shards.
      run: the run's facts.
      tasks: the names of all tasks.
      shard: the shard.
      batches: what `batches_digest` returns.
      writes: whether this process writes.
    """

    KIND = "shard"
    _NEEDED = frozenset({"scored", "classes"})

    def __init__(
        self,
        folder: str,
        run: Mapping[str, Any],
        tasks: Sequence[str],
        *,
        shard: Shard,
        batches: str,
        writes: bool = True,
    ) -> None:
        facts = {**run, "shard": dataclasses.asdict(shard), "batches": batches}
        super().__init__(os.path.join(folder, shard.folder), facts, tasks, writes=writes)  # noqa: PTH118

    def _scored(self, task: ScoringTask, scored: Iterable[Scored]) -> dict[str, Any]:
        counted = 0

        def lines() -> Iterator[dict[str, Any]]:
            nonlocal counted
            for example, row in scored:
                found = int(np.isfinite(row).sum())
                if found:
                    counted += found
                    yield _partial(results.score_line(example, row))

        self._write_lines(task.name, lines())
        return {
            **results.task_facts(task),
            "rows": len(task.choices),
            "choices": int(task.choices.sum()),
            "scored": counted,
            "classes": [classes_of(metric)[0] for metric in task.metric_fns],
        }

    def write(self) -> str:
        """Writes `shard_<step>.json`, and returns its path.

        Raises:
          ValueError: if a task is unfinished.
        """
        if self.unfinished:
            raise ValueError(f"unfinished: {sorted(self.unfinished)}")
        path = os.path.join(self._folder, f"shard_{self.run['step']}.json")  # noqa: PTH118
        if self._writes:
            content = {"schema": SCHEMA, "kind": KIND, "run": self.run, "tasks": self._entries}
            results.write_json(path, content)
        return path


def _partial(line: dict[str, Any]) -> dict[str, Any]:
    """Returns the line of an example without what only all of its scores say."""
    for choice in line["choices"]:
        if np.isnan(choice["log_likelihood"]):
            choice["log_likelihood"] = None
    return {**line, "prediction": None}
