"""Feeds pretraining tasks without TensorFlow: documents are tokenised and corrupted while training.

    source = pretraining_source(task, "train", {"inputs": 512, "targets": 114}, use_cached=False)
    for block in source.blocks(epoch=0, first=0, seed=7):
        block[0]        # {"inputs": int32 [512], "targets": int32 [114]}

A block of examples is made from a block of documents (some 8 MB of text, or what a cache's files
hold), which are shuffled, joined, cut and corrupted as the task's objective says; what is random
depends on (seed, task, epoch, block) alone. So a stream stands at (epoch, block, offset), and goes
on after the block before has been passed over, not made. Shards come in another order in each
epoch; one block is made ahead, in a thread.

Documents come from a cache of the task, from a `TextSource`, or from any SeqIO source whose records
have T5's `text` and which can be read by shards, such as C4 in TensorFlow Datasets.
"""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import seqio, t5_preprocessors
from t0.compat import tf1 as tf
from t0.feeding.denoising import Ragged
from t0.feeding.objectives import Objective, objective_of
from t0.feeding.records import Block, CachedSource, cached_source, key_of, run_through, shuffled
from t0.tasks.recipe_tasks import TextSource

# Characters of a block of documents: more shuffle better, and take longer to begin with.
BLOCK_CHARACTERS = 8_000_000
# Blocks of a shard that are numbered before the next shard's.
_BLOCKS_OF_SHARD = 2**20
_DOCUMENTS, _NOISE = 0, 1  # of the random numbers of a block


@dataclasses.dataclass(frozen=True)
class Documents:
    """The documents of a split, tokenised while they are read.

    Attributes:
      name: of the task.
      shards: of the split, in order.
      read: gives the texts of a shard.
      encode: a text -> its ids.
      block_characters: of a block.
    """

    name: str
    shards: Sequence[Any]
    read: Callable[[Any], Iterable[str | bytes]]
    encode: Callable[[str], list[int]]
    block_characters: int = BLOCK_CHARACTERS

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[tuple[int, Ragged]]:
        """Yields blocks from number `first` on, each with its number; numbers may leave gaps."""
        order = np.arange(len(self.shards))
        if seed is not None:
            order = np.random.default_rng([seed, key_of(self.name), epoch]).permutation(order)
        begin, skipped = divmod(first, _BLOCKS_OF_SHARD)
        for place in range(begin, len(order)):
            texts = self._batches(self.read(self.shards[order[place]]))
            for number, batch in enumerate(texts):
                if place > begin or number >= skipped:
                    yield place * _BLOCKS_OF_SHARD + number, self._tokens(batch)

    def _batches(self, texts: Iterable[str | bytes]) -> Iterator[list[str | bytes]]:
        batch, size = [], 0
        for text in texts:
            batch.append(text)
            size += len(text)
            if size >= self.block_characters:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _tokens(self, texts: list[str | bytes]) -> Ragged:
        # One by one, as fast as in batches: SentencePiece holds Python's lock while it works.
        parts = [
            np.array(self.encode(t if isinstance(t, str) else t.decode("utf-8")), np.int32)
            for t in texts
        ]
        values = np.concatenate([np.zeros(0, np.int32), *parts])
        return Ragged(values, np.cumsum([0, *map(len, parts)]))


@dataclasses.dataclass(frozen=True)
class CachedDocuments:
    """The tokenised documents of a task's cache.

    Attributes:
      source: reads the cache's "targets".
    """

    source: CachedSource

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[tuple[int, Ragged]]:
        """Yields blocks from number `first` on, each with its number."""
        blocks = self.source.blocks(epoch=epoch, first=first, seed=seed)
        for number, block in enumerate(blocks, start=first):
            yield number, Ragged(block.values["targets"], block.ends["targets"])


@dataclasses.dataclass(frozen=True)
class PretrainingSource:
    """The examples of a pretraining task; to be used like `records.CachedSource`.

    Attributes:
      name: of the task; features: which to make.
      documents: where they come from; objective: what is made of them.
    """

    name: str
    documents: Documents | CachedDocuments
    objective: Objective
    features: tuple[str, ...]
    examples: None = None  # known when all was read

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[Block]:
        """Yields blocks of examples from number `first` on; without a seed, unshuffled."""
        made = (
            self._block(documents, epoch, number, seed)
            for number, documents in self.documents.blocks(epoch=epoch, first=first, seed=seed)
        )
        return one_ahead(block for block in made if len(block))

    def _block(self, documents: Ragged, epoch: int, number: int, seed: int | None) -> Block:
        key = [seed or 0, key_of(self.name), epoch, number]
        count = len(documents.ends) - 1
        order = np.arange(count)
        if seed is not None:
            order = np.random.default_rng([*key, _DOCUMENTS]).permutation(count)
        noise = np.random.default_rng([*key, _NOISE])
        made = self.objective.examples(documents, noise, order)
        count = len(made[self.features[0]].ends) - 1
        return Block(
            values={name: made[name].values for name in self.features},
            ends={name: made[name].ends for name in self.features},
            order=shuffled(self.name, epoch, number, seed, count),
            number=number,
        )


def one_ahead(elements: Iterator[Any]) -> Iterator[Any]:
    """Yields the elements, while a thread makes the next one. None is no element."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, elements, None)
        while (element := coming.result()) is not None:
            coming = thread.submit(next, elements, None)
            yield element


def pretraining_source(
    task: seqio.Task,
    split: str,
    lengths: Mapping[str, int],
    *,
    use_cached: bool,
) -> PretrainingSource | None:
    """Returns the source of a task's examples, None if the task is none of those known here.

    Raises:
      UserError: if its lengths or vocabulary do not fit, or its data is not to be had.
    """
    objective = objective_of(task, lengths)
    if objective is None:
        return None
    if use_cached:
        cached = cached_source(task, split, ("targets",))
        documents: Documents | CachedDocuments = CachedDocuments(cached)
    else:
        if not _tokenises_text(task):
            return None
        shards, read = _texts(task.source, split)
        encode = task.output_features["targets"].vocabulary.encode
        documents = Documents(task.name, shards, read, encode)
    return PretrainingSource(task.name, documents, objective, tuple(objective.limits))


def _tokenises_text(task: seqio.Task) -> bool:
    """Whether what stands before the caching point makes tokens of the column `text`."""
    steps = task.preprocessors[: task._cache_step_idx]
    if len(steps) != 2 or steps[1] is not seqio.preprocessors.tokenize:
        return False
    rekey = steps[0]
    return (
        isinstance(rekey, functools.partial)
        and rekey.func is t5_preprocessors.rekey
        and rekey.keywords == {"key_map": {"inputs": None, "targets": "text"}}
    )


def _texts(
    source: seqio.DataSource, split: str
) -> tuple[Sequence[Any], Callable[[Any], Iterable[str | bytes]]]:
    """Returns the shards of a split, and what reads one."""
    if isinstance(source, TextSource):
        return source.texts.shards(split), source.texts.documents
    count = len(source.list_shards(split))

    def read(index: int) -> Iterator[bytes]:
        graph = tf.Graph()
        with graph.as_default():
            shard = seqio.ShardInfo(index=index, num_shards=count)
            dataset = source.get_dataset(split, shuffle=False, seed=0, shard_info=shard)
            dataset = dataset.map(lambda row: row["text"]).batch(64).prefetch(2)
            following = tf.data.make_one_shot_iterator(dataset).get_next()
        for texts in run_through(tf.Session(graph=graph), following):
            yield from texts.tolist()

    return range(count), read
