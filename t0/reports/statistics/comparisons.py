"""McNemar's test, and the sets of runs that many paired comparisons cannot tell apart.

    >>> found = mcnemar(np.array([True, True, False]), np.array([False, False, False]))
    >>> float(found.p_value), float(found.mid_p_value)
    (0.5, 0.25)
    >>> tied_sets(3, different={(0, 2)})
    [(0, 1), (1, 2)]

Sources: McNemar (1947, Psychometrika 12), exact by the binomial distribution; mid-p: Fagerland,
Lydersen and Laake (2013, BMC Med. Res. Methodol. 13), which recommends it. Sets of equals: the
maximal sets without a significant pair, as in Piepho's letters (2004, J. Comput. Graph. Stat. 13).
"""

import itertools
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class McNemar:
    """McNemar's tests of two runs on the same examples; arrays have the batch's axes.

    Attributes:
      first_only: the number of examples that only the first run gets right.
      second_only: the number of examples that only the second run gets right.
      p_value: exact, two-sided; 1 without disagreements. It rejects too rarely.
      mid_p_value: less half the probability of what was seen; near its level, not below it always.
    """

    first_only: np.ndarray
    second_only: np.ndarray
    p_value: np.ndarray
    mid_p_value: np.ndarray


def mcnemar(first: np.ndarray, second: np.ndarray) -> McNemar:
    """Returns McNemar's test for each batch of bool [..., E], whether a run is right."""
    from scipy.special import bdtr, gammaln

    first_only = (first & ~second).sum(axis=-1)
    second_only = (second & ~first).sum(axis=-1)
    fewer, total = np.minimum(first_only, second_only), first_only + second_only
    exact = np.minimum(1.0, 2 * bdtr(fewer, total, 0.5))
    ways = gammaln(total + 1) - gammaln(fewer + 1) - gammaln(total - fewer + 1)
    seen = np.exp(ways - total * np.log(2))
    mid = np.where(first_only == second_only, 1 - seen / 2, exact - seen)
    return McNemar(first_only, second_only, exact, np.where(total == 0, 1.0, mid))


def tied_sets(count: int, *, different: Collection[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Returns the maximal sets of runs of which no two differ, the first runs first.

    Args:
      count: the number of runs.
      different: the pairs (first < second) that differ.
    """
    found: list[set[int]] = [set(range(count))]
    for pair in sorted(different):
        split = [group - {one} for group in found if group.issuperset(pair) for one in pair]
        kept = [group for group in found if not group.issuperset(pair)]
        for group in split:
            if not any(group <= other for other in kept):
                kept = [other for other in kept if not other < group] + [group]
        found = kept
    return sorted(tuple(sorted(group)) for group in found)


def correlation(first: np.ndarray, second: np.ndarray) -> float | None:
    """Returns the correlation of two runs' means by example [E]; None where one is constant."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def pairs_of(count: int) -> list[tuple[int, int]]:
    """Returns all pairs of runs, the first before the second."""
    return list(itertools.combinations(range(count), 2))
