"""Statistics of evaluations: arrays in, numbers out; on numpy and scipy alone.

    from t0.reports import statistics

    mean = statistics.crossed_mean(right, prompts=statistics.RANDOM)       # right: [S, P, E]
    statistics.interval_of_share(mean)                                     # low, high
    gap = statistics.crossed_difference(first, second, prompts=statistics.RANDOM)
    statistics.p_value(gap), statistics.minimum_detectable(gap)

    crossed_mean, crossed_difference     the mean over prompts, seeds, examples, or of its gain
    wilson                               one prompt's interval
    mcnemar                              one prompt's paired test
    benjamini_hochberg, tied_sets        many comparisons at once
    calibration_error, calibration_interval, crossed_bootstrap    by resampling

How often each interval covers, and each test rejects, is measured: docs/statistics.md.
"""

from t0.reports.statistics.comparisons import (
    McNemar,
    benjamini_hochberg,
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
    wilson,
)
from t0.reports.statistics.resampling import (
    RESAMPLES,
    SEED,
    calibration_bins,
    calibration_error,
    calibration_interval,
    crossed_bootstrap,
)

__all__ = [
    "CONFIDENCE",
    "FIXED",
    "POWER",
    "RANDOM",
    "RESAMPLES",
    "SEED",
    "CrossedMean",
    "Interval",
    "McNemar",
    "benjamini_hochberg",
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
    "tied_sets",
    "wilson",
]
