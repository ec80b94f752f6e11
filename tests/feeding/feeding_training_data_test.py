import itertools
import json

import gin
import numpy as np
import pytest
import seqio
import tensorflow.compat.v1 as tf

from t0 import compat
from t0.errors import UserError
from t0.feeding import records
from t0.feeding.mixing import MixedStream
from t0.feeding.training_data import TrainingData, opened_by, training_data

LENGTHS = {"inputs": 16, "targets": 8}
COUNTS = {"toy_a": 60, "toy_b": 31}


def _features():
    vocabulary = seqio.PassThroughVocabulary(200)
    return {
        name: seqio.Feature(vocabulary, add_eos=name == "targets", dtype=tf.int32)
        for name in LENGTHS
    }


def _write_cache(folder, name, count, shards=3):
    path = folder / name
    path.mkdir()
    rng = np.random.default_rng(count)
    every = []
    for shard in range(shards):
        file = str(path / f"train.tfrecord-{shard:05d}-of-{shards:05d}")
        with tf.io.TFRecordWriter(file) as writer:
            for number in range(shard, count, shards):
                ids = {n: rng.integers(2, 199, rng.integers(1, 12)).tolist() for n in LENGTHS}
                ids["inputs"][0] = number + 2
                every.append(tuple(ids["inputs"]))
                parts = {n: _ints(x) for n, x in ids.items()}
                parts["inputs_pretokenized"] = tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[b"text"])
                )
                example = tf.train.Example(features=tf.train.Features(feature=parts))
                writer.write(example.SerializeToString())
    spec = {n: {"shape": [None], "dtype": "int32"} for n in LENGTHS}
    spec["inputs_pretokenized"] = {"shape": [], "dtype": "string"}
    info = {"num_shards": shards, "features": spec, "seqio_version": "0.0.20"}
    (path / "info.train.json").write_text(json.dumps(info))
    (path / "stats.train.json").write_text(json.dumps({"examples": count}))
    (path / "COMPLETED").write_text("")
    return every


@pytest.fixture
def cached(tmp_path, clean_registries):
    before = list(seqio.get_global_cache_dirs())
    seqio.set_global_cache_dirs([str(tmp_path)])
    every = {}
    for name, count in COUNTS.items():
        every[name] = _write_cache(tmp_path, name, count)
        seqio.TaskRegistry.add(
            name,
            seqio.FunctionDataSource(_never, splits=["train"]),
            preprocessors=[seqio.CacheDatasetPlaceholder()],
            output_features=_features(),
            metric_fns=[],
        )
    seqio.MixtureRegistry.add("toy", [("toy_a", 3.0), ("toy_b", 1.0)])
    yield every
    seqio.set_global_cache_dirs(before)


def _never(split, shuffle_files, seed=None):
    raise AssertionError("the source was read, not the cache")


def _ints(values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def rows_of(data, count, position=None, rows=4):
    return list(itertools.islice(data.batches(rows, position), count))


def test_position_brings_back_the_same_batches(cached):
    def opened():
        return training_data("toy", LENGTHS, use_cached=True, seed=3)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("t0.feeding.training_data.window", lambda: 6)
        whole = rows_of(opened(), 40)
        for start in (1, 7, 23):
            position = json.loads(json.dumps(whole[start - 1][1]))
            for (mine, there), (theirs, here) in zip(
                rows_of(opened(), 40 - start, position), whole[start:], strict=False
            ):
                assert there == here
                for name in theirs:
                    np.testing.assert_array_equal(mine[name], theirs[name])
        other = training_data("toy", LENGTHS, use_cached=True, seed=4)
        assert (rows_of(other, 1)[0][0]["inputs"] != whole[0][0]["inputs"]).any()


def test_each_pass_reads_every_example_once_in_another_order(cached):
    source = records.open_source(seqio.TaskRegistry.get("toy_a"), "train", LENGTHS, use_cached=True)
    assert isinstance(source, records.CachedSource)

    def inputs(**which):
        blocks = source.blocks(**which)
        return [tuple(b[n]["inputs"].tolist()) for b in blocks for n in range(len(b))]

    first, second = inputs(epoch=0, first=0, seed=1), inputs(epoch=1, first=0, seed=1)
    assert first != second
    assert sorted(first) == sorted(second) == sorted(cached["toy_a"])
    assert inputs(epoch=0, first=0, seed=1) == first


def test_examples_come_by_the_mixture_rates(cached):
    data = training_data("toy", LENGTHS, use_cached=True)
    rows_of(data, 300)
    drawn = {share.name: share.served for share in data.shares()}
    assert drawn["toy_a"] / drawn["toy_b"] == pytest.approx(3, rel=0.2)
    assert [share.rate for share in data.shares()] == [0.75, 0.25]


def test_live_tasks_give_the_records_that_cached_ones_give(cached, clean_registries):
    def live(split, shuffle_files, seed=None):
        rows = [{"inputs": list(ids), "targets": [5, 1]} for ids in cached["toy_a"]]
        return tf.data.Dataset.from_generator(
            lambda: rows, output_types=dict.fromkeys(LENGTHS, tf.int32),
            output_shapes=dict.fromkeys(LENGTHS, [None]),
        )  # fmt: skip

    seqio.TaskRegistry.add(
        "toy_live",
        seqio.FunctionDataSource(live, splits=["train"]),
        preprocessors=[],
        output_features=_features(),
        metric_fns=[],
    )
    task = seqio.TaskRegistry.get("toy_live")
    source = records.open_source(task, "train", tuple(LENGTHS), use_cached=False)
    (block,) = source.blocks(epoch=0, first=0, seed=1)
    found = [tuple(block[n]["inputs"].tolist()) for n in range(len(block))]
    assert sorted(found) == sorted(cached["toy_a"])
    assert found != cached["toy_a"]


def test_both_dataset_functions_that_gin_can_name_give_our_batches(cached):
    from t5.models import mesh_transformer

    found = {}
    for name, module in (
        ("mesh_train_dataset_fn", "t5.models.mesh_transformer.mesh_train_dataset_fn"),
        ("train_dataset_fn", "t0.train_dataset_fn"),
    ):
        gin.clear_config()
        gin.parse_config(
            f"run.train_dataset_fn = @{module}\n"
            "mesh_train_dataset_fn.mixture_or_task_name = 'toy'\n"
            "train_dataset_fn.mixture_or_task_name = 'toy'\n"
            "mesh_train_dataset_fn.use_cached = True\nmesh_train_dataset_fn.seed = 5\n"
        )
        function = gin.query_parameter("run.train_dataset_fn").configurable.wrapper
        data = opened_by(
            function, 0, sequence_length=LENGTHS, vocabulary=None, dataset_split="train"
        )
        assert isinstance(data, TrainingData)
        found[name] = rows_of(data, 2)[1][0]["inputs"].tolist()
    assert len(set(map(str, found.values()))) == 1
    gin.clear_config()
    # Outside a run of ours T5's function is T5's.
    with tf.Graph().as_default():
        stock = mesh_transformer.mesh_train_dataset_fn("toy_a", LENGTHS, use_cached=True)
        assert not isinstance(stock, TrainingData)


def test_empty_task_is_said(clean_registries):
    class Empty:
        name, examples = "nothing", 0

        def blocks(self, **which):
            return iter(())

    stream = MixedStream([Empty()], [1.0], seed=0)
    with pytest.raises(UserError, match="task nothing has no examples"):
        stream.take()
    with pytest.raises(UserError, match="rates sum to zero"):
        MixedStream([Empty()], [0.0], seed=0)


def test_position_of_another_mixture_is_refused(cached):
    data = training_data("toy", LENGTHS, use_cached=True)
    position = rows_of(data, 1)[0][1]
    other = training_data("toy_a", LENGTHS, use_cached=True)
    position["mixture"]["tasks"]["toy_b"] = [0, 0, 1, 1]
    with pytest.raises(UserError, match="of another mixture: it has read toy_b"):
        rows_of(other, 1, position)


compat.apply()
