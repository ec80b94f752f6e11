"""Works through a queue of jobs: in worker processes of this machine, or in this process.

    queue = deque([*work.row_ranges])
    for job, result in in_processes(queue, RowRangeWorker(work.model), on_report, workers=8):
        queue += what_follows(job, result)

The workers come from a fork server, which has imported what they need (`fork_server`); each then
asks for one job after the other. A worker that dies (the kernel's out-of-memory killer, a crash in
a library) ends the run with its job's name; workers whose parent dies end at once.

Nothing here imports TensorFlow before a `ShardRunWorker` starts, and a `RowRangeWorker` never does.
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
# Of a process that is one of several.
PIPELINE_THREADS = 2

# `RowRange`, `ShardRun` or `JoinParts`; the modules of the first two are for those who do them.
Job = Any
# Called with a job and what it reports on the way; with None every half second, for a live display.
OnReport = Callable[[Any, Any], None]
# Does a job; may report on the way through its second argument.
Execute = Callable[[Any, Callable[[Any], None]], Any]


def execute(
    job: Job, make: Callable[[Any], Mapping[str, PartInfo | str]] | None
) -> dict[str, PartInfo | Outcome] | Outcome:
    """Does one job; what goes wrong is returned, not raised.

    Args:
      make: makes the parts of a job that is no `JoinParts`; returns task -> what was counted in its
        part, or why there is none.

    Returns:
      of `JoinParts` the split's outcome; else task -> what was counted in its part, or how its
      split ends for want of it.
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
    """Returns how a split ends after an error; the message ends in the job, if that says more."""
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
    """Makes the tasks known to this process; data folders and vocabulary come first.

    Raises:
      UserError: if a module does not exist, or a folder or the vocabulary.
    """
    if setup.data_dir:
        from t0 import sources

        sources.set_data_dirs(list(setup.data_dir))
    if setup.vocab:
        os.environ["T0_VOCAB"] = setup.vocab
        from t0.tasks import set_vocabulary

        set_vocabulary(setup.vocab)
    for module in filter(None, setup.module_import):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            # A module that is there but lacks one of its own imports keeps its traceback.
            if error.name and (module == error.name or module.startswith(f"{error.name}.")):
                raise UserError(
                    f"--module_import={module}: there is no module '{error.name}'. Is its folder "
                    "on PYTHONPATH, or its package installed?"
                ) from error
            raise
    if setup.tfds_data_dir:
        from t0.compat import seqio

        seqio.set_tfds_data_dir_override(setup.tfds_data_dir)


@dataclasses.dataclass(frozen=True)
class RowRangeWorker:
    """Starts a process that renders ranges of rows and joins parts.

    Attributes:
      model: the tokenizer's and its id of EOS: workers of a cluster need not find its file. None
        where nothing is to be rendered.
      data_dir: folders of datasets; those of the environment if empty.
    """

    model: tuple[bytes, int] | None
    data_dir: tuple[str, ...] = ()

    def __call__(self) -> Execute:
        """Loads what every job needs, and returns what does a job."""
        from t0 import sources
        from t0.caching.prompted_rows import Renderer, render_rows

        if self.data_dir:
            sources.set_data_dirs(list(self.data_dir))
        renderer = Renderer(*self.model) if self.model else None
        return lambda job, report: execute(job, functools.partial(render_rows, renderer=renderer))


@dataclasses.dataclass(frozen=True)
class ShardRunWorker:
    """Starts a process that reads source shards of any SeqIO task, and joins parts.

    Attributes:
      own_process: take no more of TensorFlow than a worker's share, and keep it silent.
    """

    options: Options
    setup: Setup
    own_process: bool = True

    def __call__(self) -> Execute:
        """Imports the tasks' modules, and returns what does a job."""
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
    """Leaves the other cores, and all accelerators, to others. Before TensorFlow's first use."""
    from t0.compat import tf

    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(PIPELINE_THREADS)


def quiet() -> None:
    """Keeps TensorFlow's and SeqIO's chatter, down to warnings, off the terminal."""
    from absl import logging

    from t0.compat import tf

    logging.set_verbosity(logging.ERROR)
    tf.get_logger().setLevel("ERROR")


def here(
    queue: collections.deque, execute: Execute, on_report: OnReport
) -> Iterator[tuple[Any, Any]]:
    """Does the jobs one after the other in this process, yielding each with its result."""
    while queue:
        job = queue.popleft()
        yield job, execute(job, lambda report, job=job: on_report(job, report))
        on_report(None, None)


def in_processes(
    queue: collections.deque, start: fork_server.Start, on_report: OnReport, *, workers: int
) -> Iterator[tuple[Any, Any]]:
    """Does the jobs in up to `workers` processes, yielding each with its result as they come.

    Args:
      queue: may grow while this runs.
      start: called once for all processes; can be pickled, as can the jobs and their results.

    Raises:
      UserError: if a worker dies, or cannot start.
    """
    # Also the workers' folder for temporary files: they end without cleaning up, and TensorFlow
    # would leave the code that it generates.
    with tempfile.TemporaryDirectory(prefix="t0_workers_", ignore_cleanup_errors=True) as folder:
        # In a file: a tokenizer's model does not fit into a pipe that nobody reads yet.
        program = Path(folder) / "program"
        with program.open("wb") as file:
            fork_server.pickled(start, file)
        pool = _Pool(program, min(workers, len(queue)))
        try:
            while queue or any(member.busy for member in pool.members):
                for member in pool.members:
                    pool.give(member, queue)
                yield from pool.serve(on_report)
                on_report(None, None)
        finally:
            pool.end()


class _Worker:
    """A process's number, the pipe to it and what it is at."""

    def __init__(self, number: int, pipe: connection.Connection) -> None:
        self.number = number
        self.pipe = pipe
        self.ready = False
        self.job: Any = None

    @property
    def busy(self) -> bool:
        """Whether there is something to wait for: a job, or the process's start."""
        return not self.ready or self.job is not None


class _Pool:
    """The workers, and the fork server that they come from."""

    def __init__(self, program: Path, count: int) -> None:
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
        """Sends a worker the next job, if there is one and the worker is idle."""
        if queue and not member.busy:
            member.job = queue.popleft()
            try:
                member.pipe.send(member.job)
            except ConnectionError:
                raise self._death(member) from None

    def serve(self, on_report: OnReport) -> Iterator[tuple[Any, Any]]:
        """Waits for a moment for what the workers say, and yields jobs with their results."""
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
        at = f"while caching {member.job}" if member.job is not None else "before its first task"
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            why = f"was killed ({name})"
            if -code == signal.SIGKILL:
                why += ", most likely by the system for lack of memory: try a smaller --num_workers"
        else:
            why = f"ended (exit status {code})"
        return UserError(
            f"a worker process {why}. It stopped {at}. What was finished before stays, and the "
            "same command goes on from there."
        )

    def _exit_status(self, number: int) -> int | None:
        """Returns how a worker ended, or how the fork server did if that took its workers along."""
        with contextlib.suppress(EOFError, ConnectionError):
            while self._control.poll(END_SECONDS):
                ended, code = self._control.recv()
                if ended == number:
                    return code
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._server.wait(timeout=END_SECONDS)
        return None

    def end(self) -> None:
        """Ends the processes, whatever they are at. What they were writing has no name yet."""
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
