"""Reads the token records of a task in blocks, from its cache or live.

A block is some thousands of examples that are read together and shuffled as a whole: shards of a
cache come in an order of their own in each epoch, examples of a block in another. Where a stream
stands is therefore three numbers, (epoch, block, offset).

    source = cached_source(task, "train", ("inputs", "targets"))
    for block in source.blocks(epoch=0, first=0, seed=7):
        block[0]        # {"inputs": int32 [n], "targets": int32 [m]}: views, not copies
"""

import dataclasses
import json
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import seqio
from t0.compat import tf1 as tf
from t0.errors import UserError, original
from t0.files.paths import read_bytes

# Examples of a block: more shuffle better, and every task of a mixture keeps one in memory.
BLOCK_EXAMPLES = 4096
_FILES_AT_ONCE = 8
_PARSED_AT_ONCE = 512
_of_thread = threading.local()


@dataclasses.dataclass(frozen=True)
class Block:
    """Examples of a task: flat ids of each feature, and where each example ends.

    Attributes:
      values: feature -> int32 [tokens of all examples].
      ends: feature -> int64 [examples + 1], the first 0.
      order: the number of the example at each place.
      number: of the block, where blocks are not numbered one after the other.
    """

    values: Mapping[str, np.ndarray]
    ends: Mapping[str, np.ndarray]
    order: np.ndarray
    number: int | None = None

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> dict[str, np.ndarray]:
        number = self.order[place]
        return {
            name: values[self.ends[name][number] : self.ends[name][number + 1]]
            for name, values in self.values.items()
        }


@dataclasses.dataclass(frozen=True)
class CachedSource:
    """A split in SeqIO's cache layout.

    Attributes:
      name: of the task.
      files: its shards, in order.
      examples: of the split.
      features: which to read.
    """

    name: str
    files: tuple[str, ...]
    examples: int
    features: tuple[str, ...]
    # A task of one block is read once: later epochs only order it anew.
    _whole: list[tuple[Any, Any]] = dataclasses.field(default_factory=list, compare=False)

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[Block]:
        """Yields the blocks of an epoch from number `first` on; in dataset order without a seed."""
        files = np.array(self.files)
        per_file = max(1.0, self.examples / len(files))
        at_once = max(1, round(BLOCK_EXAMPLES / per_file))
        if at_once >= len(files):
            yield from self._only_block(epoch, first, seed)
            return
        if seed is not None:
            files = np.random.default_rng([seed, key_of(self.name), epoch]).permutation(files)
        for number, start in enumerate(range(0, len(files), at_once)):
            if number >= first:
                values, ends = _reader(self.features).read(files[start : start + at_once])
                order = shuffled(self.name, epoch, number, seed, len(ends[self.features[0]]) - 1)
                yield Block(values, ends, order)

    def _only_block(self, epoch: int, first: int, seed: int | None) -> Iterator[Block]:
        if first > 0:
            return
        if not self._whole:
            self._whole.append(_reader(self.features).read(np.array(self.files)))
        values, ends = self._whole[0]
        count = len(ends[self.features[0]]) - 1
        if count:
            yield Block(values, ends, shuffled(self.name, epoch, 0, seed, count))


@dataclasses.dataclass(frozen=True)
class LiveSource:
    """A task whose examples SeqIO makes as they are read; an epoch is read from its start.

    Attributes:
      task: SeqIO's; split: which.
      features: which to read.
      use_cached: whether SeqIO reads a cache and applies the steps after it.
      lengths: tokens of each feature, for steps that ask; None cuts nothing.
    """

    task: seqio.Task
    split: str
    features: tuple[str, ...]
    use_cached: bool = False
    lengths: Mapping[str, int] | None = None

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.name

    @property
    def examples(self) -> int | None:
        """Examples of the split before preprocessing, if the source knows."""
        return self.task.source.num_input_examples(self.split)

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[Block]:
        """Yields blocks from number `first` on; the order within a block is shuffled by `seed`."""
        # Neither graph nor session is entered: a generator may be closed in another context.
        graph = tf.Graph()
        with graph.as_default():
            dataset = self.task.get_dataset(
                self.lengths,
                split=self.split,
                use_cached=self.use_cached,
                shuffle=False,
                seed=(seed or 0) + epoch,
                num_epochs=1,
            )
            dataset = dataset.map(lambda ex: {k: tf.cast(ex[k], tf.int32) for k in self.features})
            following = tf.data.make_one_shot_iterator(dataset).get_next()
        examples: list[dict[str, np.ndarray]] = []
        number = 0
        for example in run_through(tf.Session(graph=graph), following):
            examples.append(example)
            if len(examples) == BLOCK_EXAMPLES:
                if number >= first:
                    yield self._block(examples, epoch, number, seed)
                examples, number = [], number + 1
        if examples and number >= first:
            yield self._block(examples, epoch, number, seed)

    def _block(
        self, examples: list[dict[str, np.ndarray]], epoch: int, number: int, seed: int | None
    ) -> Block:
        values, ends = {}, {}
        for name in self.features:
            parts = [example[name] for example in examples]
            values[name] = np.concatenate(parts)
            ends[name] = np.cumsum([0, *map(len, parts)])
        return Block(values, ends, shuffled(self.name, epoch, number, seed, len(examples)))


Source = CachedSource | LiveSource


def open_source(
    task: seqio.Task,
    split: str,
    features: Sequence[str],
    *,
    use_cached: bool,
    lengths: Mapping[str, int] | None = None,
) -> Source:
    """Returns the fastest source that gives what `task.get_dataset` would, but for the order.

    Args:
      task, split: SeqIO's; features: which to read.
      use_cached: whether the task's cache is read.
      lengths: tokens of each feature, for steps after the caching point that ask.

    Raises:
      UserError: if the cache of the split is incomplete.
    """
    # Steps after the caching point would have to run on every example.
    bare = use_cached and task.supports_caching
    bare = bare and not task.preprocessors[task._cache_step_idx + 1 :]
    if not bare:
        return LiveSource(task, split, tuple(features), use_cached, lengths)
    return cached_source(task, split, features)


def cached_source(task: seqio.Task, split: str, features: Sequence[str]) -> CachedSource:
    """Returns the records of a task's cache, as they are.

    Raises:
      UserError: if the task is not cached.
    """
    folder = task.cache_dir
    if not folder:
        raise UserError(f"task {task.name} is not cached")
    info = json.loads(read_bytes(f"{folder}/info.{split}.json"))
    stats = json.loads(read_bytes(f"{folder}/stats.{split}.json"))
    count = info["num_shards"]
    names = (f"{folder}/{split}.tfrecord-{i:05d}-of-{count:05d}" for i in range(count))
    return CachedSource(task.name, tuple(names), stats["examples"], tuple(features))


def _reader(features: tuple[str, ...]) -> "_Reader":
    """Returns this thread's reader: making a session costs more than reading a small task."""
    readers = _of_thread.__dict__.setdefault("readers", {})
    if features not in readers:
        readers[features] = _Reader(features)
    return readers[features]


class _Reader:
    """Reads and parses whole files with TensorFlow's threads, in a session of its own."""

    def __init__(self, features: Sequence[str]) -> None:
        self._features = features
        graph = tf.Graph()
        with graph.as_default():
            self._files = tf.placeholder(tf.string, [None])
            dataset = (
                tf.data.Dataset.from_tensor_slices(self._files)
                .interleave(
                    tf.data.TFRecordDataset,
                    cycle_length=_FILES_AT_ONCE,
                    num_parallel_calls=_FILES_AT_ONCE,
                    deterministic=True,
                )
                .batch(_PARSED_AT_ONCE)
                .map(self._parse, num_parallel_calls=2, deterministic=True)
                .prefetch(2)
            )
            iterator = tf.data.make_initializable_iterator(dataset)
            self._start, self._following = iterator.initializer, iterator.get_next()
        self._session = tf.Session(graph=graph)

    def _parse(self, records: tf.Tensor) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        spec = {name: tf.io.RaggedFeature(tf.int64) for name in self._features}
        parsed = tf.io.parse_example(records, spec)
        return {
            name: (tf.cast(ids.values, tf.int32), ids.row_lengths()) for name, ids in parsed.items()
        }

    def read(self, files: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        self._session.run(self._start, {self._files: list(files)})
        parts = list(run_through(self._session, self._following))
        values, ends = {}, {}
        for name in self._features:
            values[name] = np.concatenate([np.zeros(0, np.int32), *(p[name][0] for p in parts)])
            lengths = np.concatenate([np.zeros(1, np.int64), *(p[name][1] for p in parts)])
            ends[name] = np.cumsum(lengths)
        return values, ends


def run_through(session: tf.Session, following: Any) -> Iterator[Any]:
    """Yields what an iterator's `get_next` gives, until its end; faults are a UserError."""
    while True:
        try:
            element = session.run(following)
        except tf.errors.OutOfRangeError:
            return
        except tf.errors.OpError as error:
            found = original(error)
            if isinstance(found, UserError):
                raise found from error
            raise UserError(f"cached records cannot be read: {error.message}") from error
        yield element


def shuffled(name: str, epoch: int, number: int, seed: int | None, count: int) -> np.ndarray:
    """Returns the order of the `count` examples of a block; as they are without a seed."""
    if seed is None:
        return np.arange(count)
    return np.random.default_rng([seed, key_of(name), epoch, number]).permutation(count)


def key_of(name: str) -> int:
    """Returns a task's part of a random generator's key."""
    # Python's hash differs between processes.
    return zlib.crc32(name.encode())
