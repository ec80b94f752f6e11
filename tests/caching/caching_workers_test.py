"""Worker processes: a death is reported with its job, and no process outlives its parent."""

import collections
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from t0.caching import workers
from t0.errors import UserError
from tests.caching import worker_starts


def results(start, jobs, count=2):
    queue = collections.deque(jobs)
    return list(workers.run_jobs(queue, start, lambda number: None, workers=count))


def test_worker_processes_prepare_once_and_share_jobs(tmp_path):
    log = tmp_path / "log"
    done = results(worker_starts.Counting(str(log)), [0.05] * 8)
    assert [job for job, _ in done] == [0.05] * 8
    pids, parents = ({process[i] for _, process in done} for i in (0, 1))
    assert parents == {os.getpid()}
    started = [int(pid) for pid in log.read_text().split()]
    assert len(started) == 2
    assert pids <= {*started}
    assert not any(map(psutil.pid_exists, started))


@pytest.mark.parametrize("count", [0, 1])
def test_worker_processes_count_their_progress(count):
    counts = []
    done = workers.run_jobs(
        collections.deque([1, 2]), worker_starts.Telling(), counts.append, workers=count
    )
    assert [job for job, _ in done] == [1, 2]
    assert sum(counts) == 3


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (signal.SIGKILL, r"was killed \(SIGKILL\), most likely .* memory ran out.* caching -9\."),
        (signal.SIGSEGV, r"was killed \(SIGSEGV\)\. It stopped while caching -11\."),
        (3, r"ended \(exit status 3\)\. It stopped while caching 3\."),
    ],
)
def test_worker_process_death_names_signal_and_job(job, message):
    job = job if job == 3 else -int(job)
    with pytest.raises(UserError, match=message):
        results(worker_starts.Dying(), [job])


def test_worker_process_death_before_its_first_task_names_a_likely_cause():
    message = r"status 3\)\. It stopped before its first task\. A script .* needs if __name__ == "
    with pytest.raises(UserError, match=message):
        results(functools.partial(os._exit, 3), [1])


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (UserError("no such module"), UserError, "^no such module$"),
        (ValueError("a bug"), RuntimeError, "(?s)Traceback.*worker_starts.py.*a bug"),
    ],
)
def test_worker_process_start_error_is_raised_in_the_parent(error, kind, message):
    with pytest.raises(kind, match=message):
        results(worker_starts.Failing(error), [1, 2, 3])


def is_alive(process):
    """Who adopts an orphan may be a second late to ask how it ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def is_worker(process):
    return any("spawn_main" in word for word in process.cmdline())


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_worker_processes_end_with_the_killed_parent(kind):
    """A parent is killed, or stopped by a user, while its workers work or prepare themselves."""
    for ready in (True, False):
        parent = subprocess.Popen(
            [sys.executable, "-m", worker_starts.__name__, "ready" if ready else "starting"],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert parent.stdout.readline() == "begun\n"
        below = psutil.Process(parent.pid).children(recursive=True)
        assert len([child for child in below if is_worker(child)]) == 2
        parent.send_signal(kind)
        parent.wait()
        parent.stdout.close()
        deadline = time.monotonic() + 10
        while any(map(is_alive, below)):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_worker_processes_end_with_the_closed_generator():
    running = workers.run_jobs(
        collections.deque([0.01, 60]), worker_starts.Counting(os.devnull), print, workers=2
    )
    next(running)
    below = list(filter(is_worker, psutil.Process().children()))
    assert len(below) == 2
    running.close()
    assert not any(member.is_running() for member in below)
