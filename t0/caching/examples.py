"""Reads the examples of one shard of a task's source, with SeqIO's own seeds and in its form.

    for example in read_examples(task, "train", 0, of=3, base_seed=None):
        record = serialized({name: value.numpy() for name, value in example.items()})

Examples come in dataset order. Each of the source's shards has a seed of its own, that of
`seqio.beam_utils.PreprocessTask`, so seeded preprocessors draw the same numbers.
"""

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t0.compat import seqio, tf

INT64_MAX = 2**63 - 1


def task_seed(task_name: str, base_seed: int | None) -> int:
    """Returns what `base_seed` adds to the seeds of a task; 0 without a base seed (or -1)."""
    if not base_seed or base_seed == -1:
        return 0
    return int.from_bytes(hashlib.md5(task_name.encode()).digest(), "little") + base_seed


def shard_seed(task_name: str, shard_index: int, seed: int) -> int:
    """Returns the preprocessors' seed for one shard of the source, as SeqIO derives it."""
    digest = hashlib.md5(f"{task_name}shard{shard_index}".encode()).digest()
    full = int.from_bytes(digest, "little") + seed
    if full > INT64_MAX:
        full = int.from_bytes(digest[:7], "little") + seed
    return full % INT64_MAX


def read_examples(
    task: seqio.Task,
    split: str,
    shard: int,
    *,
    of: int,
    base_seed: int | None,
    threads: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields the examples of a shard after the steps that stand before the caching point.

    Args:
      shard: its number in the source.
      of: how many the source has.
      threads: threads that the input pipeline may use; TensorFlow's choice if None.
    """
    seed = shard_seed(task.name, shard, task_seed(task.name, base_seed))
    dataset = _source_dataset(task.source, split, shard, of, seed)
    dataset = task.preprocess_precache(dataset, seed=seed)
    yield from dataset.prefetch(tf.data.AUTOTUNE).with_options(_pipeline_options(threads))


def has_rows(task: seqio.Task, split: str, shard: int, *, of: int) -> bool:
    """Whether a shard of the source has any row, before all preprocessing."""
    dataset = _source_dataset(task.source, split, shard, of, seed=0)
    return any(True for _ in dataset.take(1))


def _source_dataset(
    source: seqio.DataSource, split: str, index: int, shards: int, seed: int
) -> tf.data.Dataset:
    if isinstance(source, seqio.FunctionDataSource):
        # SeqIO refuses to cache a function that takes no seed; without shuffling it needs none.
        function = source._dataset_fn
        if "seed" not in inspect.signature(function).parameters:
            return function(split=split, shuffle_files=False)
    return source.get_dataset(
        split=split,
        shard_info=seqio.ShardInfo(index=index, num_shards=shards),
        shuffle=False,
        seed=seed,
    )


def _pipeline_options(threads: int | None) -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    if threads:
        options.threading.private_threadpool_size = threads
        options.threading.max_intra_op_parallelism = 1
    return options


def feature_info(example: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the `features` of an `info.<split>.json`: shape and type of each.

    The first dimension of a feature that is no scalar is free (None), as SeqIO has it.
    """
    features = {}
    for name, value in example.items():
        shape = value.shape.as_list()
        features[name] = {
            "shape": [None, *shape[1:]] if shape else shape,
            "dtype": value.dtype.name,
        }
    return features


_LISTS = {
    "b": lambda values: tf.train.Feature(int64_list=tf.train.Int64List(value=values)),
    "i": lambda values: tf.train.Feature(int64_list=tf.train.Int64List(value=values)),
    "u": lambda values: tf.train.Feature(int64_list=tf.train.Int64List(value=values)),
    "f": lambda values: tf.train.Feature(float_list=tf.train.FloatList(value=values)),
    "O": lambda values: tf.train.Feature(bytes_list=tf.train.BytesList(value=values)),
    "S": lambda values: tf.train.Feature(bytes_list=tf.train.BytesList(value=values)),
}


def serialized(example: Mapping[str, Any]) -> bytes:
    """Returns the bytes of the `tf.train.Example` that `seqio.dict_to_tfexample` makes.

    Args:
      example: name -> what `.numpy()` gives for a tensor; other values (ragged, sparse) are left
        to SeqIO. The bytes depend on the values only: keys are in order.
    """
    features = {}
    for name, value in example.items():
        array = np.asarray(value) if isinstance(value, np.ndarray | np.generic | bytes) else None
        if array is None or array.dtype.kind not in _LISTS:
            features.update(seqio.dict_to_tfexample({name: value}).features.feature)
        elif isinstance(value, bytes):  # not through numpy, which drops zero bytes at the end
            features[name] = _LISTS["S"]([value])
        else:
            features[name] = _LISTS[array.dtype.kind](array.ravel().tolist())
    message = tf.train.Example(features=tf.train.Features(feature=features))
    return message.SerializeToString(deterministic=True)


def as_numpy(example: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `example` with its dense tensors as numpy values and bytes."""
    return {
        name: value.numpy() if isinstance(value, tf.Tensor) else value
        for name, value in example.items()
    }
