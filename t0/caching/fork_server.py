"""A fork server: one process makes ready, and forks worker processes from itself.

    [sys.executable, "-c", PROGRAM, "start.pickle", parent, control, pipe, ...]   # see `command`

Making ready may mean to import TensorFlow, SeqIO and the tasks' modules: 6 seconds and 0.4 GB. What
is there when a worker is forked, all of them share. The server then waits for its workers and
reports to the parent how each one ended.

Forking copies one thread only, and with others what they had locked stays locked. So a server that
has threads when it is ready (a task's module that runs a TensorFlow operation while it is imported)
does not use them: each worker then becomes a fresh interpreter, and makes ready for itself.

No process outlives the parent: the kernel ends the server with it, and the workers with the server.

This is not `multiprocessing`'s fork server with a preloaded module, which was tried (Python 3.11).
When the parent was killed, it and its workers ran on until the preloading or the job was over; a
lock that a thread of a preloaded module held was held in the worker for ever; an error in a
preloaded module came out as an EOFError without its text, and a module that is not there as
nothing. It also imports the program's main module again, which may be heavy, or lack
`if __name__ == "__main__"`, and there is one for a process, with one list of modules.
"""

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

from t0.errors import UserError

TICK_SECONDS = 0.5
_SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG

# With the parent's module path, since a test or a notebook may have changed it.
PROGRAM = """
import pickle, sys
with open(sys.argv[1], "rb") as program:
    sys.path[:] = pickle.load(program)
    from t0.caching import fork_server
    fork_server.serve(program, *map(int, sys.argv[2:]))
"""
# Threads that packages start when they are imported, and that nothing here has a use for.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}

# Starts a process for its work, and returns what does a job.
Start = Callable[[], Callable[[Any, Callable[[Any], None]], Any]]


class WorkerError(RuntimeError):
    """An error in a worker's start, with the worker's traceback for text."""


def serve(program: Any, parent: int, control: int, *pipes: int) -> None:
    """Runs a fork server, or a worker that makes ready for itself.

    Args:
      program: a file with a pickled `Start`.
      parent: the process id of who started this process.
      control: file descriptor of the pipe on which to report how workers end; -1: be a worker.
      pipes: file descriptors, one for each worker: its end of the pipe to the parent.
    """
    end_with(parent)
    # Ctrl-C reaches the whole process group; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: dict[int, int] = {}
    if control >= 0:
        signal.signal(signal.SIGTERM, lambda *_: _close_down(children))
    execute = _made_ready(program, pipes)
    if execute is None:
        leave(1)
    if control < 0:
        work(execute, *pipes, parent)
    sole = threads() == 1
    gc.collect()
    gc.freeze()  # a later collection would write to each object, and so copy its page
    sys.stdout.flush()
    sys.stderr.flush()
    for number, pipe in enumerate(pipes):
        # A signal that comes between the fork and its note would miss the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        server, child = os.getpid(), os.fork()
        if not child:
            _become_worker(server, {control, *pipes} - {pipe})
            if sole:
                work(execute, pipe, server)
            os.execv(sys.executable, command(program.name, server, -1, [pipe]))
        children[child] = number
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    for pipe in pipes:
        os.close(pipe)
    _watch(parent)
    _report_ends(connection.Connection(control), children)
    leave(0)


def _become_worker(server: int, others: set[int]) -> None:
    """Drops, in a forked process, what is the server's or a sibling's."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    for descriptor in others:
        os.close(descriptor)
    end_with(server)


def _made_ready(program: Any, pipes: Sequence[int]) -> Any:
    """Returns what does a job; None if the start fails, which is reported on all pipes."""
    try:
        return pickle.load(program)()
    except UserError as error:
        broken: Exception = UserError(str(error))
    except Exception:  # noqa: BLE001 - the parent raises it again
        broken = WorkerError(traceback.format_exc())
    for pipe in pipes:
        connection.Connection(pipe).send(("broken", broken))
    return None


def threads() -> int:
    """Returns the number of this process's threads, Python's and libraries' own; 0: unknown."""
    try:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208
    except OSError:
        return 0


def _report_ends(control: connection.Connection, children: dict[int, int]) -> None:
    while children:
        child, status = os.wait()
        number = children.pop(child)
        try:
            control.send((number, os.waitstatus_to_exitcode(status)))
        except OSError:
            return


def _close_down(children: dict[int, int]) -> None:
    """Ends the workers, whatever they are at, and itself. What they write has no name yet."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
    os._exit(0)


def work(execute: Callable[..., Any], pipe_number: int, parent: int) -> None:
    """Does the jobs that come through a pipe, and ends the process.

    Args:
      pipe_number: the file descriptor of its end of the pipe.
      parent: the process id of its fork server.
    """
    _watch(parent)
    pipe = connection.Connection(pipe_number)
    try:
        pipe.send(("ready", None))
        while True:
            job = pipe.recv()
            pipe.send(("result", execute(job, lambda report: pipe.send(("report", report)))))
    except (EOFError, ConnectionError):
        leave(0)
    except BaseException:  # noqa: BLE001 - of a fork, nothing may go up the server's stack
        traceback.print_exc()
        leave(1)


def leave(status: int) -> None:
    """Ends the process without what Python and the libraries do at exit.

    A worker whose parent was killed while it imported TensorFlow hung there, for good.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def end_with(parent: int) -> None:
    """Has the kernel end this process when `parent` ends, where the kernel can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    """The same for every system, in a thread: only when all forks are done."""
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(TICK_SECONDS)
    os._exit(1)


def pickled(start: Start, file: Any) -> None:
    """Writes what `PROGRAM` reads."""
    pickle.dump(sys.path, file)
    pickle.dump(start, file)
    file.flush()


def command(program: str, parent: int, control: int, pipes: Sequence[int]) -> list[str]:
    """Returns the command line of a fork server."""
    return [sys.executable, "-c", PROGRAM, program, *map(str, (parent, control, *pipes))]
