"""Caching into a bucket: workers write here, this process uploads what a disk would get."""

import contextlib
import errno
import os

import pytest

from t0.caching import RecordOptions, parts, work_plan, workers
from t0.errors import UserError
from t0.files import publishing
from tests.helpers.buckets.faults import Once
from tests.helpers.processes import Killed

TASKS = ("weather_plain", "weather_plain_score_eval", "weather_open")
OPTIONS = RecordOptions(max_dropped_share=0.5)
OUT = "gs://b/cache"


@pytest.fixture
def whole(with_data, cache_here, tmp_path, monkeypatch, bucket):
    """What the disk gets; a split has several parts in the bucket, too."""
    monkeypatch.setattr(work_plan, "MIN_ROWS", 500)
    cache_here(tmp_path / "whole", *TASKS, options=OPTIONS)
    files = [path for path in (tmp_path / "whole").rglob("*") if path.is_file()]
    return {f"cache/{path.relative_to(tmp_path / 'whole')}": path.read_bytes() for path in files}


def test_upload_objects_equal_the_files_on_disk(whole, cache_here, bucket):
    cache_here(OUT, *TASKS, options=OPTIONS)
    assert bucket.files("b") == whole


def test_upload_completed_marker_comes_last(whole, cache_here, bucket):
    cache_here(OUT, *TASKS, options=OPTIONS)
    there = {}
    for change in bucket.changes():
        there[change.name] = change.content
        folder, _, name = change.name.rpartition("/")
        if name == "COMPLETED" and change.content:
            files = {
                n: content for n, content in whole.items() if f"b/{n}".startswith(f"{folder}/")
            }
            assert {f"b/{n}": content for n, content in files.items()}.items() <= there.items()


def test_upload_resume_reuses_parts_of_a_killed_run(whole, cache_here, bucket, monkeypatch):
    done = []
    execute = workers.execute

    def counted(job, make):
        if len(done) == 4:
            raise Killed
        done.append(job)
        return execute(job, make)

    host = publishing.unfinished_tag().split("-", 1)[1].rsplit("-", 2)[0]
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(workers, "execute", counted)
        patch.setattr(publishing, "unfinished_tag", lambda: f"incomplete-{host}-{2**22 + 1}-1")
        cache_here(OUT, *TASKS, options=OPTIONS)
    there = {name for name in bucket.files("b") if name.endswith(".part")}
    assert there
    names = {name.rpartition("/")[2] for name in there}
    before = len(bucket.calls())
    cache_here(OUT, *TASKS, options=OPTIONS)
    assert bucket.files("b") == whole
    uploads = [call for call in bucket.calls()[before:] if call.kind == "upload"]
    assert uploads
    assert not names & {call.name.rpartition("/")[2] for call in uploads}


def test_upload_failure_stops_the_run_and_resume_finishes(whole, cache_here, bucket):
    bucket.set_faults(Once(403, "upload", times=1000, ending="info.train.json"))
    with pytest.raises(UserError, match=r"cannot write gs://b/cache/weather.*The run has stopped"):
        cache_here(OUT, *TASKS, options=OPTIONS)
    assert not any(name.endswith("COMPLETED") for name in bucket.files("b"))
    bucket.set_faults(Once(None))
    cache_here(OUT, *TASKS, options=OPTIONS)
    assert bucket.files("b") == whole


def test_upload_full_disk_of_temporary_files_is_one_line(whole, cache_here, bucket, monkeypatch):
    def fill(self, frames):
        with publishing.writing(self._path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(parts.PartWriter, "append", fill)
        with pytest.raises(UserError, match="^cannot write .*No space.*set TMPDIR=DIR.*$"):
            cache_here(OUT, *TASKS, options=OPTIONS)
    assert not bucket.files("b")


def test_upload_replaces_an_old_cache(whole, cache_here, bucket):
    cache_here(OUT, TASKS[0], options=RecordOptions(max_dropped_share=0.5, min_shards=5))
    cache_here(OUT, TASKS[0], options=OPTIONS, overwrite=True)
    assert bucket.files("b") == {n: c for n, c in whole.items() if f"/{TASKS[0]}/" in n}
