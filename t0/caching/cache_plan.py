"""Decides which tasks and splits a run writes, and into which directories.

    selection = CacheSelection("/data/cache", tasks=["super_glue_rte_.*", "t0_train"])
    plan = make_plan(selection, catalogue, tag="incomplete-host-4711-1700000000")
    plan.splits     # the splits of all tasks, the largest task first
    plan.tasks      # task -> its directories and splits
    plan.skipped    # task -> the reason why the run does not write it

This module reads no data, writes no file and does not import TensorFlow. A `Catalogue` contains the
registered tasks and the existing caches. `RecordOptions` and `Setup` are sent to every process.

Tasks are selected, and existing caches are treated, as in SeqIO (`seqio.scripts.cache_tasks_main`),
with four additions:

- the name of a mixture selects its tasks;
- a name that matches nothing is an error;
- `ignore_other_caches` does not concern the output directory: a finished cache in the output
  directory is only written again if `overwrite` is set or its inputs have changed;
- a cache is written again if its inputs (prompt, data, vocabulary, modules) have changed.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from t0.catalogue.row_preview import T0_LENGTHS
from t0.errors import AbsentData, UserError, unknown_name
from t0.files import path_inside
from t0.sources import AbsentSplit, absent_table

NO_RECORD = "an older version or SeqIO wrote it, without a record of its inputs"
_NAMED = 20  # the number of tasks that a message names


@dataclasses.dataclass(frozen=True)
class CacheSelection:
    """The tasks to cache, and the output directory.

    The fields have the names of the command's flags.

    Attributes:
      output_cache_dir: the directory, local or `gs://`, in which the tasks' directories are made.
      tasks: regexes that match whole names of tasks, or names of mixtures; all tasks if empty.
      excluded_tasks: regexes or names of mixtures, as in `tasks`. The tasks that they match are
        left out.
      tasks_additional_cache_dirs: other directories in which a task may be cached already.
      splits: the splits to cache; all splits of each task if empty.
      overwrite: whether to write a task again if `output_cache_dir` has a finished cache of it.
      ignore_other_caches: whether to write a task even if it is cached in another directory.
      skip_absent_splits: whether to leave out splits whose data cannot be found. A note names them.
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
class RecordOptions:
    """The options for making and writing records, which are the same for all splits and workers.

    The fields of this class and of `Setup` have the names of the command's flags, if it has such a
    flag.

    Attributes:
      min_shards: the minimum number of files of a split, as in SeqIO; None to derive it from the
        size of the data (see `cache_files.shard_count`).
      max_shards: the maximum number of files of a split, as in SeqIO; 0 for no limit. If only
        `max_shards` is set, `min_shards` is 64, as in SeqIO.
      base_seed: a number that changes the seeds of the preprocessors, as in SeqIO.
      enable_char_counts: whether to also count characters. This is slow, because every example is
        detokenized.
      max_dropped_share: the maximum share of its rows, 0 to 1, that a split may drop. This limit
        does not apply to the splits in `t0/caching/exemptions.csv`.
      allow_hidden_labels: whether to write two kinds of splits that are refused otherwise: splits
        without any label, and rank-evaluation splits with withheld labels.
      lengths: the lengths of inputs and targets in tokens, above which the table of the outcomes
        counts examples.
    """

    min_shards: int | None = None
    max_shards: int = 0
    base_seed: int | None = None
    enable_char_counts: bool = False
    max_dropped_share: float = 0.1
    allow_hidden_labels: bool = False
    lengths: tuple[int, int] = tuple(T0_LENGTHS.values())


@dataclasses.dataclass(frozen=True)
class Setup:
    """The settings with which `t0.caching.workers.prepare` registers the tasks in a process.

    Attributes:
      module_import: the modules that register the tasks.
      data_dir: the folders of the user's datasets. If none is given, T0_DATA_DIR names the folders.
      skip_bad_rows: whether to skip rows that contain half of a surrogate pair.
      vocab: the path of the vocabulary; None for the default.
      tfds_data_dir: the folder of TensorFlow Datasets; None for the default.
      gin_param: gin bindings for the sources and preprocessing steps of the tasks.
    """

    module_import: Sequence[str] = ()
    data_dir: Sequence[str] = ()
    skip_bad_rows: bool = False
    vocab: str | None = None
    tfds_data_dir: str | None = None
    gin_param: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class TaskSplit:
    """A split of a task that the run writes.

    Attributes:
      task: the task's name.
      name: the split's name.
      directory: the directory to write the split into.
      rows: the number of input rows; None if the source does not know it.
    """

    task: str
    name: str
    directory: str
    rows: int | None = None

    def __str__(self) -> str:
        return f"{self.task} split '{self.name}'"


@dataclasses.dataclass(frozen=True)
class TaskPlan:
    """A task that the run writes.

    Attributes:
      name: the task's name.
      final: the directory of the finished cache.
      staging: the directory into which the run writes the cache until it is finished.
      splits: the names of the splits to write.
      absent: name of a split that is left out -> the reason.
      stale: the inputs that have changed since the finished cache in `final` was written, as text.
        The run then replaces this cache. "" if no input has changed.
    """

    name: str
    final: str
    staging: str
    splits: tuple[str, ...]
    absent: Mapping[str, str]
    stale: str = ""


@dataclasses.dataclass(frozen=True)
class CachePlan:
    """The splits and tasks that a run writes.

    Attributes:
      splits: the splits of all tasks, the largest task first.
      tasks: name -> the task's directories and splits.
      skipped: name of a task -> the reason why the run does not write it.
      notes: notes for the user, one line each.
    """

    splits: tuple[TaskSplit, ...]
    tasks: Mapping[str, TaskPlan]
    skipped: Mapping[str, str]
    notes: tuple[str, ...] = ()


def rows_of_source(task: Any, split: str) -> int | None:
    """Returns the number of rows of a split; None if the task's source does not know it.

    Raises:
      AbsentData: if the source has no files for the split.
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
    """The registered tasks and the existing caches, from which a plan is made.

    Attributes:
      tasks: name -> the registered task.
      mixtures: name -> the names of its tasks.
      cache_of: a function that takes the name of a task, and returns the directory of its finished
        cache; None if the task has no finished cache.
      cached_splits: a function that takes the directory of a cache, and returns its splits,
        including splits that are recorded as empty.
      changes_of: a function that takes a task and the directory of its cache, and returns the
        changes of the task's inputs since the cache was written; None if they were not recorded.
      rows_of: a function that takes a task and the name of a split, and returns the number of input
        rows; None if it is unknown. It raises `AbsentData` if the data cannot be found.
    """

    tasks: Mapping[str, Any]
    mixtures: Mapping[str, Sequence[str]]
    cache_of: Callable[[str], str | None]
    cached_splits: Callable[[str], set[str]]
    rows_of: Callable[[Any, str], int | None] = rows_of_source
    changes_of: Callable[[Any, str], Sequence[str] | None] = lambda task, directory: ()


def select_tasks(
    catalogue: Catalogue, wanted: Sequence[str], excluded: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Returns the names of the selected tasks, in the registry's order, and notes for the user.

    Raises:
      UserError: if an entry of `wanted` matches no task and no mixture.
    """
    selected = set(catalogue.tasks) if not wanted else set()
    for entry in wanted:
        matched = _match_tasks(catalogue, entry)
        if not matched:
            raise unknown_name(
                "task or mixture",
                entry,
                [*catalogue.tasks, *catalogue.mixtures],
                f"As a regex, it matches none of the {len(catalogue.tasks)} registered tasks; "
                "is the module that registers it among --module_import, such as t0.seqio_tasks, "
                "t0.recipes or t5.data.mixtures?",
            )
        selected |= matched
    notes = []
    for entry in excluded:
        matched = _match_tasks(catalogue, entry)
        if not matched:
            notes.append(f"--excluded_tasks={entry} matches no task")
        selected -= matched
    return [name for name in catalogue.tasks if name in selected], notes


def _match_tasks(catalogue: Catalogue, entry: str) -> set[str]:
    if entry in catalogue.tasks:
        return {entry}
    # Mixtures come first: the name `t0++_train` is also a valid regex, which matches other names.
    if entry in catalogue.mixtures:
        return set(catalogue.mixtures[entry])
    # A misspelled mixture may be no valid regex. For example, Python 3.11 accepts `t0++_trian` as a
    # regex, but Python 3.10 does not.
    with contextlib.suppress(re.error):
        return {name for name in catalogue.tasks if re.fullmatch(entry, name)}
    return set()


_ABSENT_HINT = (
    "\nAbsent splits: provide the data, select the available splits (--splits=validation), or "
    "leave out absent ones with --skip_absent_splits."
)


def task_directory(output_dir: str, task_name: str) -> str:
    """Returns the directory of a task's cache, with the subfolders that SeqIO uses."""
    return path_inside(output_dir, *task_name.split(":"))


def make_plan(
    selection: CacheSelection, catalogue: Catalogue, tag: str, *, folder: str | None = None
) -> CachePlan:
    """Returns the tasks and splits to write.

    Args:
      selection: the tasks to cache.
      catalogue: the registry and the existing caches.
      tag: the suffix of this run's unfinished directories (`<task>.<tag>`).
      folder: the folder in which these are made; None for the output directory.

    Raises:
      UserError: if a name matches nothing, if no task is selected, if a finished cache does not
        have all selected splits, or if data is absent and `skip_absent_splits` is not set.
    """
    names, notes = select_tasks(catalogue, selection.tasks, selection.excluded_tasks)
    if not names:
        raise UserError(
            "no task is selected: "
            + ("everything is excluded" if catalogue.tasks else "none is registered")
            + ". See --tasks, --excluded_tasks and --module_import."
        )
    _check_splits(selection.splits, [catalogue.tasks[name] for name in names])
    tasks: dict[str, TaskPlan] = {}
    splits: list[TaskSplit] = []
    skipped: dict[str, str] = {}
    faults: dict[str, list[str]] = {}
    absent: dict[str, list[AbsentSplit]] = {}  # message about absent data -> the splits in it
    for name in names:
        try:
            decided, present = _plan_task(selection, catalogue, catalogue.tasks[name], tag, folder)
        except UserError as error:
            faults.setdefault(str(error), []).append(name)
            if isinstance(error, AbsentData):
                absent.setdefault(str(error), []).extend(error.splits)
            continue
        if isinstance(decided, str):
            skipped[name] = decided
        else:
            tasks[name] = decided
            splits += present
    if faults:
        raise UserError(_format_faults(faults, absent) + (_ABSENT_HINT if absent else ""))
    return CachePlan(_order_splits(splits), tasks, skipped, tuple(notes))


def _plan_task(
    selection: CacheSelection, catalogue: Catalogue, task: Any, tag: str, folder: str | None
) -> tuple[TaskPlan | str, list[TaskSplit]]:
    """Returns (plan of a task, its splits), or (reason to skip the task, [])."""
    splits = [s for s in task.splits if not selection.splits or s in selection.splits]
    if not task.supports_caching:
        return "does not support caching (no CacheDatasetPlaceholder)", []
    if not splits:
        return "has none of the selected splits", []
    final = task_directory(selection.output_cache_dir, task.name)
    cache = catalogue.cache_of(task.name)
    reason = _describe_existing(selection, cache, final)
    changed: Sequence[str] | None = ()
    if reason and cache and not selection.overwrite:
        changed = catalogue.changes_of(task, cache)
    if changed is None:
        reason = f"{reason}, and not compared: {NO_RECORD}"
    elif changed:
        reason = None
        cached = catalogue.cached_splits(cache)
        splits = [split for split in task.splits if split in splits or split in cached]
    if reason and cache != final:
        return reason, []
    staging = f"{task_directory(folder or selection.output_cache_dir, task.name)}.{tag}"
    present, errors = _find_present(task, splits, staging, catalogue)
    absent = {split: str(error) for split, error in errors.items()}
    if reason:
        missing = {split.name for split in present} - catalogue.cached_splits(final)
        if missing:
            raise UserError(
                f"cached in {final} without {_quote(missing)}; add --overwrite to "
                "write all of its splits again"
            )
        return reason, []
    if changed and absent:
        why = f"the cache in {cache} is stale ({'; '.join(changed)}), and "
        absent = {split: why + reason for split, reason in absent.items()}
    if absent and (not selection.skip_absent_splits or (changed and not present)):
        message = "; ".join(f"split '{name}': {why}" for name, why in absent.items())
        raise AbsentData(message, [each for error in errors.values() for each in error.splits])
    if not present:
        return "no data: " + "; ".join(absent.values()), []
    names = tuple(split.name for split in present)
    return TaskPlan(task.name, final, staging, names, absent, "; ".join(changed or ())), present


def _order_splits(splits: Sequence[TaskSplit]) -> tuple[TaskSplit, ...]:
    # The largest task comes first. If it came last, the other workers would be idle at the end. The
    # splits of a task stay together, so that the task is published early. If the run is killed, it
    # loses no published task.
    task_rows: dict[str, int] = {}
    for split in splits:
        task_rows[split.task] = task_rows.get(split.task, 0) + (split.rows or 0)
    return tuple(sorted(splits, key=lambda s: (-task_rows[s.task], s.task, -(s.rows or 0))))


def _describe_existing(selection: CacheSelection, cache: str | None, final: str) -> str | None:
    if cache is None:
        return None
    if cache == final:
        return None if selection.overwrite else f"cached already in {cache}"
    if selection.ignore_other_caches:
        return None
    if selection.overwrite:
        return f"cached in {cache}, which --overwrite does not touch: see --ignore_other_caches"
    return f"cached already in {cache}"


def _find_present(
    task: Any, wanted: Iterable[str], staging: str, catalogue: Catalogue
) -> tuple[list[TaskSplit], dict[str, AbsentData]]:
    present, absent = [], {}
    for split in wanted:
        try:
            rows = catalogue.rows_of(task, split)
            present.append(TaskSplit(task.name, split, staging, rows))
        except AbsentData as error:
            absent[split] = error
    return present, absent


def _check_splits(wanted: Sequence[str], tasks: Sequence[Any]) -> None:
    names = sorted({split for task in tasks for split in task.splits})
    for split in wanted:
        if split not in names:
            raise unknown_name("split", split, names, f"The selected tasks have {_quote(names)}.")


def _format_faults(
    faults: Mapping[str, Sequence[str]], absent: Mapping[str, Sequence[AbsentSplit]]
) -> str:
    lines = ["nothing was written, because of"]
    splits = dict.fromkeys(each for group in absent.values() for each in group)
    if len(splits) > 1:
        lines += [f"  {len(splits)} missing splits:", absent_table(splits)]
        faults = {why: names for why, names in faults.items() if not absent.get(why)}
    for why, names in faults.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        lines.append(f"  {', '.join(names[:_NAMED])}{more}: {why}")
    return "\n".join(lines)


def _quote(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
