"""Runs caching: plans and runs the jobs, publishes each complete task, and reports the outcomes.

    cache(CacheSelection(output_cache_dir="/data/cache", tasks=["t0_train"]), RecordOptions(),
          Setup(module_import=["t0.seqio_tasks"]), num_workers=8)

If a task fails, the run continues with the other tasks, and ends with a `UserError` that names the
failed task. If the output cannot be written or a worker dies, the run stops. In both cases the
published tasks stay. If the same call is made again, it continues where this run stopped.

If the output is an object store, the workers write into a temporary folder of this machine, and
need neither TensorFlow nor the network. This process uploads each part when it is complete, so that
the next run can use the parts if this run is killed. It uploads the files of a task when all its
splits are complete. If Apache Beam runs the jobs, its workers write into the object store
themselves.
"""

import collections
import contextlib
import dataclasses
import os
import posixpath
import sys
import tempfile
import threading
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
    conclude,
)
from t0.caching.split_table import print_outcomes
from t0.caching.work_plan import OpenedSplits, Work, plan_work
from t0.compat import seqio
from t0.errors import UserError, interruptible, printable, write_reason
from t0.files import OutputError, paths, publishing
from t0.progress import ProgressLine

# How often parts are counted while Apache Beam makes them.
POLL_SECONDS = 5.0
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
    if num_workers is not None and num_workers < 0:
        raise UserError(f"--num_workers={num_workers}: expected a number from 0")
    file = file or sys.stdout
    out, tag = selection.output_cache_dir, publishing.unfinished_tag()
    publishing.check_writable(out)
    workers.prepare(setup)
    seqio.add_global_cache_dirs([out, *selection.tasks_additional_cache_dirs])
    opened = OpenedSplits()
    with contextlib.ExitStack() as stack:
        folder = out
        if paths.is_remote(out) and not on_beam(pipeline_options):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="t0_caching_"))
        plan = make_plan(selection, registered(out, opened), tag, folder=folder)
        parts_dir, kept_parts = (posixpath.join(f, f"{PARTS}.{tag}") for f in (folder, out))
        stack.callback(_remove_unfinished, parts_dir)
        work = plan_work(plan.splits, options, parts_dir, opened, setup)
        # The inputs are recorded before the data is read. If the data changes during the run, the
        # next run then finds that the cache is stale.
        made_from = {
            name: provenance(seqio.TaskRegistry.get(name), task.splits, setup.module_import)
            for name, task in plan.tasks.items()
        }
        _tidy_up(plan, selection, kept_parts)
        for note in (*plan.notes, *describe_plan(plan)):
            print(printable(note), file=file)
        if not plan.splits:
            return []
        publishing.make_folder(parts_dir)
        rows = [split.rows for split in plan.splits]
        progress = ProgressLine(
            sum(rows) if all(rows) else None, unit="row", doing="caching", file=file
        )
        run = _Run(
            plan, work, selection, options, setup, parts_dir, kept_parts, made_from, progress
        )
        advice = "finished tasks and parts are kept, and the same command continues after them"
        try:
            with progress, interruptible(advice):
                if on_beam(pipeline_options):
                    results = run.on_beam(pipeline_options)
                else:
                    results = run.here(chosen_workers(plan, num_workers))
                outcomes = run.carry_out(results)
            paths.remove(kept_parts)
        finally:
            for task in plan.tasks.values():
                paths.remove(task.staging)
    print_outcomes(outcomes, file, options.lengths)
    _report_faults(plan, selection, outcomes, file)
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
    return Catalogue(
        tasks={name: seqio.TaskRegistry.get(name) for name in seqio.TaskRegistry.names()},
        mixtures={
            name: [task.name for task in seqio.MixtureRegistry.get(name).tasks]
            for name in seqio.MixtureRegistry.names()
        },
        cache_of=lambda name: next(
            filter(cache_files.is_finished, (task_directory(d, name) for d in directories)), None
        ),
        cached_splits=cache_files.cached_splits,
        rows_of=opened.rows_of,
        changes_of=changes_of,
    )


def _remove_unfinished(parts_dir: str) -> None:
    """Removes a directory of parts if it has no part that a later run may take over."""
    if not parts.any_whole(parts_dir):
        paths.remove(parts_dir)


def _tidy_up(plan: CachePlan, selection: CacheSelection, parts_dir: str) -> None:
    """Keeps the parts of killed runs, and removes their other files."""
    out = selection.output_cache_dir
    names = [*plan.tasks, *plan.skipped]
    dead = publishing.leftovers(
        [out, *(posixpath.dirname(task_directory(out, name)) for name in names)]
    )
    of_parts = [path for path in dead if posixpath.basename(path).startswith(f"{PARTS}.")]
    if of_parts and plan.splits:  # if there is nothing to cache, they are removed below
        parts.adopt(parts_dir, of_parts)
    for path in dead:
        paths.remove(path)


def describe_plan(plan: CachePlan) -> Iterator[str]:
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
      parts_dir: the directory into which the parts are written.
      kept_parts: the directory of the parts in the output. If it differs from `parts_dir`, the
        parts are uploaded.
      made_from: task -> the record of its inputs.
      progress: the live line.
    """

    plan: CachePlan
    work: Work
    selection: CacheSelection
    options: RecordOptions
    setup: Setup
    parts_dir: str
    kept_parts: str
    made_from: Mapping[str, Mapping[str, Any]]
    progress: ProgressLine

    def __post_init__(self) -> None:
        # Split -> the results of its finished pieces; see `conclude`.
        self.results: dict[TaskSplit, dict[int, PartInfo | SplitOutcome]] = {
            split: {} for split in self.work.specs
        }
        self.outcomes: dict[str, list[SplitOutcome]] = defaultdict(list)
        self.finished = self.examples = 0  # tasks, and the examples of all their splits

    def _begin(self) -> tuple[list[SplitOutcome], list[RowRange | ShardRun | JoinParts]]:
        """Adds the parts of earlier runs; returns the outcomes so far and the jobs to run."""
        if self.parts_dir != self.kept_parts:
            names = {name for spec in self.work.specs.values() for name in spec.part_paths("")}
            for name in names.intersection(paths.list_names(self.kept_parts)):
                source = posixpath.join(self.kept_parts, name)
                with contextlib.suppress(OSError):  # an unreadable part is made again
                    paths.copy(source, posixpath.join(self.parts_dir, name))
        jobs = []
        for job in (*self.work.row_ranges, *self.work.shard_runs):
            absent = [spec for spec in job.specs if not self._take_over(spec, job)]
            if absent:
                jobs.append(job.only(absent))
        ends = list(filter(None, map(self._conclude, self.work.specs.values())))
        outcomes = [end for end in ends if isinstance(end, SplitOutcome)]
        joins = [end for end in ends if isinstance(end, JoinParts)]
        self._count(0)
        self.progress.show()
        return [*self.work.failed, *outcomes], [*joins, *jobs]

    def _take_over(self, spec: SplitSpec, job: RowRange | ShardRun) -> bool:
        info = parts.read_info(spec.part_path(self.parts_dir, job.start, job.stop))
        if info is not None:
            self.results[spec.split][job.start] = info
            self.progress.count_before(info["rows"] or info["records"])
        return info is not None

    def _conclude(self, spec: SplitSpec) -> JoinParts | SplitOutcome | None:
        return conclude(spec, self.results[spec.split], self.options, self.parts_dir)

    def here(self, num_workers: int) -> Iterator[SplitOutcome]:
        """Runs the jobs on this machine and yields outcomes. Jobs without TensorFlow run first."""
        outcomes, jobs = self._begin()
        yield from outcomes
        # Without workers, the jobs run in this process, which has already registered the tasks.
        shard_worker = workers.ShardRunWorker(
            self.options, self.setup, own_process=bool(num_workers)
        )
        for start, heavy in (
            (workers.RowRangeWorker(self.work.model, self.setup), False),
            (shard_worker, True),
        ):
            queue = collections.deque(job for job in jobs if isinstance(job, ShardRun) == heavy)
            for job, result in workers.run_jobs(queue, start, self._count, workers=num_workers):
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
        """Adds the results of a job, and yields outcomes.

        If all parts of a split exist now, the job that joins them is added to the queue.
        """
        if self.parts_dir != self.kept_parts:
            written = [s for s in job.specs if not isinstance(made[s.split.task], SplitOutcome)]
            names = [spec.part_path("", job.start, job.stop) for spec in written]
            publishing.move_files(self.parts_dir, self.kept_parts, names)
        for spec in job.specs:
            result = made[spec.split.task]
            starts = [job.start]
            failed = isinstance(result, SplitOutcome)
            if failed and result.status == STOP:
                yield result
            elif failed and isinstance(job, ShardRun):
                # The split has failed, so its other jobs in the queue get the same outcome.
                others = [o for o in queue if isinstance(o, ShardRun) and o.spec == spec]
                starts += [other.start for other in others]
                for other in others:
                    queue.remove(other)
            self.results[spec.split].update(dict.fromkeys(starts, result))
            end = self._conclude(spec)
            if isinstance(end, SplitOutcome):
                yield end
            elif end:
                # The parts are joined next, so that the task is published early. If the run is
                # killed, it loses no published task.
                queue.appendleft(end)

    def on_beam(self, pipeline_options: Sequence[str]) -> Iterator[SplitOutcome]:
        """Runs the jobs on Apache Beam, and yields outcomes."""
        from t0.caching.beam_runner import run_on_beam

        outcomes, jobs = self._begin()
        yield from outcomes
        ended = {outcome.split for outcome in outcomes}
        made = run_on_beam(
            {split: spec for split, spec in self.work.specs.items() if split not in ended},
            self.results,
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
        with self._counting_parts(jobs):
            outcomes = list(made)  # all of them exist when the pipeline has ended
        yield from outcomes

    @contextlib.contextmanager
    def _counting_parts(self, jobs: Iterable[RowRange | ShardRun | JoinParts]) -> Iterator[None]:
        """Counts the rows whose parts have appeared, because few runners report their progress."""
        waiting = {
            spec.part_path("", job.start, job.stop): job.stop - job.start
            for job in jobs
            if isinstance(job, RowRange)
            for spec in job.specs
        }

        def count() -> None:
            with contextlib.suppress(OSError):
                appeared = waiting.keys() & set(paths.list_names(self.parts_dir))
                self._count(sum(map(waiting.pop, appeared)))

        def follow() -> None:
            while not ended.wait(POLL_SECONDS):
                count()

        ended = threading.Event()
        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()
            count()

    def _count(self, rows: int) -> None:
        note = f"{self.finished}/{len(self.plan.tasks)} tasks, {self.examples:,} examples"
        self.progress.count(rows, note=note)

    def carry_out(self, results: Iterator[SplitOutcome]) -> list[SplitOutcome]:
        """Publishes each task when all its splits have an outcome, and returns all outcomes.

        Raises:
          UserError: if the output cannot be written.
        """
        try:
            for outcome in results:
                if outcome.status == STOP:
                    raise OutputError(f"{outcome.message} (at {outcome.split})")
                task = self.plan.tasks[outcome.split.task]
                self.outcomes[task.name].append(outcome)
                self.examples += outcome.stats.get("examples", 0)
                if len(self.outcomes[task.name]) == len(task.splits):
                    self._publish(task)
                    self.finished += 1
        except OutputError as error:
            full = self.parts_dir != self.kept_parts and write_reason(error) == "the disk is full"
            advice = " Free some space, or set TMPDIR=DIR to a folder with more." * full
            raise UserError(
                f"{error}. The run has stopped; finished tasks stay, and the same command "
                f"continues from there.{advice}"
            ) from error
        return [outcome for of_task in self.outcomes.values() for outcome in of_task]

    def _publish(self, task: TaskPlan) -> None:
        """Publishes a task if all its selected splits are written, and removes its parts."""
        outcomes = self.outcomes[task.name]
        if any(o.status == WRITTEN for o in outcomes) and not any(
            _is_fault(o, self.selection) for o in outcomes
        ):
            cache_files.write_provenance(task.staging, self.made_from[task.name])
            replace = self.selection.overwrite or bool(task.stale)
            manifest = _manifest(task, outcomes)
            cache_files.publish(task.staging, task.final, manifest, replace=replace)
        paths.remove(task.staging)
        for outcome in outcomes:
            if outcome.split in self.work.specs:
                for path in self.work.specs[outcome.split].part_paths(self.parts_dir):
                    paths.remove(path)


def _manifest(task: TaskPlan, outcomes: Sequence[SplitOutcome]) -> dict[str, Any]:
    """Returns the content of a task's `COMPLETED`."""
    by_status: dict[str, list[SplitOutcome]] = defaultdict(list)
    for outcome in sorted(outcomes, key=lambda o: o.split.name):
        by_status[outcome.status].append(outcome)
    absent = {**task.absent, **{o.split.name: o.message for o in by_status[ABSENT]}}
    return {
        "schema": 1,
        "task": task.name,
        "absent_splits": {split: first_line(why) for split, why in absent.items()},
        "empty_splits": {o.split.name: "; ".join(o.notes) for o in by_status[EMPTY]},
        "splits": {
            outcome.split.name: {
                "examples": outcome.stats["examples"],
                "counts": dict(outcome.counts),
                "over": dict(outcome.over),
                "notes": list(outcome.notes),
                "files": outcome.files,
            }
            for outcome in by_status[WRITTEN]
        },
    }


def _is_fault(outcome: SplitOutcome, selection: CacheSelection) -> bool:
    """Returns whether the task of a split must not be published because of this outcome."""
    absent = outcome.status == ABSENT
    return outcome.status == FAILED or (absent and not selection.skip_absent_splits)


def _report_faults(
    plan: CachePlan, selection: CacheSelection, outcomes: Sequence[SplitOutcome], file: TextIO
) -> None:
    faults = [outcome for outcome in outcomes if _is_fault(outcome, selection)]
    failed = {outcome.split.task for outcome in faults}
    done, out = len(plan.tasks) - len(failed), selection.output_cache_dir
    if not faults:
        print(f"{done} tasks cached in {printable(out)}", file=file)
        return
    lines = [f"{len(failed)} of {len(plan.tasks)} tasks could not be cached; {done} are in {out}:"]
    for outcome in faults:
        if outcome.trace:
            print(outcome.trace, file=sys.stderr)
        absent = outcome.status == ABSENT
        hint = " Leave it out with --splits or --skip_absent_splits." if absent else ""
        lines.append(f"  {outcome.split}: {outcome.message}{hint}")
    raise UserError("\n".join(lines))
