"""Decides what a run writes: which tasks, which splits, where.

    request = Request(output_cache_dir="/data/cache", tasks=["super_glue_rte_.*", "t0_train"])
    plan = make_plan(request, catalogue, tag="incomplete-host-4711-1700000000")
    plan.splits     # of all tasks, the largest task first
    plan.tasks      # what is published when the splits of a task are whole
    plan.skipped    # task -> why nothing is written for it

Nothing here reads data, writes files or needs TensorFlow: a `Catalogue` gives access to the
registry and the caches that exist. `Options` and `Setup` go to every process. Selection and the
rules about existing caches are SeqIO's own (`seqio.scripts.cache_tasks_main`), with three
additions: a mixture's name means its tasks, a name that matches nothing is an error, and a
finished cache in the output directory itself is kept unless `overwrite` is given, also under
`ignore_other_caches`.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from t0.errors import AbsentData, UserError, unknown_name
from t0.files import path_inside

# T0's sequence lengths, in tokens with EOS: what is longer is cut in training.
LONGEST = {"inputs": 1024, "targets": 256}


@dataclasses.dataclass(frozen=True)
class Request:
    """What to cache; the fields are named as the command's flags.

    Attributes:
      output_cache_dir: where the tasks' directories are made, local or `gs://`.
      tasks: regexes of task names (whole name), or names of mixtures; all tasks if empty.
      excluded_tasks: the same, for tasks to leave out.
      tasks_additional_cache_dirs: other directories in which a task may be cached already.
      splits: the splits to cache; all of each task if empty.
      overwrite: write a task again that is finished in `output_cache_dir`.
      ignore_other_caches: write a task although it is cached in another directory.
      skip_absent_splits: leave out splits whose data cannot be found, and say so.
    """

    output_cache_dir: str
    tasks: Sequence[str] = ()
    excluded_tasks: Sequence[str] = ()
    tasks_additional_cache_dirs: Sequence[str] = ()
    splits: Sequence[str] = ()
    overwrite: bool = False
    ignore_other_caches: bool = False
    skip_absent_splits: bool = False


@dataclasses.dataclass(frozen=True)
class Options:
    """How records are made and written; the same for every split, and sent to every worker.

    The fields are named as the command's flags, as are those of `Setup`.

    Attributes:
      min_shards: SeqIO's meaning, or None: sized by the data, see `cache_files.shard_count`.
      max_shards: SeqIO's meaning: no more than this many shards; 0 is no limit.
      base_seed: SeqIO's meaning: varies the seeds of the preprocessors.
      enable_char_counts: also count characters (slow: every example is detokenized).
      output_format: "tfrecord" or "arrayrecord".
      preserve_random_access: for arrayrecord: groups of one record.
      max_dropped_share: a split fails that loses a larger share of its rows, 0 to 1, unless it is
        known to (`t0/caching/exemptions.csv`).
      allow_hidden_labels: keep rows with withheld labels in the tasks of rank evaluation, and
        splits of which no row has a label.
    """

    min_shards: int | None = None
    max_shards: int = 0
    base_seed: int | None = None
    enable_char_counts: bool = False
    output_format: str = "tfrecord"
    preserve_random_access: bool = False
    max_dropped_share: float = 0.1
    allow_hidden_labels: bool = False


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a process does before it knows the tasks: see `t0.caching.workers.prepare`."""

    module_import: Sequence[str] = ()
    data_dir: Sequence[str] = ()
    vocab: str | None = None
    tfds_data_dir: str | None = None


@dataclasses.dataclass(frozen=True)
class TaskSplit:
    """A split of a task, to be written into `directory`.

    Attributes:
      name: the split's.
      rows: input rows where the source knows them, else None.
    """

    task: str
    name: str
    directory: str
    rows: int | None = None

    def __str__(self) -> str:
        return f"{self.task} split '{self.name}'"


@dataclasses.dataclass(frozen=True)
class TaskPlan:
    """A task's two directories, the splits to write and those left out, with the reason."""

    name: str
    final: str
    staging: str
    splits: tuple[str, ...]
    absent: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class CachePlan:
    """What a run writes. `notes` are for the user."""

    splits: tuple[TaskSplit, ...]
    tasks: Mapping[str, TaskPlan]
    skipped: Mapping[str, str]
    notes: tuple[str, ...] = ()


def rows_of_source(task: Any, split: str) -> int | None:
    """Returns what the task's source says of the rows of a split, None if it does not know.

    Raises:
      AbsentData: if it has no files for the split.
    """
    if not task.source.list_shards(split):
        raise AbsentData(f"no file matches {task.source}")
    try:
        return task.source.num_input_examples(split)
    except AbsentData:
        raise
    except Exception:  # noqa: BLE001 - a size only orders the work; sources fail in many ways
        return None


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """What a plan may look at.

    Attributes:
      tasks: name -> the registered task.
      mixtures: name -> names of its tasks.
      cache_of: task name -> directory of its finished cache, or None.
      cached_splits: directory of a cache -> splits that it holds, or found to be empty.
      rows_of: task and split -> its input rows, None where nobody knows; raises `AbsentData` where
        the data is not there.
    """

    tasks: Mapping[str, Any]
    mixtures: Mapping[str, Sequence[str]]
    cache_of: Callable[[str], str | None]
    cached_splits: Callable[[str], set[str]]
    rows_of: Callable[[Any, str], int | None] = rows_of_source


def select_tasks(
    catalogue: Catalogue, wanted: Sequence[str], excluded: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Returns the selected names in the registry's order, and notes for the user.

    Raises:
      UserError: if an entry of `wanted` is no valid regex or matches no task and no mixture.
    """
    selected = set(catalogue.tasks) if not wanted else set()
    for entry in wanted:
        matched = _matching(catalogue, entry)
        if not matched:
            raise unknown_name(
                "task or mixture",
                entry,
                [*catalogue.tasks, *catalogue.mixtures],
                f"It matches none of the {len(catalogue.tasks)} registered tasks; "
                "is the module that registers it among --module_import?",
            )
        selected |= matched
    notes = []
    for entry in excluded:
        matched = _matching(catalogue, entry)
        if not matched:
            notes.append(f"--excluded_tasks={entry} matches no task")
        selected -= matched
    return [name for name in catalogue.tasks if name in selected], notes


def _matching(catalogue: Catalogue, entry: str) -> set[str]:
    if entry in catalogue.tasks:
        return {entry}
    # A mixture's name goes first: `t0++_train` is also a valid regex, of something else.
    if entry in catalogue.mixtures:
        return set(catalogue.mixtures[entry])
    try:
        regex = re.compile(entry)
    except re.error as error:
        raise UserError(f"'{entry}' is neither a task, a mixture nor a regex: {error}") from None
    return {name for name in catalogue.tasks if regex.fullmatch(name)}


_ABSENT_HINT = (
    "\nAbsent splits: bring the data, name the splits wanted (--splits=validation), or leave them "
    "out with --skip_absent_splits."
)


def task_directory(output_dir: str, task_name: str) -> str:
    """Returns the task's cache directory, as `seqio.get_task_dir_from_name` nests it."""
    return path_inside(output_dir, *task_name.split(":"))


def make_plan(request: Request, catalogue: Catalogue, tag: str) -> CachePlan:
    """Decides what is written.

    Args:
      tag: marks this run's unfinished directories (`<task>.<tag>`).

    Raises:
      UserError: for names that match nothing, absent data without `skip_absent_splits`, a cache
        that lacks a wanted split, or nothing at all to cache or cached.
    """
    names, notes = select_tasks(catalogue, request.tasks, request.excluded_tasks)
    if not names:
        raise UserError(
            "no task is selected: "
            + ("everything is excluded" if catalogue.tasks else "none is registered")
            + ". See --tasks, --excluded_tasks and --module_import."
        )
    _check_splits(request.splits, [catalogue.tasks[name] for name in names])
    tasks: dict[str, TaskPlan] = {}
    splits: list[TaskSplit] = []
    skipped: dict[str, str] = {}
    faults: dict[str, list[str]] = {}
    lacking = False
    for name in names:
        try:
            decided, present = _decide(request, catalogue, catalogue.tasks[name], tag)
        except _AbsentSplits as absent:
            for split, why in absent.splits.items():
                faults.setdefault(why, []).append(f"{name} split '{split}'")
            lacking = True
            continue
        except UserError as error:
            faults.setdefault(str(error), []).append(name)
            continue
        if isinstance(decided, str):
            skipped[name] = decided
        else:
            tasks[name] = decided
            splits += present
    if faults:
        raise UserError(_listed(faults) + (_ABSENT_HINT if lacking else ""))
    return CachePlan(_ordered(splits), tasks, skipped, tuple(notes))


class _AbsentSplits(AbsentData):
    """Splits of a task whose data is nowhere, each with the reason."""

    def __init__(self, splits: Mapping[str, str]) -> None:
        super().__init__("; ".join(splits.values()))
        self.splits = splits


def _decide(
    request: Request, catalogue: Catalogue, task: Any, tag: str
) -> tuple[TaskPlan | str, list[TaskSplit]]:
    """Returns the plan of one task with its splits, or why it is skipped."""
    wanted = [s for s in task.splits if not request.splits or s in request.splits]
    if not task.supports_caching:
        return "does not support caching (no CacheDatasetPlaceholder)", []
    if not wanted:
        return "has none of the splits asked for", []
    final = task_directory(request.output_cache_dir, task.name)
    cache = catalogue.cache_of(task.name)
    reason = _cached_already(request, cache, final)
    if reason and cache != final:
        return reason, []
    staging = f"{final}.{tag}"
    present, absent = _present(task, wanted, staging, catalogue)
    if reason:
        missing = {split.name for split in present} - catalogue.cached_splits(final)
        if missing:
            raise UserError(
                f"cached in {final} without {_quoted(missing)}; add --overwrite to "
                "write all of its splits again"
            )
        return reason, []
    if absent and not request.skip_absent_splits:
        raise _AbsentSplits(absent)
    if not present:
        return "no data: " + "; ".join(absent.values()), []
    names = tuple(split.name for split in present)
    return TaskPlan(task.name, final, staging, names, absent), present


def _ordered(splits: Sequence[TaskSplit]) -> tuple[TaskSplit, ...]:
    # The longest job last would leave all other workers idle while it runs. A task's splits stay
    # together, because a task is published, and safe from a kill, when the last of them is done.
    task_rows: dict[str, int] = {}
    for split in splits:
        task_rows[split.task] = task_rows.get(split.task, 0) + (split.rows or 0)
    return tuple(sorted(splits, key=lambda s: (-task_rows[s.task], s.task, -(s.rows or 0))))


def _cached_already(request: Request, cache: str | None, final: str) -> str | None:
    if cache is None:
        return None
    if cache == final:
        return None if request.overwrite else f"cached already in {cache}"
    if request.ignore_other_caches:
        return None
    if request.overwrite:
        return f"cached in {cache}, which --overwrite does not touch: see --ignore_other_caches"
    return f"cached already in {cache}"


def _present(
    task: Any, wanted: Iterable[str], staging: str, catalogue: Catalogue
) -> tuple[list[TaskSplit], dict[str, str]]:
    present, absent = [], {}
    for split in wanted:
        try:
            rows = catalogue.rows_of(task, split)
            present.append(TaskSplit(task.name, split, staging, rows))
        except AbsentData as error:
            absent[split] = str(error)
    return present, absent


def _check_splits(wanted: Sequence[str], tasks: Sequence[Any]) -> None:
    known = sorted({split for task in tasks for split in task.splits})
    for split in wanted:
        if split not in known:
            raise unknown_name("split", split, known, f"The selected tasks have {_quoted(known)}.")


def _listed(faults: Mapping[str, Sequence[str]], shown: int = 20) -> str:
    lines = []
    for why, names in [*faults.items()][:shown]:
        more = f" and {len(names) - shown} more" if len(names) > shown else ""
        lines.append(f"  {', '.join(names[:shown])}{more}: {why}")
    if len(faults) > shown:
        lines.append(f"  ... and {len(faults) - shown} more reasons")
    return "nothing was written, because of\n" + "\n".join(lines)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
