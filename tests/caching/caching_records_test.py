"""Records, info and stats equal those of SeqIO's own caching, which runs beside."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t0.caching import RecordOptions, cache_files
from t0.caching.source_shards import ExampleCounter, serialize
from tests.helpers.cases import as_subtests

TASKS = ("toy_lines", "toy:shapes")
BASE_SEED = 11


@pytest.fixture(scope="module")
def stock(toy, toy_folder, tmp_path_factory):
    """The toy tasks, cached by SeqIO."""
    out = tmp_path_factory.mktemp("stock")
    subprocess.run(
        [sys.executable, "-m", "tests.caching.stock_caching", str(out), str(BASE_SEED), *TASKS],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TOY_CACHING": str(toy_folder)},
        check=True,
        capture_output=True,
    )
    return out


def records(directory, split):
    files = sorted(map(str, directory.glob(f"{split}.tfrecord-*")))
    return [record.numpy() for record in tf.data.TFRecordDataset(files)]


def decoded(record):
    message = tf.train.Example.FromString(record)
    return message.SerializeToString(deterministic=True)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("task", TASKS)
def test_caching_records_equal_stock_seqio(stock, cache_here, tmp_path, task, split):
    cache_here(tmp_path, task, options=RecordOptions(base_seed=BASE_SEED, min_shards=3))
    ours, theirs = (Path(root, *task.split(":")) for root in (tmp_path, stock))
    of_ours, of_theirs = (
        collections.Counter(map(decoded, records(folder, split))) for folder in (ours, theirs)
    )
    assert of_ours == of_theirs
    for name in (f"info.{split}.json", f"stats.{split}.json"):
        assert (ours / name).read_text() == (theirs / name).read_text()
    names = {p.name for p in theirs.iterdir()} | {"provenance.json"}  # a file of ours
    assert {p.name for p in ours.iterdir()} == names


NUMBERS = ("int8", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
# Functions, because a file that computes when it is imported cannot be run in a forked process.
VALUES = {
    "text": lambda: tf.constant(b"a\0"),
    "texts": lambda: tf.constant([[b"x\0"], [b""]]),
    "truth": lambda: tf.constant(True),
    "truths": lambda: tf.constant([True, False]),
    "no texts": lambda: tf.constant([], tf.string),
    "no rows": lambda: tf.zeros([0, 3], tf.int64),
    "ragged": lambda: tf.ragged.constant([[1], [2, 3]]),
    "python": lambda: [1, 2],
    **{name: lambda name=name: tf.cast([[0.1, 3.7]], name) for name in NUMBERS},
    **{f"one {name}": lambda name=name: tf.cast(2, name) for name in NUMBERS},
}


@as_subtests("name", VALUES)
def test_serialized_values_equal_seqio(name):
    example = {"value": VALUES[name](), "other": tf.constant(5)}
    expected = seqio.dict_to_tfexample(example).SerializeToString(deterministic=True)
    assert serialize(example) == expected


@pytest.mark.slow
def test_caching_base_seed_changes_seeded_preprocessors(cache_here, tmp_path):
    drawn = []
    for seed in (None, -1, 11, 12):
        out = tmp_path / str(seed)
        cache_here(out, "toy_lines", options=RecordOptions(base_seed=seed))
        drawn.append(records(out / "toy_lines", "train"))
    assert drawn[0] == drawn[1]
    assert drawn[1] != drawn[2] != drawn[3]


def test_caching_records_in_dataset_order_over_shards(toy, cache_here, tmp_path):
    (outcome,) = cache_here(tmp_path, "toy_many")
    directory = tmp_path / "toy_many"
    files = sorted(directory.glob("train.tfrecord-*"))
    assert [f.name[-14:] for f in files] == ["00000-of-00003", "00001-of-00003", "00002-of-00003"]
    sizes = [outcome.files[f.name]["examples"] for f in files]
    assert sum(sizes) == 2500
    assert max(sizes) - min(sizes) <= 1
    texts = [
        tf.train.Example.FromString(r).features.feature["inputs_pretokenized"].bytes_list.value[0]
        for r in records(directory, "train")
    ]
    assert texts == [f"row {i} of rain".encode() for i in range(2500)]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "shards",
    [{"min_shards": 7}, pytest.param({"max_shards": 1}, marks=SLOW), pytest.param({}, marks=SLOW)],
)
def test_caching_records_are_read_by_seqio(toy, cache_here, tmp_path, monkeypatch, shards):
    cache_here(tmp_path, "toy:shapes", options=RecordOptions(**shards))
    task = seqio.TaskRegistry.get("toy:shapes")
    monkeypatch.setattr(task, "_cache_dir", None)
    monkeypatch.setattr(task, "_stats", {})
    lengths = {"inputs": 64, "targets": 64}

    def flat(example):
        for name, value in example.items():
            dense = value.to_tensor() if name == "letters" else value
            yield name, dense.dtype.name, np.asarray(dense).tolist()

    def read(use_cached):
        stream = task.get_dataset(lengths, "train", use_cached=use_cached, shuffle=False)
        return sorted(sorted(flat(example)) for example in stream)

    assert read(use_cached=True) == read(use_cached=False)
    assert task.get_cached_stats("train")["examples"] == 112


def test_caching_stats_equal_seqio(toy):
    from seqio.beam_utils import _CountCharacters, _CountTokens

    vocabulary = toy.VOCABULARY
    rng = np.random.default_rng(3)
    records = [
        {
            "inputs": rng.integers(0, vocabulary.vocab_size, n).astype(np.int32),
            "targets": np.append(rng.integers(2, 40, n), 1),
        }
        for n in (0, 1, 5, 30)
    ]
    tally = ExampleCounter(toy.FEATURES, char_counts=True)
    expected = collections.Counter()
    for record in records:
        tally.add(record)
        for function in (_CountTokens, _CountCharacters):
            for name, count in function(toy.FEATURES).process(record):
                expected[name] += count
                if name.endswith("tokens"):
                    most = name.replace("tokens", "max_tokens")
                    expected[most] = max(expected[most], count)
    assert cache_files.totals([{"records": 4, **tally.counts()}]) == {"examples": 4, **expected}


def test_caching_char_counts_are_written_on_request(cache_here, tmp_path):
    cache_here(tmp_path, "toy_function", options=RecordOptions(enable_char_counts=True))
    stats = json.loads((tmp_path / "toy_function" / "stats.train.json").read_text())
    assert stats["targets_chars"] == 20 * len("sun")
