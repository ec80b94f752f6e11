"""Checksums and places from google-cloud-storage, as `OSError`s where they cannot be had."""

import pytest
from google.cloud.storage.retry import DEFAULT_RETRY

from t0.files import object_facts
from tests.helpers.buckets.object_store import READ, Bucket


def test_object_facts_of_a_file_size_and_checksum(tmp_path):
    (tmp_path / "f").write_bytes(b"123456789")
    # The check value of CRC-32C, 0xE3069283.
    assert object_facts.of_file(tmp_path / "f") == (9, "4waSgw==")


@pytest.mark.parametrize(
    ("path", "found"),
    [("gs://b/x/y", ("b", "x/y")), ("gs://b/x/", ("b", "x")), ("gs://b", ("b", ""))],
)
def test_object_facts_split_bucket_and_object(path, found):
    assert object_facts.split(path) == found


def test_object_facts_of_bucket_objects(bucket, tmp_path):
    bucket.reset({"b": Bucket(page=2)})
    expected = {}
    contents = {"cache/one": b"1" * 1000, "cache/toy/two": b"2", "cache/toy/three": b""}
    for name, content in contents.items():
        bucket.put("b", name, content)
        (tmp_path / "f").write_bytes(content)
        expected[name.removeprefix("cache/")] = object_facts.of_file(tmp_path / "f")
    bucket.put("b", "cached/four", b"4")
    bucket.put("b", "cache/toy/", b"")
    assert object_facts.below("gs://b/cache/") == expected
    assert bucket.counts()["list"] == 2


def test_object_facts_bucket_location(bucket):
    bucket.reset({"b": Bucket(location="EUROPE-WEST4"), "many": Bucket(location="EU")})
    assert object_facts.locations("b") == ["EUROPE-WEST4"]
    assert object_facts.locations("many") == ["EU"]


@pytest.mark.parametrize(
    ("path", "tokens", "error", "message"),
    [
        ("gs://none/f", None, FileNotFoundError, "HTTP response code 404"),
        ("gs://closed/f", None, PermissionError, "HTTP response code 403"),
        ("gs://b/f", {"another"}, PermissionError, "credentials are not accepted"),
    ],
)
def test_object_facts_forbidden_or_missing_bucket(bucket, path, tokens, error, message):
    bucket.reset({"b": Bucket(), "closed": Bucket(tokens={"other": {READ}})}, tokens)
    with pytest.raises(error, match=message) as caught:
        object_facts.below(path)
    assert caught.value.filename == path


def test_object_facts_no_answer_is_an_os_error(bucket, monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr(DEFAULT_RETRY, "_timeout", 0.1)
    with pytest.raises(OSError, match="no answer|response code 0"):
        object_facts.below("gs://b/x")


def test_object_facts_apply_to_gs_paths_only():
    assert object_facts.applies("gs://b/f")
    assert not object_facts.applies("/disk/f")
