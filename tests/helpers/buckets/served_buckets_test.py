"""The bucket of the tests, asked by TensorFlow's gs:// and by google-cloud-storage."""

import os

import pytest

from t0.files import paths, publishing
from tests.helpers.buckets.faults import KilledAfter, Once, Seeded
from tests.helpers.buckets.object_store import READ, Bucket


def write(path, content):
    with paths.opened(path, "wb") as file:
        file.write(content)


def test_bucket_files_are_written_listed_renamed_and_removed(bucket):
    bucket.reset({"b": Bucket(page=3)})
    for number in range(7):
        write(f"gs://b/x/f{number}", b"%d" % number)
    content = os.urandom(300_000)
    write("gs://b/x/y/large", content)
    assert paths.list_names("gs://b/x") == [*(f"f{number}" for number in range(7)), "y"]
    assert paths.read_bytes("gs://b/x/y/large") == content
    assert paths.size_bytes("gs://b/x/y/large") == 300_000
    paths.rename("gs://b/x/f0", "gs://b/x/g0")
    paths.remove("gs://b/x/y")
    assert sorted(bucket.files("b")) == [*(f"x/f{number}" for number in range(1, 7)), "x/g0"]
    assert not paths.exists("gs://b/x/f0")
    assert paths.list_names("gs://b/none") == []


@pytest.mark.parametrize("fault", [503, 429, "reset", "lost", "cut", "truncated", "slow"])
@pytest.mark.parametrize("kind", ["begin", "bytes", "read"])
def test_upload_retry_hides_a_temporary_bucket_fault(bucket, fault, kind):
    bucket.set_faults(Once(fault, kind))
    write("gs://b/f", b"z" * 1000)
    assert paths.read_bytes("gs://b/f") == b"z" * 1000
    assert [call.fault for call in bucket.calls()].count(fault) == 1


def test_atomic_write_failed_upload_keeps_the_old_object(bucket):
    bucket.put("b", "f", b"old")
    bucket.set_faults(Once("truncated", "bytes", times=1000))
    with pytest.raises(publishing.OutputError, match="cannot write gs://b/f"):
        publishing.write_whole("gs://b/f", b"z" * 1000)
    assert bucket.files("b") == {"f": b"old"}


@pytest.mark.parametrize(
    ("path", "tokens", "error"),
    [
        ("gs://read/f", None, PermissionError),
        ("gs://absent/f", None, FileNotFoundError),
        ("gs://b/f", {"another"}, PermissionError),
    ],
)
def test_bucket_write_without_permission_is_refused(bucket, path, tokens, error):
    bucket.reset({"b": Bucket(), "read": Bucket(tokens={"token": {READ}})}, tokens)
    with pytest.raises(error):
        write(path, b"x")
    assert bucket.files("b") == bucket.files("read") == {}


def test_bucket_of_a_killed_process_changes_no_more(bucket):
    write("gs://b/one", b"1")
    bucket.set_faults(KilledAfter(1))
    for name in ("two", "three"):
        with pytest.raises(PermissionError):
            write(f"gs://b/{name}", b"2")
    assert sorted(bucket.files("b")) == ["one"]


def test_bucket_stale_listing_misses_the_last_change(bucket):
    write("gs://b/x/one", b"1")
    write("gs://b/x/two", b"2")
    bucket.set_faults(Once("stale", "list", times=2))
    assert paths.list_names("gs://b/x") == ["one"]
    bucket.set_faults(Once(None))
    assert paths.list_names("gs://b/x") == ["one", "two"]


def test_bucket_faults_are_the_same_for_a_seed():
    def drawn(seed):
        faults = Seeded(seed, (503, "reset"), every=3)
        return [faults("read", "b/f") for _ in range(60)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert set(drawn(1)) == {None, 503, "reset"}


def test_bucket_is_equal_for_google_cloud_storage_client(bucket):
    storage = pytest.importorskip("google.cloud.storage", reason="needs google-cloud-storage")
    from google.oauth2.credentials import Credentials

    bucket.reset({"b": Bucket(page=2), "read": Bucket(tokens={"token": {READ}})})
    client = storage.Client(project="p", credentials=Credentials("token"))
    large = os.urandom(600_000)
    for name, content in {"x/a": b"1\r\n--\n", "x/b": large, "x/c": b""}.items():
        client.bucket("b").blob(name, chunk_size=256 * 1024).upload_from_string(content)
    assert paths.read_bytes("gs://b/x/a") == b"1\r\n--\n"
    assert paths.read_bytes("gs://b/x/b") == large
    assert [found.name for found in client.list_blobs("b", prefix="x/")] == ["x/a", "x/b", "x/c"]
    assert client.bucket("b").blob("x/b").download_as_bytes() == large
    assert client.get_bucket("b").location == "US-CENTRAL1"
    asked = ["storage.objects.get", "storage.objects.create"]
    assert client.bucket("read").test_iam_permissions(asked) == ["storage.objects.get"]
