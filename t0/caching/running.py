"""Runs caching: plans and runs the jobs, publishes each complete task, and reports the outcomes.

    cache(CacheSelection(output_cache_dir="/data/cache", tasks=["t0_train"]), RecordOptions(),
          Setup(module_import=["t0.seqio_tasks"]), num_workers=8)

If a task fails, the run continues with the other tasks, and ends with a `UserError` that names the
failed task. If the output cannot be written or a worker dies, the run stops. In both cases the
published tasks stay. If the same call is made again, it continues where this run stopped.
"""

import collections
import dataclasses
import functools
import os
import posixpath
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from t0.caching import cache_files, parts, workers
from t0.caching.cache_plan import (
    CachePlan,
    CacheSelection,
    Catalogue,
    RecordOptions,
    Setup,
    TaskPlan,
    TaskSplit,
    make_plan,
    task_directory,
)
from t0.caching.cache_progress import Progress, print_summary
from t0.caching.prompted_rows import RowRange
from t0.caching.provenance import changes_of, provenance
from t0.caching.source_shards import ShardRun
from t0.caching.split_state import (
    ABSENT,
    EMPTY,
    FAILED,
    STOP,
    WRITTEN,
    JoinParts,
    PartInfo,
    SplitOutcome,
    SplitSpec,
    SplitState,
)
from t0.caching.uploads import InPlace, open_output
from t0.caching.work_plan import OpenedSplits, Work, plan_work
from t0.compat import seqio
from t0.errors import UserError, interruptible, printable
from t0.files import OutputError, paths, publishing

DIRECT_RUNNER = ["--runner=DirectRunner"]
# A run of at most this many rows starts no workers, because starting them would take as long as the
# work itself.
SMALL_ROWS = 5000
# The prefix of parts directories. A task's name has no `-`, so no task's directory starts with this
# prefix.
PARTS = "unfinished-parts"


def cache(
    selection: CacheSelection,
    options: RecordOptions,
    setup: Setup,
    *,
    num_workers: int | None = None,
    pipeline_options: Sequence[str] = (),
    file: TextIO | None = None,
) -> list[SplitOutcome]:
    """Caches tasks, and returns the outcome of each split.

    Args:
      selection: the tasks to cache.
      options: how records are made and written.
      setup: how a process registers the tasks.
      num_workers: the number of worker processes. With 0, this process does the work. With None,
        there is one worker per core or, if the plan has at most `SMALL_ROWS` rows, no worker.
      pipeline_options: options for Apache Beam. Beam runs the jobs if the options differ from
        SeqIO's default, which is `--runner=DirectRunner`.
      file: the file to which progress and summary are printed; stdout by default.

    Raises:
      UserError: if a selected split could not be cached. The tasks whose selected splits could all
        be cached are still published.
    """
    file = file or sys.stdout
    publishing.check_writable(selection.output_cache_dir)
    workers.prepare(setup)
    seqio.add_global_cache_dirs(
        [selection.output_cache_dir, *selection.tasks_additional_cache_dirs]
    )
    opened = OpenedSplits()
    plan = make_plan(
        selection, registered(selection.output_cache_dir, opened), publishing.unfinished_tag()
    )
    parts_dir = posixpath.join(selection.output_cache_dir, f"{PARTS}.{publishing.unfinished_tag()}")
    work = plan_work(plan.splits, options, parts_dir, opened, setup.module_import)
    # The inputs are recorded before the data is read. If the data changes during the run, the next
    # run then finds that the cache is stale.
    made_from = {
        task.name: provenance(seqio.TaskRegistry.get(task.name), task.splits, setup.module_import)
        for task in plan.tasks.values()
    }
    for note in (*plan.notes, *_tidy_up(plan, selection, parts_dir), *_describe_plan(plan)):
        print(printable(note), file=file)
    if not plan.splits:
        return []
    cache_files.make_directory(parts_dir)
    advice = "finished tasks and parts are kept, and the same command continues after them"
    beam = on_beam(pipeline_options)
    unfinished = {task.staging for task in plan.tasks.values()}
    try:
        with (
            Progress(plan, file) as progress,
            interruptible(advice),
            open_output(parts_dir, on_this_machine=not beam) as output,
        ):
            run = _Run(
                plan, work, selection, options, setup, parts_dir, progress, output, made_from
            )
            if beam:
                results = run.on_beam(pipeline_options)
            else:
                results = run.here(chosen_workers(plan, num_workers))
            outcomes = run.carried_out(results)
        unfinished.clear()
        paths.remove(parts_dir)
    finally:
        if unfinished and not parts.any_whole(parts_dir):
            paths.remove(parts_dir)
        for staging in unfinished:
            paths.remove(staging)
    _conclude(plan, selection, outcomes, file)
    return outcomes


def on_beam(pipeline_options: Sequence[str]) -> bool:
    """Returns whether Apache Beam runs the jobs. It does if the options differ from the default."""
    return bool(pipeline_options) and list(pipeline_options) != DIRECT_RUNNER


def chosen_workers(plan: CachePlan, num_workers: int | None) -> int:
    """Returns the number of worker processes; 0 if this process does the work. See `cache`."""
    if num_workers is not None:
        return num_workers
    rows = [split.rows for split in plan.splits]
    if all(rows) and sum(rows) <= SMALL_ROWS:
        return 0
    return len(os.sched_getaffinity(0))


def registered(output_cache_dir: str, opened: OpenedSplits) -> Catalogue:
    """Returns SeqIO's registered tasks and mixtures, and the existing caches.

    If a task is cached in several directories, its cache in the output directory is preferred.
    """
    directories = dict.fromkeys([output_cache_dir, *seqio.utils.get_global_cache_dirs()])
    listed = functools.cache(paths.list_names)

    def finished(directory: str) -> bool:
        # On an object store, one listing is faster than two requests for each task without a cache.
        above, name = posixpath.split(directory)
        exists = not paths.is_remote(directory) or name in listed(above)
        return exists and cache_files.is_finished(directory)

    return Catalogue(
        tasks={name: seqio.TaskRegistry.get(name) for name in seqio.TaskRegistry.names()},
        mixtures={
            name: [task.name for task in seqio.MixtureRegistry.get(name).tasks]
            for name in seqio.MixtureRegistry.names()
        },
        cache_of=lambda name: next(
            (
                directory
                for directory in (task_directory(d, name) for d in directories)
                if finished(directory)
            ),
            None,
        ),
        cached_splits=cache_files.cached_splits,
        rows_of=opened.rows_of,
        changes_of=changes_of,
    )


def _tidy_up(plan: CachePlan, selection: CacheSelection, parts_dir: str) -> list[str]:
    """Keeps the parts of killed runs, removes their other files, and returns notes to print."""
    out = selection.output_cache_dir
    names = [*plan.tasks, *plan.skipped]
    dead, foreign = publishing.leftovers(
        [out, *(posixpath.dirname(task_directory(out, name)) for name in names)]
    )
    of_parts = [path for path in dead if posixpath.basename(path).startswith(f"{PARTS}.")]
    if of_parts and plan.splits:  # if there is nothing to cache, they are removed below
        parts.adopt(parts_dir, of_parts)
    for path in dead:
        paths.remove(path)
    return [f"unfinished run of another machine, not removed: {path}" for path in foreign]


def _describe_plan(plan: CachePlan) -> Iterator[str]:
    """Yields a line for each reason why tasks are skipped or rebuilt."""
    skipped, rebuilt = defaultdict(list), defaultdict(list)
    for name, reason in plan.skipped.items():
        skipped[first_line(reason.replace(name, "<task>"))].append(name)
    for task in plan.tasks.values():
        for split, reason in task.absent.items():
            skipped[first_line(reason)].append(f"{task.name} split '{split}'")
        if task.stale:
            rebuilt[f"changed since: {task.stale}"].append(task.name)
    for verb, reasons in (("skipped", skipped), ("rebuilding", rebuilt)):
        for reason, names in reasons.items():
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            yield f"{verb} ({len(names)}): {', '.join(names[:5])}{more}: {reason}"


def first_line(reason: str) -> str:
    """Returns only the first line of an error message. Later lines list folders and give advice."""
    return reason.splitlines()[0].removesuffix(" Looked in:") if reason else ""


@dataclasses.dataclass
class _Run:
    """One run: its plan, its jobs and its progress.

    Attributes:
      plan: the tasks and splits to write.
      work: the jobs.
      selection: the tasks to cache.
      options: how records are made and written.
      setup: how a process registers the tasks.
      parts_dir: the directory of the parts.
      progress: the live line.
      output: the output, which publishes the tasks.
      made_from: task -> the record of its inputs.
    """

    plan: CachePlan
    work: Work
    selection: CacheSelection
    options: RecordOptions
    setup: Setup
    parts_dir: str
    progress: Progress
    output: InPlace
    made_from: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        self.states = {
            split: SplitState(spec, self.options, self.parts_dir)
            for split, spec in self.work.specs.items()
        }
        # Unfinished job -> the number of examples that it has reported.
        self.underway: dict[ShardRun, int] = {}

    def _begin(self) -> tuple[list[SplitOutcome], list[RowRange | ShardRun | JoinParts]]:
        """Adds the parts of earlier runs; returns the outcomes so far and the jobs to run."""
        jobs = []
        for job in (*self.work.row_ranges, *self.work.shard_runs):
            absent = [spec for spec in job.specs if not self._taken_over(spec, job)]
            if absent:
                jobs.append(job.only(absent))
        follow = [
            conclusion for state in self.states.values() if (conclusion := state.conclusion())
        ]
        outcomes = [end for end in follow if isinstance(end, SplitOutcome)]
        joins = [job for job in follow if not isinstance(job, SplitOutcome)]
        return [*self.work.failed, *outcomes], [*joins, *jobs]

    def _taken_over(self, spec: SplitSpec, job: RowRange | ShardRun) -> bool:
        path = self.output.find_part(spec.part_path(self.parts_dir, job.start, job.stop))
        return path is not None and self.states[spec.split].take_over(job.start, path)

    def here(self, num_workers: int) -> Iterator[SplitOutcome]:
        """Runs the jobs on this machine and yields outcomes. Jobs without TensorFlow run first."""
        outcomes, jobs = self._begin()
        yield from outcomes
        jobs = [self.output.place_job(job) for job in jobs]
        light = collections.deque(job for job in jobs if not isinstance(job, ShardRun))
        heavy = collections.deque(job for job in jobs if isinstance(job, ShardRun))
        earlier = (state.so_far() for state in self.states.values())
        self.progress.begin_with(sum(rows or examples for rows, examples in earlier))
        self._show(self.states)
        start = workers.RowRangeWorker(self.work.model, self.setup)
        yield from self._worked(light, start, num_workers)
        # Without workers, the jobs run in this process, which has already registered the tasks.
        start = workers.ShardRunWorker(self.options, self.setup, own_process=bool(num_workers))
        yield from self._worked(heavy, start, num_workers)

    def _worked(
        self, queue: collections.deque, start: Any, num_workers: int
    ) -> Iterator[SplitOutcome]:
        if not queue:
            return
        if num_workers:
            results = workers.in_processes(queue, start, self._reported, workers=num_workers)
        else:
            results = workers.here(queue, start(), self._reported)
        for job, result in results:
            if isinstance(result, SplitOutcome):
                yield result
            else:
                yield from self._add_results(job, result, queue)

    def _add_results(
        self,
        job: RowRange | ShardRun,
        made: Mapping[str, PartInfo | SplitOutcome],
        queue: collections.deque,
    ) -> Iterator[SplitOutcome]:
        """Adds the results of a job to the states of its splits, and yields outcomes.

        If all parts of a split exist now, the job that joins them is added to the queue.
        """
        ends = [result for result in made.values() if isinstance(result, SplitOutcome)]
        yield from (end for end in ends if end.status == STOP)
        for spec in job.specs:
            if not isinstance(made[spec.split.task], SplitOutcome):
                self.output.add_part(spec.part_path(self.parts_dir, job.start, job.stop))
        done: list[RowRange | ShardRun] = [job]
        if ends and isinstance(job, ShardRun):
            # The split has failed, so its other jobs in the queue get the same outcome.
            queued = list(queue)
            queue.clear()
            for other in queued:
                same = isinstance(other, ShardRun) and other.spec.split == job.spec.split
                (done if same else queue).append(other)
        for each in done:
            for spec in each.specs:
                state = self.states[spec.split]
                state.add(each.start, made[spec.split.task])
                follows = state.conclusion()
                if isinstance(follows, SplitOutcome):
                    yield follows
                elif follows:
                    # The parts are joined next, so that the task is published early. If the run is
                    # killed, it loses no published task.
                    queue.appendleft(self.output.place_job(follows))
        self.underway.pop(job, None)
        self._show(spec.split for spec in job.specs)

    def on_beam(self, pipeline_options: Sequence[str]) -> Iterator[SplitOutcome]:
        """Runs the jobs on Apache Beam, and yields outcomes."""
        from t0.caching.beam_runner import run_on_beam

        outcomes, jobs = self._begin()
        yield from outcomes
        ended = {outcome.split for outcome in outcomes}
        yield from run_on_beam(
            {split: state for split, state in self.states.items() if split not in ended},
            jobs,
            self.work.model,
            self.options,
            self.setup,
            parts_dir=self.parts_dir,
            pipeline_options=pipeline_options,
            run_dir=posixpath.join(
                self.selection.output_cache_dir, f"run.{publishing.unfinished_tag()}"
            ),
        )

    def _reported(self, job: Any, examples: int | None) -> None:
        self.output.check()
        if isinstance(job, ShardRun) and examples:
            self.underway[job] = examples
            self._show([job.spec.split])
        else:
            self.progress.advance(None)

    def _show(self, splits: Iterable[TaskSplit]) -> None:
        for split in splits:
            rows, examples = self.states[split].so_far()
            underway = sum(n for job, n in self.underway.items() if job.spec.split == split)
            # If a source does not count its rows, they are estimated from the examples.
            self.progress.advance(split, examples=examples + underway, rows=rows or None)

    def carried_out(self, results: Iterator[SplitOutcome]) -> list[SplitOutcome]:
        """Publishes each task when all its splits have an outcome, and returns all outcomes.

        Raises:
          UserError: if the output cannot be written.
        """
        outcomes: dict[str, list[SplitOutcome]] = defaultdict(list)
        try:
            for outcome in results:
                if outcome.status == STOP:
                    raise OutputError(f"{outcome.message} (at {outcome.split})")
                self.progress.finish(outcome)
                task = self.plan.tasks[outcome.split.task]
                outcomes[task.name].append(outcome)
                if len(outcomes[task.name]) == len(task.splits):
                    self._publish(task, outcomes[task.name])
            self.output.wait()
        except OutputError as error:
            raise UserError(
                f"{error}. The run has stopped; finished tasks stay, and the same command "
                "continues from there."
            ) from error
        return [outcome for of_task in outcomes.values() for outcome in of_task]

    def _publish(self, task: TaskPlan, outcomes: Sequence[SplitOutcome]) -> None:
        states = [
            self.states[outcome.split] for outcome in outcomes if outcome.split in self.states
        ]
        self.output.publish(
            task.staging,
            functools.partial(_finish, task, outcomes, self.selection, self.made_from[task.name]),
            [path for state in states for path in state.part_paths()],
        )


def _finish(
    task: TaskPlan,
    outcomes: Sequence[SplitOutcome],
    selection: CacheSelection,
    made_from: Mapping[str, Any],
    staging: str,
) -> None:
    by_status: dict[str, list[SplitOutcome]] = defaultdict(list)
    for outcome in outcomes:
        by_status[outcome.status].append(outcome)
    written, absent = by_status[WRITTEN], by_status[ABSENT]
    if not written or by_status[FAILED] or (absent and not selection.skip_absent_splits):
        paths.remove(staging)
        return
    manifest = {
        "schema": 1,
        "task": task.name,
        "absent_splits": {
            split: first_line(why)
            for split, why in {**task.absent, **{o.split.name: o.message for o in absent}}.items()
        },
        "empty_splits": {o.split.name: "; ".join(o.notes) for o in by_status[EMPTY]},
        "splits": {
            outcome.split.name: {
                "examples": outcome.stats["examples"],
                "counts": dict(outcome.counts),
                "over": dict(outcome.over),
                "notes": list(outcome.notes),
                "files": outcome.files,
            }
            for outcome in sorted(written, key=lambda o: o.split.name)
        },
    }
    cache_files.write_provenance(staging, made_from)
    replace = selection.overwrite or bool(task.stale)
    cache_files.publish(staging, task.final, manifest, replace=replace)


def _conclude(
    plan: CachePlan, selection: CacheSelection, outcomes: Sequence[SplitOutcome], file: TextIO
) -> None:
    print_summary(outcomes, file)
    faults = []
    for outcome in outcomes:
        absent = outcome.status == ABSENT
        if outcome.trace:
            print(outcome.trace, file=sys.stderr)
        if outcome.status in (WRITTEN, EMPTY) or (absent and selection.skip_absent_splits):
            continue
        hint = " Leave it out with --splits or --skip_absent_splits." if absent else ""
        faults.append(f"{outcome.split}: {outcome.message}{hint}")
    failed = {o.split.task for o in outcomes if o.status == FAILED} | {
        o.split.task for o in outcomes if o.status == ABSENT and not selection.skip_absent_splits
    }
    done = len(plan.tasks) - len(failed)
    if faults:
        raise UserError(
            f"{len(failed)} of {len(plan.tasks)} tasks could not be cached; {done} are in "
            f"{selection.output_cache_dir}:\n" + "\n".join(f"  {fault}" for fault in faults)
        )
    where = printable(selection.output_cache_dir)
    print(f"{done} tasks cached in {where}", file=file)
