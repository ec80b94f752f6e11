"""P3's published caches: one folder for each task, in SeqIO's layout of 2021, read as they are."""

import json

import pytest
import seqio
import tensorflow as tf

from t0.caching.verify import verify_cache
from t0.cli.main import main

# As in P3: no version, no token counts, the shape of `idx` in full, one shard, an empty marker.
INT, TEXT = {"shape": [None], "dtype": "int32"}, {"shape": [], "dtype": "string"}
TEXTS = {"shape": [None], "dtype": "string"}
TOKENS = {"inputs": INT, "targets": INT, "inputs_pretokenized": TEXT, "targets_pretokenized": TEXT}
FEATURES = {
    "weather_plain": {**TOKENS, "answer_choices": TEXTS},
    "weather_plain_score_eval": {
        **TOKENS,
        "idx": {"shape": [2], "dtype": "int32"},
        "is_correct": {"shape": [], "dtype": "bool"},
        "weight": {"shape": [], "dtype": "float32"},
    },
}
LENGTHS = {"inputs": 16, "targets": 8}


def record(task, number):
    def ints(*values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def texts(*values):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    feature = {
        "inputs": ints(5, 6, 7 + number),
        "targets": ints(8, 1),
        "inputs_pretokenized": texts(b"one, two"),
        "targets_pretokenized": texts(b"three"),
    }
    if task.endswith("_score_eval"):
        feature["idx"] = ints(number // 2, number % 2)
        feature["is_correct"] = ints(number % 2)
        feature["weight"] = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))
    else:
        feature["answer_choices"] = texts(b"three", b"four")
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


@pytest.fixture
def p3(tmp_path, with_data, monkeypatch):
    """A made-up folder in P3's layout, among SeqIO's cache directories."""
    for task, features in FEATURES.items():
        folder = tmp_path / task
        folder.mkdir()
        (folder / "COMPLETED").write_text("")
        for split in ("train", "validation"):
            info = {"features": features, "num_shards": 1}
            (folder / f"info.{split}.json").write_text(json.dumps(info))
            (folder / f"stats.{split}.json").write_text(json.dumps({"examples": 6}))
            with tf.io.TFRecordWriter(str(folder / f"{split}.tfrecord-00000-of-00001")) as writer:
                for number in range(6):
                    writer.write(record(task, number))
    monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", [])
    seqio.add_global_cache_dirs([str(tmp_path)])
    for task in FEATURES:
        monkeypatch.setattr(seqio.TaskRegistry.get(task), "_cache_dir", None)
        monkeypatch.setattr(seqio.TaskRegistry.get(task), "_stats", {})
    return tmp_path


def test_p3_cache_is_read_by_training(p3):
    task = seqio.TaskRegistry.get("weather_plain")
    assert task.cache_dir == str(p3 / "weather_plain")
    found = list(task.get_dataset(LENGTHS, "train", use_cached=True, shuffle=False))
    assert [example["inputs"].numpy().tolist() for example in found] == [
        [5, 6, 7 + number] for number in range(6)
    ]
    assert found[0]["answer_choices"].numpy().tolist() == [b"three", b"four"]
    assert task.get_cached_stats("train")["examples"] == 6


def test_p3_cache_is_read_by_rank_evaluation(p3):
    task = seqio.TaskRegistry.get("weather_plain_score_eval")
    found = list(task.get_dataset(LENGTHS, "validation", use_cached=True, shuffle=False))
    assert [example["idx"].numpy().tolist() for example in found] == [
        [row, choice] for row in range(3) for choice in (0, 1)
    ]
    assert [bool(example["is_correct"]) for example in found] == [False, True] * 3


def test_p3_cache_is_listed_as_cached(p3, capsys):
    words = [
        "tasks",
        "weather_plain$",
        f"--cache_dirs={p3}",
        "--module_import=tests.caching.toy_prompted_tasks",
    ]
    assert main([*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["cached"] == str(p3 / "weather_plain")


def test_p3_cache_is_verified_and_not_written_again(p3, cache_here, tmp_path_factory):
    assert list(verify_cache(str(p3 / "weather_plain"))) == []
    out = tmp_path_factory.mktemp("out")
    known = {"tasks_additional_cache_dirs": [str(p3)]}
    assert cache_here(out, "weather_plain", **known) == []
    assert list(out.iterdir()) == []
