"""`t0 convert` between this machine and a bucket, and what its readers see meanwhile."""

import pytest

from t0.cli.main import main
from t0.files import paths
from tests.helpers.buckets.faults import KilledAfter, no_faults
from tests.helpers.buckets.object_store import Bucket


def run(*words):
    return main(["convert", *map(str, words)])


@pytest.mark.slow
def test_checkpoint_conversion_round_trip_in_a_bucket(source, bucket, tmp_path, capsys):
    assert run(source, "gs://b/hf", "--to", "hf") == 0
    assert run(source, "gs://b/t5x", "--to", "t5x") == 0
    assert run("gs://b/t5x", "gs://b/mtf", "--to", "mtf") == 0
    assert run("gs://b/hf", tmp_path / "mtf", "--to", "mtf") == 0
    for place in ("gs://b/hf", "gs://b/t5x", "gs://b/mtf", tmp_path / "mtf"):
        assert run("--check", source, place) == 0
    assert not any("unfinished" in name or ".part-" in name for name in bucket.files("b"))
    local = {path.name: path.read_bytes() for path in (tmp_path / "mtf").iterdir()}
    here = {name: content for name, content in local.items() if ".data" in name}
    assert here
    with pytest.raises(SystemExit):
        run(source, "gs://b/hf", "--to", "hf")
    assert "gs://b/hf exists and is not empty" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["mtf", "hf"])
def test_checkpoint_conversion_killed_in_a_bucket_runs_again(source, bucket, to, capsys):
    assert run(source, "gs://b/whole", "--to", to) == 0
    requests = len(bucket.calls())
    whole = {n.removeprefix("whole/"): c for n, c in bucket.files("b").items()}
    for last in (requests // 3, requests * 2 // 3):
        bucket.set_faults(KilledAfter(last))
        with pytest.raises(SystemExit):
            run(source, "gs://b/again", "--to", to)
        bucket.set_faults(no_faults)
        with pytest.raises(SystemExit):
            run("--check", source, "gs://b/again")
    assert "gs://b/again" in capsys.readouterr().err
    assert run(source, "gs://b/again", "--to", to) == 0
    found = {
        n.removeprefix("again/"): c for n, c in bucket.files("b").items() if n.startswith("again/")
    }
    if to == "hf":  # the title of the model card is the folder's name
        found["README.md"] = found["README.md"].replace(b"# again", b"# whole")
    assert found == whole


def test_checkpoint_conversion_removes_leftover_bucket_probe(source, bucket):
    probe = "probe.incomplete-host-12-345"
    bucket.put("b", f"again/{probe}", b"x")
    assert run(source, "gs://b/again", "--to", "hf") == 0
    assert f"again/{probe}" not in bucket.files("b")


def test_checkpoint_conversion_of_missing_bucket_is_refused(source, bucket, capsys):
    with pytest.raises(SystemExit):
        run("gs://b/nowhere", "gs://b/out", "--to", "hf")
    assert "gs://b/nowhere does not exist" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(source, "gs://absent/out", "--to", "hf")
    assert "cannot write gs://absent/out" in capsys.readouterr().err
    assert paths.list_names("gs://b") == []


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"another"}, "have expired: log in again"),
        (None, "ask for storage.objectAdmin on the bucket"),
    ],
)
def test_checkpoint_conversion_credential_error_is_one_line(bucket, capsys, tokens, message):
    bucket.reset({"b": Bucket(tokens={})}, tokens)
    with pytest.raises(SystemExit):
        run("gs://b/model", "gs://b/out", "--to", "hf")
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
