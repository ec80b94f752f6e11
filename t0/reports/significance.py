"""Spread over prompts, bootstrap intervals, and the paired comparison of two runs.

Letters of the shapes: P prompts, E examples, R resamples. Accuracies and differences are in
percent.

    >>> s = spread([50.0, 60.0, 90.0])
    >>> s.mean, s.median, s.first_quartile, s.third_quartile
    (66.66666666666667, 60.0, 55.0, 75.0)
    >>> mcnemar(np.array([True, True, False]), np.array([False, False, False])).p_value
    0.5

Bootstrap: examples are drawn with replacement, R times. All prompts of a dataset share the draw,
because they share its examples, so the interval of the mean over prompts includes their
correlation. Prompts are not resampled: an interval is for other examples, not for other prompts.
Intervals are percentile intervals. The random stream depends on the seed and a name only, so an
interval does not change when other datasets are added to a report.

Assumptions: the same `idx` in two prompts or runs is the same row of the dataset.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from t0.reports.example_scores import ExampleScores

RESAMPLES = 1000
CONFIDENCE = 0.95
SEED = 0
# Up to this number of disagreements McNemar's test is exact, above it uses chi-square.
EXACT_LIMIT = 1000
CHUNK_CELLS = 4_000_000  # resampled indices held at once, to bound memory


@dataclass(frozen=True)
class Spread:
    """Location and spread of accuracies over prompts; quartiles interpolate linearly."""

    mean: float
    median: float
    first_quartile: float
    third_quartile: float
    low: float
    high: float


@dataclass(frozen=True)
class Interval:
    """A two-sided interval at the level `CONFIDENCE`."""

    low: float
    high: float


@dataclass(frozen=True)
class McNemar:
    """McNemar's test on examples that exactly one of two runs gets right.

    Attributes:
      first_only: the number of examples that only the first run gets right.
      second_only: the number of examples that only the second run gets right.
      p_value: two-sided; 1 without disagreements.
      method: "exact" (binomial) or "chi-square" (with continuity correction).
    """

    first_only: int
    second_only: int
    p_value: float
    method: str


@dataclass(frozen=True)
class Difference:
    """The second run's accuracy minus the first run's, on the examples that both scored."""

    examples: int
    difference: float
    interval: Interval


def spread(accuracies: Sequence[float]) -> Spread:
    """Returns the spread of at least one accuracy."""
    values = np.asarray(accuracies, float)
    low, first, median, third, high = np.percentile(values, (0, 25, 50, 75, 100))
    return Spread(*map(float, (values.mean(), median, first, third, low, high)))


def bootstrap(
    scores: Sequence[ExampleScores], name: str, *, resamples: int = RESAMPLES, seed: int = SEED
) -> tuple[list[Interval], Interval]:
    """Returns the interval of each prompt's accuracy, and the interval of their mean.

    Args:
      scores: the scores of P prompts of one dataset; their examples may differ.
      name: the dataset's name, which selects the random stream.
      resamples: R, the number of draws.
      seed: the seed of the random stream.
    """
    rows = np.unique(np.concatenate([s.idx for s in scores]))
    present = np.zeros((len(scores), len(rows)), np.float32)
    correct = np.zeros_like(present)
    for p, s in enumerate(scores):
        columns = np.searchsorted(rows, s.idx)
        present[p, columns] = 1
        correct[p, columns] = s.correct
    samples = _resampled_means(correct, present, name, resamples=resamples, seed=seed)
    return [_interval(column) for column in samples.T], _interval(np.nanmean(samples, axis=1))


def pair(first: ExampleScores, second: ExampleScores) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (rows, first correct, second correct) for the examples that both runs scored.

    An example counts as the same when row, gold choice and number of choices agree.
    """
    _, a, b = np.intersect1d(first.idx, second.idx, assume_unique=True, return_indices=True)
    same = (first.gold[a] == second.gold[b]) & (first.choices[a] == second.choices[b])
    a, b = a[same], b[same]
    return first.idx[a], first.correct[a], second.correct[b]


def difference(
    pairs: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    name: str,
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> tuple[list[Difference], Difference]:
    """Returns the difference of each prompt, and the difference of their means, with intervals.

    Args:
      pairs: the result of `pair` for each of P prompts, each with at least one example.
      name: the dataset's name, which selects the random stream.
      resamples: R, the number of draws.
      seed: the seed of the random stream.
    """
    rows = np.unique(np.concatenate([pair_rows for pair_rows, _, _ in pairs]))
    present = np.zeros((len(pairs), len(rows)), np.float32)
    gain = np.zeros_like(present)
    for p, (pair_rows, first, second) in enumerate(pairs):
        columns = np.searchsorted(rows, pair_rows)
        present[p, columns] = 1
        gain[p, columns] = second.astype(np.float32) - first
    samples = _resampled_means(gain, present, name, resamples=resamples, seed=seed)
    observed = 100.0 * gain.sum(axis=1) / present.sum(axis=1)
    prompts = [
        Difference(int(present[p].sum()), float(observed[p]), _interval(samples[:, p]))
        for p in range(len(pairs))
    ]
    overall = _interval(np.nanmean(samples, axis=1))
    return prompts, Difference(len(rows), float(observed.mean()), overall)


def mcnemar(first: np.ndarray, second: np.ndarray) -> McNemar:
    """Returns McNemar's test of two runs on the same examples.

    Args:
      first: bool [E], whether the first run is right.
      second: bool [E], whether the second run is right.
    """
    from scipy import stats

    first_only = int((first & ~second).sum())
    second_only = int((second & ~first).sum())
    disagreements = first_only + second_only
    if disagreements <= EXACT_LIMIT:
        p = stats.binomtest(first_only, disagreements).pvalue if disagreements else 1.0
        return McNemar(first_only, second_only, float(p), "exact")
    statistic = max(abs(first_only - second_only) - 1, 0) ** 2 / disagreements
    return McNemar(first_only, second_only, float(stats.chi2.sf(statistic, 1)), "chi-square")


def _resampled_means(
    values: np.ndarray, present: np.ndarray, name: str, *, resamples: int, seed: int
) -> np.ndarray:
    """Returns the mean of values [P, E] over each draw of the E examples, in percent [R, P].

    It is NaN where a draw contains no example of a prompt.
    """
    examples = values.shape[1]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    chunk = max(1, CHUNK_CELLS // examples)
    means = []
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        drawn = rng.integers(0, examples, size=(size, examples))
        drawn += examples * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * examples)
        counts = counts.reshape(size, examples).astype(np.float32)  # whole numbers: sums are exact
        with np.errstate(invalid="ignore"):
            sums = (counts @ values.T).astype(float)
            means.append(100.0 * sums / (counts @ present.T))
    return np.concatenate(means)


def _interval(samples: np.ndarray) -> Interval:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(samples, (tail, 100 - tail))
    return Interval(float(low), float(high))
