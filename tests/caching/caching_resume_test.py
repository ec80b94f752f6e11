"""Prompted tasks: a killed run goes on where it was, and what goes wrong is told with its place."""

import contextlib
import gzip
import json
import os
import random
import re
import shutil
import signal
import time

import psutil
import pytest

from t0.caching import RecordOptions, cache_files, parts, running, work_plan, workers
from t0.caching.prompted_rows import RowRange
from t0.errors import UserError
from t0.files import paths, publishing
from tests.helpers.processes import Killed

TASKS = ("weather_plain", "weather_plain_score_eval", "weather_drops_score_eval", "weather_open")
OPTIONS = RecordOptions(max_dropped_share=0.5)


def content(root):
    """Path under root -> bytes, for everything in it."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def small_ranges(monkeypatch):
    monkeypatch.setattr(work_plan, "MIN_ROWS", 100)


@pytest.fixture
def whole(with_data, cache_here, tmp_path, small_ranges):
    """What an uninterrupted run writes."""
    cache_here(tmp_path / "whole", *TASKS, options=OPTIONS)
    return content(tmp_path / "whole")


@pytest.fixture
def dying_run(cache_here, monkeypatch):
    """Caches until `jobs` jobs are done, then is gone; returns the jobs of that run."""

    def cache(out, jobs, *tasks):
        done = []
        execute = workers.execute

        def counted(job, renderer):
            if len(done) == jobs:
                raise Killed
            done.append(job)
            return execute(job, renderer)

        with monkeypatch.context() as patch:
            patch.setattr(workers, "execute", counted)
            # A killed process removes nothing; and its process id is not ours.
            host = publishing.unfinished_tag().split("-", 1)[1].rsplit("-", 2)[0]
            tag = f"incomplete-{host}-{2**22 + 1}-1"
            patch.setattr(paths, "remove", lambda path: None)
            patch.setattr(publishing, "unfinished_tag", lambda: tag)
            with contextlib.suppress(Killed):
                cache_here(out, *tasks, options=OPTIONS)
        return done

    return cache


@pytest.mark.parametrize(
    "jobs", [*(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, 15, 20)), 7, 16]
)
def test_caching_resume_repeats_only_unfinished_ranges(
    whole, dying_run, cache_here, tmp_path, monkeypatch, jobs
):
    out = tmp_path / "out"
    before = [job for job in dying_run(out, jobs, *TASKS) if isinstance(job, RowRange)]
    again = []
    execute = workers.execute
    monkeypatch.setattr(
        workers, "execute", lambda job, renderer: again.append(job) or execute(job, renderer)
    )
    cache_here(out, *TASKS, options=OPTIONS)
    assert content(out) == whole
    second = [job for job in again if isinstance(job, RowRange)]
    # 13 ranges of the training split and one of the other.
    assert len(before) + len(second) == 14
    assert not {(job.split, job.start) for job in before} & {
        (job.split, job.start) for job in second
    }


def test_caching_resume_ignores_parts_of_changed_inputs(
    with_data, whole, dying_run, cache_here, tmp_path, monkeypatch, small_ranges
):
    out = tmp_path / "out"
    dying_run(out, 9, *TASKS)
    (left,) = out.glob("unfinished-parts.*")
    assert len(list(left.glob("*.part"))) > 20
    validation = with_data / "weather" / "default" / "validation.jsonl"
    os.utime(validation, (1, 1))
    monkeypatch.setattr(work_plan, "RECORD_FORMAT", 0)
    made = []
    execute = workers.execute
    monkeypatch.setattr(
        workers, "execute", lambda job, renderer: made.append(job) or execute(job, renderer)
    )
    cache_here(out, *TASKS, options=OPTIONS)
    assert sum(isinstance(job, RowRange) for job in made) == 14
    assert content(out) == whole


def test_caching_resume_replaces_damaged_parts(whole, dying_run, cache_here, tmp_path):
    out = tmp_path / "out"
    dying_run(out, 9, *TASKS)
    (left,) = out.glob("unfinished-parts.*")
    for number, part in enumerate(sorted(left.glob("*.part"))):
        size = part.stat().st_size
        if number % 3 == 0:
            os.truncate(part, random.Random(number).randrange(size))
    cache_here(out, *TASKS, options=OPTIONS)
    assert content(out) == whole


@pytest.mark.exhaustive  # `python -m tests.kills` in .ci/run kills caching, too
@pytest.mark.parametrize("kills", [1, 20], ids=["once", "twenty_times"])
def test_caching_resume_after_kills_at_random_points(
    whole, start_command, run_command, tmp_path, kills, with_data
):
    """SIGKILL to the command, not to its workers: they notice, and end."""
    out, rng = tmp_path / "out", random.Random(kills)
    words = (f"--tasks={','.join(TASKS)}", "--max_dropped_share=0.5", "--num_workers=2")
    for turn in range(kills):
        process = start_command(out, *words, module="tests.caching.slow_ranges")
        deadline = time.monotonic() + 120
        while not list(out.glob("*.incomplete-*")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        # Later each time, so that the last runs are killed when much is done.
        time.sleep(rng.uniform(0, 0.3 + turn * 0.1))
        workers = []
        if process.poll() is None:
            workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        while any(w.is_running() and w.status() != psutil.STATUS_ZOMBIE for w in workers):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for directory in out.glob("weather_*"):
            assert ".incomplete-" in directory.name or (directory / "COMPLETED").exists()
    status, shown, errors = run_command(out, *words, module="tests.caching.toy_prompted_tasks")
    assert (status, errors) == (0, "")
    assert "tasks" in shown
    assert content(out) == whole


@pytest.mark.slow
def test_caching_two_concurrent_runs_of_prompted_tasks(whole, start_command, tmp_path):
    out = tmp_path / "both"
    words = (f"--tasks={','.join(TASKS)}", "--max_dropped_share=0.5", "--num_workers=1")
    both = [start_command(out, *words, module="tests.caching.toy_prompted_tasks") for _ in range(2)]
    ends = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert content(out) == whole


def test_caching_resume_after_a_full_disk(whole, cache_here, tmp_path, monkeypatch):
    out, written = tmp_path / "out", []
    append = parts.PartWriter.append

    def fill(self, frames):
        written.append(self)
        if len(written) > 9:
            with publishing.writing(self._path):
                raise OSError(28, "No space left on device")
        append(self, frames)

    with monkeypatch.context() as patch:
        patch.setattr(parts.PartWriter, "append", fill)
        with pytest.raises(UserError) as error:
            cache_here(out, *TASKS, options=OPTIONS)
    message = str(error.value)
    assert "No space left on device" in message
    assert re.search(r"\(weather split 'train', rows \d+ to \d+\)", message)
    assert "continues from there" in message
    (left,) = out.glob("unfinished-parts.*")
    assert list(left.glob("*.part"))
    cache_here(out, *TASKS, options=OPTIONS)
    assert content(out) == whole


def test_caching_permission_denied_while_writing(
    with_data, cache_here, tmp_path, monkeypatch, small_ranges
):
    def refuse(path, fill):
        with publishing.writing(path):
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("t0.caching.cache_files.write_file", refuse)
    with pytest.raises(UserError, match=r"(?s)cannot write .*Permission denied.*weather_plain"):
        cache_here(tmp_path, "weather_plain")


def workers_of(pid):
    """Returns the worker processes of a run that still exist."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            words = child.cmdline()
            if any("spawn_main" in word for word in words):
                found.append(child)
    return found


@pytest.mark.slow
def test_caching_worker_killed_by_the_system(
    start_command, command_environment, with_data, tmp_path
):
    command_environment["TOY_SECONDS_A_JOB"] = "60"
    process = start_command(
        tmp_path, "--tasks=weather_plain", "--num_workers=1", module="tests.caching.slow_ranges"
    )
    while not list(tmp_path.glob("unfinished-parts.*")):
        time.sleep(0.02)
    workers: list[psutil.Process] = []
    while not workers:
        seen = workers_of(process.pid)
        time.sleep(1.0)
        workers = [worker for worker in workers_of(process.pid) if worker in seen]
    workers[0].send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 2
    assert "SIGKILL" in errors
    assert "memory ran out" in errors


def corrupt_gz(folder):
    lines = "".join(
        json.dumps({"text": f"row {i}", "words": ["a"], "label": 0}) + "\n" for i in range(3000)
    )
    packed = bytearray(gzip.compress(random.Random(1).randbytes(1) + lines.encode()[1:]))
    packed[len(packed) // 2] ^= 255
    (folder / "train.jsonl.gz").write_bytes(packed)


def cut_parquet(folder):
    (folder / "train.parquet").write_bytes(b"PAR1" + b"0" * 50)


def malformed(folder):
    (folder / "train.jsonl").write_text('{"text": "a", "words": [], "label": 0}\n{"text"\n')


@pytest.mark.parametrize("damage", [corrupt_gz, cut_parquet, malformed])
def test_caching_corrupt_data_file_is_named(with_data, cache_here, tmp_path, monkeypatch, damage):
    folder = tmp_path / "data" / "weather" / "default"
    folder.mkdir(parents=True)
    shutil.copy(with_data / "weather" / "default" / "validation.jsonl", folder)
    damage(folder)
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path / "data"))
    with pytest.raises(UserError, match=r"(?s)weather_plain.*train\.(jsonl|parquet)"):
        cache_here(tmp_path / "out", "weather_plain")
    assert not list((tmp_path / "out").glob("weather_plain"))


def test_caching_absent_data_is_listed_before_work_starts(
    with_data, cache_here, tmp_path, monkeypatch
):
    folder = tmp_path / "data" / "weather" / "default"
    folder.mkdir(parents=True)
    shutil.copy(with_data / "weather" / "default" / "validation.jsonl", folder)
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("t0.sources.hub.why_not_tried", lambda name: "not asked in tests")
    with pytest.raises(UserError) as error:
        cache_here(tmp_path / "out", "weather_plain", "weather_open")
    assert "weather_plain, weather_open: split 'train': no rows" in str(error.value)
    assert "--skip_absent_splits" in str(error.value)
    assert list((tmp_path / "out").iterdir()) == []
    cache_here(tmp_path / "out", "weather_plain", skip_absent_splits=True)
    manifest = cache_files.read_manifest(str(tmp_path / "out" / "weather_plain"))
    assert manifest["absent_splits"]["train"].startswith("no rows for the dataset 'weather'")
    assert running.first_line("a. Looked in:\n b") == "a."
