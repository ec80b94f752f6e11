"""Worker processes: forked from one that made ready once; who dies is named, and nobody is left."""

import collections
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

import psutil
import pytest
import worker_starts

from t0.caching import fork_server, workers
from t0.errors import UserError


@pytest.fixture(autouse=True)
def starts_can_be_imported(monkeypatch):
    monkeypatch.setattr(sys, "path", [os.path.dirname(__file__), *sys.path])  # noqa: PTH120


def results(start, jobs, count=2):
    queue = collections.deque(jobs)
    return list(workers.in_processes(queue, start, lambda job, report: None, workers=count))


def test_workers_share_one_start_and_the_jobs(tmp_path):
    log = tmp_path / "log"
    done = results(worker_starts.Counting(str(log)), [0.05] * 8)
    assert [job for job, _ in done] == [0.05] * 8
    forked, servers = ({place[i] for _, place in done} for i in (0, 1))
    assert len(forked) == 2
    assert log.read_text().split() == [str(*servers)]
    assert not [pid for pid in (*forked, *servers) if psutil.pid_exists(pid)]


def test_a_server_with_threads_gives_workers_that_start_themselves(tmp_path):
    log = tmp_path / "log"
    done = results(worker_starts.Counting(str(log), threads=1), [0.05] * 8)
    forked, servers = ({place[i] for _, place in done} for i in (0, 1))
    assert len(forked) == 2
    assert set(map(int, log.read_text().split())) == forked | servers


def test_what_jobs_tell_on_the_way_comes_with_them():
    queue, told = collections.deque([1, 2]), []
    for _ in workers.in_processes(
        queue, worker_starts.Telling(), lambda *words: told.append(words), workers=1
    ):
        pass
    assert [words for words in told if words[0]] == [(1, "1 begun"), (2, "2 begun")]


def test_temporary_files_of_workers_go_with_them(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = results(worker_starts.Littering(), [1, 2])
    assert all(name.startswith(str(tmp_path)) for _, name in done)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (signal.SIGKILL, r"was killed \(SIGKILL\), most likely .* lack of memory.* caching -9\."),
        (signal.SIGSEGV, r"was killed \(SIGSEGV\)\. It stopped while caching -11\."),
        (3, r"ended \(exit status 3\)\. It stopped while caching 3\."),
    ],
)
def test_a_death_is_named_with_its_job(job, message):
    job = job if job == 3 else -int(job)
    with pytest.raises(UserError, match=message):
        results(worker_starts.Dying(), [job])


def test_the_servers_own_death_is_named():
    with pytest.raises(UserError, match=r"was killed \(SIGKILL\).*while caching server"):
        results(worker_starts.Dying(), ["server"])


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (UserError("no such module"), UserError, "^no such module$"),
        (ValueError("a bug"), fork_server.WorkerError, "(?s)Traceback.*worker_starts.py.*a bug"),
    ],
)
def test_what_fails_at_the_start_is_raised_here(error, kind, message):
    with pytest.raises(kind, match=message):
        results(worker_starts.Failing(error), [1, 2, 3])


def is_alive(process):
    """Who adopts an orphan may be a second late to ask how it ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_nobody_outlives_the_parent(kind):
    """Also one that is killed while its fork server makes ready, or that a user stops."""
    for ready in (True, False):
        parent = subprocess.Popen(
            [sys.executable, worker_starts.__file__, "ready" if ready else "starting"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert parent.stdout.readline() == "begun\n"
        below = psutil.Process(parent.pid).children(recursive=True)
        assert len(below) == (3 if ready else 1)
        parent.send_signal(kind)
        parent.wait()
        parent.stdout.close()
        deadline = time.monotonic() + 10
        while any(map(is_alive, below)):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_generator_that_is_left_ends_its_workers():
    others = psutil.Process().children(recursive=True)  # of other tests, such as a bucket's server
    running = workers.in_processes(
        collections.deque([0.01, 60]), worker_starts.Counting(os.devnull), print, workers=2
    )
    next(running)
    below = set(psutil.Process().children(recursive=True)).difference(others)
    assert len(below) >= 3
    running.close()
    assert not any(member.is_running() for member in below)
