"""Does a queue of jobs: in worker processes of this machine, or in this process.

    queue = collections.deque(work.row_ranges)
    for job, result in in_processes(queue, RowRangeWorker(work.model), on_report, workers=8):
        queue.extend(more_jobs)      # the queue may grow meanwhile

A fork server starts the workers, after it has imported what they need (`fork_server`). A worker
gets one job at a time. If a worker dies (the kernel's out-of-memory killer, a crash in a library),
the run ends with an error that names its job. If the parent dies, the workers end at once.

A `ShardRunWorker` imports TensorFlow when it starts; a `RowRangeWorker` never does.
"""

import collections
import contextlib
import dataclasses
import functools
import importlib
import os
import signal
import socket
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection
from pathlib import Path
from typing import Any

from t0.caching import fork_server
from t0.caching.cache_files import join_parts
from t0.caching.cache_plan import Options, Setup, TaskSplit
from t0.caching.split_state import ABSENT, FAILED, STOP, JoinParts, Outcome, PartInfo
from t0.errors import AbsentData, UserError, original
from t0.files import OutputError

END_SECONDS = 10.0
# The threads of the input pipeline in each of several processes.
PIPELINE_THREADS = 2

# `RowRange`, `ShardRun` or `JoinParts`; only the workers import the modules of the first two.
Job = Any
# Called with a job and its report; with None and None every half second, for a live display.
OnReport = Callable[[Any, Any], None]
# Does a job; its second argument is a function for reports.
Execute = Callable[[Any, Callable[[Any], None]], Any]


def execute(
    job: Job, make: Callable[[Any], Mapping[str, PartInfo | str]] | None
) -> dict[str, PartInfo | Outcome] | Outcome:
    """Does one job; returns errors as outcomes, and raises none.

    Args:
      job: the job.
      make: a function that makes the parts of a job other than `JoinParts`. It returns task -> the
        counts of its part, or the reason why there is none.

    Returns:
      for `JoinParts`, the split's outcome; else task -> the counts of its part, or the outcome of
      its split without that part.
    """
    try:
        if isinstance(job, JoinParts):
            return join_parts(job)
        splits = {spec.split.task: spec.split for spec in job.specs}
        return {
            task: Outcome(splits[task], FAILED, message=made) if isinstance(made, str) else made
            for task, made in make(job).items()
        }
    except Exception as error:  # noqa: BLE001 - every cause belongs in the result
        if isinstance(job, JoinParts):
            return _end(job.spec.split, error, job)
        return {spec.split.task: _end(spec.split, error, job) for spec in job.specs}


def _end(split: TaskSplit, error: Exception, job: Job) -> Outcome:
    """Returns the outcome of a split after an error; the message names a job that is a piece."""
    cause = original(error)
    where = "" if str(job) == str(split) else f" ({job})"
    if isinstance(cause, UserError):
        kinds = ((OutputError, STOP), (AbsentData, ABSENT), (UserError, FAILED))
        status = next(status for kind, status in kinds if isinstance(cause, kind))
        return Outcome(split, status, message=f"{cause}{where}")
    first = (str(cause).splitlines() or [""])[0]
    trace = "".join(traceback.format_exception(error))
    return Outcome(split, FAILED, message=f"{type(cause).__name__}: {first}{where}", trace=trace)


def prepare(setup: Setup) -> None:
    """Registers the tasks in this process, after setting data folders and vocabulary.

    Raises:
      UserError: if a module, a folder or the vocabulary does not exist, or gin knows no such
        binding.
    """
    if setup.data_dir:
        from t0 import sources

        sources.set_data_dirs(list(setup.data_dir))
    if setup.skip_bad_rows:
        from t0.sources import skip_bad_rows

        skip_bad_rows()
    if setup.vocab:
        os.environ["T0_VOCAB"] = setup.vocab
        from t0.tasks import set_vocabulary

        set_vocabulary(setup.vocab)
    for module in filter(None, setup.module_import):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            # The error of a module that exists, and lacks one of its own imports, stays as it is.
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
        from t0.config.explain import explained

        with explained(params=setup.gin_param):
            gin.parse_config(list(setup.gin_param))


@dataclasses.dataclass(frozen=True)
class RowRangeWorker:
    """Prepares a process that renders ranges of rows and joins parts.

    Attributes:
      model: the tokenizer's model and the id of EOS, because workers of a cluster may not have the
        model's file; None if there is nothing to render.
      data_dir: folders of datasets; those of the environment if empty.
      skip_bad_rows: whether rows that hold half of a surrogate pair are skipped.
    """

    model: tuple[bytes, int] | None
    data_dir: tuple[str, ...] = ()
    skip_bad_rows: bool = False

    def __call__(self) -> Execute:
        """Loads what every job needs, and returns the function that does a job."""
        from t0 import sources
        from t0.caching.prompted_rows import Renderer, render_rows

        if self.data_dir:
            sources.set_data_dirs(list(self.data_dir))
        if self.skip_bad_rows:
            sources.skip_bad_rows()
        renderer = Renderer(*self.model) if self.model else None
        return lambda job, report: execute(job, functools.partial(render_rows, renderer=renderer))


@dataclasses.dataclass(frozen=True)
class ShardRunWorker:
    """Prepares a process that reads source shards of any SeqIO task, and joins parts.

    Attributes:
      options: how records are made and written.
      setup: how the process registers the tasks.
      own_process: whether the process is a worker, which limits TensorFlow's threads and output.
    """

    options: Options
    setup: Setup
    own_process: bool = True

    def __call__(self) -> Execute:
        """Imports the tasks' modules, and returns the function that does a job."""
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
    """Limits TensorFlow to few threads and no accelerator, before its first use."""
    from t0.compat import tf

    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(PIPELINE_THREADS)


def quiet() -> None:
    """Suppresses the messages of TensorFlow and SeqIO up to warnings."""
    from absl import logging

    from t0.compat import tf

    logging.set_verbosity(logging.ERROR)
    tf.get_logger().setLevel("ERROR")


def here(
    queue: collections.deque, execute: Execute, on_report: OnReport
) -> Iterator[tuple[Any, Any]]:
    """Does the jobs one after the other in this process; yields each with its result."""
    while queue:
        job = queue.popleft()
        yield job, execute(job, lambda report, job=job: on_report(job, report))
        on_report(None, None)


_KEPT = "Finished tasks and parts stay, and the same command continues from there."


def in_processes(
    queue: collections.deque,
    start: fork_server.Start,
    on_report: OnReport,
    *,
    workers: int,
    doing: str = "caching",
    kept: str = _KEPT,
) -> Iterator[tuple[Any, Any]]:
    """Does the jobs in up to `workers` processes; yields each with its result when it is done.

    Args:
      queue: the jobs, to which the caller may add more meanwhile.
      start: the preparation of the processes, which is called once. It must be picklable, as the
        jobs and their results must be.
      on_report: a function that takes a job and its report.
      workers: the largest number of processes.
      doing: what is done with a job, for the message if a worker dies.
      kept: what is kept then.

    Raises:
      UserError: if a worker dies, or cannot start.
    """
    # The workers' temporary files are in this folder, too, because workers exit without removing
    # them, such as the code that TensorFlow generates.
    with tempfile.TemporaryDirectory(prefix="t0_workers_", ignore_cleanup_errors=True) as folder:
        # A file, because a tokenizer's model does not fit into the buffer of a pipe.
        program = Path(folder) / "program"
        with program.open("wb") as file:
            fork_server.pickled(start, file)
        pool = _Pool(program, min(workers, len(queue)), doing, kept)
        try:
            while queue or any(member.busy for member in pool.members):
                for member in pool.members:
                    pool.give(member, queue)
                yield from pool.serve(on_report)
                on_report(None, None)
        finally:
            pool.end()


class _Worker:
    """A worker process: its number, the pipe to it, and its current job."""

    def __init__(self, number: int, pipe: connection.Connection) -> None:
        self.number = number
        self.pipe = pipe
        self.ready = False
        self.job: Any = None

    @property
    def busy(self) -> bool:
        """Whether the process is still preparing itself, or has a job."""
        return not self.ready or self.job is not None


class _Pool:
    """The workers, and the fork server that starts them."""

    def __init__(self, program: Path, count: int, doing: str, kept: str) -> None:
        self._doing, self._kept = doing, kept
        self._control, control = _pipe()
        pairs = [_pipe() for _ in range(count)]
        theirs = [end for _, end in pairs]
        descriptors = [end.fileno() for end in theirs]
        self._server = subprocess.Popen(
            fork_server.command(str(program), os.getpid(), control.fileno(), descriptors),
            pass_fds=(control.fileno(), *descriptors),
            stdin=subprocess.DEVNULL,
            env={**os.environ, **fork_server.ENVIRONMENT, "TMPDIR": str(program.parent)},
        )
        for end in (control, *theirs):
            end.close()
        self.members = [_Worker(number, ours) for number, (ours, _) in enumerate(pairs)]

    def give(self, member: _Worker, queue: collections.deque) -> None:
        """Sends a worker the next job if there is one and the worker is idle."""
        if queue and not member.busy:
            member.job = queue.popleft()
            try:
                member.pipe.send(member.job)
            except ConnectionError:
                raise self._death(member) from None

    def serve(self, on_report: OnReport) -> Iterator[tuple[Any, Any]]:
        """Waits half a second for messages of the workers; yields jobs with their results."""
        of_pipe = {member.pipe: member for member in self.members}
        for pipe in connection.wait(list(of_pipe), timeout=fork_server.TICK_SECONDS):
            member = of_pipe[pipe]
            try:
                kind, content = pipe.recv()
            except (EOFError, ConnectionError):
                raise self._death(member) from None
            if kind == "broken":
                raise content
            if kind == "ready":
                member.ready = True
            elif kind == "report":
                on_report(member.job, content)
            else:
                job, member.job = member.job, None
                yield job, content

    def _death(self, member: _Worker) -> UserError:
        code = self._exit_status(member.number)
        started = member.job is not None
        at = f"while {self._doing} {member.job}" if started else "before its first task"
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            why = f"was killed ({name})"
            if -code == signal.SIGKILL:
                why += ", most likely by the system for lack of memory: try a smaller --num_workers"
        else:
            why = f"ended (exit status {code})"
        return UserError(f"a worker process {why}. It stopped {at}. {self._kept}")

    def _exit_status(self, number: int) -> int | None:
        """Returns a worker's exit status, or the fork server's if that ended its workers."""
        with contextlib.suppress(EOFError, ConnectionError):
            while self._control.poll(END_SECONDS):
                ended, code = self._control.recv()
                if ended == number:
                    return code
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._server.wait(timeout=END_SECONDS)
        return None

    def end(self) -> None:
        """Ends the processes during their jobs. Unfinished files have temporary names."""
        self._server.terminate()
        try:
            self._server.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        for pipe in (self._control, *(member.pipe for member in self.members)):
            pipe.close()


def _pipe() -> tuple[connection.Connection, connection.Connection]:
    one, other = socket.socketpair()
    return connection.Connection(one.detach()), connection.Connection(other.detach())
