"""Keeps account of a run's parts: which are there, and what can be made of them.

    ledger = Ledger(work, options)
    queue = deque(ledger.begin())            # ranges and source shards, splits to join
    queue += ledger.made(job, told)          # a split whose last part has come, or its outcome

`execute` does one such job, in whatever process it is called.
"""

import posixpath
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any

from t0.caching import parts
from t0.caching.judge import judge
from t0.caching.merge import Merge, Target, counted, merge
from t0.caching.ranges import Range
from t0.caching.source_shards import ShardRun
from t0.caching.unit import ABSENT, EMPTY, FAILED, STOP, Options, Outcome, Unit
from t0.errors import AbsentData, UserError, original
from t0.files import OutputError, paths

Bounds = tuple[tuple[int, int], ...]
# A job that makes parts; and any.
Making = Range | ShardRun
Job = Making | Merge
# What a part tells (`parts.PartWriter.finish`), or how its unit ends for want of it.
Told = Mapping[str, Any] | Outcome


def execute(
    job: Job, make: Callable[[Any], Mapping[str, Mapping[str, Any] | str]]
) -> dict[str, Told] | Outcome:
    """Does one job; what is wrong is told, not raised.

    Args:
      make: makes the parts of a job that is no `Merge`; returns task -> what its part tells, or
        why there is none.

    Returns:
      of a `Merge` the split's outcome, else for each task what its part tells.
    """
    try:
        if isinstance(job, Merge):
            return merge(job)
        units = {output.unit.task: output.unit for output in job.outputs}
        return {
            task: Outcome(units[task], FAILED, message=told) if isinstance(told, str) else told
            for task, told in make(job).items()
        }
    except Exception as error:  # noqa: BLE001 - every cause belongs in the result
        outputs = [job.target.output] if isinstance(job, Merge) else job.outputs
        ends = {output.unit.task: _end(output.unit, error, job) for output in outputs}
        return ends[outputs[0].unit.task] if isinstance(job, Merge) else ends


def _end(unit: Unit, error: Exception, job: Job) -> Outcome:
    """Returns how a unit ends after an error: in a message's end stands where, if it says more."""
    cause = original(error)
    where = "" if str(job) == str(unit) else f" ({job})"
    if isinstance(cause, UserError):
        kinds = ((OutputError, STOP), (AbsentData, ABSENT), (UserError, FAILED))
        status = next(status for kind, status in kinds if isinstance(cause, kind))
        return Outcome(unit, status, message=f"{cause}{where}")
    first = (str(cause).splitlines() or [""])[0]
    trace = "".join(traceback.format_exception(error))
    return Outcome(unit, FAILED, message=f"{type(cause).__name__}: {first}{where}", trace=trace)


def conclude(
    target: Target, told: Iterable[Told], options: Options, parts_dir: str
) -> Merge | Outcome:
    """Returns what becomes of a split when all of its parts are there.

    Args:
      told: for each part, in order: what it tells, or how the unit ends for want of it.
    """
    unit = target.output.unit
    infos = list(told)
    for info in infos:
        if isinstance(info, Outcome):
            return info
    verdict = judge(target, infos, options)
    counts = counted(infos)
    if verdict.message:
        status = FAILED if counts.get("rows", 1) else ABSENT
        return Outcome(unit, status, counts=counts, message=verdict.message)
    if verdict.empty:
        return Outcome(unit, EMPTY, counts=counts, notes=verdict.notes)
    paths = tuple(
        posixpath.join(parts_dir, parts.part_name(target.output.key, info["start"], info["stop"]))
        for info in infos
    )
    version = metadata.version("seqio")
    return Merge(target, paths, tuple(infos), options, version, verdict.notes)


class Ledger:
    """The parts of a run, by unit and first row or source shard."""

    def __init__(self, work: Any, options: Options, parts_dir: str) -> None:
        """Starts an account.

        Args:
          work: a `t0.caching.compiled.Work`, whose module needs TensorFlow and this one does not.
        """
        self._jobs: tuple[Making, ...] = (*work.ranges, *work.shard_runs)
        self._targets: Mapping[Unit, Target] = work.targets
        self._bounds: Mapping[Unit, Bounds] = work.bounds
        self._options = options
        self.parts_dir = parts_dir
        self._told: dict[Unit, dict[int, Told]] = {unit: {} for unit in work.targets}

    def begin(self) -> Iterator[Job | Outcome]:
        """Yields what there is to do, after a look at the parts that are there already."""
        left = []
        for job in self._jobs:
            outputs = [output for output in job.outputs if not self._take_over(output, job)]
            if outputs:
                left.append(job.only(outputs))
        yield from filter(None, map(self._concluded, self._targets))
        yield from left

    def _take_over(self, output: Any, job: Making) -> bool:
        name = parts.part_name(output.key, job.start, job.stop)
        info = parts.read_info(posixpath.join(self.parts_dir, name))
        if info is not None:
            self._told[output.unit][job.start] = info
        return info is not None

    def made(self, job: Making, told: Mapping[str, Told]) -> Iterator[Merge | Outcome]:
        """Notes the end of a job, and yields what follows of it."""
        for output in job.outputs:
            self._told[output.unit][job.start] = told[output.unit.task]
            concluded = self._concluded(output.unit)
            if concluded:
                yield concluded

    def _concluded(self, unit: Unit) -> Merge | Outcome | None:
        told = self._told[unit]
        if len(told) < len(self._bounds[unit]):
            return None
        in_order = (told[start] for start, _ in self._bounds[unit])
        return conclude(self._targets[unit], in_order, self._options, self.parts_dir)

    def known(self) -> Iterator[tuple[str, tuple[int, Told]]]:
        """Yields (unit as text, (start, what its part tells)) of all parts that are there."""
        for unit, told in self._told.items():
            for start, info in told.items():
                yield str(unit), (start, info)

    def so_far(self, unit: Unit) -> tuple[int | None, int]:
        """Returns how many rows of the unit are done, if known, and the examples they gave."""
        told = self._told.get(unit, {}).values()
        infos = [info for info in told if not isinstance(info, Outcome)]
        rows = counted(infos).get("rows") if infos else None
        return rows, sum(info["records"] for info in infos)

    def forget(self, unit: Unit) -> None:
        """Removes the parts of a unit that nobody needs any more."""
        if unit not in self._targets:
            return
        key = self._targets[unit].output.key
        for start, stop in self._bounds[unit]:
            paths.remove(posixpath.join(self.parts_dir, parts.part_name(key, start, stop)))
