"""Intervals by drawing: of calibration error, and of the mean by resampling prompts and examples.

    >>> confidence, right = np.array([0.9, 0.6, 0.8, 0.7]), np.array([True, False, True, True])
    >>> round(calibration_error(confidence, right), 3)
    0.3
    >>> found = calibration_interval(confidence, right)
    >>> bool(0 <= found.low <= found.high <= 1)
    True

`crossed_bootstrap` draws prompts and examples independently, both with replacement (Owen, 2007,
Ann. Appl. Stat. 1), and takes percentiles. It is here to be measured beside `crossed_mean`, which
holds where this does not (docs/statistics.md): with few prompts the percentiles are too near.

The calibration error is the mean distance of confidence and accuracy over bins (Naeini, Cooper and
Hauskrecht, 2015, AAAI). It is biased: noise alone makes distances, so that a model without error
seems to have some, and percentiles of resampled errors miss the true one. The true error is at
least the observed one less the sum of the bins' noise, and at most the observed one less what noise
adds in the directions of the bins' errors, both by the triangle inequality; the ends are quantiles
of these sums, whose terms are drawn from the normal distribution with the examples' covariance.
"""

import numpy as np

from t0.reports.statistics.crossed_means import CONFIDENCE, Interval

RESAMPLES = 1000
SEED = 0
BINS = 10
_TAILS = (50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE))


def crossed_bootstrap(
    values: np.ndarray, *, resamples: int = RESAMPLES, seed: int = SEED
) -> Interval:
    """Returns the percentile interval of the mean of values [..., P, E].

    A batch shares its draws, which makes it one matrix product.
    """
    prompts, examples = values.shape[-2:]
    rng = np.random.default_rng(seed)
    of_prompts = _draws(rng, resamples, prompts)
    of_examples = _draws(rng, resamples, examples)
    by_prompt = values.astype(np.float32) @ of_examples.T
    means = np.einsum("...pr,rp->...r", by_prompt, of_prompts)
    low, high = np.percentile(means, _TAILS, axis=-1)
    return Interval(low, high)


def calibration_bins(confidence: np.ndarray, *, bins: int = BINS) -> np.ndarray:
    """Returns the bin of each confidence [E] from 0 to 1; 1 is in the last one."""
    return np.minimum((confidence * bins).astype(int), bins - 1)


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Returns the mean distance of confidence [E] and accuracy over bins, weighted by examples."""
    sums = np.bincount(calibration_bins(confidence), confidence - right, minlength=BINS)
    return float(np.abs(sums).sum() / len(confidence))


def calibration_interval(
    confidence: np.ndarray,
    right: np.ndarray,
    *,
    clusters: np.ndarray | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """Returns the interval of the calibration error of examples [E].

    Args:
      confidence: from 0 to 1.
      right: whether the prediction is right.
      clusters: int [E] from 0, what is drawn together, as one row under several prompts; None where
        every example is drawn by itself.
      resamples: the number of draws.
      seed: of the draws.
    """
    examples = len(confidence)
    excess = np.zeros((examples, BINS))
    excess[np.arange(examples), calibration_bins(confidence)] = confidence - right
    sums = excess.mean(axis=0)
    moved = excess - sums
    if clusters is not None:
        together = np.zeros((int(clusters.max()) + 1, BINS))
        np.add.at(together, clusters, moved)
        moved = together
    covariance = moved.T @ moved / examples**2
    rng = np.random.default_rng(seed)
    noise = rng.multivariate_normal(np.zeros(BINS), covariance, resamples, method="eigh")
    observed = calibration_error(confidence, right)
    low = observed - np.percentile(np.abs(noise).sum(axis=-1), _TAILS[1])
    high = observed + np.percentile(noise @ np.sign(sums), _TAILS[1])
    return Interval(max(0.0, float(low)), min(1.0, float(high)))


def _draws(rng: np.random.Generator, resamples: int, count: int) -> np.ndarray:
    """Returns the share [R, count] that each of `count` units has in each draw of as many."""
    drawn = rng.integers(0, count, size=(resamples, count))
    drawn += count * np.arange(resamples)[:, None]
    found = np.bincount(drawn.ravel(), minlength=resamples * count).reshape(resamples, count)
    return (found / count).astype(np.float32)
