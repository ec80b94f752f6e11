"""Plans the work on all SeqIO tasks that `ranges` cannot make: units of their source's shards.

    planned = plan_shards(plan.units, Options(), parts_dir, Teller(["my_tasks"]))
    planned.runs       # what a runner works through, in the order of the units
    planned.targets    # unit -> what is made of its parts

A source of one shard (a Python generator) is one unit of work. What its parts depend on stands in
their names (`fingerprint`); where that cannot be told, a name is good for one run only.
"""

import dataclasses
import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping

from t0.caching.fingerprint import Teller
from t0.caching.known import behaviours
from t0.caching.merge import Target
from t0.caching.ranges import Output
from t0.caching.source_shards import ShardRun, bounds
from t0.caching.unit import ABSENT, FAILED, Options, Outcome, Unit
from t0.compat import seqio
from t0.errors import AbsentData, original
from t0.tasks import PromptedSource

# Raise it when parts come out otherwise: those of before are not taken over then.
FORMAT = 1

Bounds = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Planned:
    """The units of work of some splits, what is made of them, and splits that cannot be begun."""

    runs: tuple[ShardRun, ...] = ()
    targets: Mapping[Unit, Target] = dataclasses.field(default_factory=dict)
    bounds: Mapping[Unit, Bounds] = dataclasses.field(default_factory=dict)
    failed: tuple[Outcome, ...] = ()


def plan_shards(units: Iterable[Unit], options: Options, parts_dir: str, teller: Teller) -> Planned:
    """Cuts the splits of tasks into runs of their source's shards."""
    runs: list[ShardRun] = []
    targets: dict[Unit, Target] = {}
    bounds_of: dict[Unit, Bounds] = {}
    failed: list[Outcome] = []
    for unit in units:
        try:
            target = _target(unit, options, teller)
        except Exception as error:  # noqa: BLE001 - sources fail in many ways
            failed.append(_unplanned(unit, original(error)))
            continue
        targets[unit] = target
        bounds_of[unit] = bounds(target.source_shards)
        runs += [
            ShardRun(target.output, start, stop, target.source_shards, parts_dir)
            for start, stop in bounds_of[unit]
        ]
    return Planned(tuple(runs), targets, bounds_of, tuple(failed))


def _unplanned(unit: Unit, error: BaseException) -> Outcome:
    status = ABSENT if isinstance(error, AbsentData) else FAILED
    return Outcome(unit, status, message=str(error) or type(error).__name__)


def _target(unit: Unit, options: Options, teller: Teller) -> Target:
    task = seqio.TaskRegistry.get(unit.task)
    shards = len(task.source.list_shards(unit.split))
    if not shards:
        raise AbsentData(f"{task.name}: no file matches {task.source}")
    key = _key(task, unit.split, options, teller)
    source = task.source
    if not isinstance(source, PromptedSource):
        output = Output(unit, False, False, (False, True), False, key)
        return Target(output, "", source_shards=shards)
    # Labels are hidden for rank evaluation; the rest of an output is for `ranges`.
    output = Output(unit, source.hide_labels, source.hide_labels, (False, True), False, key)
    data = (source.dataset, source.subset, source.split_mapping[unit.split])
    name = source.template.name
    return Target(output, name, behaviours(*data, name), shards)


def _key(task: seqio.Task, split: str, options: Options, teller: Teller) -> str:
    data = teller.data(task.source, split)
    if data is None:
        return uuid.uuid4().hex
    key = {
        "format": FORMAT,
        "task": task.name,
        "split": split,
        "seed": options.base_seed,
        "characters": options.enable_char_counts,
        "data": data,
        "code": teller.code(task),
    }
    # In short, as it goes with every job.
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
