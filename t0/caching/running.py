"""One run of caching: plans, works, publishes each task when its splits are whole, and reports.

    cache(Request(output_cache_dir="/data/cache", tasks=["t0_train"]), Options(),
          Setup(module_import=["t0.seqio_tasks"]), num_workers=8)

If a task fails, the run continues with the others, and ends with a `UserError` that names it. If
the output cannot be written or a worker dies, the run stops. In both cases the published tasks
stay, and the same call continues from there.
"""

import collections
import functools
import os
import posixpath
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from t0.caching import cache_files, parts, workers
from t0.caching.cache_plan import (
    CachePlan,
    Catalogue,
    Options,
    Request,
    Setup,
    TaskPlan,
    TaskSplit,
    make_plan,
    task_directory,
)
from t0.caching.cache_progress import Progress, summary
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
    Outcome,
    PartInfo,
    SplitSpec,
    SplitState,
)
from t0.caching.uploads import InPlace, output_of
from t0.caching.work_plan import OpenedSplits, Work, plan_work
from t0.compat import seqio
from t0.errors import UserError, interruptible, printable
from t0.files import OutputError, paths, publishing

DIRECT_RUNNER = ["--runner=DirectRunner"]
# A run of at most so many rows starts no workers, because starting them takes as long.
SMALL_ROWS = 5000
# The prefix of parts directories. A task's name has no `-`, so no task's directory has this name.
PARTS = "unfinished-parts"


def cache(
    request: Request,
    options: Options,
    setup: Setup,
    *,
    num_workers: int | None = None,
    pipeline_options: Sequence[str] = (),
    console: Console | None = None,
) -> list[Outcome]:
    """Caches tasks, and returns the outcome of each split.

    Args:
      request: the tasks to cache.
      options: how records are made and written.
      setup: how a process registers the tasks.
      num_workers: the number of worker processes; None for one on each core, or none for a small
        plan. With 0 this process works itself.
      pipeline_options: Apache Beam's options. With any other than SeqIO's default
        `--runner=DirectRunner`, Beam carries out the plan.
      console: the console for progress and summary; stdout by default.

    Raises:
      UserError: if a wanted split could not be cached; the tasks without such a split are
        published.
    """
    console = console or _console()
    publishing.check_writable(request.output_cache_dir)
    workers.prepare(setup)
    seqio.add_global_cache_dirs([request.output_cache_dir, *request.tasks_additional_cache_dirs])
    opened = OpenedSplits()
    plan = make_plan(
        request, registered(request.output_cache_dir, opened), publishing.unfinished_tag()
    )
    parts_dir = posixpath.join(request.output_cache_dir, f"{PARTS}.{publishing.unfinished_tag()}")
    work = plan_work(plan.splits, options, parts_dir, opened, setup.module_import)
    # Before the data is read: what changes meanwhile makes the cache stale.
    made_from = {
        task.name: provenance(seqio.TaskRegistry.get(task.name), task.splits, setup.module_import)
        for task in plan.tasks.values()
    }
    notes = [*plan.notes, *_tidied(plan, request, parts_dir), *_grouped_skips(plan)]
    notes += _grouped_rebuilds(plan)
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    if not plan.splits:
        return []
    cache_files.make_directory(parts_dir)
    kept = "finished tasks and parts are kept, and the same command goes on after them"
    beam = on_beam(pipeline_options)
    unfinished = {task.staging for task in plan.tasks.values()}
    try:
        with (
            Progress(plan, console.file) as progress,
            interruptible(kept),
            output_of(parts_dir, on_this_machine=not beam) as output,
        ):
            run = _Run(plan, work, request, options, setup, parts_dir, progress, output, made_from)
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
    _conclude(plan, request, outcomes, console)
    return outcomes


def on_beam(pipeline_options: Sequence[str]) -> bool:
    """Returns whether Apache Beam carries out the plan: with other options than the default."""
    return bool(pipeline_options) and list(pipeline_options) != DIRECT_RUNNER


def chosen_workers(plan: CachePlan, num_workers: int | None) -> int:
    """Returns the number of worker processes, 0 for none; see `cache`."""
    if num_workers is not None:
        return num_workers
    rows = [split.rows for split in plan.splits]
    if all(rows) and sum(rows) <= SMALL_ROWS:
        return 0
    return len(os.sched_getaffinity(0))


def _console() -> Console:
    # Without a terminal, rich would wrap a table at 80 columns; a log file may have longer lines.
    return Console(width=None if sys.stdout.isatty() else 400)


def registered(output_cache_dir: str, opened: OpenedSplits) -> Catalogue:
    """Returns SeqIO's tasks, mixtures and caches; caches in the output directory come first."""
    directories = dict.fromkeys([output_cache_dir, *seqio.utils.get_global_cache_dirs()])
    listed = functools.cache(paths.list_names)

    def finished(directory: str) -> bool:
        # One listing, in place of two requests for each task that is not there.
        above, name = posixpath.split(directory)
        there = not paths.is_remote(directory) or name in listed(above)
        return there and cache_files.is_finished(directory)

    return Catalogue(
        tasks={name: seqio.TaskRegistry.get(name) for name in seqio.TaskRegistry.names()},
        mixtures=_Mixtures(),
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


class _Mixtures(dict):
    """Name of a mixture -> the names of its tasks, which are looked up on first use."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(seqio.MixtureRegistry.names()))

    def __getitem__(self, name: str) -> list[str]:
        return [task.name for task in seqio.MixtureRegistry.get(name).tasks]


def _tidied(plan: CachePlan, request: Request, parts_dir: str) -> list[str]:
    """Takes over the parts of killed runs, removes their other files, and returns notes."""
    out = request.output_cache_dir
    known = [*plan.tasks, *plan.skipped]
    dead, foreign = publishing.leftovers(
        [out, *(posixpath.dirname(task_directory(out, name)) for name in known)]
    )
    of_parts = [path for path in dead if posixpath.basename(path).startswith(f"{PARTS}.")]
    if of_parts and plan.splits:  # without a split to cache they are removed, with the rest
        parts.adopt(parts_dir, of_parts)
    for path in dead:
        paths.remove(path)
    return [f"unfinished run of another machine, not removed: {path}" for path in foreign]


def _grouped_skips(plan: CachePlan) -> Iterator[str]:
    by_reason = defaultdict(list)
    for name, reason in plan.skipped.items():
        by_reason[reason.replace(name, "<task>")].append(name)
    for task in plan.tasks.values():
        for split, why in task.absent.items():
            by_reason[why].append(f"{task.name} split '{split}'")
    for reason, names in by_reason.items():
        yield f"skipped ({len(names)}): {_first_names(names)}: {first_line(reason)}"


def _grouped_rebuilds(plan: CachePlan) -> Iterator[str]:
    by_change = defaultdict(list)
    for task in plan.tasks.values():
        if task.stale:
            by_change[task.stale].append(task.name)
    for change, names in by_change.items():
        yield f"rebuilding ({len(names)}): {_first_names(names)}: changed since: {change}"


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def first_line(reason: str) -> str:
    """Returns the first line of a message, without searched places and advice."""
    return reason.splitlines()[0].removesuffix(" Looked in:") if reason else ""


class _Run:
    """The state of a run, which its steps share."""

    def __init__(
        self,
        plan: CachePlan,
        work: Work,
        request: Request,
        options: Options,
        setup: Setup,
        parts_dir: str,
        progress: Progress,
        output: InPlace,
        made_from: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._plan = plan
        self._work = work
        self._request = request
        self._options = options
        self._setup = setup
        self._parts_dir = parts_dir
        self._progress = progress
        self._output = output
        self._made_from = made_from
        self._states = {
            split: SplitState(spec, options, parts_dir) for split, spec in work.specs.items()
        }
        # The number of examples that each unfinished job has reported.
        self._underway: dict[ShardRun, int] = {}

    def _begin(self) -> tuple[list[Outcome], list[RowRange | ShardRun | JoinParts]]:
        """Takes over existing parts, and returns the outcomes so far and the jobs to do."""
        left = []
        for job in (*self._work.row_ranges, *self._work.shard_runs):
            absent = [spec for spec in job.specs if not self._taken_over(spec, job)]
            if absent:
                left.append(job.only(absent))
        follow = [
            conclusion for state in self._states.values() if (conclusion := state.conclusion())
        ]
        outcomes = [end for end in follow if isinstance(end, Outcome)]
        joins = [job for job in follow if not isinstance(job, Outcome)]
        return [*self._work.failed, *outcomes], [*joins, *left]

    def _taken_over(self, spec: SplitSpec, job: RowRange | ShardRun) -> bool:
        path = self._output.found(spec.part_path(self._parts_dir, job.start, job.stop))
        return path is not None and self._states[spec.split].take_over(job.start, path)

    def here(self, num_workers: int) -> Iterator[Outcome]:
        """Does the jobs on this machine: first those without TensorFlow, then the others."""
        outcomes, jobs = self._begin()
        yield from outcomes
        jobs = [self._output.job(job) for job in jobs]
        light = collections.deque(job for job in jobs if not isinstance(job, ShardRun))
        heavy = collections.deque(job for job in jobs if isinstance(job, ShardRun))
        earlier = (state.so_far() for state in self._states.values())
        self._progress.begin_with(sum(rows or examples for rows, examples in earlier))
        self._show(self._states)
        start = workers.RowRangeWorker(self._work.model, tuple(self._setup.data_dir))
        yield from self._worked(light, start, num_workers)
        # Without workers, this process has registered the tasks already.
        start = workers.ShardRunWorker(self._options, self._setup, own_process=bool(num_workers))
        yield from self._worked(heavy, start, num_workers)

    def _worked(self, queue: collections.deque, start: Any, num_workers: int) -> Iterator[Outcome]:
        if not queue:
            return
        if num_workers:
            results = workers.in_processes(queue, start, self._reported, workers=num_workers)
        else:
            results = workers.here(queue, start(), self._reported)
        for job, result in results:
            if isinstance(result, Outcome):
                yield result
            else:
                yield from self._follows(job, result, queue)

    def _follows(
        self,
        job: RowRange | ShardRun,
        made: Mapping[str, PartInfo | Outcome],
        queue: collections.deque,
    ) -> Iterator[Outcome]:
        """Adds the results of a job to their splits; yields outcomes, and queues joins."""
        ends = [result for result in made.values() if isinstance(result, Outcome)]
        yield from (end for end in ends if end.status == STOP)
        for spec in job.specs:
            if not isinstance(made[spec.split.task], Outcome):
                self._output.part_made(spec.part_path(self._parts_dir, job.start, job.stop))
        done: list[RowRange | ShardRun] = [job]
        if ends and isinstance(job, ShardRun):
            # The split has failed: its jobs in the queue end in the same way.
            left = list(queue)
            queue.clear()
            for other in left:
                same = isinstance(other, ShardRun) and other.spec.split == job.spec.split
                (done if same else queue).append(other)
        for each in done:
            for spec in each.specs:
                state = self._states[spec.split]
                state.add(each.start, made[spec.split.task])
                follows = state.conclusion()
                if isinstance(follows, Outcome):
                    yield follows
                elif follows:
                    # Joined next, so that the task is published early, and safe from a kill.
                    queue.appendleft(self._output.job(follows))
        self._underway.pop(job, None)
        self._show(spec.split for spec in job.specs)

    def on_beam(self, pipeline_options: Sequence[str]) -> Iterator[Outcome]:
        """Does the jobs on Apache Beam."""
        from t0.caching.beam_runner import run_on_beam

        outcomes, jobs = self._begin()
        yield from outcomes
        ended = {outcome.split for outcome in outcomes}
        yield from run_on_beam(
            {split: state for split, state in self._states.items() if split not in ended},
            jobs,
            self._work.model,
            self._options,
            self._setup,
            parts_dir=self._parts_dir,
            pipeline_options=pipeline_options,
            run_dir=posixpath.join(
                self._request.output_cache_dir, f"run.{publishing.unfinished_tag()}"
            ),
        )

    def _reported(self, job: Any, examples: int | None) -> None:
        self._output.check()
        if isinstance(job, ShardRun) and examples:
            self._underway[job] = examples
            self._show([job.spec.split])
        else:
            self._progress.advance(None)

    def _show(self, splits: Iterable[TaskSplit]) -> None:
        for split in splits:
            rows, examples = self._states[split].so_far()
            underway = sum(n for job, n in self._underway.items() if job.spec.split == split)
            # If a source does not count its rows, they are estimated from the examples.
            self._progress.advance(split, examples=examples + underway, rows=rows or None)

    def carried_out(self, results: Iterator[Outcome]) -> list[Outcome]:
        """Publishes each task after the outcome of its last split, and returns all outcomes.

        Raises:
          UserError: if the output cannot be written.
        """
        outcomes: dict[str, list[Outcome]] = defaultdict(list)
        try:
            for outcome in results:
                if outcome.status == STOP:
                    raise OutputError(f"{outcome.message} (at {outcome.split})")
                self._progress.finish(outcome)
                task = self._plan.tasks[outcome.split.task]
                outcomes[task.name].append(outcome)
                if len(outcomes[task.name]) == len(task.splits):
                    self._publish(task, outcomes[task.name])
            self._output.wait()
        except OutputError as error:
            raise UserError(
                f"{error}. The run has stopped; finished tasks stay, and the same command "
                "continues from there."
            ) from error
        return [outcome for of_task in outcomes.values() for outcome in of_task]

    def _publish(self, task: TaskPlan, outcomes: Sequence[Outcome]) -> None:
        states = [self._states[one.split] for one in outcomes if one.split in self._states]
        self._output.publish(
            task.staging,
            functools.partial(_finish, task, outcomes, self._request, self._made_from[task.name]),
            [path for state in states for path in state.part_paths()],
        )


def _finish(
    task: TaskPlan,
    outcomes: Sequence[Outcome],
    request: Request,
    made_from: Mapping[str, Any],
    staging: str,
) -> None:
    by_status: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_status[outcome.status].append(outcome)
    written, absent = by_status[WRITTEN], by_status[ABSENT]
    if not written or by_status[FAILED] or (absent and not request.skip_absent_splits):
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
    replace = request.overwrite or bool(task.stale)
    cache_files.publish(staging, task.final, manifest, replace=replace)


def _conclude(
    plan: CachePlan, request: Request, outcomes: Sequence[Outcome], console: Console
) -> None:
    console.print(summary(outcomes), highlight=False)
    faults = []
    for outcome in outcomes:
        absent = outcome.status == ABSENT
        if outcome.trace:
            print(outcome.trace, file=sys.stderr)
        if outcome.status in (WRITTEN, EMPTY) or (absent and request.skip_absent_splits):
            continue
        hint = " Leave it out with --splits or --skip_absent_splits." if absent else ""
        faults.append(f"{outcome.split}: {outcome.message}{hint}")
    failed = {o.split.task for o in outcomes if o.status == FAILED} | {
        o.split.task for o in outcomes if o.status == ABSENT and not request.skip_absent_splits
    }
    done = len(plan.tasks) - len(failed)
    if faults:
        raise UserError(
            f"{len(failed)} of {len(plan.tasks)} tasks could not be cached, {done} are in "
            f"{request.output_cache_dir}:\n" + "\n".join(f"  {fault}" for fault in faults)
        )
    where = printable(request.output_cache_dir)
    console.print(f"{done} tasks cached in {where}", highlight=False, markup=False, soft_wrap=True)
