"""Computes intervals and tests of evaluations, with only numpy and scipy.

    >>> right = np.random.default_rng(0).random((1, 10, 277)) < 0.6    # seeds, prompts, examples
    >>> interval = interval_of_share(crossed_mean(right, prompts=RANDOM))
    >>> round(float(interval.low), 3), round(float(interval.high), 3)
    (0.585, 0.632)
    >>> gap = crossed_difference(right, ~right, prompts=RANDOM)
    >>> float(p_value(gap)) < 0.001, round(float(minimum_detectable(gap)), 3)
    (True, 0.069)
    >>> test = mcnemar(np.array([True, True, False]), np.array([False, False, False]))
    >>> float(test.p_value), float(test.mid_p_value)
    (0.5, 0.25)

`benchmarks/interval_coverage.py` measures the coverage of each interval and the rejection rate of
each test. `docs/statistics.md` reports the measurements.

**The crossed mean.** The last axes of an array are S seeds, P prompts and E examples. All earlier
axes are batch axes. For one run, a value is 1 if the run is right and 0 if it is wrong. For two
runs, a value is the gain of the second run over the first (-1, 0 or 1). A mean has the same unit as
the values. One example under P prompts is one observation of the example, not P observations.
Likewise, one prompt on E examples is one observation of the prompt. So the variance of the mean is
that of a crossed design:

    V = V[prompts] + V[examples] - V[prompts and examples]

Each term is a sum of squares of centred sums. The third term is subtracted because both other terms
contain it. For complete data, V is (MSA + MSB - MSAB) / (P E) (Searle, Casella and McCulloch,
Variance Components, 1992, chapter 4). For other crossed designs, see Cameron, Gelbach and Miller,
2011, J. Bus. Econ. Stat. 29. The degrees of freedom are computed as by Satterthwaite (1946,
Biometrics Bulletin 2).

Prompts are FIXED if the question is about exactly these prompts, and RANDOM if they are a sample of
all possible prompts. With FIXED prompts, no term of V contains prompts. Seeds are always random.
Examples that share a document form a cluster. If clusters differ in size, the CR2 estimator weights
them, with the degrees of freedom of Bell and McCaffrey (2002, Survey Methodology 28).

The interval of a share is Wilson's interval (1927, J. Am. Stat. Assoc. 22) with the effective
number of examples (Kish, Survey Sampling, 1965) and the quantile of Student's t. This interval
stays between 0 and 1, and keeps its coverage for shares near 0 or 1. The interval of a difference
is the symmetric interval of Student's t.

**Few differing examples.** If no example differs between two runs, the observed variance of the
difference is 0, but other examples may differ. So z^2 pseudo-examples that differ are added to the
variance, half of them in each direction (the idea of Agresti and Min, 2005, Biometrics 61, and of
Bonett and Price, 2012, J. Educ. Behav. Stat. 37). With z^2 of them, the interval without differing
examples is that of Tango (1998, Statistics in Medicine 17): z^2 / (C + z^2) in both directions, for
C clusters. See `include_unseen_differences`.

**Many comparisons.** McNemar's test (1947, Psychometrika 12) is exact, because it uses the binomial
distribution. The mid-p version follows Fagerland, Lydersen and Laake (2013, BMC Med. Res. Methodol.
13), who recommend this version. Tied sets are the maximal sets of runs in which no two runs differ
significantly. They correspond to Piepho's letters (2004, J. Comput. Graph. Stat. 13).

**The calibration error** is the mean distance between confidence and accuracy over bins (Naeini,
Cooper and Hauskrecht, 2015, AAAI). This estimate is biased, because noise creates distances, and so
even a perfectly calibrated model seems to have an error. For the same reason, percentiles of
resampled errors miss the true error. By the triangle inequality, the true error is at least the
observed error minus the sum of the bins' noise. The true error is at most the observed error minus
the noise in the direction of each bin's error. The two ends of the interval are quantiles of these
two bounds. The noise is drawn from a normal distribution with the examples' covariance.

Assumptions: runs, prompts and clusters are independent draws. The mean of a prompt is over the
examples that exist under this prompt. All seeds have the same prompts and examples. With only one
cluster, the variance is NaN.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from t0.measures.calibration import BINS, calibration_bins, calibration_error

CONFIDENCE = 0.95
POWER = 0.8
FIXED, RANDOM = "fixed", "random"
# For the interval of the calibration error: the number of draws, and their seed.
RESAMPLES = 1000
SEED = 0
_SEEDS, _PROMPTS, _EXAMPLES = -3, -2, -1
# A variance of shares below this is only a rounding error. If just one value in 10,000,000 differs
# from the others, the variance is 1e-14.
_ROUNDING = 1e-20


@dataclass(frozen=True)
class CrossedMean:
    """A mean (or a batch of means), with the numbers that are needed for its interval.

    Attributes:
      value: the mean over examples, then averaged over prompts and seeds.
      variance: the variance of `value`; NaN if there is only one cluster of examples.
      degrees: the degrees of freedom of `variance`.
      clusters: the number of clusters of examples.
      cells: the number of values over which the mean is computed.
    """

    value: np.ndarray
    variance: np.ndarray
    degrees: np.ndarray
    clusters: int
    cells: int

    @property
    def standard_error(self) -> np.ndarray:
        """The standard error of the mean."""
        return np.sqrt(self.variance)


@dataclass(frozen=True)
class Interval:
    """A two-sided interval at the confidence level `CONFIDENCE`."""

    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class _VarianceTerm:
    """A term of the variance, which comes from one level or from several crossed levels.

    The levels are the seeds, the prompts and the examples.

    `sign` is 1 if the term is added, and -1 if it is subtracted. `single` says whether the term
    comes from only one level.
    """

    sign: int
    variance: np.ndarray
    degrees: float
    single: bool


def crossed_mean(
    values: np.ndarray,
    *,
    prompts: str,
    present: np.ndarray | None = None,
    clusters: np.ndarray | None = None,
) -> CrossedMean:
    """Returns the mean of values [..., S, P, E], with its variance.

    Args:
      values: the values; a value is ignored if its prompt does not have its example.
      prompts: FIXED or RANDOM; a single prompt is always fixed.
      present: bool [P, E], whether each prompt has each example; None if every prompt has every
        example.
      clusters: [E], the document of each example; None if each example is its own document.
    """
    cells = _Cells.of(values, present, clusters)
    return _mean(cells.value, cells, cells.variance_terms(prompts, seeds=True))


def crossed_difference(
    first: np.ndarray,
    second: np.ndarray,
    *,
    prompts: str,
    present: np.ndarray | None = None,
    clusters: np.ndarray | None = None,
) -> CrossedMean:
    """Returns the mean of `second` minus that of `first`, paired by prompt and example.

    The seeds of the two runs are not paired, so the variances of both runs' seeds are added.

    Args:
      first: the values [..., S, P, E] of the first run.
      second: the values [..., T, P, E] of the second run, which has T seeds.
      prompts: see `crossed_mean`.
      present: see `crossed_mean`.
      clusters: see `crossed_mean`.
    """
    first_cells, second_cells = (_Cells.of(values, present, clusters) for values in (first, second))
    averaged = [np.mean(values, axis=_SEEDS, keepdims=True) for values in (first, second)]
    gains = _Cells.of(averaged[1] - averaged[0], present, clusters)
    terms = gains.variance_terms(prompts, seeds=False)
    for run in (first_cells, second_cells):
        terms += run.variance_terms(prompts, seeds=True, only_seeds=True)
    mean = _mean(second_cells.value - first_cells.value, gains, terms)
    largest = _largest_gain(averaged[1] - averaged[0], present, clusters)
    return include_unseen_differences(mean, largest=largest, examples=first.shape[_EXAMPLES])


def include_unseen_differences(
    mean: CrossedMean, *, largest: np.ndarray, examples: int
) -> CrossedMean:
    """Returns a difference whose variance allows for differences that no example has shown.

    The added variance is known, so it adds no uncertainty to the degrees of freedom. The variance
    is never less than that of E examples without a difference, each of which is a cluster. So one
    more differing example does not make the interval narrower.

    Args:
      mean: the difference, with its observed variance.
      largest: the largest observed difference in a cluster, which is that of the pseudo-examples;
        0 if no example differs.
      examples: E.
    """
    squared = _quantile(np.inf) ** 2
    pseudo, least = (squared / (count + squared) ** 2 for count in (mean.clusters, examples))
    pseudo = pseudo * np.where(largest > 0, largest, 1.0) ** 2
    variance = np.maximum(mean.variance + pseudo, least)
    with np.errstate(divide="ignore"):
        degrees = mean.degrees * (variance / mean.variance) ** 2
    return dataclasses.replace(mean, variance=variance, degrees=degrees)


def _largest_gain(
    gains: np.ndarray, present: np.ndarray | None, clusters: np.ndarray | None
) -> np.ndarray:
    """Returns the largest contribution of a cluster to the mean gain, times the number of clusters.

    If every example is its own cluster, this is the largest gain of an example.
    """
    prompts, examples = gains.shape[_PROMPTS:]
    weights = np.full((prompts, examples), 1 / examples) if present is None else present
    weights = weights / weights.sum(axis=-1, keepdims=True) / prompts
    contributions = (gains * weights).sum(axis=(_SEEDS, _PROMPTS))
    if clusters is not None:
        contributions = contributions @ _indicator(clusters)
    return contributions.shape[-1] * np.abs(contributions).max(axis=-1)


def _indicator(clusters: np.ndarray) -> np.ndarray:
    """Returns a matrix [E, C] with a 1 at the cluster of each example, and 0 elsewhere."""
    _, numbers = np.unique(clusters, return_inverse=True)
    return np.eye(numbers.max() + 1)[numbers]


def mean_of_means(means: Sequence[CrossedMean]) -> CrossedMean:
    """Returns the unweighted mean of independent means, such as those of several datasets."""
    count = len(means)
    terms = [_VarianceTerm(1, m.variance / count**2, float(m.degrees), single=True) for m in means]
    variance, degrees = _sum_terms(terms)
    return CrossedMean(
        value=np.mean([m.value for m in means], axis=0),
        variance=variance,
        degrees=degrees,
        clusters=sum(m.clusters for m in means),
        cells=sum(m.cells for m in means),
    )


def interval_of_share(mean: CrossedMean) -> Interval:
    """Returns the interval of a mean of values between 0 and 1; (0, 1) if the variance is NaN."""
    share = np.clip(mean.value, 0.0, 1.0)
    unit_variance = share * (1 - share)
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = np.where(mean.variance > 0, unit_variance / mean.variance, mean.clusters)
    degrees = np.where(mean.variance > 0, mean.degrees, mean.clusters - 1)
    interval = score_interval(share, np.minimum(effective, mean.cells), _quantile(degrees))
    has_variance = ~np.isnan(mean.variance)
    return Interval(
        np.where(has_variance, interval.low, 0.0), np.where(has_variance, interval.high, 1.0)
    )


def score_interval(share: np.ndarray, effective: np.ndarray, quantile: np.ndarray) -> Interval:
    """Returns Wilson's score interval for a share, given the effective number of examples."""
    squared = quantile**2 / effective
    middle = (share + squared / 2) / (1 + squared)
    reach = np.sqrt(squared * (share * (1 - share) + squared / 4)) / (1 + squared)
    return Interval(np.clip(middle - reach, 0.0, 1.0), np.clip(middle + reach, 0.0, 1.0))


def interval_of_difference(mean: CrossedMean) -> Interval:
    """Returns the interval of a difference of shares; (-1, 1) if the variance is NaN."""
    reach = _quantile(mean.degrees) * mean.standard_error
    has_variance = ~np.isnan(mean.variance)
    low, high = (np.clip(mean.value + sign * reach, -1.0, 1.0) for sign in (-1, 1))
    return Interval(np.where(has_variance, low, -1.0), np.where(has_variance, high, 1.0))


def p_value(mean: CrossedMean) -> np.ndarray:
    """Returns the two-sided p-value of a difference.

    The test is Student's t-test with Satterthwaite's degrees of freedom. The p-value is at least
    that of the sign test in which all clusters differ in the same direction. If the variance is
    NaN, the p-value is 1.
    """
    from scipy.special import stdtr

    p = 2 * stdtr(mean.degrees, -np.abs(mean.value) / mean.standard_error)
    return np.where(np.isnan(p), 1.0, np.maximum(p, min(1.0, 2.0 * 0.5**mean.clusters)))


def minimum_detectable(mean: CrossedMean, power: float = POWER) -> np.ndarray:
    """Returns the true difference that a test at level 1 - CONFIDENCE detects with this power.

    This difference is the standard error times the sum of two quantiles: one for the level, one for
    the power (Bloom, 1995, Evaluation Review 19).
    """
    from scipy.special import stdtrit

    return (_quantile(mean.degrees) + stdtrit(mean.degrees, power)) * mean.standard_error


def _quantile(degrees: np.ndarray) -> np.ndarray:
    from scipy.special import stdtrit

    return stdtrit(degrees, (1 + CONFIDENCE) / 2)


@dataclass(frozen=True)
class _Cells:
    """Values, summarized by the mean of each prompt and by the contribution of each cluster.

    Attributes:
      means: [..., S, P], each prompt's mean divided by S * P.
      sums: [..., S, P, C], the contribution of each of C clusters to the deviation from the mean,
        divided by S * P and adjusted by CR2. The sum over clusters is near 0.
      degrees: the degrees of freedom of the clusters.
      count: the number of values.
    """

    means: np.ndarray
    sums: np.ndarray
    degrees: float
    count: int

    @classmethod
    def of(
        cls, values: np.ndarray, present: np.ndarray | None, clusters: np.ndarray | None
    ) -> "_Cells":
        seeds, prompts, examples = values.shape[-3:]
        values = values if values.dtype.kind == "f" else values.astype(float)
        if present is None:
            means = values.mean(axis=-1, dtype=np.float64)
            sums = (values - means[..., None].astype(values.dtype)) / values.dtype.type(examples)
            sizes = np.ones(examples)
        else:
            weights = present / present.sum(axis=-1, keepdims=True)
            means = (values * weights).sum(axis=-1)
            sums = (values - means[..., None]) * weights
            sizes = weights.sum(axis=0)
        if clusters is not None:
            indicator = _indicator(clusters)
            sums, sizes = sums @ indicator, sizes @ indicator
        shares = sizes / sizes.sum()
        count = seeds * (prompts * examples if present is None else int(present.sum()))
        if len(shares) == 1:
            return cls(means / (seeds * prompts), sums * np.nan, np.nan, count)
        if np.ptp(shares) == 0:
            sums *= np.sqrt(len(shares) / (len(shares) - 1)) / (seeds * prompts)
        else:
            sums = sums / np.sqrt(1 - shares) / (seeds * prompts)
        return cls(means / (seeds * prompts), sums, bell_mccaffrey(shares), count)

    @property
    def value(self) -> np.ndarray:
        return self.means.sum(axis=(-2, -1))

    def variance_terms(
        self, prompts: str, *, seeds: bool, only_seeds: bool = False
    ) -> list[_VarianceTerm]:
        """Returns the terms of the variance.

        Args:
          prompts: FIXED or RANDOM.
          seeds: whether to include the terms with seeds.
          only_seeds: whether to return only the terms with seeds.
        """
        levels = [_EXAMPLES]
        levels += [_PROMPTS] if prompts == RANDOM and self.means.shape[-1] > 1 else []
        levels += [_SEEDS] if seeds and self.means.shape[-2] > 1 else []
        terms = []
        for size in range(1, len(levels) + 1):
            for chosen in itertools.combinations(levels, size):
                if not only_seeds or _SEEDS in chosen:
                    terms.append(self._make_term(chosen))
        return terms

    def _make_term(self, chosen: Sequence[int]) -> _VarianceTerm:
        # `means` has one axis fewer than `sums`.
        axes = [a for a in chosen if a != _EXAMPLES]
        table = self.sums if _EXAMPLES in chosen else self.means[..., None]
        dropped = tuple(a for a in (_SEEDS, _PROMPTS) if a not in chosen)
        table = table.sum(axis=dropped, keepdims=True) if dropped else table
        factor, degrees = 1.0, self.degrees if _EXAMPLES in chosen else 1.0
        for axis in axes:
            table = table - table.mean(axis=axis, keepdims=True)
            count = table.shape[axis]
            factor, degrees = factor * count / (count - 1), degrees * (count - 1)
        variance = factor * np.einsum("...ijk,...ijk->...", table, table, dtype=np.float64)
        return _VarianceTerm(1 if len(chosen) % 2 else -1, variance, degrees, len(chosen) == 1)


def bell_mccaffrey(shares: np.ndarray) -> float:
    """Returns the degrees of freedom of the CR2 variance of a mean.

    Args:
      shares: [C], each cluster's share of the observations.

    >>> round(bell_mccaffrey(np.full(56, 1 / 56)), 6)
    55.0
    """
    between = shares**2 / (1 - shares)
    return float(1 / ((shares**2).sum() + between.sum() ** 2 - (between**2).sum()))


def _mean(value: np.ndarray, cells: _Cells, terms: Iterable[_VarianceTerm]) -> CrossedMean:
    variance, degrees = _sum_terms(list(terms))
    return CrossedMean(value, variance, degrees, cells.sums.shape[-1], cells.count)


def _sum_terms(terms: Sequence[_VarianceTerm]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the variance (the sum of the terms) and Satterthwaite's degrees of freedom.

    The variance is never less than the largest variance of a single level. The degrees of freedom
    are never fewer than the fewest degrees of a single level.
    """
    raw = sum(term.sign * term.variance for term in terms)
    single = [term for term in terms if term.single]
    variance = np.maximum(raw, np.max([term.variance for term in single], axis=0))
    variance = np.where(variance < _ROUNDING, 0.0, variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = raw**2 / sum(term.variance**2 / term.degrees for term in terms)
    fewest = min(term.degrees for term in single)
    return variance, np.where(degrees > fewest, degrees, fewest)


@dataclass(frozen=True)
class McNemar:
    """The results of McNemar's test of two runs on the same examples, as arrays over batches.

    Attributes:
      first_only: the number of examples that only the first run gets right.
      second_only: the number of examples that only the second run gets right.
      p_value: the exact two-sided p-value; 1 if the runs never disagree. A test with this p-value
        rejects too rarely.
      mid_p_value: the exact p-value minus half the probability of the observed counts. The
        rejection rate of a test with this p-value is near the level, but may exceed the level.
    """

    first_only: np.ndarray
    second_only: np.ndarray
    p_value: np.ndarray
    mid_p_value: np.ndarray


def mcnemar(first: np.ndarray, second: np.ndarray) -> McNemar:
    """Computes McNemar's test of two runs for each batch.

    Args:
      first: bool [..., E], whether the first run is right on each example.
      second: bool [..., E], whether the second run is right on each example.
    """
    from scipy.special import bdtr, gammaln

    first_only = (first & ~second).sum(axis=-1)
    second_only = (second & ~first).sum(axis=-1)
    fewer, total = np.minimum(first_only, second_only), first_only + second_only
    exact = np.minimum(1.0, 2 * bdtr(fewer, total, 0.5))
    log_ways = gammaln(total + 1) - gammaln(fewer + 1) - gammaln(total - fewer + 1)
    probability = np.exp(log_ways - total * np.log(2))
    mid = np.where(first_only == second_only, 1 - probability / 2, exact - probability)
    return McNemar(first_only, second_only, exact, np.where(total == 0, 1.0, mid))


def tied_sets(
    runs: Collection[int], *, different: Collection[tuple[int, int]]
) -> list[tuple[int, ...]]:
    """Returns the maximal sets of runs without a differing pair, in the order of the runs.

    Args:
      different: the pairs (first < second) of runs that differ.
    """
    groups: list[set[int]] = [set(runs)]
    for pair in sorted(different):
        split = [group - {member} for group in groups if group.issuperset(pair) for member in pair]
        remaining = [group for group in groups if not group.issuperset(pair)]
        for group in split:
            if not any(group <= other for other in remaining):
                remaining = [other for other in remaining if not other < group] + [group]
        groups = remaining
    return sorted(tuple(sorted(group)) for group in groups)


def correlation(first: np.ndarray, second: np.ndarray) -> float | None:
    """Returns the correlation of two runs' means by example.

    Args:
      first: [E], the mean of the first run on each example.
      second: [E], the mean of the second run on each example.

    Returns:
      the correlation; None if one run has the same mean on all examples.
    """
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def calibration_interval(
    confidence: np.ndarray,
    right: np.ndarray,
    *,
    clusters: np.ndarray | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """Returns the interval of the calibration error of E predictions.

    Args:
      confidence: [E], from 0 to 1.
      right: bool [E], whether the prediction is right.
      clusters: int [E], the number of each prediction's group, from 0. Predictions of a group, such
        as those for one row under several prompts, are drawn together. None if all predictions are
        independent.
      resamples: the number of draws.
      seed: the seed of the draws.
    """
    examples = len(confidence)
    excess = np.zeros((examples, BINS))
    excess[np.arange(examples), calibration_bins(confidence)] = confidence - right
    sums = excess.mean(axis=0)
    centred = excess - sums
    if clusters is not None:
        cluster_sums = np.zeros((int(clusters.max()) + 1, BINS))
        np.add.at(cluster_sums, clusters, centred)
        centred = cluster_sums
    covariance = centred.T @ centred / examples**2
    rng = np.random.default_rng(seed)
    noise = rng.multivariate_normal(np.zeros(BINS), covariance, resamples, method="eigh")
    observed = calibration_error(confidence, right)
    low = observed - np.percentile(np.abs(noise).sum(axis=-1), 50 * (1 + CONFIDENCE))
    high = observed + np.percentile(noise @ np.sign(sums), 50 * (1 + CONFIDENCE))
    return Interval(max(0.0, float(low)), min(1.0, float(high)))
