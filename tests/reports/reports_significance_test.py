import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from t0.reports.example_scores import ExampleScores
from t0.reports.significance import bootstrap, difference, mcnemar, pair, spread


def scores(correct, idx=None, gold=None, choices=2):
    count = len(correct)
    return ExampleScores(
        path=Path("made-up.jsonl"),
        idx=np.arange(count) if idx is None else np.array(idx),
        gold=np.zeros(count, np.int32) if gold is None else np.array(gold),
        prediction=np.zeros(count, np.int32),
        correct=np.array(correct, bool),
        confidence=np.ones(count),
        choices=np.full(count, choices),
        tied=np.zeros(count, bool),
        labels=None,
    )


def test_spread_by_hand():
    s = spread([40.0, 50.0, 60.0, 90.0])
    assert (s.mean, s.median, s.low, s.high) == (60.0, 55.0, 40.0, 90.0)
    assert (s.first_quartile, s.third_quartile) == (47.5, 67.5)


def test_interval_of_a_prompt_matches_the_binomial():
    rng = np.random.default_rng(3)
    correct = rng.random(400) < 0.6
    (interval,), overall = bootstrap([scores(correct)], "rte")
    share = correct.mean()
    reach = 196 * math.sqrt(share * (1 - share) / 400)  # normal approximation, percent
    assert interval.low == pytest.approx(100 * share - reach, abs=1.0)
    assert interval.high == pytest.approx(100 * share + reach, abs=1.0)
    assert overall == interval


def test_prompts_share_the_resample():
    correct = np.random.default_rng(4).random(200) < 0.5
    each, same = bootstrap([scores(correct)] * 5, "rte")
    assert each[0] == each[4]
    assert same.high - same.low == pytest.approx(each[0].high - each[0].low)
    rng = np.random.default_rng(5)
    _, mixed = bootstrap([scores(rng.permutation(correct)) for _ in range(5)], "rte")
    assert mixed.high - mixed.low < 0.6 * (same.high - same.low)


def test_prompts_may_cover_different_examples():
    half = [scores([True] * 50, idx=range(50)), scores([False] * 50, idx=range(50, 100))]
    each, overall = bootstrap(half, "copa")
    assert (each[0].low, each[1].high) == (100.0, 0.0)
    assert overall.low == overall.high == pytest.approx(50.0)


def test_bootstrap_is_seeded_by_name_alone():
    s = [scores(np.random.default_rng(1).random(1999) < 0.4)]
    assert bootstrap(s, "rte") == bootstrap(s, "rte")
    assert bootstrap(s, "rte") != bootstrap(s, "cb")
    assert bootstrap(s, "rte", seed=1) != bootstrap(s, "rte")


def test_chunks_of_the_resample_do_not_change_its_size(monkeypatch):
    s = [scores(np.random.default_rng(1).random(90) < 0.4)]
    whole = bootstrap(s, "rte")
    monkeypatch.setattr("t0.reports.significance.CHUNK_CELLS", 90 * 7)
    assert bootstrap(s, "rte") == whole


def test_pair_joins_by_row_and_drops_what_differs():
    first = scores([True, False, True, True], idx=[5, 3, 1, 2], gold=[0, 1, 0, 0])
    second = scores([False, True, True, True], idx=[1, 5, 9, 3], gold=[0, 0, 0, 0])
    rows, a, b = pair(first, second)
    assert (rows.tolist(), a.tolist(), b.tolist()) == ([1, 5], [True, True], [False, True])
    assert len(pair(first, scores([True], idx=[5], choices=3))[0]) == 0


def test_difference_by_hand_and_its_interval():
    a = np.array([True] * 30 + [False] * 70)
    b = np.array([True] * 50 + [False] * 50)
    rows = np.arange(100)
    (prompt,), overall = difference([(rows, a, b)], "rte")
    assert prompt.difference == overall.difference == 20.0
    reach = 196 * math.sqrt(0.2 * 0.8 / 100)  # paired: 20 of 100 differ, all one way
    assert prompt.interval.low == pytest.approx(20 - reach, abs=1.5)
    assert prompt.interval.high == pytest.approx(20 + reach, abs=1.5)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 5))
def test_mcnemar_equals_the_binomial_sum(first_only, second_only, both):
    a = np.array([True] * first_only + [False] * second_only + [True] * both, bool)
    b = np.array([False] * first_only + [True] * second_only + [True] * both, bool)
    total = first_only + second_only
    tail = sum(math.comb(total, k) for k in range(min(first_only, second_only) + 1)) / 2**total
    result = mcnemar(a, b)
    assert (result.first_only, result.second_only) == (first_only, second_only)
    assert result.p_value == pytest.approx(min(1.0, 2 * tail))
    assert result.method == "exact"


def test_mcnemar_of_many_disagreements_is_approximate():
    a = np.array([True] * 560 + [False] * 500)
    result = mcnemar(a, ~a)
    statistic = (60 - 1) ** 2 / 1060
    assert result.method == "chi-square"
    assert result.p_value == pytest.approx(math.erfc(math.sqrt(statistic / 2)))


def test_intervals_equal_scipy_s_bootstrap():
    rng = np.random.default_rng(7)
    correct = rng.random((3, 150)) < np.array([[0.3], [0.55], [0.9]])
    each, overall = bootstrap([scores(row) for row in correct], "rte", resamples=4000)
    samples = [*correct.astype(float), correct.mean(axis=0)]
    for found, values in zip([*each, overall], samples, strict=True):
        wanted = stats.bootstrap(
            (100 * values,), np.mean, n_resamples=4000, method="percentile", rng=1
        ).confidence_interval
        assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=0.9)


def test_intervals_of_prompts_with_different_examples_by_a_plain_loop():
    rng = np.random.default_rng(8)
    covered = [np.arange(0, 90), np.arange(40, 120)]
    correct = [
        rng.random(len(rows)) < share for rows, share in zip(covered, (0.4, 0.8), strict=True)
    ]
    made = [scores(right, idx=rows) for rows, right in zip(covered, correct, strict=True)]
    each, overall = bootstrap(made, "copa", resamples=4000)
    known = [
        dict(zip(rows.tolist(), right, strict=True))
        for rows, right in zip(covered, correct, strict=True)
    ]
    draws = []
    for _ in range(4000):
        drawn = rng.integers(0, 120, 120)
        draws.append([100 * np.mean([prompt[i] for i in drawn if i in prompt]) for prompt in known])
    draws = np.array(draws)
    for found, values in zip([*each, overall], [*draws.T, draws.mean(axis=1)], strict=True):
        wanted = np.percentile(values, (2.5, 97.5))
        assert (found.low, found.high) == pytest.approx(wanted, abs=0.9)


def test_paired_difference_equals_scipy_s_bootstrap_of_the_gains():
    rng = np.random.default_rng(9)
    first = rng.random((2, 200)) < 0.5
    second = np.where(rng.random((2, 200)) < 0.7, first, rng.random((2, 200)) < 0.8)
    rows = np.arange(200)
    pairs = [(rows, a, b) for a, b in zip(first, second, strict=True)]
    prompts, overall = difference(pairs, "rte", resamples=4000)
    gains = 100 * (second.astype(float) - first)
    for found, values in zip([*prompts, overall], [*gains, gains.mean(axis=0)], strict=True):
        wanted = stats.bootstrap(
            (values,), np.mean, n_resamples=4000, method="percentile", rng=2
        ).confidence_interval
        assert found.difference == pytest.approx(values.mean())
        reach = (found.interval.low, found.interval.high)
        assert reach == pytest.approx((wanted.low, wanted.high), abs=0.9)
