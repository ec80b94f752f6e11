"""Makes pretraining examples from documents during training, with T5's objectives, in numpy.

    source = PretrainingSource("c4", documents, objective, {"inputs": 512, "targets": 114})
    for block in source.blocks(epoch=0, first=0, seed=7):
        block[0]        # {"inputs": int32 [512], "targets": int32 [114]}

A block of examples is made from a block of documents (about 8 MB of text, or some files of a
cache). The task's objective shuffles, joins, splits and corrupts the documents. Random numbers
depend only on (seed, task, epoch, block). So a stream can resume from (epoch, block, offset)
without making earlier blocks again. In each epoch, the shards have a different order. A thread
prefetches one block.

The functions below `examples` are T5's objectives as arithmetic on flat arrays of many sequences:

    tokens   We hold these truths to be self evident that       mask   0 0 1 1 0 0 1 1 0
    inputs   We hold <X> to be <Y> that      targets   <X> these truths <Y> self evident <Z>

For the same mask, each function returns the same result as the t5 0.9.4 preprocessor named in its
docstring. Masks have the same distribution and exactly the same lengths as t5's masks, but are
drawn from other random numbers. Sequences are `Ragged`. A mask is bool [tokens of all sequences].

The documents of a task's cache are already tokenized (`CachedDocuments`). Other documents are
texts, which `t0.feeding.uncached` opens. They are tokenized while they are read (`Documents`).
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from t0.config.specification import ObjectiveSpec
from t0.feeding.reading import CachedSource, ExampleBlock, key_of, read_ahead, shuffled
from t0.feeding.token_files import Ragged, slices

# t5's constants: the maximum length of a document, and the number of documents that are joined. A
# longer document is reduced to one chunk of the maximum length.
LONGEST_DOCUMENT_TOKENS = 65_536
JOINED_DOCUMENTS = 128
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
    """The tokenized documents of a task's cache.

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
        yield from read_ahead((block for block in example_blocks if len(block)), count=1)

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
    pieces = chunks(documents, rng, order=order)
    if objective.document_eos is not None:
        pieces = append_eos(pieces, objective.document_eos, None)
    if joins:
        pieces = join_documents(pieces)
    features = corrupt(split(pieces, objective.segment_tokens), rng, objective)
    if objective.mode:
        features["inputs"] = prepend(features["inputs"], objective.mode)
    return {
        name: append_eos(features[name], eos, lengths[name]) for name, eos in objective.eos.items()
    }


def _span_corruption(
    pieces: Ragged, rng: np.random.Generator, objective: ObjectiveSpec
) -> dict[str, Ragged]:
    mask = span_mask(
        pieces.lengths,
        rng,
        density=objective.parameters["noise_density"],
        mean_span=objective.parameters["mean_noise_span_length"],
    )
    top = objective.first_sentinel
    return {
        "inputs": with_sentinels(pieces, mask, top),
        "targets": with_sentinels(pieces, ~mask, top),
    }


def _prefix_lm(
    pieces: Ragged, rng: np.random.Generator, objective: ObjectiveSpec
) -> dict[str, Ragged]:
    density = objective.parameters["noise_density"]
    mask = prefix_mask(pieces.lengths, rng, density=density)
    return {"inputs": select_masked(pieces, mask), "targets": select_masked(pieces, ~mask)}


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


def chunks(
    documents: Ragged,
    rng: np.random.Generator,
    *,
    order: np.ndarray | None = None,
    longest: int = LONGEST_DOCUMENT_TOKENS,
) -> Ragged:
    """Orders documents, drops empty documents, and reduces long documents to a random chunk.

    A chunk begins at a multiple of `longest`, as in t5's `select_random_chunk`.

    Args:
      documents: the documents' tokens.
      rng: the generator that draws the chunks.
      order: the indices of the documents, in the order in which to return them; None keeps the
        given order.
      longest: the maximum number of tokens of a chunk.
    """
    order = np.arange(len(documents.ends) - 1) if order is None else order
    order = order[documents.lengths[order] > 0]
    sizes = documents.lengths[order]
    pieces = -(-sizes // longest)
    within = longest * rng.integers(0, np.maximum(pieces, 1))
    return slices(
        documents.values, documents.ends[order] + within, np.minimum(sizes - within, longest)
    )


def join_documents(documents: Ragged, count: int = JOINED_DOCUMENTS) -> Ragged:
    """Joins every `count` documents, and drops padding ids (t5's `reduce_concat_tokens`)."""
    ends = np.append(documents.ends[:-1:count], documents.ends[-1])
    return select_masked(Ragged(documents.values, ends), documents.values != 0)


def split(sequences: Ragged, length: int) -> Ragged:
    """Splits each sequence into pieces of `length` tokens (t5's `split_tokens`).

    The last piece of a sequence may be shorter.
    """
    pieces = -(-sequences.lengths // length)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = np.repeat(sequences.ends[:-1], pieces) + number * length
    return Ragged(sequences.values, np.append(starts, sequences.ends[-1]))


def spans(length: np.ndarray, density: float, mean_span: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of noise tokens and noise spans for sequences of `length`.

    The arithmetic is the same as in t5's `random_spans_noise_mask`: float32, with halves rounded to
    even.
    """
    length = np.maximum(length, 2)
    noise = np.rint(np.float32(length) * np.float32(density)).astype(np.int64)
    noise = np.minimum(np.maximum(noise, 1), length - 1)
    number = np.rint(np.float32(noise) / np.float32(mean_span)).astype(np.int64)
    return noise, np.maximum(number, 1)


def span_mask(
    lengths: np.ndarray, rng: np.random.Generator, *, density: float = 0.15, mean_span: float = 3.0
) -> np.ndarray:
    """Masks random spans. All possible masks are equally likely.

    Unmasked and masked spans alternate. The first span is unmasked (t5's
    `random_spans_noise_mask`).

    Args:
      lengths: the sequences' lengths, int64 [sequences].
      rng: the generator that draws the masks.
      density: the share of masked tokens.
      mean_span: the mean length of a masked span.
    """
    starts = np.cumsum(lengths) - lengths
    mask = np.zeros(lengths.sum(), bool)
    if not density:
        return mask
    # Sequences of equal length are masked together in one matrix. Nearly all have the same length.
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        noise, number = (int(n) for n in spans(np.array(length), density, mean_span))
        full = max(length, 2)
        unmasked = _partition(len(rows), full - noise, number, rng)
        masked = _partition(len(rows), noise, number, rng)
        widths = np.stack([unmasked, masked], axis=2).reshape(-1)
        noisy = np.repeat(np.tile([False, True], number * len(rows)), widths)
        indices = starts[rows, None] + np.arange(length)
        mask[indices] = noisy.reshape(len(rows), full)[:, :length]
    return mask


def _partition(rows: int, items: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws, for each row, `count` positive integers that sum to `items`: int64 [rows, count]."""
    begins = np.zeros((rows, items - 1), bool)
    begins[:, : count - 1] = True
    rng.permuted(begins, axis=1, out=begins)
    cuts = np.nonzero(begins)[1].reshape(rows, -1) + 1
    edges = [np.zeros((rows, 1), np.int64), cuts, np.full((rows, 1), items)]
    return np.diff(np.concatenate(edges, axis=1))


def prefix_mask(
    lengths: np.ndarray, rng: np.random.Generator, *, density: float = 0.5
) -> np.ndarray:
    """Masks a prefix of random length of each sequence (t5's `random_prefix_noise_mask`)."""
    longest = lengths - 1
    shortest = np.rint(np.float32(1 - 2 * density) * np.float32(longest)).astype(np.int64)
    shortest = np.minimum(longest, np.maximum(1, shortest))
    prefix_lengths = rng.integers(shortest, longest + 1)
    return _positions(lengths) < np.repeat(prefix_lengths, lengths)


def with_sentinels(sequences: Ragged, mask: np.ndarray, top: int) -> Ragged:
    """Replaces each masked span by a sentinel (t5's `noise_span_to_unique_sentinel`).

    In each sequence, the first sentinel has the id `top`, and each following one the next lower id.
    To make the targets, call it with the inverted mask.
    """
    before = np.zeros_like(mask)
    before[1:] = mask[:-1]
    begins = sequences.ends[:-1][sequences.lengths > 0]
    before[begins] = False
    first = mask & ~before
    count = np.cumsum(first)
    earlier = np.append(0, count)[sequences.ends[:-1]]
    sentinel = top + 1 - (count - np.repeat(earlier, sequences.lengths))
    values = np.where(first, sentinel, sequences.values).astype(np.int32)
    return select_masked(Ragged(values, sequences.ends), ~(mask & before))


def select_masked(sequences: Ragged, mask: np.ndarray) -> Ragged:
    """Returns only the masked tokens (t5's `drop_nonnoise_tokens`)."""
    if mask.all():
        return sequences
    return Ragged(sequences.values[mask], np.append(0, np.cumsum(mask))[sequences.ends])


def prepend(sequences: Ragged, ids: Sequence[int]) -> Ragged:
    """Begins each sequence with the same token ids."""
    ends = sequences.ends + len(ids) * np.arange(len(sequences.ends))
    values = np.empty(ends[-1], np.int32)
    is_token = np.ones(len(values), bool)
    places = ends[:-1, None] + np.arange(len(ids))
    values[places], is_token[places] = ids, False
    values[is_token] = sequences.values
    return Ragged(values, ends)


def append_eos(sequences: Ragged, eos: int | None, limit: int | None) -> Ragged:
    """Truncates sequences to `limit` tokens, and ends them with `eos` if it is not None.

    The result is the same as that of SeqIO's `append_eos_after_trim`.
    """
    has_eos = eos is not None
    sizes = sequences.lengths
    if limit is not None:
        sizes = np.minimum(sizes, limit - has_eos)
    truncated = slices(sequences.values, sequences.ends[:-1], sizes)
    if not has_eos:
        return truncated
    ends = truncated.ends + np.arange(len(truncated.ends))
    values = np.full(ends[-1], eos, np.int32)
    is_token = np.ones(len(values), bool)
    is_token[ends[1:] - 1] = False
    values[is_token] = truncated.values
    return Ragged(values, ends)


def _positions(lengths: np.ndarray) -> np.ndarray:
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
