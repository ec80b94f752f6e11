"""A fork server: a process that prepares itself once, and then forks worker processes.

    [sys.executable, "-c", PROGRAM, "start.pickle", parent, control, pipe, ...]   # see `command`

To prepare may mean to import TensorFlow, SeqIO and the tasks' modules, which takes 6 seconds and
0.4 GB of memory. The workers share that memory. After forking, the server waits for its workers and
reports to the parent how each one ended.

A fork copies only one thread, and a lock that another thread holds stays locked in the copy. So if
the prepared server has other threads (of a task's module that runs a TensorFlow operation while it
is imported), each worker executes a new interpreter after the fork and prepares itself.

No process outlives the parent: the kernel kills the server when the parent ends, and the workers
when the server ends.

`multiprocessing` has a fork server, too, with preloaded modules. We tried it on Python 3.11 and do
not use it, because

- after a kill of the parent, it and its workers ran on to the end of the preloading or the job;
- a lock that a thread of a preloaded module held was never released in the workers;
- an error in a preloaded module became an EOFError without its text, and an absent module no error;
- it imports the program's main module again, which may take long or run the program;
- a process has only one of it, with one list of modules.
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

# The program sets the parent's module path, because a test or a notebook may have changed it.
PROGRAM = """
import pickle, sys
with open(sys.argv[1], "rb") as program:
    sys.path[:] = pickle.load(program)
    from t0.caching import fork_server
    fork_server.serve(program, *map(int, sys.argv[2:]))
"""
# Settings that keep packages from starting threads, which we do not need, on import.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}

# Prepares a process for its work, and returns the function that does a job.
Start = Callable[[], Callable[[Any, Callable[[Any], None]], Any]]


class WorkerError(RuntimeError):
    """An error in a worker's preparation; its text is the worker's traceback."""


def serve(program: Any, parent: int, control: int, *pipes: int) -> None:
    """Runs a fork server, or a worker that prepares itself.

    Args:
      program: a file with a pickled `Start`.
      parent: the process id of the parent.
      control: the file descriptor of the pipe on which to report how workers end; -1 to be a
        worker.
      pipes: the file descriptor of each worker's end of its pipe to the parent.
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
    gc.freeze()  # a later collection would write to each object, and so copy its memory page
    sys.stdout.flush()
    sys.stderr.flush()
    for number, pipe in enumerate(pipes):
        # Blocked, because a signal between the fork and the entry in `children` would miss it.
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
    """Closes, in a forked process, the server's and the other workers' file descriptors."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    for descriptor in others:
        os.close(descriptor)
    end_with(server)


def _made_ready(program: Any, pipes: Sequence[int]) -> Any:
    """Returns the function that does a job; None, and the error on all pipes, if that fails."""
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
    """Returns the number of this process's threads, those of libraries included; 0 if unknown."""
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
    """Kills the workers during their jobs, and exits. Unfinished files have temporary names."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
    os._exit(0)


def work(execute: Callable[..., Any], pipe_number: int, parent: int) -> None:
    """Does the jobs that arrive through a pipe, and exits.

    Args:
      execute: the function that does a job.
      pipe_number: the file descriptor of this end of the pipe.
      parent: the process id of the parent.
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
    except BaseException:  # noqa: BLE001 - in a fork, no error may reach the server's frames
        traceback.print_exc()
        leave(1)


def leave(status: int) -> None:
    """Exits without the exit handlers of Python and libraries.

    In these, a worker hung forever whose parent was killed while it imported TensorFlow.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def end_with(parent: int) -> None:
    """Makes the kernel kill this process when `parent` ends, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    """Starts a thread that does the same on every system; only after all forks."""
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(TICK_SECONDS)
    os._exit(1)


def pickled(start: Start, file: Any) -> None:
    """Writes the file that `PROGRAM` reads."""
    pickle.dump(sys.path, file)
    pickle.dump(start, file)
    file.flush()


def command(program: str, parent: int, control: int, pipes: Sequence[int]) -> list[str]:
    """Returns the command line of a fork server."""
    return [sys.executable, "-c", PROGRAM, program, *map(str, (parent, control, *pipes))]
