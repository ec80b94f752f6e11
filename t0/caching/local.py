"""Works through a queue of jobs on this machine: in worker processes, or in this one.

    queue = deque(jobs)
    for job, result in in_processes(queue, RangeWorker(model, eos_id=1), tell, workers=8):
        queue += what_follows(job, result)

The workers are forked from one fresh process, the nursery, which has imported what they need; each
then asks for one job after the other. A worker that dies (the kernel's out-of-memory killer, a
crash in a library) ends the run with its job's name; workers whose parent dies end at once.

They are not `multiprocessing`'s: those import the program's main module again, which may be heavy,
or lack `if __name__ == "__main__"`. Nothing here imports TensorFlow before a `ShardWorker` starts,
and a `RangeWorker` never does.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import connection
from pathlib import Path
from typing import Any

from t0.caching import nursery
from t0.caching.unit import Options, Setup
from t0.errors import UserError

END_SECONDS = 10.0

# Told of a job what it reports on the way; with None every half second, for a live display.
Tell = Callable[[Any, Any], None]
# Does a job; may report on the way through its second argument.
Execute = Callable[[Any, Callable[[Any], None]], Any]


@dataclasses.dataclass(frozen=True)
class RangeWorker:
    """Starts a process that renders ranges and joins parts.

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
        from t0.caching.ledger import execute
        from t0.caching.ranges import Engine, render_range

        if self.data_dir:
            sources.set_data_dirs(list(self.data_dir))
        engine = Engine(*self.model) if self.model else None
        return lambda job, report: execute(job, functools.partial(render_range, engine=engine))


@dataclasses.dataclass(frozen=True)
class ShardWorker:
    """Starts a process that reads source shards of any SeqIO task, and joins parts.

    Attributes:
      own_process: take no more of TensorFlow than a worker's share, and keep it silent.
    """

    options: Options
    setup: Setup
    own_process: bool = True

    def __call__(self) -> Execute:
        """Imports the tasks' modules, and returns what does a job."""
        from t0.caching import worker

        if self.own_process:
            quiet()
            worker.limit_threads()
        worker.prepare(self.setup)
        return worker.executor(self.options, own_process=self.own_process)


def here(queue: collections.deque, execute: Execute, tell: Tell) -> Iterator[tuple[Any, Any]]:
    """Does the jobs one after the other in this process, yielding each with its result."""
    while queue:
        job = queue.popleft()
        yield job, execute(job, lambda told, job=job: tell(job, told))
        tell(None, None)


def in_processes(
    queue: collections.deque, start: nursery.Start, tell: Tell, *, workers: int
) -> Iterator[tuple[Any, Any]]:
    """Does the jobs in up to `workers` processes, yielding each with its result as they come.

    Args:
      queue: may grow while this runs.
      start: called once for all processes; can be pickled, as can the jobs and their results.

    Raises:
      UserError: if a worker dies, or cannot start.
    """
    # Also the workers' folder for temporary files: they end without farewells, and TensorFlow would
    # leave the code that it generates.
    with tempfile.TemporaryDirectory(prefix="t0_workers_", ignore_cleanup_errors=True) as folder:
        # In a file: a tokenizer's model does not fit into a pipe that nobody reads yet.
        program = Path(folder) / "program"
        with program.open("wb") as file:
            nursery.pickled(start, file)
        pool = _Pool(program, min(workers, len(queue)))
        try:
            while queue or any(member.busy for member in pool.members):
                for member in pool.members:
                    pool.give(member, queue)
                yield from pool.serve(tell)
                tell(None, None)
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
    """The workers, and the process that they come from."""

    def __init__(self, program: Path, count: int) -> None:
        self._control, control = _pipe()
        pairs = [_pipe() for _ in range(count)]
        theirs = [end for _, end in pairs]
        descriptors = [end.fileno() for end in theirs]
        self._nursery = subprocess.Popen(
            nursery.command(str(program), os.getpid(), control.fileno(), descriptors),
            pass_fds=(control.fileno(), *descriptors),
            stdin=subprocess.DEVNULL,
            env={**os.environ, **nursery.ENVIRONMENT, "TMPDIR": str(program.parent)},
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

    def serve(self, tell: Tell) -> Iterator[tuple[Any, Any]]:
        """Waits for a moment for what the workers say, and yields jobs with their results."""
        of_pipe = {member.pipe: member for member in self.members}
        for pipe in connection.wait(list(of_pipe), timeout=nursery.TICK_SECONDS):
            member = of_pipe[pipe]
            try:
                kind, content = pipe.recv()
            except (EOFError, ConnectionError):
                raise self._death(member) from None
            if kind == "broken":
                raise content
            if kind == "ready":
                member.ready = True
            elif kind == "told":
                tell(member.job, content)
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
        """Returns how a worker ended, or how the nursery did if that took its workers along."""
        with contextlib.suppress(EOFError, ConnectionError):
            while self._control.poll(END_SECONDS):
                ended, code = self._control.recv()
                if ended == number:
                    return code
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._nursery.wait(timeout=END_SECONDS)
        return None

    def end(self) -> None:
        """Ends the processes, whatever they are at. What they were writing has no name yet."""
        self._nursery.terminate()
        try:
            self._nursery.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._nursery.kill()
            self._nursery.wait()
        for pipe in (self._control, *(member.pipe for member in self.members)):
            pipe.close()


def _pipe() -> tuple[connection.Connection, connection.Connection]:
    one, other = socket.socketpair()
    return connection.Connection(one.detach()), connection.Connection(other.detach())


def quiet() -> None:
    """Keeps TensorFlow's and SeqIO's chatter, down to warnings, off the terminal."""
    from absl import logging

    from t0.compat import tf

    logging.set_verbosity(logging.ERROR)
    tf.get_logger().setLevel("ERROR")
