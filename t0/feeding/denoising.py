"""Implements T5's pretraining objectives in numpy, on flat arrays of many sequences.

    tokens = split(join_documents(chunks(documents, rng)), 568)
    mask = span_mask(tokens.lengths, rng)
    inputs = with_sentinels(tokens, mask, 32_099)
    targets = with_sentinels(tokens, ~mask, 32_099)

    tokens   We hold these truths to be self evident that       mask   0 0 1 1 0 0 1 1 0
    inputs   We hold <X> to be <Y> that      targets   <X> these truths <Y> self evident <Z>

For the same mask, each function returns the same result as the t5 0.9.4 preprocessor named in its
docstring. Masks have the same distribution and exactly the same lengths as t5's masks, but are
drawn from other random numbers. Sequences are `Ragged`. A mask is bool [tokens of all sequences].
"""

import numpy as np

from t0.feeding.token_files import Ragged, slices

# t5's constants: the maximum length of a document, and the number of documents that are joined. A
# longer document is reduced to one chunk of the maximum length.
LONGEST_DOCUMENT_TOKENS = 65_536
JOINED_DOCUMENTS = 128


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
