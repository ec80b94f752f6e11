"""A bucket that refuses or does not answer is never taken for one without the file."""

import errno

import pytest

from t0.errors import UserError, remote_mistake
from t0.files import paths
from tests.helpers.buckets.faults import Once
from tests.helpers.buckets.object_store import READ, WRITE, Bucket

FILE = "gs://b/m/x"


@pytest.fixture
def answer(bucket, monkeypatch):
    """Makes the bucket answer in one way; returns the kind that the message must begin with."""

    def change(how):
        token = {"401": "expired", "403": "other"}.get(how, "good")
        bucket.reset({"b": Bucket(tokens={"good": {READ, WRITE}})}, {"good", "other"})
        bucket.put("b", "m/x", b"1")
        monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", token)
        if how == "refused":
            bucket.set_faults(Once("reset", times=10**6))
        return {"refused": "unreachable"}.get(how, "forbidden")

    return change


READS = {
    "read": lambda: paths.read_bytes(FILE),
    "exists": lambda: paths.exists(FILE),
    "is_folder": lambda: paths.is_folder("gs://b/m"),
    "list_names": lambda: paths.list_names("gs://b/m"),
    "list_marked": lambda: paths.list_marked("gs://b/m"),
    "names_like": lambda: paths.names_like("gs://b/m", "*"),
    "size": lambda: paths.size_bytes(FILE),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("how", ["401", "403", "refused"])
def test_bucket_refusal_is_not_a_missing_file(answer, how, name):
    kind = answer(how)
    with pytest.raises(OSError, match=kind) as caught:
        READS[name]()
    assert not isinstance(caught.value, FileNotFoundError | NotADirectoryError)
    assert (caught.value.errno == errno.EACCES) == (kind == "forbidden")
    assert remote_mistake(caught.value).startswith(f"gs://b/m{'/x' * (FILE in str(caught.value))}")
    assert f": {kind}: " in remote_mistake(caught.value)


def test_bucket_missing_file_is_no_error_where_allowed(bucket):
    assert not paths.exists(FILE)
    assert not paths.is_folder("gs://b/m")
    assert paths.list_names("gs://b/m") == []
    assert paths.list_marked("gs://none/m") == []
    with pytest.raises(FileNotFoundError, match="not found: .*Is the path right"):
        paths.read_bytes(FILE)


def test_bucket_forbidden_cache_is_not_reported_as_damaged(answer):
    from t0.caching import cache_files, verify

    answer("403")
    with pytest.raises(UserError, match="forbidden"):
        cache_files.read_manifest("gs://b/m")
    with pytest.raises((OSError, UserError), match="forbidden"):
        list(verify.verify_cache("gs://b/m"))
