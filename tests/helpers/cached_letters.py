"""A task that is read from a cache of byte sequences, for tests that feed it.

letters.write_cache(folder)                          # COUNT examples, split "train"
seqio.TaskRegistry.add("letters", letters.SOURCE, output_features=letters.FEATURES, ...)
"""

import json
from pathlib import Path

from t0.compat import seqio
from t0.compat import tf1 as tf

NAMES = ("inputs", "targets")
FEATURES = {name: seqio.Feature(seqio.ByteVocabulary(), add_eos=False) for name in NAMES}
COUNT = 40


def write_cache(folder: Path) -> None:
    """Writes a complete cache into a new folder; example i repeats the id 2 + i."""
    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "train.tfrecord-00000-of-00001")) as writer:
        for number in range(COUNT):
            writer.write(_example(number))
    spec = {name: {"shape": [None], "dtype": "int32"} for name in NAMES}
    info = {"num_shards": 1, "features": spec, "seqio_version": "0.0.20"}
    (folder / "info.train.json").write_text(json.dumps(info))
    (folder / "stats.train.json").write_text(json.dumps({"examples": COUNT}))
    (folder / "COMPLETED").touch()


def _example(number: int) -> bytes:
    ids = {"inputs": [2 + number] * (1 + number % 9), "targets": [2 + number, 1]}
    lists = {name: tf.train.Int64List(value=value) for name, value in ids.items()}
    parts = {name: tf.train.Feature(int64_list=value) for name, value in lists.items()}
    return tf.train.Example(features=tf.train.Features(feature=parts)).SerializeToString()


def add_task(name: str, *later, **arguments) -> None:
    """Registers a task that has no examples but in its cache; `later` are steps after the cache."""
    seqio.TaskRegistry.add(
        name,
        seqio.FunctionDataSource(_no_examples, splits=["train"]),
        preprocessors=[seqio.CacheDatasetPlaceholder(), *later],
        output_features=FEATURES,
        **arguments,
    )


def _no_examples(split, shuffle_files, seed=None):
    del split, shuffle_files, seed
    kind = dict.fromkeys(NAMES, tf.TensorSpec([None], tf.int32))
    return tf.data.Dataset.from_generator(lambda: iter(()), output_signature=kind)
