"""Computes the expected calibration error of predictions, with bins of equal width.

    >>> confidence, correct = np.array([0.9, 0.6, 0.8, 0.7]), np.array([True, False, True, True])
    >>> round(calibration_error(confidence, correct), 3)
    0.3

Assumption: the confidence of a prediction is its share of the total probability of the choices.
"""

import numpy as np

BINS = 10


def calibration_bins(confidence: np.ndarray) -> np.ndarray:
    """Returns the bin index of each confidence [E]; a confidence of 1 is in the last bin."""
    return np.minimum((confidence * BINS).astype(int), BINS - 1)


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Returns the calibration error: the distance of confidence and accuracy, averaged over bins.

    Bins are weighted by their number of examples. The error is between 0 and 1.

    Args:
      confidence: [E], from 0 to 1.
      right: bool [E], whether the prediction is right.
    """
    sums = np.bincount(calibration_bins(confidence), confidence - right, minlength=BINS)
    return float(np.abs(sums).sum() / len(confidence))
