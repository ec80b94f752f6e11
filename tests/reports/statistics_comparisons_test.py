import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t0.reports.statistics import correlation, mcnemar, tied_sets


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 5))
def test_mcnemar_equals_the_binomial_sum(first_only, second_only, both):
    a = np.array([True] * first_only + [False] * second_only + [True] * both, bool)
    b = np.array([False] * first_only + [True] * second_only + [True] * both, bool)
    total, fewer = first_only + second_only, min(first_only, second_only)
    chances = [math.comb(total, k) / 2**total for k in range(total + 1)]
    result = mcnemar(a, b)
    assert (result.first_only, result.second_only) == (first_only, second_only)
    assert result.p_value == pytest.approx(min(1.0, 2 * sum(chances[: fewer + 1])))
    # Mid-p: what is as likely as what was seen counts by half.
    mid = min(1.0, 2 * (sum(chances[:fewer]) + chances[fewer] / 2))
    if first_only == second_only:
        mid = 1 - chances[fewer] / 2 if total else 1.0
    assert result.mid_p_value == pytest.approx(mid)


def test_mcnemar_of_many_disagreements_and_of_a_batch():
    a = np.array([True] * 560 + [False] * 500)
    result = mcnemar(np.stack([a, a]), np.stack([~a, a]))
    assert result.p_value[0] == pytest.approx(math.erfc(59 / math.sqrt(1060) / math.sqrt(2)), 0.02)
    assert result.p_value[1] == result.mid_p_value[1] == 1.0


@given(st.integers(1, 6), st.data())
def test_tied_sets_are_the_maximal_ones(count, data):
    pairs = list(itertools.combinations(range(count), 2))
    different = {pair for pair in pairs if data.draw(st.booleans())}
    subsets = [
        set(one)
        for size in range(1, count + 1)
        for one in itertools.combinations(range(count), size)
    ]
    tied = [one for one in subsets if not any(one.issuperset(pair) for pair in different)]
    maximal = [one for one in tied if not any(one < other for other in tied)]
    assert tied_sets(range(count), different=different) == sorted(
        tuple(sorted(one)) for one in maximal
    )


def test_correlation_with_a_constant_is_none():
    a = np.array([0.0, 1.0, 1.0])
    assert correlation(a, a) == pytest.approx(1)
    assert correlation(a, np.ones(3)) is None
