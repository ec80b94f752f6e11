"""The run's own mixture, as TPUEstimator would be given it, reaches every core."""

import itertools
import json
import types

import numpy as np
import planning
import pytest

from t0.compat import seqio
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.rehearsal import configured_data
from t0.rehearsal.feeding import fed, other_batches

NAMES = ("inputs", "targets")
FEATURES = {name: seqio.Feature(seqio.ByteVocabulary(), add_eos=False) for name in NAMES}
COUNT = 40


def example(number):
    ids = {"inputs": [2 + number] * (1 + number % 9), "targets": [2 + number, 1]}
    lists = {name: tf.train.Int64List(value=value) for name, value in ids.items()}
    parts = {name: tf.train.Feature(int64_list=value) for name, value in lists.items()}
    return tf.train.Example(features=tf.train.Features(feature=parts)).SerializeToString()


def unread(split, shuffle_files, seed=None):
    del split, shuffle_files, seed
    kind = dict.fromkeys(NAMES, tf.TensorSpec([None], tf.int32))
    return tf.data.Dataset.from_generator(lambda: iter(()), output_signature=kind)


@pytest.fixture
def cached(tmp_path, clean_registries):
    del clean_registries
    folder = tmp_path / "letters"
    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "train.tfrecord-00000-of-00001")) as writer:
        for number in range(COUNT):
            writer.write(example(number))
    spec = {name: {"shape": [None], "dtype": "int32"} for name in NAMES}
    info = {"num_shards": 1, "features": spec, "seqio_version": "0.0.20"}
    (folder / "info.train.json").write_text(json.dumps(info))
    (folder / "stats.train.json").write_text(json.dumps({"examples": COUNT}))
    (folder / "COMPLETED").touch()
    seqio.TaskRegistry.add(
        "letters",
        seqio.FunctionDataSource(unread, splits=["train"]),
        preprocessors=[seqio.CacheDatasetPlaceholder()],
        output_features=FEATURES,
        metric_fns=[],
    )
    before = list(seqio.get_global_cache_dirs())
    yield tmp_path
    seqio.set_global_cache_dirs(before)


def read():
    return planning.read(
        *planning.TINY,
        *planning.on_slice("v3-8", 2),
        "MIXTURE_NAME = 'letters'",
        "mesh_train_dataset_fn.use_cached = True",
        "run.sequence_length = {'inputs': 12, 'targets': 6}",
        "run.batch_size = ('sequences_per_batch', 8)",
    )


def flags(*folders):
    return types.SimpleNamespace(additional_task_cache_dirs=[str(x) for x in folders])


def test_every_core_gets_the_mixtures_batches(cached):
    run = read()
    vocabulary = configured_data.check(flags(cached))
    assert configured_data.vocabulary_size(vocabulary) == seqio.ByteVocabulary().vocab_size
    with fed(run, configured_data.input_function(vocabulary)) as batches:
        steps = list(itertools.islice(batches, 6))
    seen = set()
    for cores in steps:
        assert len(cores) == run.slice_.cores
        assert other_batches(cores) == []
        batch = cores[0]
        assert {f"{name}_segmentation" for name in NAMES} < batch.keys()
        assert batch["inputs"].shape == (8, 12)
        assert batch["targets"].shape == (8, 6)
        seen |= set(np.unique(batch["inputs"]).tolist())
    assert seen <= {0, *range(2, 2 + COUNT)}
    assert len(seen) > COUNT / 2


def test_a_mixture_that_is_not_cached_is_refused(cached, tmp_path_factory):
    del cached
    read()
    with pytest.raises(UserError, match="1 of the 1 tasks of letters are not cached"):
        configured_data.check(flags(tmp_path_factory.mktemp("empty")))


def test_vocabularies_of_two_sizes_are_refused():
    two = (seqio.ByteVocabulary(), seqio.ByteVocabulary(extra_ids=50))
    with pytest.raises(UserError, match="the vocabularies of inputs and targets have 259 and 309"):
        configured_data.vocabulary_size(two)
