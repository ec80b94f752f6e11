"""Runs a queue of jobs in worker processes on this machine, or in this process.

    queue = collections.deque(work.row_ranges)
    for job, result in in_processes(queue, RowRangeWorker(work.model, setup), on_report, workers=8):
        queue.extend(more_jobs)      # the queue may grow

A worker gets one job at a time. If a worker dies, for example because the kernel's out-of-memory
killer ends it, the run ends with an error that names the worker's job. If the parent process dies,
the kernel kills the workers.

A `ShardRunWorker` imports TensorFlow when it starts. A `RowRangeWorker` never imports TensorFlow.
"""

import collections
import ctypes
import dataclasses
import functools
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

from t0.caching.cache_files import join_parts
from t0.caching.cache_plan import RecordOptions, Setup, TaskSplit
from t0.caching.split_state import ABSENT, FAILED, STOP, JoinParts, PartInfo, SplitOutcome
from t0.errors import AbsentData, UserError, original
from t0.files import OutputError

END_SECONDS, TICK_SECONDS = 10.0, 0.5
_PR_SET_PDEATHSIG = 1  # an option of Linux's prctl
# "spawn" instead of "fork", because the parent has threads, whose locks could stay locked in forked
# workers.
_SPAWN = multiprocessing.get_context("spawn")
# The number of threads of the input pipeline in each worker process.
PIPELINE_THREADS = 2

# `RowRange`, `ShardRun` or `JoinParts`; only the workers import the modules of the first two.
Job = Any
# A function that takes a job and a report of the job's progress. About every half second, it is
# also called with None and None, so that it can update a live display.
OnReport = Callable[[Any, Any], None]
# A function that runs a job. Its second argument is a function that takes the job's reports.
Execute = Callable[[Any, Callable[[Any], None]], Any]
# A function that prepares a process, and returns the function that runs its jobs.
Start = Callable[[], Execute]


class WorkerError(RuntimeError):
    """An error during the preparation of a worker; its text is the worker's traceback."""


def execute(
    job: Job, make: Callable[[Any], Mapping[str, PartInfo | str]] | None
) -> dict[str, PartInfo | SplitOutcome] | SplitOutcome:
    """Runs one job, and returns errors as outcomes instead of raising them.

    Args:
      job: the job.
      make: a function that makes the parts of a job other than `JoinParts`. It returns task -> the
        counts of the task's part, or the reason why there is no part.

    Returns:
      for `JoinParts`, the outcome of the split. For other jobs, task -> the counts of the task's
      part. If the part could not be made, task -> the outcome of the task's split.
    """
    try:
        if isinstance(job, JoinParts):
            return join_parts(job)
        splits = {spec.split.task: spec.split for spec in job.specs}
        return {
            task: SplitOutcome(splits[task], FAILED, message=made)
            if isinstance(made, str)
            else made
            for task, made in make(job).items()
        }
    except Exception as error:  # noqa: BLE001 - every cause belongs in the result
        if isinstance(job, JoinParts):
            return _end(job.spec.split, error, job)
        return {spec.split.task: _end(spec.split, error, job) for spec in job.specs}


def _end(split: TaskSplit, error: Exception, job: Job) -> SplitOutcome:
    """Returns the outcome of a split after an error.

    If the job is only a piece of the split, the message also names the job.
    """
    cause = original(error)
    where = "" if str(job) == str(split) else f" ({job})"
    if isinstance(cause, UserError):
        kinds = ((OutputError, STOP), (AbsentData, ABSENT), (UserError, FAILED))
        status = next(status for kind, status in kinds if isinstance(cause, kind))
        return SplitOutcome(split, status, message=f"{cause}{where}")
    first = (str(cause).splitlines() or [""])[0]
    trace = "".join(traceback.format_exception(error))
    return SplitOutcome(
        split, FAILED, message=f"{type(cause).__name__}: {first}{where}", trace=trace
    )


def prepare_sources(setup: Setup) -> None:
    """Sets this process's data folders, and whether it skips bad rows.

    Raises:
      UserError: if a folder does not exist.
    """
    from t0 import sources

    if setup.data_dir:
        sources.set_data_dirs(list(setup.data_dir))
    if setup.skip_bad_rows:
        sources.skip_bad_rows()


def prepare(setup: Setup) -> None:
    """Registers the tasks in this process, after setting data folders and vocabulary.

    Raises:
      UserError: if a module, a folder or the vocabulary does not exist, or a gin binding is
        unknown.
    """
    prepare_sources(setup)
    if setup.vocab:
        os.environ["T0_VOCAB"] = setup.vocab
        from t0.tasks import set_vocabulary

        set_vocabulary(setup.vocab)
    for module in filter(None, setup.module_import):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            # If the module itself exists, but a module that it imports does not, the original error
            # is raised again.
            if error.name and (module == error.name or module.startswith(f"{error.name}.")):
                raise UserError(
                    f"--module_import={module}: there is no module '{error.name}'. Is its folder "
                    "on PYTHONPATH, or its package installed?"
                ) from error
            raise
    if setup.tfds_data_dir:
        from t0.compat import seqio

        seqio.set_tfds_data_dir_override(setup.tfds_data_dir)
    if setup.gin_param:
        from t0.compat import gin
        from t0.config.explain import explain_errors

        with explain_errors(params=setup.gin_param):
            gin.parse_config(list(setup.gin_param))


@dataclasses.dataclass(frozen=True)
class RowRangeWorker:
    """Prepares a process that renders ranges of rows and joins parts.

    Attributes:
      model: the content of the tokenizer's model file, and the id of EOS; None if there is nothing
        to render. The content is sent instead of the path, because the workers of a cluster may not
        have the file.
      setup: the settings, of which only the data folders and `skip_bad_rows` are used.
    """

    model: tuple[bytes, int] | None
    setup: Setup

    def __call__(self) -> Execute:
        """Loads the shared state of all jobs, and returns the function that runs a job."""
        from t0.caching.prompted_rows import Renderer, render_rows

        prepare_sources(self.setup)
        renderer = Renderer(*self.model) if self.model else None
        return lambda job, report: execute(job, functools.partial(render_rows, renderer=renderer))


@dataclasses.dataclass(frozen=True)
class ShardRunWorker:
    """Prepares a process to read source shards of any SeqIO task and to join their parts.

    Attributes:
      options: how records are made and written.
      setup: how the process registers the tasks.
      own_process: whether the process is a worker process, in which TensorFlow's threads and
        messages are limited.
    """

    options: RecordOptions
    setup: Setup
    own_process: bool = True

    def __call__(self) -> Execute:
        """Imports the modules of the tasks, and returns the function that runs a job."""
        if self.own_process:
            quiet()
            _limit_threads()
        prepare(self.setup)
        from t0.caching.source_shards import make_part

        threads = PIPELINE_THREADS if self.own_process else None
        return lambda job, report: execute(
            job, lambda run: make_part(run, self.options, advance=report, threads=threads)
        )


def _limit_threads() -> None:
    """Limits TensorFlow to few threads and hides accelerators, before TensorFlow is first used."""
    from t0.compat import tf

    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(PIPELINE_THREADS)


def quiet() -> None:
    """Suppresses all messages of TensorFlow and SeqIO except errors."""
    from absl import logging

    from t0.compat import tf

    logging.set_verbosity(logging.ERROR)
    tf.get_logger().setLevel("ERROR")


def here(
    queue: collections.deque, execute: Execute, on_report: OnReport
) -> Iterator[tuple[Any, Any]]:
    """Runs the jobs one after the other in this process; yields each job with its result."""
    while queue:
        job = queue.popleft()
        yield job, execute(job, lambda report, job=job: on_report(job, report))
        on_report(None, None)


_KEPT = "Finished tasks and parts stay, and the same command continues from there."


def in_processes(
    queue: collections.deque,
    start: Start,
    on_report: OnReport,
    *,
    workers: int,
    doing: str = "caching",
    kept: str = _KEPT,
) -> Iterator[tuple[Any, Any]]:
    """Runs the jobs in up to `workers` processes; yields each job with its result.

    Each process imports the program's main module (Python's start method "spawn"). So a script that
    calls this function needs `if __name__ == "__main__"`.

    Args:
      queue: the jobs. The caller may add jobs between results.
      start: a function that prepares a process, and returns the function that runs a job. It must
        be picklable, like the jobs and their results.
      on_report: a function that takes a job and its report.
      workers: the maximum number of processes.
      doing: the verb for the message if a worker dies.
      kept: the end of the message if a worker dies, which says how to continue.

    Raises:
      UserError: if a worker dies, or `start` raises a `UserError`.
      WorkerError: if `start` raises another error.
    """
    # Workers put their temporary files into this folder, because killed workers do not remove them.
    with tempfile.TemporaryDirectory(prefix="t0_workers_", ignore_cleanup_errors=True) as folder:
        # `start` is sent in a file, because a tokenizer's model does not fit into a pipe's buffer.
        start_file = Path(folder, "start.pickle")
        start_file.write_bytes(pickle.dumps(start))
        members: list[_Worker] = []
        try:
            for _ in range(min(workers, len(queue))):
                members.append(_Worker(start_file))
            while queue or any(member.busy for member in members):
                for member in members:
                    if queue and not member.busy:
                        member.give(queue.popleft())
                yield from _receive(members, on_report)
                on_report(None, None)
        except _WorkerDied as death:
            raise UserError(f"{death.describe(doing)} {kept}") from None
        finally:
            for member in members:
                member.end()


class _Worker:
    """A worker process, the pipe to it, and its current job."""

    def __init__(self, start_file: Path) -> None:
        self.pipe, end = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_work, args=(start_file, end), daemon=True)
        self.process.start()
        end.close()
        self.ready = False
        self.job: Any = None

    @property
    def busy(self) -> bool:
        """Whether the process is still preparing itself, or has a job."""
        return not self.ready or self.job is not None

    def give(self, job: Any) -> None:
        """Sends the process its next job."""
        self.job = job
        try:
            self.pipe.send(job)
        except ConnectionError:
            raise _WorkerDied(self) from None

    def receive(self) -> tuple[str, Any]:
        """Returns the kind and the content of the process's next message."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            raise _WorkerDied(self) from None

    def end(self) -> None:
        """Kills the process, even during a job.

        This is safe, because files have temporary names until they are complete.
        """
        self.process.kill()
        self.process.join()
        self.pipe.close()


class _WorkerDied(Exception):
    """A worker process ended during its job or its preparation."""

    def __init__(self, worker: _Worker) -> None:
        super().__init__()
        self._worker = worker

    def describe(self, activity: str) -> str:
        """Returns a message about how the process ended, and during which job.

        Args:
          activity: the verb for its work, such as "caching".
        """
        self._worker.process.join(END_SECONDS)
        code, job = self._worker.process.exitcode, self._worker.job
        if code is not None and code < 0:
            why = f"was killed ({signal.Signals(-code).name})"
            if -code == signal.SIGKILL:
                why += ", most likely because memory ran out: try a smaller --num_workers"
        else:
            why = f"ended (exit status {code})"
        if job is not None:
            return f"a worker process {why}. It stopped while {activity} {job}."
        hint = 'Its error is above. A script that starts workers needs if __name__ == "__main__":'
        return f"a worker process {why}. It stopped before its first task. {hint}."


def _receive(members: Sequence[_Worker], on_report: OnReport) -> Iterator[tuple[Any, Any]]:
    """Waits up to half a second for messages of the workers; yields jobs with their results."""
    by_pipe = {member.pipe: member for member in members}
    for pipe in connection.wait(list(by_pipe), timeout=TICK_SECONDS):
        member = by_pipe[pipe]
        kind, content = member.receive()
        if kind == "broken":
            raise content
        if kind == "ready":
            member.ready = True
        elif kind == "report":
            on_report(member.job, content)
        else:
            job, member.job = member.job, None
            yield job, content


def _work(start_file: Path, pipe: connection.Connection) -> None:
    """Prepares this worker process, and does the jobs that arrive through the pipe."""
    _die_with_parent()
    # Ctrl-C reaches all processes of the group. Workers ignore it, because the parent ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TMPDIR"] = tempfile.tempdir = str(start_file.parent)
    try:
        execute = pickle.loads(start_file.read_bytes())()
    except UserError as error:
        pipe.send(("broken", UserError(str(error))))
        return
    except Exception:  # noqa: BLE001 - the parent raises it again
        pipe.send(("broken", WorkerError(traceback.format_exc())))
        return
    pipe.send(("ready", None))
    while True:
        try:
            job = pipe.recv()
        except (EOFError, ConnectionError):
            return
        pipe.send(("result", execute(job, lambda report: pipe.send(("report", report)))))


def _die_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends (only on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != multiprocessing.parent_process().pid:
        os._exit(1)
