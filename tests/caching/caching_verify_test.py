"""`t0 verify`: a whole cache passes, and a damaged file is named."""

import itertools
import json
import os
import random
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from t0.caching.verify import find_caches, has_checksums, verify_cache
from t0.cli.main import main
from t0.errors import UserError

SHARD = "train.tfrecord-00000-of-00003"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Where the cache is, once a test has made it."""
    return tmp_path_factory.mktemp("made") / "toy_lines"


@pytest.fixture
def cache(made, request, tmp_path):
    from t0.caching import RecordOptions

    if not made.exists():
        cache_here = request.getfixturevalue("cache_here")
        cache_here(made.parent, "toy_lines", options=RecordOptions(min_shards=3))
    return Path(shutil.copytree(made, tmp_path / "toy_lines"))


def test_verify_cache_complete_cache_passes(cache, capsys):
    assert list(verify_cache(str(cache))) == []
    assert main(["verify", str(cache.parent)]) == 0
    assert capsys.readouterr().err.startswith("1 of 1 caches are whole\n")


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage", "told"),
    [
        (SHARD, lambda path: flip(path, 40), "its bytes are not those that were written"),
        (SHARD, lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes"),
        (SHARD, lambda path: path.unlink(), "missing"),
        ("stats.train.json", lambda path: path.write_text("{}"), "bytes"),
        (
            "train.tfrecord-00000-of-00009",
            lambda path: path.write_text(""),
            "does not belong to this cache",
        ),
        ("COMPLETED", lambda path: path.unlink(), "unfinished"),
        ("COMPLETED", lambda path: flip(path, 5), "COMPLETED: damaged: its bytes are not those"),
        (
            "COMPLETED",
            lambda path: path.write_text("[" * 10**5),
            "damaged: it is not JSON any more",
        ),
        ("COMPLETED", lambda path: path.write_text("{}"), "damaged: "),
        ("info.other.json", lambda path: path.write_text("{}"), "does not belong to this cache"),
    ],
)
def test_verify_cache_damage_is_found_and_named(cache, capsys, name, damage, told):
    damage(cache / name)
    (fault,) = verify_cache(str(cache))
    assert told in fault
    assert fault.startswith(str(cache if name == "COMPLETED" else cache / name))
    assert main(["verify", "--json", str(cache)]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown.pop("stale") == shown.pop("not_compared") == {}
    assert shown == {"caches": 1, "faults": {str(cache): [fault]}, "without_checksums": []}


def damages(cache, seed):
    """Yields (kind, file, its bytes damaged) without end: flips, truncations, swaps, more bytes."""
    rng = random.Random(seed)
    files = {path: path.read_bytes() for path in sorted(cache.iterdir())}
    while True:
        path, other = rng.sample(sorted(files), 2)
        whole = files[path]
        at, end = sorted(rng.randrange(len(whole)) for _ in range(2))
        kind = rng.choice(["flip", "byte", "truncation", "swap", "file", "append", "cut", "zeros"])
        content = bytearray(whole)
        if kind == "flip":
            content[at] ^= 1 << rng.randrange(8)
        elif kind == "byte":
            content[at] = rng.randrange(256)
        elif kind == "truncation":
            del content[at:]
        elif kind == "swap":
            content[at], content[end] = content[end], content[at]
        elif kind == "file":
            content[:] = files[other]
        elif kind == "append":
            content += rng.choice([b"\0", b"\n", b" ", b"{}", whole, rng.randbytes(9)])
        elif kind == "cut":
            del content[at:end]
        else:
            content[at:end] = bytes(end - at)
        if bytes(content) != whole:
            yield kind, path, bytes(content), whole


@pytest.mark.parametrize("seed", [4, 5])
def test_verify_cache_any_damage_of_any_file_is_found(cache, seed):
    count = int(os.environ.get("T0_DAMAGES", 200))
    for kind, path, content, whole in itertools.islice(damages(cache, seed), count):
        path.write_bytes(content)
        faults = list(verify_cache(str(cache)))
        bare = path.name == "COMPLETED" and not content.strip()
        if bare:  # as SeqIO's own; the command says so
            assert faults == [] and not has_checksums(str(cache))
        else:
            assert faults, (kind, path.name)
            assert all(fault.startswith(str(path)) for fault in faults), faults
        path.write_bytes(whole)
    assert list(verify_cache(str(cache))) == []


def test_verify_cache_older_version_passes(capsys):
    """Its COMPLETED lists the files, and has no checksum of itself."""
    before = Path(__file__).parents[1] / "fixtures" / "before_redesign" / "cache"
    assert '"checksum"' not in (before / "weather_which_word" / "COMPLETED").read_text()
    assert main(["verify", str(before)]) == 0
    whole, not_compared = capsys.readouterr().err.splitlines()
    assert whole.endswith("caches are whole") and "an older version or SeqIO wrote" in not_compared


def test_verify_cache_names_and_sizes_only(cache):
    quick = {"split": "train", "contents": False}
    flip(cache / SHARD, 40)
    assert list(verify_cache(str(cache), **quick)) == []
    assert list(verify_cache(str(cache), split="validation")) == []
    assert len(list(verify_cache(str(cache), split="train"))) == 1
    (cache / SHARD).unlink()
    assert list(verify_cache(str(cache), **quick)) == [f"{cache}/{SHARD}: missing"]
    (cache / "COMPLETED").write_text("")
    assert list(verify_cache(str(cache), **quick)) == [f"{cache}/{SHARD}: missing"]


def test_verify_cache_without_checksums(cache, capsys):
    """One that SeqIO wrote, or P3's: its records and counts are looked at."""
    (cache / "COMPLETED").write_text("")
    assert list(verify_cache(str(cache))) == []
    assert main(["verify", str(cache)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{cache}: complete, without checksums\n"
    assert shown.err.startswith("1 of 1 caches are whole, 1 of them without checksums, as SeqIO")
    made_from = (cache / "provenance.json").read_bytes()
    (cache / "provenance.json").write_text("[1]")
    assert main(["verify", str(cache)]) == 1
    assert f"{cache}/provenance.json: damaged: " in capsys.readouterr().out
    (cache / "provenance.json").write_bytes(made_from)
    shard = cache / SHARD
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(shard))]
    with tf.io.TFRecordWriter(str(shard)) as writer:
        for record in records[:-1]:
            writer.write(record)
    (fault,) = verify_cache(str(cache))
    assert fault == f"{cache}/stats.train.json: counts 112 examples, but the files have 111"
    flip(shard, 20)
    (fault,) = verify_cache(str(cache))
    assert fault == f"{shard}: record 0 is damaged"
    shard.unlink()
    (cache / "info.train.json").unlink()
    assert sorted(verify_cache(str(cache))) == [
        f"{cache}/info.train.json: missing; SeqIO does not read a split without it",
        f"{shard}: missing",
    ]


def test_verify_cache_folder_without_cache_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no cache"):
        find_caches(str(tmp_path))
    (tmp_path / "toy.incomplete-h-1-2").mkdir()
    (tmp_path / "toy.incomplete-h-1-2" / SHARD).write_text("")
    with pytest.raises(UserError, match="has no cache"):
        find_caches(str(tmp_path))


def test_verify_cache_array_record_files_are_refused(tmp_path):
    for name in ("COMPLETED", "train.array_record-00000-of-00001"):
        (tmp_path / name).write_bytes(b"")
    (fault,) = verify_cache(str(tmp_path))
    assert "is an ArrayRecord file, but training and SeqIO read only TFRecord; cache" in fault
