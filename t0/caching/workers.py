"""Runs a queue of jobs in worker processes on this machine, or in this process.

    queue = collections.deque(work.row_ranges)
    start = RowRangeWorker(work.model, setup)
    for job, result in run_jobs(queue, start, progress.count, workers=8):
        queue.extend(more_jobs)      # the queue may grow

A worker gets one job at a time. If a worker dies, for example because the kernel's out-of-memory
killer ends it, the run ends with an error that names the worker's job. If the parent process dies,
the kernel kills the workers.

A `ShardRunWorker` imports TensorFlow when it starts. A `RowRangeWorker` never imports TensorFlow.
"""

import collections
import contextlib
import ctypes
import dataclasses
import importlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection
from typing import Any

from t0.caching.cache_files import join_parts
from t0.caching.cache_plan import RecordOptions, Setup, TaskSplit
from t0.caching.split_state import ABSENT, FAILED, STOP, JoinParts, PartInfo, SplitOutcome
from t0.child_processes import spawn_context
from t0.errors import AbsentData, UserError, original
from t0.files import OutputError

END_SECONDS, TICK_SECONDS = 10.0, 0.5
_PR_SET_PDEATHSIG = 1  # an option of Linux's prctl
# "spawn" instead of "fork", because the parent has threads, whose locks could stay locked in forked
# workers.
_SPAWN = spawn_context()
# The number of threads of the input pipeline in each worker process.
PIPELINE_THREADS = 2
# The value that stands for a process's job while it prepares itself.
_PREPARATION = object()

# `RowRange`, `ShardRun` or `JoinParts`; only the workers import the modules of the first two.
Job = Any
# A function that takes the number of rows or texts that were processed since its last call.
Count = Callable[[int], None]
# A function that runs a job, and counts rows or texts with its second argument.
Execute = Callable[[Any, Count], Any]
# A function that prepares a process, and returns the function that runs its jobs.
Start = Callable[[], Execute]


def execute(
    job: Job, make: Callable[[Any], Mapping[str, PartInfo | str]] | None
) -> dict[str, PartInfo | SplitOutcome] | SplitOutcome:
    """Runs one job, and returns errors as outcomes instead of raising them.

    Args:
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
        from t0.config.gin_errors import explain_errors
        from t0.tasks.gin_mixtures import register_gin_mixtures

        with explain_errors(params=setup.gin_param):
            gin.parse_config(list(setup.gin_param))
        register_gin_mixtures()


@dataclasses.dataclass(frozen=True)
class RowRangeWorker:
    """Prepares a process that renders ranges of rows and joins parts.

    Attributes:
      model: the content of the tokenizer's model file, and the id of EOS; None if there is nothing
        to render. The content is sent instead of the path, because the workers of a cluster may not
        have the file.
      setup: the settings. Only the data folders and `skip_bad_rows` are used.
    """

    model: tuple[bytes, int] | None
    setup: Setup

    def __call__(self) -> Execute:
        """Loads the shared state of all jobs, and returns the function that runs a job."""
        from t0.caching.prompted_rows import Renderer, render_rows

        prepare_sources(self.setup)
        renderer = Renderer(*self.model) if self.model else None
        return lambda job, count: execute(job, lambda rows: render_rows(rows, renderer, count))


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
            from t0.compat import tf

            # TensorFlow is first used after this.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(PIPELINE_THREADS)
        prepare(self.setup)
        from t0.caching.source_shards import make_part

        threads = PIPELINE_THREADS if self.own_process else None
        return lambda job, count: execute(
            job, lambda run: make_part(run, self.options, count=count, threads=threads)
        )


def quiet() -> None:
    """Suppresses all messages of TensorFlow and SeqIO except errors."""
    from absl import logging

    from t0.compat import tf

    logging.set_verbosity(logging.ERROR)
    tf.get_logger().setLevel("ERROR")


_KEPT = "Finished tasks and parts stay, and the same command continues from there."


def run_jobs(
    queue: collections.deque,
    start: Start,
    on_count: Count,
    *,
    workers: int,
    doing: str = "caching",
    kept: str = _KEPT,
) -> Iterator[tuple[Any, Any]]:
    """Runs the jobs of a queue, and yields each job with its result.

    Each process imports the program's main module (Python's start method "spawn"). So a script that
    calls this function needs `if __name__ == "__main__"`.

    Args:
      queue: the jobs. The caller may add jobs between results.
      start: a function that prepares a process, and returns the function that runs a job. It must
        be picklable, like the jobs and their results.
      on_count: a function that takes the number of rows or texts that were processed since the last
        call. It is called about every half second.
      workers: the maximum number of processes. With 0, this process runs the jobs.
      doing: the verb for the message if a worker dies.
      kept: the end of the message if a worker dies, which says how to continue.

    Raises:
      UserError: if a worker dies, or `start` or a job raises a `UserError`.
      RuntimeError: if `start` raises another error in a worker. The message is its traceback.
    """
    if workers:
        yield from _run_in_processes(queue, start, on_count, workers, f"while {doing}", kept)
    elif queue:
        execute = start()
        while queue:
            job = queue.popleft()
            yield job, execute(job, on_count)
            on_count(0)


def _run_in_processes(
    queue: collections.deque, start: Start, on_count: Count, workers: int, when: str, kept: str
) -> Iterator[tuple[Any, Any]]:
    counters, counted = [], 0
    processes: dict[connection.Connection, Any] = {}
    jobs: dict[connection.Connection, Any] = {}
    pipe = None
    try:
        for _ in range(min(workers, len(queue))):
            pipe, end = _SPAWN.Pipe()
            # Only one process writes to a counter, so it needs no lock.
            counters.append(_SPAWN.RawValue("q", 0))
            processes[pipe] = _SPAWN.Process(target=_work, args=(end, counters[-1]), daemon=True)
            processes[pipe].start()
            end.close()
        # `start` may be larger than a pipe's buffer. So it is sent when all processes are starting.
        for pipe in processes:
            jobs[pipe] = _PREPARATION
            pipe.send(start)
        while queue or jobs:
            for pipe in processes.keys() - jobs.keys():
                if queue:
                    jobs[pipe] = queue.popleft()
                    pipe.send(jobs[pipe])
            for pipe in connection.wait(list(jobs), TICK_SECONDS):
                result = pipe.recv()
                job = jobs.pop(pipe)
                if isinstance(result, Exception):
                    raise result
                if job is not _PREPARATION:
                    yield job, result
            before, counted = counted, sum(counter.value for counter in counters)
            on_count(counted - before)
    except (EOFError, ConnectionError):
        raise UserError(f"{_describe_death(processes[pipe], jobs[pipe], when)} {kept}") from None
    finally:
        # Files have temporary names until they are complete, so a job may be killed.
        for pipe, process in processes.items():
            process.kill()
            process.join()
            pipe.close()


def _describe_death(process: Any, job: Any, when: str) -> str:
    """Returns a message about how a process ended, and during which job."""
    process.join(END_SECONDS)
    why = f"ended (exit status {process.exitcode})"
    if (process.exitcode or 0) < 0:
        why = f"was killed ({signal.Signals(-process.exitcode).name})"
    if process.exitcode == -signal.SIGKILL:
        why += ", most likely because memory ran out: try a smaller --num_workers"
    stopped = f"{when} {job}"
    if job is _PREPARATION:
        stopped = (
            'before its first task. A script that starts workers needs if __name__ == "__main__"'
        )
    return f"a worker process {why}. It stopped {stopped}."


def _work(pipe: connection.Connection, counter: Any) -> None:
    """Prepares this worker process, and does the jobs that arrive through the pipe."""
    _die_with_parent()
    # Ctrl-C reaches all processes of the group. Workers ignore it, because the parent ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def count(number: int) -> None:
        counter.value += number

    with contextlib.suppress(EOFError, ConnectionError):  # the parent has ended
        try:
            execute = pipe.recv()()
        except UserError as error:
            return pipe.send(UserError(str(error)))
        except Exception:  # noqa: BLE001 - the parent raises it again
            return pipe.send(RuntimeError(traceback.format_exc()))
        pipe.send(None)
        while True:
            job = pipe.recv()
            try:
                result = execute(job, count)
            except UserError as error:
                result = UserError(str(error))
            pipe.send(result)


def _die_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends (only on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != multiprocessing.parent_process().pid:
        os._exit(1)
