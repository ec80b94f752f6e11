"""Statistics of evaluations: arrays in, numbers out; on numpy and scipy alone.

    >>> import numpy as np
    >>> first = np.random.default_rng(0).random((1, 10, 277)) < 0.6    # seeds, prompts, examples
    >>> interval = interval_of_share(crossed_mean(first, prompts=RANDOM))
    >>> round(float(interval.low), 3), round(float(interval.high), 3)
    (0.585, 0.632)
    >>> gap = crossed_difference(first, ~first, prompts=RANDOM)
    >>> float(p_value(gap)) < 0.001, round(float(minimum_detectable(gap)), 3)
    (True, 0.067)

    crossed_mean, crossed_difference     the mean over prompts, seeds, examples, or of its gain
    mcnemar                              one prompt's paired test
    tied_sets                            many comparisons in one table
    calibration_error, calibration_interval, crossed_bootstrap    by resampling

How often each interval covers, and each test rejects, is measured: docs/statistics.md.
"""

from t0.reports.statistics.comparisons import (
    McNemar,
    correlation,
    mcnemar,
    pairs_of,
    tied_sets,
)
from t0.reports.statistics.crossed_means import (
    CONFIDENCE,
    FIXED,
    POWER,
    RANDOM,
    CrossedMean,
    Interval,
    crossed_difference,
    crossed_mean,
    interval_of_difference,
    interval_of_share,
    mean_of_means,
    minimum_detectable,
    p_value,
    score_interval,
)
from t0.reports.statistics.resampling import (
    BINS,
    RESAMPLES,
    SEED,
    calibration_bins,
    calibration_error,
    calibration_interval,
    crossed_bootstrap,
)

__all__ = [
    "BINS",
    "CONFIDENCE",
    "FIXED",
    "POWER",
    "RANDOM",
    "RESAMPLES",
    "SEED",
    "CrossedMean",
    "Interval",
    "McNemar",
    "calibration_bins",
    "calibration_error",
    "calibration_interval",
    "correlation",
    "crossed_bootstrap",
    "crossed_difference",
    "crossed_mean",
    "interval_of_difference",
    "interval_of_share",
    "mcnemar",
    "mean_of_means",
    "minimum_detectable",
    "p_value",
    "pairs_of",
    "score_interval",
    "tied_sets",
]
