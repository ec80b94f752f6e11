"""`t0 verify`: a whole cache passes, and a damaged file is named."""

import json

import pytest
import tensorflow as tf

from t0.caching.verify import find_caches, verify_cache
from t0.cli.main import main
from t0.errors import UserError

SHARD = "train.tfrecord-00000-of-00003"


@pytest.fixture
def cache(cache_here, tmp_path):
    from t0.caching import Options

    cache_here(tmp_path, "toy_lines", options=Options(min_shards=3))
    return tmp_path / "toy_lines"


def test_a_whole_cache(cache, capsys):
    assert list(verify_cache(str(cache))) == []
    assert main(["verify", str(cache.parent)]) == 0
    assert capsys.readouterr().err == "1 of 1 caches are whole\n"


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage", "told"),
    [
        (SHARD, lambda path: flip(path, 40), "not those that were written (record 0 is damaged)"),
        (SHARD, lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes"),
        (SHARD, lambda path: path.unlink(), "missing"),
        ("stats.train.json", lambda path: path.write_text("{}"), "bytes"),
        ("train.tfrecord-00000-of-00009", lambda path: path.write_text(""), "not of this cache"),
        ("COMPLETED", lambda path: path.unlink(), "unfinished"),
    ],
)
def test_damage_is_found_and_named(cache, capsys, name, damage, told):
    damage(cache / name)
    (fault,) = verify_cache(str(cache))
    assert told in fault
    assert fault.startswith(str(cache if name == "COMPLETED" else cache / name))
    assert main(["verify", "--json", str(cache)]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"caches": 1, "faults": {str(cache): [fault]}}


def test_a_cache_without_our_list(cache):
    """One that SeqIO wrote, or P3's: its records and counts are looked at."""
    (cache / "COMPLETED").write_text("")
    assert list(verify_cache(str(cache))) == []
    shard = cache / SHARD
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(shard))]
    with tf.io.TFRecordWriter(str(shard)) as writer:
        for record in records[:-1]:
            writer.write(record)
    (fault,) = verify_cache(str(cache))
    assert fault == f"{cache}/stats.train.json: counts 112 examples, the files hold 111"
    flip(shard, 20)
    (fault,) = verify_cache(str(cache))
    assert fault == f"{shard}: record 0 is damaged"
    shard.unlink()
    (cache / "info.train.json").unlink()
    assert sorted(verify_cache(str(cache))) == [
        f"{cache}/info.train.json: missing, without it nobody reads the split",
        f"{shard}: missing",
    ]


def test_no_cache(tmp_path):
    with pytest.raises(UserError, match="no cache is there"):
        find_caches(str(tmp_path))
    (tmp_path / "toy.incomplete-h-1-2").mkdir()
    (tmp_path / "toy.incomplete-h-1-2" / SHARD).write_text("")
    with pytest.raises(UserError, match="no cache is there"):
        find_caches(str(tmp_path))
