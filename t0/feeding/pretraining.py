"""Makes pretraining examples from documents during training, in numpy.

    source = PretrainingSource("c4", documents, objective, {"inputs": 512, "targets": 114})
    for block in source.blocks(epoch=0, first=0, seed=7):
        block[0]        # {"inputs": int32 [512], "targets": int32 [114]}

A block of examples is made from a block of documents (about 8 MB of text, or some files of a
cache). The task's objective shuffles, joins, splits and corrupts the documents. Random numbers
depend only on (seed, task, epoch, block). So a stream can resume from (epoch, block, offset)
without making earlier blocks again. In each epoch, the shards have a different order. A thread
prefetches one block.

The documents of a task's cache are already tokenized (`CachedDocuments`). Other documents are
texts, which `t0.feeding.live` opens. They are tokenized while they are read (`Documents`).
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from t0.config.specification import ObjectiveSpec
from t0.feeding import denoising
from t0.feeding.denoising import Ragged
from t0.feeding.reading import CachedSource, ExampleBlock, ReadAhead, key_of, shuffled

# The number of characters of a block of documents. With larger blocks, documents are shuffled
# better, but the first step starts later.
BLOCK_CHARACTERS = 8_000_000
# Block n of shard s has the number s * _BLOCKS_OF_SHARD + n. Both count from 0.
_BLOCKS_OF_SHARD = 2**20
_DOCUMENTS, _NOISE = 0, 1  # keys of a block's two random generators


@dataclasses.dataclass(frozen=True)
class Documents:
    """The documents of a split, tokenized while they are read.

    Attributes:
      name: the task's name.
      shards: the split's shards, in order.
      read: a function that yields the texts of a shard.
      encode: a function that returns the ids of a text.
      block_characters: the number of characters of a block.
    """

    name: str
    shards: Sequence[Any]
    read: Callable[[Any], Iterable[str | bytes]]
    encode: Callable[[str], list[int]]
    block_characters: int = BLOCK_CHARACTERS

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[tuple[int, Ragged]]:
        """Yields (number, block) from number `first` on. There may be gaps between numbers."""
        order = np.arange(len(self.shards))
        if seed is not None:
            order = np.random.default_rng([seed, key_of(self.name), epoch]).permutation(order)
        begin, skipped = divmod(first, _BLOCKS_OF_SHARD)
        for index in range(begin, len(order)):
            texts = self._batches(self.read(self.shards[order[index]]))
            for number, batch in enumerate(texts):
                if index > begin or number >= skipped:
                    yield index * _BLOCKS_OF_SHARD + number, self._tokens(batch)

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
        # Texts are encoded one at a time. Batches would not be faster, because SentencePiece holds
        # Python's global lock.
        strings = [t if isinstance(t, str) else t.decode("utf-8", "replace") for t in texts]
        sequences = [np.array(self.encode(text), np.int32) for text in strings]
        values = np.concatenate([np.zeros(0, np.int32), *sequences])
        return Ragged(values, np.cumsum([0, *map(len, sequences)]))


@dataclasses.dataclass(frozen=True)
class CachedDocuments:
    """The tokenised documents of a task's cache.

    Attributes:
      source: the reader of the cache's feature "targets".
    """

    source: CachedSource

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[tuple[int, Ragged]]:
        """Yields (number, block) from number `first` on."""
        blocks = self.source.blocks(epoch=epoch, first=first, seed=seed)
        for number, block in enumerate(blocks, start=first):
            yield number, block.features["targets"]


@dataclasses.dataclass(frozen=True)
class PretrainingSource:
    """The examples of a pretraining task, as a `reading.ExampleSource`.

    Attributes:
      name: the task's name.
      documents: the source of the task's documents.
      objective: the task's pretraining objective.
      lengths: feature -> maximum number of tokens.
    """

    name: str
    documents: Documents | CachedDocuments
    objective: ObjectiveSpec
    lengths: Mapping[str, int]
    examples: None = None  # unknown before all documents are read
    cache: ClassVar[None] = None

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[ExampleBlock]:
        """Yields blocks of examples from number `first` on, unshuffled if `seed` is None."""
        example_blocks = (
            self._block(documents, epoch, number, seed)
            for number, documents in self.documents.blocks(epoch=epoch, first=first, seed=seed)
        )
        with ReadAhead((block for block in example_blocks if len(block)), count=1) as blocks:
            yield from blocks

    def _block(self, documents: Ragged, epoch: int, number: int, seed: int | None) -> ExampleBlock:
        key = [seed or 0, key_of(self.name), epoch, number]
        count = len(documents.ends) - 1
        order = np.arange(count)
        if seed is not None:
            order = np.random.default_rng([*key, _DOCUMENTS]).permutation(count)
        noise = np.random.default_rng([*key, _NOISE])
        features = examples(self.objective, self.lengths, documents, noise, order=order)
        count = len(next(iter(features.values())).ends) - 1
        return ExampleBlock(features, shuffled(self.name, epoch, number, seed, count), number)


def examples(
    objective: ObjectiveSpec,
    lengths: Mapping[str, int],
    documents: Ragged,
    rng: np.random.Generator,
    *,
    order: np.ndarray | None = None,
) -> dict[str, Ragged]:
    """Makes examples from documents.

    Args:
      objective: the pretraining objective.
      lengths: feature -> maximum number of tokens, including EOS.
      documents: the documents' tokens.
      rng: the generator of all random numbers.
      order: the indices of the documents, in the order in which to use them; None keeps the given
        order.

    Returns:
      feature -> the examples' sequences.
    """
    corrupt, joins = _OBJECTIVES[objective.selector]
    pieces = denoising.chunks(documents, rng, order=order)
    if objective.document_eos is not None:
        pieces = denoising.append_eos(pieces, objective.document_eos, None)
    if joins:
        pieces = denoising.join_documents(pieces)
    features = corrupt(denoising.split(pieces, objective.segment_tokens), rng, objective)
    return {
        name: denoising.append_eos(features[name], eos, lengths[name])
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
    return {
        "inputs": denoising.select_masked(pieces, mask),
        "targets": denoising.select_masked(pieces, ~mask),
    }


def _full_lm(
    pieces: Ragged, rng: np.random.Generator, objective: ObjectiveSpec
) -> dict[str, Ragged]:
    del rng, objective
    return {"targets": pieces}


# T5's preprocessor -> (a function that makes features from pieces of documents, True if documents
# are joined before they are split into pieces).
_OBJECTIVES: dict[str, tuple[Callable[..., dict[str, Ragged]], bool]] = {
    "t5.data.preprocessors.span_corruption": (_span_corruption, True),
    "t5.data.preprocessors.prefix_lm": (_prefix_lm, False),
    "t5.data.preprocessors.full_lm": (_full_lm, True),
}
