"""The engine for any SeqIO task: the examples of some of its source's shards, made with SeqIO.

    runs = [ShardRun(spec, 0, 1, 3, parts_dir), ShardRun(spec, 1, 2, 3, parts_dir), ...]
    make_part(runs[0], Options(), advance=print)
    # {"toy_lines": {"start": 0, "stop": 1, "records": 70, "tokens": {...}, ...}}

SeqIO gives each shard of a source a seed of its own (`seqio.beam_utils.PreprocessTask`) and caches
one after the other. So a shard can be read alone, in any process, and the parts, joined in order,
are what reading them all gives. What is counted goes into the part, so that a run that takes it
over knows all that the first one knew.

Assumes that the tasks are registered in this process (`workers.prepare`).
"""

import dataclasses
import hashlib
import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.caching import parts
from t0.caching.cache_plan import LONGEST, Options
from t0.caching.split_state import PartInfo, SplitSpec
from t0.compat import seqio, tf
from t0.files import tfrecord
from t0.prompts import RowReport

# A part for each of a million small files would be a burden on the output's file system.
MOST_RUNS = 1024
ADVANCE_SECONDS = 0.5
RECORDS_AT_ONCE = 100
_INT64_MAX = 2**63 - 1
_TOKEN_TYPES = (np.dtype(np.int32), np.dtype(np.int64))

# Called now and then with the number of examples that the part has by then.
Advance = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class ShardRun:
    """A job: shards of the source of a split of a task.

    Attributes:
      start, stop: the shards' numbers in the source.
      shards: how many the source has.
      directory: where the part goes.
    """

    spec: SplitSpec
    start: int
    stop: int
    shards: int
    directory: str

    def __str__(self) -> str:
        if self.shards == 1:
            return str(self.spec.split)
        last = f" to {self.stop}" if self.stop > self.start + 1 else ""
        return f"{self.spec.split}, source shard {self.start + 1}{last} of {self.shards}"

    @property
    def specs(self) -> list[SplitSpec]:
        """The one split that is made, as a `RowRange` may have several."""
        return [self.spec]

    def only(self, specs: Sequence[SplitSpec]) -> "ShardRun":
        """Returns what is left of the job for these splits: all of it."""
        del specs
        return self


def runs_of(shards: int) -> tuple[tuple[int, int], ...]:
    """Returns the runs of a source: one shard each, or several of very many.

    >>> runs_of(3)
    ((0, 1), (1, 2), (2, 3))
    """
    size = math.ceil(shards / MOST_RUNS)
    return tuple((start, min(start + size, shards)) for start in range(0, shards, size or 1))


def make_part(
    job: ShardRun, options: Options, *, advance: Advance, threads: int | None = None
) -> dict[str, PartInfo]:
    """Writes the records of a run of shards as a part.

    Args:
      threads: threads that the input pipeline may use; TensorFlow's choice if None.

    Returns:
      task -> what was counted in the part.
    """
    spec, split = job.spec, job.spec.split
    task = seqio.TaskRegistry.get(split.task)
    tally = Tally(task.output_features, char_counts=options.enable_char_counts)
    features: dict[str, Any] = {}
    frames: list[bytes] = []
    due = time.monotonic() + ADVANCE_SECONDS
    name = parts.part_name(spec.key, job.start, job.stop)
    with parts.PartWriter(job.directory, name) as part:
        for shard in range(job.start, job.stop):
            stream = read_examples(
                task,
                split.name,
                shard,
                of=job.shards,
                base_seed=options.base_seed,
                threads=threads,
            )
            for example in stream:
                features = features or feature_info(example)
                values = as_numpy(example)
                tally.add(values)
                frames.append(tfrecord.framed(serialized(values)))
                if len(frames) == RECORDS_AT_ONCE:
                    part.append(frames)
                    frames.clear()
                if time.monotonic() >= due:
                    advance(tally.examples)
                    due = time.monotonic() + ADVANCE_SECONDS
        part.append(frames)
        counts = {"features": features, **_counts(task, job, tally.examples), **tally.counts()}
        return {split.task: part.finish({"start": job.start, "stop": job.stop, **counts})}


def _counts(task: seqio.Task, job: ShardRun, made: int) -> dict[str, Any]:
    """Returns how many rows there were and what became of them, as far as the source counts them.

    Of one that counts nothing: None rows, or 0 if there were none at all.
    """
    split = job.spec.split.name
    reports = getattr(task.source, "reports", None)
    report = reports.get(split) if isinstance(reports, Mapping) else None
    if isinstance(report, RowReport):
        # Only a source of one shard counts, or the counts would be those of several jobs.
        counts = dict(report.counts)
        rows = counts.pop("rows")
        return {"rows": rows, "counts": counts, "labels": report.labels, "first": report.first}
    empty = not made and not any(
        has_rows(task, split, shard, of=job.shards) for shard in range(job.start, job.stop)
    )
    return {"rows": 0 if empty else None, "counts": {}, "first": {}}


def task_seed(task_name: str, base_seed: int | None) -> int:
    """Returns what `base_seed` adds to the seeds of a task; 0 without a base seed (or -1)."""
    if not base_seed or base_seed == -1:
        return 0
    return int.from_bytes(hashlib.md5(task_name.encode()).digest(), "little") + base_seed


def shard_seed(task_name: str, shard_index: int, seed: int) -> int:
    """Returns the preprocessors' seed for one shard of the source, as SeqIO derives it."""
    digest = hashlib.md5(f"{task_name}shard{shard_index}".encode()).digest()
    full = int.from_bytes(digest, "little") + seed
    if full > _INT64_MAX:
        full = int.from_bytes(digest[:7], "little") + seed
    return full % _INT64_MAX


def read_examples(
    task: seqio.Task,
    split: str,
    shard: int,
    *,
    of: int,
    base_seed: int | None,
    threads: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields the examples of a shard after the steps before the caching point.

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


class Tally:
    """The numbers of a `stats.<split>.json`, counted while the examples of a part pass.

    Rules of `seqio.beam_utils.GetStats`: tokens are ids other than EOS and padding; only features
    among the task's output features that hold int32 or int64 are counted. Its character counts come
    out empty in SeqIO's own command (they ask for numpy arrays and get tensors); here they are
    counted.

    Attributes:
      over: for each feature of `LONGEST`, the examples that are longer.
    """

    def __init__(self, output_features: Mapping[str, seqio.Feature], *, char_counts: bool) -> None:
        self.examples = 0
        self._features = output_features
        self._char_counts = char_counts
        self._tokens: dict[str, int] = {}
        self._max_tokens: dict[str, int] = {}
        self._chars: dict[str, int] = {}
        self._special: dict[str, tuple[int, ...]] = {}
        self.over = dict.fromkeys(LONGEST, 0)

    def add(self, example: Mapping[str, Any]) -> None:
        """Counts one example of numpy values and bytes."""
        self.examples += 1
        for name in self._features:
            value = example.get(name)
            if value is None:
                continue
            if getattr(value, "dtype", None) in _TOKEN_TYPES:
                self._add_tokens(name, np.asarray(value))
            if self._char_counts:
                self._add_characters(name, value)

    def _add_tokens(self, name: str, ids: np.ndarray) -> None:
        valid = np.ones(ids.shape, dtype=bool)
        for special in self._special_ids(name):
            valid &= ids != special
        count = int(np.count_nonzero(valid))
        self._tokens[name] = self._tokens.get(name, 0) + count
        self._max_tokens[name] = max(self._max_tokens.get(name, 0), count)
        if name in LONGEST:
            self.over[name] += count + self._features[name].add_eos > LONGEST[name]

    def _special_ids(self, name: str) -> tuple[int, ...]:
        if name not in self._special:
            vocabulary = self._features[name].vocabulary
            ids = (vocabulary.eos_id, vocabulary.pad_id)
            self._special[name] = tuple(special for special in ids if special is not None)
        return self._special[name]

    def _add_characters(self, name: str, value: Any) -> None:
        feature = self._features[name]
        if isinstance(value, bytes):
            text = value.decode("utf-8")
        elif (
            getattr(value, "dtype", None) in _TOKEN_TYPES
            and feature.rank == 1
            and isinstance(feature.vocabulary, seqio.SentencePieceVocabulary)
        ):
            ids = np.abs(value.astype(np.int32))
            text = feature.vocabulary.decode_tf(ids).numpy().decode("utf-8")
        else:
            return
        self._chars[name] = self._chars.get(name, 0) + len(text)

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns the counts by kind and feature, which `cache_files.totals` adds up."""
        return {
            "tokens": self._tokens,
            "max_tokens": self._max_tokens,
            "chars": self._chars,
            "over": self.over,
        }
