"""Caching into a bucket: workers write here, this process uploads what a disk would get."""

import contextlib
import itertools

import pytest

from t0.caching import RecordOptions, uploads, work_plan, workers
from t0.caching.uploads import Uploads, open_output
from t0.errors import UserError
from t0.files import publishing
from t0.testing import Killed
from tests.buckets.faults import Once

TASKS = ("weather_plain", "weather_plain_score_eval", "weather_open")
OPTIONS = RecordOptions(max_dropped_share=0.5)
OUT = "gs://b/cache"


@pytest.fixture
def whole(with_data, cache_here, tmp_path, monkeypatch, bucket):
    """What the disk gets; a split has several parts in the bucket, too."""
    monkeypatch.setattr(work_plan, "REMOTE_MIN_ROWS", 500)
    cache_here(tmp_path / "whole", *TASKS, options=OPTIONS)
    files = [path for path in (tmp_path / "whole").rglob("*") if path.is_file()]
    return {f"cache/{path.relative_to(tmp_path / 'whole')}": path.read_bytes() for path in files}


# Room always, in every second check, and never.
@pytest.mark.parametrize("room", ["always", "at times", "never"])
def test_upload_objects_equal_the_files_on_disk(whole, cache_here, bucket, monkeypatch, room):
    answers = {"always": [True], "at times": [True, False], "never": [False]}[room]
    answers = itertools.cycle(answers)
    monkeypatch.setattr(Uploads, "_has_room", lambda self: next(answers))
    cache_here(OUT, *TASKS, options=OPTIONS)
    assert bucket.files("b") == whole
    if room == "always":
        # Five for a part, two for a file, a dozen for a task; some for the run.
        assert bucket.counts().total() <= 20 + 12 * len(TASKS) + 5 * 30 + 2 * len(whole)


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
    sent = []
    begin = uploads.publishing.put
    monkeypatch.setattr(publishing, "put", lambda here, to: (sent.append(to), begin(here, to)))
    cache_here(OUT, *TASKS, options=OPTIONS)
    assert bucket.files("b") == whole
    assert not names & {path.rpartition("/")[2] for path in sent}


def test_upload_failure_stops_the_run_and_resume_finishes(whole, cache_here, bucket):
    bucket.set_faults(Once(403, "begin", times=1000, ending="info.train.json"))
    with pytest.raises(UserError, match=r"cannot write gs://b/cache/weather.*The run has stopped"):
        cache_here(OUT, *TASKS, options=OPTIONS)
    assert not any(name.endswith("COMPLETED") for name in bucket.files("b"))
    bucket.set_faults(Once(None))
    cache_here(OUT, *TASKS, options=OPTIONS)
    assert bucket.files("b") == whole


def test_upload_keeps_old_cache_until_the_new_one_is_complete(whole, cache_here, bucket):
    cache_here(OUT, TASKS[0], options=OPTIONS)
    before = len(bucket.changes())
    cache_here(OUT, TASKS[0], options=OPTIONS, overwrite=True)
    kinds = [
        ("beside" if ".incomplete-" in change.name else "final", change.content is None)
        for change in bucket.changes()[before:]
        if f"/{TASKS[0]}" in change.name and "unfinished-parts" not in change.name
    ]
    assert kinds[0] == ("beside", False)
    assert ("beside", False) not in kinds[kinds.index(("final", True)) :]
    assert bucket.files("b").items() <= whole.items()


def test_upload_is_not_used_for_a_local_disk(tmp_path):
    for folder, here in ((str(tmp_path), True), ("gs://b/parts", False)):
        with open_output(folder, on_this_machine=here) as output:
            assert not isinstance(output, Uploads)
            assert output.place_job("job") == "job"
