"""Makes the examples of pretraining tasks: documents are corrupted while training, in numpy.

    source = PretrainingSource("c4", documents, objective, {"inputs": 512, "targets": 114})
    for block in source.blocks(epoch=0, first=0, seed=7):
        block[0]        # {"inputs": int32 [512], "targets": int32 [114]}

A block of examples is made from a block of documents (some 8 MB of text, or what a cache's files
hold), which are shuffled, joined, cut and corrupted as the task's objective says. What is random
depends on (seed, task, epoch, block) alone, so a stream can go on from (epoch, block, offset)
without making the blocks before. Shards come in another order in each epoch; one block is made
ahead, in a thread.

Documents come tokenised from a task's cache (`CachedDocuments`), or as text that is tokenised while
it is read (`Documents`); `t0.feeding.live` finds that text.
"""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.config.specification import ObjectiveSpec
from t0.feeding import denoising
from t0.feeding.denoising import Ragged
from t0.feeding.reading import Block, CachedSource, key_of, shuffled

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
            yield number, block.features["targets"]


@dataclasses.dataclass(frozen=True)
class PretrainingSource:
    """The examples of a pretraining task, a `reading.Source`.

    Attributes:
      name: of the task.
      documents: where they come from.
      objective: what is made of them.
      lengths: feature -> its most tokens.
    """

    name: str
    documents: Documents | CachedDocuments
    objective: ObjectiveSpec
    lengths: Mapping[str, int]
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
        made = examples(self.objective, self.lengths, documents, noise, order=order)
        count = len(next(iter(made.values())).ends) - 1
        return Block(made, shuffled(self.name, epoch, number, seed, count), number)


def examples(
    objective: ObjectiveSpec,
    lengths: Mapping[str, int],
    documents: Ragged,
    rng: np.random.Generator,
    *,
    order: np.ndarray | None = None,
) -> dict[str, Ragged]:
    """Makes examples of documents.

    Args:
      objective: what is made.
      lengths: feature -> its most tokens, EOS included.
      documents: tokens.
      rng: of all that is random.
      order: in which documents are taken.

    Returns:
      feature -> its sequences.
    """
    corrupt, joined = _OBJECTIVES[objective.selector]
    taken = denoising.chunks(documents, rng, order=order)
    if objective.document_eos is not None:
        taken = denoising.ended(taken, objective.document_eos, None)
    if joined:
        taken = denoising.concatenated(taken)
    features = corrupt(denoising.split(taken, objective.segment_tokens), rng, objective)
    return {
        name: denoising.ended(features[name], eos, lengths[name])
        for name, eos in objective.eos.items()
    }


def _span_corruption(
    pieces: Ragged, rng: np.random.Generator, objective: ObjectiveSpec
) -> dict[str, Ragged]:
    mask = denoising.span_mask(
        pieces.lengths,
        rng,
        density=objective.parameters["noise_density"],
        mean_span=objective.parameters["mean_noise_span_length"],
    )
    top = objective.first_sentinel
    return {
        "inputs": denoising.with_sentinels(pieces, mask, top),
        "targets": denoising.with_sentinels(pieces, ~mask, top),
    }


def _prefix_lm(
    pieces: Ragged, rng: np.random.Generator, objective: ObjectiveSpec
) -> dict[str, Ragged]:
    density = objective.parameters["noise_density"]
    mask = denoising.prefix_mask(pieces.lengths, rng, density=density)
    return {"inputs": denoising.only(pieces, mask), "targets": denoising.only(pieces, ~mask)}


def _full_lm(
    pieces: Ragged, rng: np.random.Generator, objective: ObjectiveSpec
) -> dict[str, Ragged]:
    del rng, objective
    return {"targets": pieces}


# T5's preprocessor -> what makes features of pieces, and whether documents are joined before.
_OBJECTIVES: dict[str, tuple[Callable[..., dict[str, Ragged]], bool]] = {
    "t5.data.preprocessors.span_corruption": (_span_corruption, True),
    "t5.data.preprocessors.prefix_lm": (_prefix_lm, False),
    "t5.data.preprocessors.full_lm": (_full_lm, True),
}


def one_ahead(elements: Iterator[Any]) -> Iterator[Any]:
    """Yields the elements, while a thread makes the next one. None is no element."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, elements, None)
        while (element := coming.result()) is not None:
            coming = thread.submit(next, elements, None)
            yield element
