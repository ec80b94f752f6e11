"""`t0 doctor` about a TPU and buckets, of which imitations on this machine are asked."""

import argparse
import io
import json
import os
import re

import pytest

from t0.caching import cache_files
from t0.cli import doctor
from t0.cli.main import main
from t0.files import object_facts, publishing
from tests.helpers.buckets.object_store import READ, Bucket
from tests.run import imitated_google


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """No credentials but those that a test gives."""
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_AUTH_TOKEN_FOR_TESTING"):
        monkeypatch.delenv(name, raising=False)


def examine(**flags):
    parser, wrong = argparse.ArgumentParser(), []
    doctor.add_arguments(parser)
    args = parser.parse_args([f"--{name}={value}" for name, value in flags.items()])
    return doctor.examine_cloud(args, wrong), [problem["what"] for problem in wrong]


def make_cache(name="cache/toy", lost=0):
    """Writes a cache of one file, as seqio_cache_tasks does, of which some bytes may be lost."""
    content = b"x" * 1000
    described = cache_files.entry_of(io.BytesIO(content))
    files = {"train.tfrecord-00000-of-00001": {**described, "examples": 1}}
    manifest = {"schema": 1, "task": "toy", "splits": {"train": {"examples": 1, "files": files}}}
    publishing.write_whole(f"gs://b/{name}/train.tfrecord-00000-of-00001", content[lost:])
    publishing.write_whole(f"gs://b/{name}/COMPLETED", cache_files.with_checksum(manifest))


def test_doctor_reports_healthy_bucket_cache_and_region(bucket):
    bucket.reset({"b": Bucket(location="EUROPE-WEST4")})
    make_cache()
    before = bucket.files("b")
    report, wrong = examine(zone="europe-west4-a", model_dir="gs://b/m", cache="gs://b/cache")
    assert wrong == []
    assert all(report["model_dir"]["may"].values())
    assert (report["cache"]["caches"], report["cache"]["whole"]) == (1, 1)
    assert bucket.files("b") == before  # the probe is gone
    assert report["locations"] == {"b": "EUROPE-WEST4"}


@pytest.mark.parametrize("asks_bucket", [True, False])
def test_doctor_finds_truncated_and_unfinished_caches(bucket, monkeypatch, asks_bucket):
    if not asks_bucket:
        monkeypatch.setattr(object_facts, "applies", lambda path: False)
    make_cache()
    make_cache("cache/cut", lost=1)
    bucket.put("b", "cache/dead/train.tfrecord-00000-of-00001", b"x")
    report, wrong = examine(cache="gs://b/cache")
    assert (report["cache"]["caches"], report["cache"]["whole"]) == (3, 1)
    assert any("has 999 bytes, but 1,000 were written" in what for what in wrong)
    assert any("gs://b/cache/dead: unfinished, it has no COMPLETED" in what for what in wrong)


def test_doctor_finds_damaged_cache_by_checksum_without_reading(bucket):
    make_cache()
    bucket.put("b", "cache/toy/train.tfrecord-00000-of-00001", b"y" * 1000)
    first = len(bucket.calls())
    _, wrong = examine(cache="gs://b/cache")
    assert len(wrong) == 1
    assert "its CRC32C is" in wrong[0]
    read = {call.name for call in bucket.calls()[first:] if call.kind == "read"}
    assert read == {"b/cache/toy/COMPLETED"}


@pytest.mark.parametrize(
    ("buckets", "tokens", "token", "message"),
    [
        ({"b": Bucket(tokens={"token": {READ}})}, None, "token", "cannot write.*403"),
        ({"b": Bucket(tokens={})}, None, None, "cannot write.*40[13]"),
        ({"b": Bucket()}, {"another"}, "token", "cannot write.*401"),
        ({"other": Bucket()}, None, "token", "cannot write.*"),
    ],
)
def test_doctor_finds_bucket_permission_and_credential_faults(
    bucket, monkeypatch, buckets, tokens, token, message
):
    if not token:
        monkeypatch.delenv("GOOGLE_AUTH_TOKEN_FOR_TESTING")
    bucket.reset(buckets, tokens)
    _, wrong = examine(model_dir="gs://b/model")
    assert any(re.search(message, what) for what in wrong), wrong


def test_doctor_finds_bucket_in_another_region_than_the_tpu(bucket):
    bucket.reset({"b": Bucket(location="US-CENTRAL1")})
    _, wrong = examine(zone="europe-west4-a", model_dir="gs://b/model")
    (what,) = wrong
    assert what.startswith("gs://b is in US-CENTRAL1, the TPU in europe-west4")


@pytest.mark.parametrize(
    ("place", "near"),
    [
        ("EUROPE-WEST4", True),
        ("EUROPE-WEST1", False),
        ("EU", True),
        ("US", False),
        ("EUR4", True),
        ("NAM4", False),
    ],
)
def test_doctor_bucket_location_near_tpu_region(place, near):
    assert doctor.is_near(place, "europe-west4") == near


def test_doctor_lines_about_buckets_show_permissions_and_faults():
    report = doctor.examine()
    report["cloud"] = {
        "model_dir": {"path": "gs://b/m", "may": {"write": True, "read": True, "list": False}},
        "cache": {"path": "gs://b/c", "caches": 2, "whole": 1, "faults": {"gs://b/c/cut": ["x"]}},
    }
    lines = doctor.render(report)
    assert "model_dir  path gs://b/m, may write read" in lines
    assert "cache      path gs://b/c, caches 2, whole 1, faults gs://b/c/cut" in lines


def test_doctor_finds_local_model_dir_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    assert examine(model_dir=str(tmp_path / "new" / "model"))[1] == []
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    _, wrong = examine(model_dir=str(tmp_path / "file" / "model"))
    assert [what.partition(":")[0] for what in wrong] == [f"cannot write {tmp_path / 'file'}"]


def test_doctor_without_network_reports_one_problem(monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    report, wrong = examine(model_dir="gs://b/model")
    assert not any(report["model_dir"]["may"].values())
    assert len(wrong) == 1
    assert wrong[0].startswith("gs://b/model: cannot write: ")


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (imitated_google.node(state="PREEMPTED"), "is PREEMPTED, not READY"),
        (404, "cannot be looked up in project my-project"),
    ],
)
def test_doctor_finds_tpu_that_is_preempted_or_missing(monkeypatch, tmp_path, node, message):
    with imitated_google.serving(imitated_google.tpu_vm(), {"my-tpu": node}) as google:
        for name, value in google.environment.items():
            monkeypatch.setenv(name, value)
        report, wrong = examine(tpu="my-tpu", model_dir=str(tmp_path / "model"))
    assert report["tpu"]["zone"] == "europe-west4-a"
    assert any(message in what for what in wrong)
    assert any("the hosts of a slice share no disk" in what for what in wrong)
    assert any("TPU_LOAD_LIBRARY" in what for what in wrong)


def test_doctor_tpu_api_that_is_unreachable(monkeypatch):
    monkeypatch.setenv("TPU_API_DISCOVERY_URL", "http://127.0.0.1:9/")
    _, wrong = examine(tpu="my-tpu", zone="europe-west4-a", project="p")
    assert any("the TPU 'my-tpu' cannot be looked up in project p" in what for what in wrong)


def test_doctor_command_reports_anonymous_credentials_as_json(bucket, monkeypatch, capsys):
    monkeypatch.delenv("GOOGLE_AUTH_TOKEN_FOR_TESTING")
    bucket.reset({"b": Bucket(tokens={})})
    assert main(["doctor", "--model_dir=gs://b/model", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not any(report["cloud"]["model_dir"]["may"].values())
    assert "gs://b/model: cannot write" in report["wrong"][-1]["what"]
    assert "GCS_RETRY_CONFIG_MAX_RETRIES" in os.environ
