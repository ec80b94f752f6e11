"""Publishing in a bucket, killed between any two requests and through faults."""

import base64
import contextlib

import google_crc32c
import pytest

from t0.files import paths, publishing
from t0.files.object_facts import Facts
from tests.helpers.buckets.faults import KilledAfter, Seeded, no_faults
from tests.helpers.buckets.object_store import Bucket

FILES = {f"train.tfrecord-0000{n}-of-00003": b"%d" % n * 400 for n in range(3)}
WHOLE = {f"cache/toy/{name}": content for name, content in (FILES | {"COMPLETED": b"{}\n"}).items()}
FACTS = {
    name: Facts(len(content), base64.b64encode(google_crc32c.Checksum(content).digest()).decode())
    for name, content in FILES.items()
}
PASSING = (503, 429, "reset", "lost", "cut", "truncated")


def publish():
    staging = "gs://b/cache/toy.incomplete-host-1-2"
    for name, content in FILES.items():
        publishing.write_whole(f"{staging}/{name}", content)
    publishing.write_whole(f"{staging}/COMPLETED", "{}\n")
    return publishing.publish_folder(
        staging, "gs://b/cache/toy", last="COMPLETED", replace=True, files=FACTS
    )


def check_every_moment(changes):
    """Checks that whoever sees COMPLETED sees every file whole at that moment."""
    there = {}
    for change in changes:
        there[change.name.removeprefix("b/")] = change.content
        if there.get("cache/toy/COMPLETED") is not None:
            assert {name: there.get(name) for name in WHOLE} == WHOLE


def test_bucket_publish_killed_is_completed_by_the_next_run(bucket):
    assert publish()
    assert bucket.files("b") == WHOLE
    requests = len(bucket.calls())
    for last in range(0, requests, 4):
        bucket.reset({"b": Bucket()})
        bucket.set_faults(KilledAfter(last))
        # One of the last requests only tidies up, and no error is raised for it.
        with contextlib.suppress(OSError, publishing.OutputError):
            publish()
        bucket.set_faults(no_faults)
        assert publish()
        assert bucket.files("b") == WHOLE
        check_every_moment(bucket.changes())


@pytest.mark.parametrize("seed", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_bucket_publish_retries_transient_faults(bucket, seed):
    bucket.set_faults(Seeded(seed, PASSING, every=6))
    for _ in range(5):
        try:
            if publish():
                break
        except publishing.OutputError:  # a rename whose answer was lost: the next run makes it good
            continue
    assert bucket.files("b") == WHOLE
    check_every_moment(bucket.changes())
    assert sum(call.fault is not None for call in bucket.calls()) > 0


@pytest.mark.parametrize("seed", range(20))
def test_bucket_folder_is_removed_whole_or_an_error_is_raised(bucket, seed):
    for name in range(3):
        bucket.put("b", f"cache/toy/{name}", b"x")
    bucket.set_faults(Seeded(seed, PASSING, every=3))
    removed = False
    with contextlib.suppress(OSError):
        paths.remove("gs://b/cache/toy")
        removed = True
    assert not (removed and bucket.files("b"))


def test_bucket_publish_checksum_is_checked_before_the_marker(bucket):
    name = next(iter(FACTS))
    staging = "gs://b/cache/toy.incomplete-host-1-2"
    for other, content in FILES.items():
        publishing.write_whole(f"{staging}/{other}", content)
    publishing.write_whole(f"{staging}/COMPLETED", "{}\n")
    bucket.put("b", f"cache/toy.incomplete-host-1-2/{name}", b"x" * len(FILES[name]))
    with pytest.raises(publishing.OutputError, match="damaged bytes arrived: CRC32C"):
        publishing.publish_folder(
            staging, "gs://b/cache/toy", last="COMPLETED", replace=True, files=FACTS
        )
    assert not paths.exists("gs://b/cache/toy/COMPLETED")


def test_bucket_publish_missing_bytes_are_found(bucket):
    assert publish()
    bucket.put("b", "cache/toy/train.tfrecord-00000-of-00003", b"short")
    with pytest.raises(OSError, match="5 bytes of 400 arrived"):
        publishing.check_whole("gs://b/cache/toy", FACTS)


def test_bucket_publish_takes_few_requests(bucket):
    names = {f"f{number}": b"x" * number for number in range(20)}
    staging = "gs://b/cache/toy.incomplete-host-1-2"
    for name, content in names.items():
        bucket.put("b", f"cache/toy.incomplete-host-1-2/{name}", content)
    bucket.put("b", "cache/toy.incomplete-host-1-2/DONE", b"{}")
    before = len(bucket.calls())
    publishing.publish_folder(staging, "gs://b/cache/toy", last="DONE", replace=False)
    assert bucket.counts(before).total() <= 25 + 4 * len(names)
