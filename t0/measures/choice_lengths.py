"""Divides the log-likelihoods of answer choices by their lengths, as alternatives to T0's plain sum.

    >>> best_by([-2.0, -3.0], [1, 3])     # -2 and -1 nats per token
    1

A length is the number of tokens of a choice, including EOS, or the number of its characters.
"""

from collections.abc import Sequence

# The lengths by which a choice's log-likelihood may be divided.
LENGTHS = ("tokens", "characters")
# The description of the normalization of log-likelihoods, in the facts of a run.
WITH_EOS = "none: sum of log-probabilities over a choice's tokens and EOS"
WITHOUT_EOS = "none: sum of log-probabilities over a choice's tokens"


def best_by(log_likelihoods: Sequence[float], lengths: Sequence[int]) -> int:
    """Returns the index of the choice with the largest quotient log-likelihood / length.

    Args:
      log_likelihoods: [C], in nats, as Python numbers.
      lengths: [C]. A length of 0 counts as 1.
    """
    pairs = zip(log_likelihoods, lengths, strict=True)
    shares = [value / max(1, length) for value, length in pairs]
    return shares.index(max(shares))
