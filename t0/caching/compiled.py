"""Finds the tasks that `ranges` can make, and cuts their datasets into ranges of rows.

    work = compile_units(plan.units, Options(), parts_dir, Opened(), ["my_tasks"])
    work.ranges      # what a runner works through, the largest dataset first
    work.shard_runs  # the same for other SeqIO tasks: see `general`
    work.targets     # unit -> what is made of its parts

A task qualifies if its source is T0's own and its preprocessors are exactly T0's
(`t0.tasks.prompted_tasks`). Tasks over the same split of a dataset share ranges, so that each of
its rows is read once, and the two tasks of a template share its rendering.

Ranges depend on the split alone, not on which tasks are asked for: so the parts that a killed run
left fit the next one, which may lack the tasks that were finished.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import t0
from t0 import sources
from t0.caching.fingerprint import Teller
from t0.caching.general import plan_shards
from t0.caching.known import behaviours
from t0.caching.merge import Target
from t0.caching.plan import rows_of_source
from t0.caching.ranges import Output, Prompt, Range
from t0.caching.source_shards import ShardRun
from t0.caching.unit import ABSENT, FAILED, Options, Outcome, Unit
from t0.compat import seqio
from t0.errors import AbsentData, UserError
from t0.tasks import PromptedSource
from t0.tasks.prompted_tasks import expand_choices
from t0.tasks.vocabulary import SharedVocabulary

# Raise it when records come out otherwise: parts of before are not taken over then.
FORMAT = 2
MIN_ROWS, MAX_ROWS, RANGES = 500, 50_000, 64
_TOKENISED = (seqio.preprocessors.tokenize, seqio.preprocessors.append_eos)

Bounds = tuple[tuple[int, int], ...]
# Dataset, subset, split: as the dataset calls it.
Data = tuple[str, str | None, str]


@dataclasses.dataclass(frozen=True)
class Work:
    """What is to be done, by kind.

    Attributes:
      ranges: units of work over the rows of a split.
      shard_runs: units of work over the shards of a source.
      targets: the splits that are made of them.
      bounds: split -> (first row or shard, end) of each of its parts, in order.
      failed: how units ended that cannot be begun.
      model: the tokenizer's model and its id of EOS, None if no range needs one.
    """

    ranges: tuple[Range, ...] = ()
    shard_runs: tuple[ShardRun, ...] = ()
    targets: Mapping[Unit, Target] = dataclasses.field(default_factory=dict)
    bounds: Mapping[Unit, Bounds] = dataclasses.field(default_factory=dict)
    failed: tuple[Outcome, ...] = ()
    model: tuple[bytes, int] | None = None


class Opened:
    """The splits of datasets that a run has opened, each once."""

    def __init__(self) -> None:
        self._splits: dict[Data, sources.SplitRows | UserError] = {}

    def rows(self, data: Data) -> sources.SplitRows:
        """Returns the rows of a split, counted.

        Raises:
          UserError: if they are absent or cannot be read.
        """
        if data not in self._splits:
            try:
                split = sources.open_split(*data)
                _ = split.num_rows
                self._splits[data] = split
            except UserError as error:
                self._splits[data] = error
        found = self._splits[data]
        if isinstance(found, UserError):
            raise found
        return found

    def rows_of(self, task: seqio.Task, split: str) -> int | None:
        """Returns the input rows of a task's split, None where nobody knows.

        Raises:
          AbsentData: if the data is nowhere.
          UserError: if it cannot be read.
        """
        if type(task.source) is not PromptedSource:
            return rows_of_source(task, split)
        return self.rows(_data(task.source, split)).num_rows


def _data(source: PromptedSource, split: str) -> Data:
    return source.dataset, source.subset, source.split_mapping[split]


def has_own_form(task: seqio.Task, options: Options) -> bool:
    """Whether `ranges` makes the records that the task's preprocessors make."""
    steps = tuple(task.preprocessors)
    features = task.output_features
    return (
        type(task.source) is PromptedSource
        and not options.enable_char_counts
        and isinstance(steps[-1], seqio.CacheDatasetPlaceholder)
        and steps[:-1] in (_TOKENISED, (expand_choices, *_TOKENISED))
        and set(features) == {"inputs", "targets"}
        and all(
            isinstance(feature.vocabulary, SharedVocabulary)
            and (feature.dtype.name, feature.rank) == ("int32", 1)
            for feature in features.values()
        )
        and (expand_choices not in steps or bool(task.source.template.answer_choices))
    )


def compile_units(
    units: Sequence[Unit],
    options: Options,
    parts_dir: str,
    opened: Opened,
    modules: Sequence[str] = (),
) -> Work:
    """Sorts units by engine, and plans the work on them.

    Args:
      modules: names of those that registered the tasks.

    Raises:
      UserError: if the vocabulary cannot be read.
    """
    tasks = {unit.task: seqio.TaskRegistry.get(unit.task) for unit in units}
    own = {name for name, task in tasks.items() if has_own_form(task, options)}
    others = [unit for unit in units if unit.task not in own]
    general = plan_shards(others, options, parts_dir, Teller(modules))
    of_own = [unit for unit in units if unit.task in own]
    prompted = _plan_ranges(of_own, tasks, parts_dir, opened) if of_own else Work()
    return dataclasses.replace(
        prompted,
        shard_runs=general.runs,
        targets={**prompted.targets, **general.targets},
        bounds={**prompted.bounds, **general.bounds},
        failed=prompted.failed + general.failed,
    )


def _plan_ranges(
    units: Sequence[Unit], tasks: Mapping[str, seqio.Task], parts_dir: str, opened: Opened
) -> Work:
    by_data: dict[Data, list[Unit]] = {}
    for unit in units:
        by_data.setdefault(_data(tasks[unit.task].source, unit.split), []).append(unit)
    vocabulary = tasks[units[0].task].output_features["inputs"].vocabulary
    model = vocabulary.sp_model
    ranges: list[list[Range]] = []
    targets: dict[Unit, Target] = {}
    bounds_of: dict[Unit, Bounds] = {}
    failed: list[Outcome] = []
    for data, of_data in by_data.items():
        try:
            rows = opened.rows(data)
            stem = {
                "format": FORMAT,
                "t0": t0.__version__,
                "data": [*data, rows.num_rows, _fingerprint(rows.where)],
                "model": hashlib.sha256(model).hexdigest(),
            }
            bounds = _bounds(rows.num_rows)
        except UserError as error:
            status = ABSENT if isinstance(error, AbsentData) else FAILED
            failed += [Outcome(unit, status, message=str(error)) for unit in of_data]
            continue
        prompts, faults = _prompts(of_data, tasks, rows, stem)
        failed += faults
        for prompt in prompts:
            for output in prompt.outputs:
                known = behaviours(*data, prompt.template.name)
                targets[output.unit] = Target(output, prompt.template.name, known)
                bounds_of[output.unit] = bounds
        if prompts:
            ranges.append([Range(*data, a, b, tuple(prompts), parts_dir) for a, b in bounds])
    ranges.sort(key=lambda some: -some[-1].stop * len(some[-1].prompts))
    flat = tuple(job for some in ranges for job in some)
    return Work(
        flat,
        targets=targets,
        bounds=bounds_of,
        failed=tuple(failed),
        model=(model, vocabulary.eos_id),
    )


def _bounds(rows: int) -> Bounds:
    """Returns the ranges of a split: some tens, so that cores are busy and a kill costs little."""
    size = min(max(MIN_ROWS, math.ceil(rows / RANGES)), MAX_ROWS)
    return tuple((start, min(start + size, rows)) for start in range(0, rows, size)) or ((0, 0),)


def _prompts(
    units: Sequence[Unit], tasks: Mapping[str, seqio.Task], rows: Any, stem: Mapping[str, Any]
) -> tuple[list[Prompt], list[Outcome]]:
    outputs: dict[tuple[Any, str], list[Output]] = {}
    faults: list[Outcome] = []
    for unit in units:
        task = tasks[unit.task]
        source: PromptedSource = task.source
        try:
            source.check_columns(rows)
        except UserError as error:
            faults.append(Outcome(unit, FAILED, message=str(error)))
            continue
        template, choices = source.template, expand_choices in task.preprocessors
        features = task.output_features
        eos = (features["inputs"].add_eos, features["targets"].add_eos)
        key = {
            **stem,
            "template": [template.name, template.jinja, template.answer_choices],
            "seed": source.seed_name,
            "output": [choices, source.hide_labels, *eos],
        }
        output = Output(
            unit,
            choices=choices,
            hide_labels=source.hide_labels,
            eos=eos,
            answer_choices=template.answer_choices is not None and not choices,
            key=json.dumps(key, sort_keys=True),
        )
        outputs.setdefault((template, source.seed_name), []).append(output)
    prompts = [Prompt(template, seed, tuple(some)) for (template, seed), some in outputs.items()]
    return prompts, faults


def _fingerprint(where: str) -> list[Any]:
    """Returns what changes with the data: names, sizes and times of its files on this machine."""
    path = Path(where)
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    told: list[Any] = [where]
    for file in files:
        if file.is_file():
            status = file.stat()
            told.append([file.name, status.st_size, status.st_mtime_ns])
    return told
