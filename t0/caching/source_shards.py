"""Makes the records of any SeqIO task with SeqIO, from shards of the task's source.

    runs = [ShardRun(spec, 0, 1, 3, parts_dir), ShardRun(spec, 1, 2, 3, parts_dir), ...]
    make_part(runs[0], RecordOptions(), count=print)
    # {"toy_lines": {"start": 0, "stop": 1, "records": 70, "tokens": {...}, ...}}

SeqIO derives the seed of each shard from the shard's number (`seqio.beam_utils.PreprocessTask`). So
any process can read any shard. The parts, joined in order, have the same records that SeqIO caches
if it reads the shards in order. Each part contains its own counts, so that a later run can use the
part without parsing its records.

The tasks must be registered in this process (`workers.prepare`).
"""

import copy
import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.caching import parts
from t0.caching.cache_plan import RecordOptions
from t0.caching.split_state import PartInfo, SplitSpec
from t0.catalogue.row_preview import T0_LENGTHS
from t0.compat import seqio, tf
from t0.errors import UserError
from t0.files import tfrecord
from t0.prompts import NO_LABEL, RowReport
from t0.prompts.row_report import UNKNOWN

# The maximum number of parts of a split. Without this limit, a split with a million small source
# files would have a million parts.
MOST_RUNS = 1024
RECORDS_AT_ONCE = 100
_INT64_MAX = 2**63 - 1
# These steps after the caching point add no text, so an empty target remains without text.
_AFTER_CACHE = (seqio.preprocessors.append_eos, seqio.preprocessors.append_eos_after_trim)
_TOKEN_TYPES = (np.dtype(np.int32), np.dtype(np.int64))


@dataclasses.dataclass(frozen=True)
class ShardRun:
    """A job: consecutive shards of the source of one split of a task.

    Attributes:
      spec: the split.
      start: the number of the first shard.
      stop: the number after the last shard.
      shards: the total number of shards of the source.
      directory: the directory of the part.
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
        """The job's only split, in a list, because a `RowRange` may have several splits."""
        return [self.spec]

    def only(self, specs: Sequence[SplitSpec]) -> "ShardRun":
        """Returns the job itself, because it has only one split."""
        del specs
        return self


def runs_of(shards: int) -> tuple[tuple[int, int], ...]:
    """Divides the shards of a source into at most `MOST_RUNS` runs of consecutive shards.

    Returns:
      for each run, the numbers of its first shard and of the shard after its last shard.

    >>> runs_of(3)
    ((0, 1), (1, 2), (2, 3))
    """
    size = math.ceil(shards / MOST_RUNS)
    return tuple((start, min(start + size, shards)) for start in range(0, shards, size or 1))


def make_part(
    job: ShardRun,
    options: RecordOptions,
    *,
    count: Callable[[int], None] = lambda examples: None,
    threads: int | None = None,
) -> dict[str, PartInfo]:
    """Writes the records of a run of shards as a part.

    Args:
      job: the shards.
      options: how records are made.
      count: a function that is called with the number of examples made since the last call.
      threads: the number of threads of the input pipeline; None for TensorFlow's choice.

    Returns:
      task -> the counts of its part.
    """
    spec, split = job.spec, job.spec.split
    task = seqio.TaskRegistry.get(split.task)
    if hasattr(task.source, "keeps_unlabelled"):
        source = copy.copy(task.source)
        source.keeps_unlabelled = spec.keeps_unlabelled
        task = task.replace(source=source)
    counter = ExampleCounter(
        task.output_features, char_counts=options.enable_char_counts, lengths=spec.lengths
    )
    after_cache = task.preprocessors[task._cache_step_idx + 1 :]
    features: dict[str, Any] = {}
    frames: list[bytes] = []
    name = parts.part_name(spec.key, job.start, job.stop)
    with parts.PartWriter(job.directory, name) as writer:
        for shard in range(job.start, job.stop):
            stream = read_examples(
                task, split.name, shard, of=job.shards, base_seed=options.base_seed, threads=threads
            )
            for example in stream:
                if not features:
                    features = feature_info(example)
                    check_features(task, split.name, features)
                counter.add({name: _to_numpy(value) for name, value in example.items()})
                frames.append(tfrecord.framed(serialize(example)))
                if len(frames) == RECORDS_AT_ONCE:
                    writer.append(frames)
                    count(len(frames))
                    frames.clear()
        writer.append(frames)
        count(len(frames))
        counts = {"features": features, **_counts(task, job, counter.examples), **counter.counts()}
        counts["counts"] |= {UNKNOWN: counter.unknown} if counter.unknown else {}
        if all(step in _AFTER_CACHE for step in after_cache):
            counts["blank"] = {"targets": counter.blank_targets}
        return {split.task: writer.finish({"start": job.start, "stop": job.stop, **counts})}


def check_features(task: seqio.Task, split: str, made: Mapping[str, Mapping[str, Any]]) -> None:
    """Checks that the steps of a task make the features that the task requires.

    Args:
      split: the split's name.
      made: the features of a cached example, as `feature_info` returns them.

    Raises:
      UserError: if a required feature is never made, or its type is not the type that the task
        requires.
    """
    unfit = [
        f"'{name}'"
        for name, feature in task.output_features.items()
        if (feature.required or name in made) and not _fits(feature, made.get(name))
    ]
    if not unfit:
        return
    lengths = {name: T0_LENGTHS.get(name, T0_LENGTHS["inputs"]) for name in task.output_features}
    try:
        task.get_dataset(lengths, split=split, shuffle=False, try_in_mem_cache=False)
    except UserError:
        raise
    except Exception as error:  # a step may need other lengths than these
        unread = [name for name in unfit if isinstance(error, KeyError) and name in str(error)]
        if unread:
            raise UserError(
                f"task {task.name}: a step after the cache reads the feature {unread[0]}, but no "
                f"step before the cache makes it; they make: {', '.join(made)}"
            ) from error


def _fits(feature: seqio.Feature, made: Mapping[str, Any] | None) -> bool:
    kind = made and (made["dtype"], len(made["shape"]))
    return kind == (feature.dtype.name, feature.rank)


def _counts(task: seqio.Task, job: ShardRun, made: int) -> dict[str, Any]:
    """Returns the counts of rows that the source reports.

    Some sources do not count their rows. For these sources, "rows" is 0 if the job's shards have no
    row, and None otherwise.
    """
    split = job.spec.split.name
    reports = getattr(task.source, "reports", None)
    report = reports.get(split) if isinstance(reports, Mapping) else None
    if isinstance(report, RowReport):
        # Only sources of one shard count rows, so the counts belong to this job.
        return report.totals()
    empty = not made and not any(
        has_rows(task, split, shard, of=job.shards) for shard in range(job.start, job.stop)
    )
    return {"rows": 0 if empty else None, "counts": {}, "first": {}}


def task_seed(task_name: str, base_seed: int | None) -> int:
    """Returns the number that is added to all shard seeds; 0 if `base_seed` is None, 0 or -1."""
    if not base_seed or base_seed == -1:
        return 0
    return int.from_bytes(hashlib.md5(task_name.encode()).digest(), "little") + base_seed


def shard_seed(task_name: str, shard_index: int, seed: int) -> int:
    """Returns the seed that the preprocessors get for one shard of the source, as in SeqIO."""
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
    """Yields the examples of a source shard, preprocessed up to the caching point of the task.

    Args:
      split: the split's name.
      shard: the number of the shard in the source.
      of: the total number of shards of the source.
      base_seed: SeqIO's base seed, or None.
      threads: the number of threads of the input pipeline; None for TensorFlow's choice.
    """
    seed = shard_seed(task.name, shard, task_seed(task.name, base_seed))
    dataset = _source_dataset(task.source, split, shard, of, seed)
    dataset = task.preprocess_precache(dataset, seed=seed)
    yield from dataset.prefetch(tf.data.AUTOTUNE).with_options(_pipeline_options(threads))


def has_rows(task: seqio.Task, split: str, shard: int, *, of: int) -> bool:
    """Returns whether a shard of the source has any row, before preprocessing."""
    dataset = _source_dataset(task.source, split, shard, of, seed=0)
    return any(True for _ in dataset.take(1))


def _source_dataset(
    source: seqio.DataSource, split: str, index: int, shards: int, seed: int
) -> tf.data.Dataset:
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
    """Returns the `features` of an `info.<split>.json`: the shape and type of each feature.

    The first dimension of a feature that is not a scalar is None, as in SeqIO.
    """
    features = {}
    for name, value in example.items():
        shape = value.shape.as_list()
        features[name] = {
            "shape": [None, *shape[1:]] if shape else shape,
            "dtype": value.dtype.name,
        }
    return features


def serialize(example: Mapping[str, Any]) -> bytes:
    """Serializes an example as SeqIO stores it, always with the same order of features.

    SeqIO runs TensorFlow operations for each feature, which takes most of the time of caching.
    Dense numbers and texts need none.
    """
    values = {name: _to_numpy(value) for name, value in example.items()}
    if not all(map(_is_plain, values.values())):
        return seqio.dict_to_tfexample(example).SerializeToString(deterministic=True)
    features = tf.train.Features(feature={n: _plain_feature(v) for n, v in values.items()})
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


def _is_plain(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufO"  # neither bfloat16 nor text of numpy
    return isinstance(value, bytes)


def _plain_feature(value: bytes | np.ndarray | np.generic) -> tf.train.Feature:
    if isinstance(value, bytes):  # numpy would drop zeros at its end
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    values = value.reshape(-1).tolist()
    if value.dtype.kind == "O":
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if value.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _to_numpy(value: Any) -> Any:
    return value.numpy() if isinstance(value, tf.Tensor) else value


class ExampleCounter:
    """Counts the statistics of a `stats.<split>.json` over the examples of a part.

    The rules are those of `seqio.beam_utils.GetStats`: tokens are ids other than EOS and padding,
    and they are counted in the task's output features of type int32 or int64. This class can also
    count characters. In SeqIO's own command, the counter of characters expects numpy arrays but
    gets tensors, so it counts no characters.

    Attributes:
      examples: the number of examples.
      over: feature -> the number of examples in which this feature is longer than
        `T0_LENGTHS[feature]`.
      truncated: the same for the lengths of inputs and targets in `lengths`.
      unknown: the number of examples whose targets have unknown tokens.
      blank_targets: the number of examples whose target has no text.
    """

    def __init__(
        self,
        output_features: Mapping[str, seqio.Feature],
        *,
        char_counts: bool,
        lengths: tuple[int, int] = RecordOptions.lengths,
    ) -> None:
        self.examples = self.unknown = self.blank_targets = 0
        self.over, self.truncated = dict.fromkeys(T0_LENGTHS, 0), dict.fromkeys(T0_LENGTHS, 0)
        self._lengths = dict(zip(T0_LENGTHS, lengths, strict=True))
        self._features = output_features
        self._char_counts = char_counts
        self._tokens: Counter[str] = Counter()
        self._max_tokens: Counter[str] = Counter()
        self._chars: Counter[str] = Counter()
        self._special: dict[str, set[int]] = {}

    def add(self, example: Mapping[str, Any]) -> None:
        """Counts one example, whose features are numpy values or bytes."""
        self.examples += 1
        for name in self._features:
            value = example.get(name)
            if value is None:
                continue
            if getattr(value, "dtype", None) in _TOKEN_TYPES:
                text = example.get(f"{name}_pretokenized")  # an array if the feature is numeric
                if not isinstance(text, bytes) or text != NO_LABEL.encode():
                    self._add_unknown(name, np.asarray(value))
                self._add_tokens(name, np.asarray(value))
            if self._char_counts:
                self._add_characters(name, value)
        self.blank_targets += "targets" in self._features and self._has_blank_target(example)

    def _has_blank_target(self, example: Mapping[str, Any]) -> bool:
        text, ids = example.get("targets_pretokenized"), example.get("targets")
        if isinstance(text, bytes):
            return not text.decode("utf-8", "replace").strip()
        return getattr(ids, "dtype", None) in _TOKEN_TYPES and not self._count("targets", ids)

    def _count(self, name: str, ids: np.ndarray) -> int:
        """Returns the number of ids other than EOS and padding."""
        if name not in self._special:
            vocabulary = self._features[name].vocabulary
            self._special[name] = {vocabulary.eos_id, vocabulary.pad_id} - {None}
        return ids.size - sum(int(np.count_nonzero(ids == i)) for i in self._special[name])

    def _add_tokens(self, name: str, ids: np.ndarray) -> None:
        count = self._count(name, ids)
        self._tokens[name] += count
        self._max_tokens[name] = max(self._max_tokens[name], count)
        if name in T0_LENGTHS:
            size = count + self._features[name].add_eos
            self.over[name] += size > T0_LENGTHS[name]
            self.truncated[name] += size > self._lengths[name]

    def _add_unknown(self, name: str, ids: np.ndarray) -> None:
        vocabulary = self._features[name].vocabulary
        # Byte vocabularies have an id for unknown tokens, but no text is ever encoded to this id.
        if name == "targets" and vocabulary.unk_id is not None:
            self.unknown += bool((ids == vocabulary.unk_id).any())

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
        self._chars[name] += len(text)

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns kind of count -> feature -> count. `cache_files.totals` sums over the parts."""
        return {
            "tokens": self._tokens,
            "max_tokens": self._max_tokens,
            "chars": self._chars,
            "over": self.over,
            "truncated": self.truncated,
        }
