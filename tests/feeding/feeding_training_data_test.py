import dataclasses
import hashlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import gin
import numpy as np
import pytest
import seqio
import tensorflow.compat.v1 as tf

from t0.config.plain_data import to_json
from t0.config.specification import DataSpec, from_json
from t0.errors import UserError
from t0.feeding import data_spec
from t0.feeding.mixing import MixedStream
from t0.feeding.reading import CachedSource
from t0.feeding.training_data import TrainingData, open_source, open_training_data
from t0.feeding.uncached import DatasetBatches, live_source

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


def opened(name="toy", use_cached=True, **given):
    return data_spec.open_data(data_spec.data_spec(name, LENGTHS, use_cached=use_cached, **given))


def rows_of(data, count, position=None, rows=4):
    return list(itertools.islice(data.batches(rows, position), count))


def test_training_data_position_restores_the_same_batches(cached):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("t0.feeding.data_spec.window", lambda: 6)
        whole = rows_of(opened(seed=3), 40)
        for start in (1, 7, 23):
            position = json.loads(json.dumps(whole[start - 1][1]))
            for (mine, there), (theirs, here) in zip(
                rows_of(opened(seed=3), 40 - start, position), whole[start:], strict=False
            ):
                assert there == here
                for name in theirs:
                    np.testing.assert_array_equal(mine[name], theirs[name])
        other = opened(seed=4)
        assert (rows_of(other, 1)[0][0]["inputs"] != whole[0][0]["inputs"]).any()


WRONG_POSITIONS = [
    {"window": -1},
    {"row": "0"},
    {"examples": float("nan")},
    {"mixture": {}},
    {"window": 2**70},
    {"tasks": {"one": [0, 0, 0]}},
    {"tasks": {"one": [0, 0, 0, -1]}},
    {"batches": 3},
]


@pytest.mark.parametrize("wrong", WRONG_POSITIONS, ids=str)
def test_training_data_invalid_position_is_refused(cached, wrong):
    data = opened()
    _, position = next(data.batches(4))
    whole = {**position, "row": float(position["row"])}  # JSON does not tell 4.0 from 4
    assert data.read_position(json.loads(json.dumps(whole)))["row"] == position["row"]
    assert data.read_position(None) is None
    with pytest.raises(ValueError, match="the position in the data"):
        data.read_position({**position, **wrong})


def test_training_data_position_outside_window_is_refused(cached):
    """It would read no rows, without an end."""
    _, position = next(opened().batches(4))
    with pytest.raises(UserError, match="is row 100,000 of window 0, which has only"):
        next(opened().batches(4, {**position, "row": 100_000}))


def test_training_data_without_lengths_is_refused(cached):
    spec = data_spec.data_spec("toy_a", LENGTHS, use_cached=True)
    with pytest.raises(UserError, match="the data of toy_a has no lengths; expected"):
        open_training_data(dataclasses.replace(spec, lengths={}))


def test_training_data_epoch_reads_each_example_once_shuffled(cached):
    spec = data_spec.data_spec("toy_a", LENGTHS, use_cached=True)
    source = open_source(spec.tasks[0], spec)
    assert isinstance(source, CachedSource)

    def inputs(**which):
        blocks = source.blocks(**which)
        return [tuple(b[n]["inputs"].tolist()) for b in blocks for n in range(len(b))]

    first, second = inputs(epoch=0, first=0, seed=1), inputs(epoch=1, first=0, seed=1)
    assert first != second
    assert sorted(first) == sorted(second) == sorted(cached["toy_a"])
    assert inputs(epoch=0, first=0, seed=1) == first


def test_mixing_rates_decide_shares_of_examples(cached):
    data = opened()
    rows_of(data, 300)
    drawn = {share.name: share.served for share in data.shares()}
    assert drawn["toy_a"] / drawn["toy_b"] == pytest.approx(3, rel=0.2)
    assert [share.rate for share in data.shares()] == [0.75, 0.25]


def test_training_data_live_records_equal_cached_records(cached, clean_registries):
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
    spec = data_spec.data_spec("toy_live", LENGTHS)
    source = live_source(seqio.TaskRegistry.get("toy_live"), spec.tasks[0], spec)
    (block,) = source.blocks(epoch=0, first=0, seed=1)
    found = [tuple(block[n]["inputs"].tolist()) for n in range(len(block))]
    assert sorted(found) == sorted(cached["toy_a"])
    assert found != cached["toy_a"]


def test_training_data_live_float_feature_is_refused(clean_registries):
    def live(split, shuffle_files, seed=None):
        return tf.data.Dataset.from_tensor_slices({"inputs": [[5, 1]], "targets": [[0.7, 1.2]]})

    features = _features() | {
        "targets": seqio.Feature(seqio.PassThroughVocabulary(9), dtype=tf.float32, add_eos=False)
    }
    seqio.TaskRegistry.add(
        "toy_float",
        seqio.FunctionDataSource(live, splits=["train"]),
        preprocessors=[],
        output_features=features,
        metric_fns=[],
    )
    spec = data_spec.data_spec("toy_float", LENGTHS)
    source = live_source(seqio.TaskRegistry.get("toy_float"), spec.tasks[0], spec)
    with pytest.raises(UserError, match="feature targets of toy_float is float32; expected token"):
        list(source.blocks(epoch=0, first=0, seed=None))


def test_training_data_live_task_without_seqio_must_be_cached(cached):
    spec = data_spec.data_spec("toy", LENGTHS, use_cached=False)
    with pytest.raises(UserError, match="task toy_a is not cached: .* seqio_cache_tasks"):
        open_training_data(spec)


def test_training_data_batches_without_tensorflow_are_equal(cached, tmp_path):
    spec = data_spec.data_spec("toy", LENGTHS, use_cached=True, seed=3)
    assert from_json(to_json(spec), DataSpec) == spec
    (tmp_path / "spec.json").write_text(to_json(spec))
    code = f"""
import hashlib, sys
from t0.config.specification import DataSpec, from_json
from t0.feeding import TrainingData, open_training_data
data = open_training_data(from_json(open({str(tmp_path / "spec.json")!r}).read(), DataSpec))
for (batch, position), _ in zip(data.batches(4), range(9)):
    print(*(hashlib.sha256(batch[name].tobytes()).hexdigest() for name in batch), position)
assert not {{"tensorflow", "seqio", "gin", "t0.compat"}} & set(sys.modules), "TensorFlow imported"
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    here = [
        " ".join(
            [*(hashlib.sha256(batch[name].tobytes()).hexdigest() for name in batch), str(position)]
        )
        for batch, position in rows_of(opened(seed=3), 9)
    ]
    assert done.stdout.splitlines() == here


GIN = """
run.train_dataset_fn = @{}
mesh_train_dataset_fn.mixture_or_task_name = 'toy'
train_dataset_fn.mixture_or_task_name = 'toy'
mesh_train_dataset_fn.use_cached = True
mesh_train_dataset_fn.seed = 5
"""


def test_training_data_replaces_t5_dataset_function(cached):
    names = ("t5.models.mesh_transformer.mesh_train_dataset_fn", "t0.train_dataset_fn")
    given = {"sequence_length": LENGTHS, "vocabulary": None, "dataset_split": "train"}
    found, configs = [], []
    for name in names:
        gin.clear_config()
        gin.parse_config(GIN.format(name))
        function = gin.query_parameter("run.train_dataset_fn").configurable.wrapper
        data = data_spec.open_dataset_function(function, 0, **given)
        assert isinstance(data, TrainingData)
        found.append(rows_of(data, 2)[1][0]["inputs"].tolist())
        configs.append(gin.operative_config_str())
    assert found[0] == found[1] == rows_of(opened(seed=5), 2)[1][0]["inputs"].tolist()
    # What gin notes of a call is what it notes of T5's own.
    gin.clear_config()
    gin.parse_config(GIN.format(names[0]))
    with tf.Graph().as_default():
        stock = gin.query_parameter("run.train_dataset_fn").configurable.wrapper(**given)
    assert not isinstance(stock, TrainingData)

    def noted(config):
        return [line for line in config.splitlines() if line.startswith("mesh_train_dataset_fn.")]

    assert len(noted(configs[0])) == 5
    assert noted(configs[0]) == noted(gin.operative_config_str())
    gin.clear_config()


def test_training_data_of_other_dataset_function_resumes():
    def own(sequence_length, **unused):
        rows = {name: [[n] * length for n in range(1, 8)] for name, length in LENGTHS.items()}
        return tf.data.Dataset.from_tensor_slices({**rows, "text": ["x"] * 7})

    data = data_spec.open_dataset_function(own, 0, sequence_length=LENGTHS)
    assert isinstance(data, DatasetBatches)
    assert data.features == tuple(LENGTHS)
    with pytest.raises(UserError, match="comes from your own function.*no held-out examples"):
        data_spec.open_split(data, "validation")
    whole = rows_of(data, 5)
    assert [batch["inputs"][:, 0].tolist() for batch, _ in whole[:2]] == [
        [1, 2, 3, 4],
        [5, 6, 7, 1],
    ]
    for (mine, _), (theirs, _) in zip(rows_of(data, 3, whole[1][1]), whole[2:], strict=True):
        assert mine["targets"].tolist() == theirs["targets"].tolist()


def test_training_data_empty_task_is_refused(clean_registries):
    class Empty:
        name, examples, cache = "nothing", 0, None

        def blocks(self, **which):
            return iter(())

    stream = MixedStream([Empty()], [1.0], seed=0)
    with pytest.raises(UserError, match="task nothing has no examples"):
        stream.take()
    with pytest.raises(UserError, match="rates sum to zero"):
        MixedStream([Empty()], [0.0], seed=0)


def test_training_data_empty_cache_is_refused(tmp_path):
    file = tmp_path / "train.tfrecord-00000-of-00001"
    file.touch()
    stream = MixedStream([CachedSource("nothing", (str(file),), 0, ("inputs",))], [1.0], seed=0)
    with pytest.raises(UserError, match="task nothing has no examples"):
        stream.take()


def test_training_data_position_of_other_mixture_is_refused(cached):
    data = opened()
    position = rows_of(data, 1)[0][1]
    other = opened("toy_a")
    position = {**position, "window": 1, "tasks": {"toy_b": [0, 0, 1, 1]}}
    with pytest.raises(UserError, match="to another mixture: it has read toy_b"):
        rows_of(other, 1, position)


def test_unknown_token_share_of_targets_in_the_first_window():
    examples = [
        {"inputs": np.array([2, 2]), "targets": np.array([5, 1])},
        {"inputs": np.array([7, 9]), "targets": np.array([4, 2, 1])},  # 2 is unknown
    ]

    class Alternating:
        """Yields the two examples in turns, as a mixture does."""

        def take(self):
            return examples

        def seek(self, drawn, states):
            pass

        def states(self):
            return {}

    data = TrainingData(Alternating(), LENGTHS, seed=0, window_rows=4)
    next(data.batches(2))
    assert data.filling.unknown == 0.5
