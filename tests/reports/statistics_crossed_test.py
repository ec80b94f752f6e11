"""The crossed mean and its intervals against textbook formulas, plain loops and simulation."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats

from t0.measures.calibration import calibration_error
from t0.reports.statistics import (
    FIXED,
    RANDOM,
    bell_mccaffrey,
    calibration_interval,
    crossed_difference,
    crossed_mean,
    interval_of_difference,
    interval_of_share,
    mean_of_means,
    minimum_detectable,
    p_value,
)

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    from interval_coverage import Setting, calibration_coverage, crossed_bootstrap, measure
finally:
    sys.path.remove(str(FOLDER))


@pytest.fixture
def right():
    rng = np.random.default_rng(1)
    latent = rng.normal(0, 1, (1, 8, 60)) + rng.normal(0, 1, (1, 1, 60))
    return latent + rng.normal(0, 0.5, (1, 8, 1)) > 0


def test_confidence_interval_of_fixed_prompts_equals_t_test_with_pseudo_examples(right):
    gains = right[0].astype(float) - right[0, :, ::-1]
    mean = crossed_difference(right[..., ::-1], right, prompts=FIXED)
    of_examples = gains.mean(axis=0)
    test = stats.ttest_1samp(of_examples, 0)
    observed = of_examples.var(ddof=1) / 60
    pseudo = 1.959964**2 * np.abs(of_examples).max() ** 2 / (60 + 1.959964**2) ** 2
    assert float(mean.variance) == pytest.approx(observed + pseudo)
    # Satterthwaite: the variance of the pseudo-examples is known.
    degrees = (observed + pseudo) ** 2 / (observed**2 / 59)
    t = test.statistic * np.sqrt(observed / (observed + pseudo))
    assert float(p_value(mean)) == pytest.approx(2 * stats.t.sf(abs(t), degrees))
    reach = stats.t.ppf(0.975, degrees) * np.sqrt(observed + pseudo)
    expected = (of_examples.mean() - reach, of_examples.mean() + reach)
    actual = interval_of_difference(mean)
    assert (float(actual.low), float(actual.high)) == pytest.approx(expected)
    low, high = test.confidence_interval()
    assert 1 < float(actual.high - actual.low) / (high - low) < 1.3


def test_variance_of_random_prompts_equals_crossed_anova(right):
    values = right[0].astype(float)
    prompts, examples = values.shape
    whole, rows, columns = values.mean(), values.mean(axis=1), values.mean(axis=0)
    of_prompts = examples * ((rows - whole) ** 2).sum() / (prompts - 1)
    of_examples = prompts * ((columns - whole) ** 2).sum() / (examples - 1)
    rest = values - rows[:, None] - columns + whole
    of_both = (rest**2).sum() / ((prompts - 1) * (examples - 1))
    mean = crossed_mean(right, prompts=RANDOM)
    wanted = of_prompts + of_examples - of_both
    assert float(mean.variance) == pytest.approx(wanted / values.size)
    degrees = wanted**2 / (
        of_prompts**2 / (prompts - 1)
        + of_examples**2 / (examples - 1)
        + of_both**2 / ((prompts - 1) * (examples - 1))
    )
    assert float(mean.degrees) == pytest.approx(degrees)
    assert mean.variance > crossed_mean(right, prompts=FIXED).variance


def test_variance_includes_seeds_as_third_level():
    rng = np.random.default_rng(2)
    right = rng.normal(0, 1, (4, 5, 300)) + rng.normal(0, 1, (4, 1, 1)) > 0
    alone = crossed_mean(right[:1], prompts=FIXED)
    seeds = crossed_mean(right, prompts=FIXED)
    means = right.mean(axis=(1, 2))
    # The seeds differ much more than examples do: their own variance is nearly all of it.
    assert float(seeds.variance) == pytest.approx(means.var(ddof=1) / 4, rel=0.2)
    assert seeds.degrees == pytest.approx(3, abs=1)
    assert seeds.variance > 4 * alone.variance
    with_seeds = crossed_difference(right[:2], right[2:], prompts=RANDOM)
    averaged = [part.mean(axis=0, keepdims=True) for part in (right[:2], right[2:])]
    assert with_seeds.variance > crossed_difference(*averaged, prompts=RANDOM).variance


def test_cluster_variance_of_examples_of_one_document(right):
    clusters = np.repeat(np.arange(20), 3)
    twins = np.repeat(right[..., :20], 3, axis=-1)
    found = crossed_mean(twins, prompts=RANDOM, clusters=clusters)
    wanted = crossed_mean(right[..., :20], prompts=RANDOM)
    assert float(found.variance) == pytest.approx(float(wanted.variance))
    assert float(found.degrees) == pytest.approx(float(wanted.degrees))
    # In plain sums, of clusters of unequal size: CR2 weights each residual.
    clusters = np.repeat([0, 1, 2, 3], [10, 20, 25, 5])
    gains = right[0].mean(axis=0)
    sums = [(gains - gains.mean())[clusters == c].sum() / 60 for c in range(4)]
    shares = np.array([10, 20, 25, 5]) / 60
    mean = crossed_mean(right, prompts=FIXED, clusters=clusters)
    assert float(mean.variance) == pytest.approx((np.array(sums) ** 2 / (1 - shares)).sum())


def test_degrees_of_freedom_of_bell_and_mccaffrey():
    sizes = np.array([1, 2, 3, 9, 20])
    count = sizes.sum()
    of = np.repeat(np.arange(5), sizes)
    centred = np.eye(count) - 1 / count
    columns = [
        centred @ ((of == c) / np.sqrt(1 - sizes[c] / count) / count) for c in range(len(sizes))
    ]
    gram = np.array(columns) @ np.array(columns).T
    wanted = np.trace(gram) ** 2 / (gram**2).sum()
    assert bell_mccaffrey(sizes / count) == pytest.approx(wanted)
    assert 1 < wanted < 4


def test_crossed_mean_of_prompts_with_different_examples(right):
    present = np.random.default_rng(3).random((8, 60)) < 0.8
    found = crossed_mean(right, prompts=RANDOM, present=present)
    assert float(found.value) == pytest.approx(
        np.mean([row[there].mean() for row, there in zip(right[0], present, strict=True)])
    )
    assert found.cells == present.sum()
    whole = crossed_mean(right, prompts=RANDOM, present=np.ones((8, 60), bool))
    complete = crossed_mean(right, prompts=RANDOM)
    assert float(whole.variance) == pytest.approx(float(complete.variance))
    # What each example adds to the mean over prompts, by a loop; CR2 by the example's share.
    added, shares = np.zeros(60), np.zeros(60)
    for row, there in zip(right[0], present, strict=True):
        added[there] += (row[there] - row[there].mean()) / there.sum() / 8
        shares[there] += 1 / there.sum() / 8
    fixed = crossed_mean(right, prompts=FIXED, present=present)
    assert float(fixed.variance) == pytest.approx((added**2 / (1 - shares)).sum())
    assert found.variance > fixed.variance


def test_crossed_mean_of_a_batch_equals_single_evaluations(right):
    batch = np.stack([right, ~right, right & (np.arange(60) % 2 == 0)])
    found = interval_of_share(crossed_mean(batch, prompts=RANDOM))
    for number, one in enumerate(batch):
        alone = interval_of_share(crossed_mean(one, prompts=RANDOM))
        assert found.low[number] == pytest.approx(float(alone.low))
        assert found.high[number] == pytest.approx(float(alone.high))


def test_confidence_interval_without_any_variance():
    right = np.ones((1, 4, 30), bool)
    found = interval_of_share(crossed_mean(right, prompts=RANDOM))
    assert 0.85 < found.low < 0.9 and found.high == 1.0  # about 3 / 30 may be wrong
    present = np.ones((4, 30), bool)
    present[0, :7] = False  # weights that are not exact: the variance is rounding
    found = interval_of_share(crossed_mean(right, prompts=RANDOM, present=present))
    assert 0.85 < found.low < 0.9 and found.high == pytest.approx(1.0)
    one = crossed_mean(right[..., :1], prompts=RANDOM)
    assert (interval_of_share(one).low, interval_of_share(one).high) == (0.0, 1.0)
    same = crossed_difference(right, right, prompts=RANDOM)
    assert p_value(same) == 1.0 and interval_of_difference(same).low < -0.1
    few = crossed_difference(~right[..., :3], right[..., :3], prompts=FIXED)
    assert p_value(few) == pytest.approx(0.25)  # all of three examples: the sign test
    nothing = crossed_difference(~right[..., :1], right[..., :1], prompts=FIXED)
    assert p_value(nothing) == 1.0 and interval_of_difference(nothing).high == 1.0


def of_counts(won, lost, examples):
    """The difference of two runs with one prompt, by the numbers of examples that differ."""
    gains = np.zeros((1, 1, examples))
    gains[..., :won], gains[..., won : won + lost] = 1, -1
    return crossed_difference(np.zeros_like(gains), gains, prompts=FIXED)


def tango_interval(won, lost, examples):
    """Tango's score interval (1998, Statistics in Medicine 17), by root finding."""

    def score(difference):
        middle = (2 * examples - won + lost) * difference - won - lost
        root = middle**2 + 8 * examples * lost * difference * (1 - difference)
        rarer = (np.sqrt(max(root, 0)) - middle) / (4 * examples)
        variance = examples * (2 * rarer + difference * (1 - difference))
        return (won - lost - examples * difference) / np.sqrt(max(variance, 1e-300))

    center, edge = (won - lost) / examples, 1e-9
    low, high = (lambda d: score(d) - 1.959964), (lambda d: score(d) + 1.959964)
    return (
        optimize.brentq(low, -1 + edge, center - edge) if low(-1 + edge) > 0 else -1.0,
        optimize.brentq(high, center + edge, 1 - edge) if high(1 - edge) < 0 else 1.0,
    )


@pytest.mark.parametrize(("examples", "points"), [(4, 49.0), (277, 1.37)])
def test_difference_without_differing_examples_has_the_interval_of_tango(examples, points):
    mean = of_counts(0, 0, examples)
    interval = interval_of_difference(mean)
    expected = tango_interval(0, 0, examples)
    assert (float(interval.low), float(interval.high)) == pytest.approx(expected, abs=1e-4)
    assert 100 * float(interval.high) == pytest.approx(points, abs=0.05)
    assert float(minimum_detectable(mean)) > float(interval.high) and p_value(mean) == 1.0
    both = mean_of_means([mean, mean])
    assert float(minimum_detectable(both)) == pytest.approx(
        float(minimum_detectable(mean)) / np.sqrt(2)
    )


@pytest.mark.parametrize("seed", range(20))
def test_one_more_differing_example_never_narrows_the_interval(seed):
    rng = np.random.default_rng(seed)
    examples, prompts = int(rng.integers(4, 300)), int(rng.integers(1, 5))
    gains, widths, detectable = np.zeros((1, prompts, examples)), [], []
    for example in range(examples // 3 + 1):
        mean = crossed_difference(np.zeros_like(gains), gains, prompts=FIXED)
        widths.append(2 * float(mean.standard_error) * stats.t.ppf(0.975, float(mean.degrees)))
        detectable.append(float(minimum_detectable(mean)))
        gains[0, :, example] = rng.integers(0, 2, prompts) * (-1) ** example
    assert np.all(np.diff(widths) > -1e-12) and np.all(np.diff(detectable) > -1e-12)


@pytest.mark.parametrize("examples", [56, 277])
@pytest.mark.parametrize("share", [0.005, 0.02, 0.05])
@pytest.mark.parametrize("better", [0.5, 0.8, 1.0], ids="of the differing {} are better".format)
def test_interval_of_few_differing_examples_covers_and_is_nearly_as_narrow_as_tangos(
    examples, share, better
):
    rng = np.random.default_rng(0)
    probabilities = [share * better, share * (1 - better), 1 - share]
    counts, weights = np.unique(
        rng.multinomial(examples, probabilities, 4000)[:, :2], axis=0, return_counts=True
    )
    intervals = [interval_of_difference(of_counts(*pair, examples)) for pair in counts]
    low, high = (np.array([float(getattr(i, end)) for i in intervals]) for end in ("low", "high"))
    truth = share * (2 * better - 1)
    assert np.average((low <= truth) & (truth <= high), weights=weights) >= 0.945
    tango = np.array([tango_interval(*pair, examples) for pair in counts])
    widths = (np.average(w, weights=weights) for w in (high - low, tango[:, 1] - tango[:, 0]))
    assert next(widths) <= 1.3 * next(widths)


def test_minimum_detectable_effect_has_the_stated_power():
    rng = np.random.default_rng(4)
    first = rng.random((400, 1, 5, 200)) < 0.5
    effect = float(minimum_detectable(crossed_difference(first[:1], ~first[:1], prompts=FIXED))[0])
    # The same noise, around that effect: a coin gives the gain of each example.
    gains = rng.random((2000, 1, 1, 200)) < 0.5 + effect / 2
    unchanged = np.zeros((2000, 1, 1, 200))
    one = crossed_difference(unchanged, 2 * gains - 1.0, prompts=FIXED)
    half = crossed_difference(first[:1], ~first[:1], prompts=FIXED)
    scale = float(np.sqrt(one.variance.mean() / half.variance[0]))
    found = np.abs(one.value) * 1 > stats.t.ppf(0.975, 199) * one.standard_error
    wanted = stats.norm.cdf(effect / (scale * float(half.standard_error[0])) - 1.972)
    assert found.mean() == pytest.approx(wanted, abs=0.03)
    assert minimum_detectable(half, power=0.9) > minimum_detectable(half)


def test_mean_over_datasets_adds_their_variances(right):
    one, two = crossed_mean(right, prompts=FIXED), crossed_mean(~right, prompts=FIXED)
    both = mean_of_means([one, two])
    assert float(both.value) == pytest.approx(0.5)
    assert float(both.variance) == pytest.approx(float(one.variance) / 2)
    assert float(both.degrees) == pytest.approx(2 * 59)


def test_crossed_bootstrap_equals_a_plain_loop(right):
    found = crossed_bootstrap(right[0], resamples=3000)
    rng = np.random.default_rng(5)
    drawn = [
        right[0][np.ix_(rng.integers(0, 8, 8), rng.integers(0, 60, 60))].mean() for _ in range(3000)
    ]
    wanted = np.percentile(drawn, (2.5, 97.5))
    assert (float(found.low), float(found.high)) == pytest.approx(wanted, abs=0.01)


def test_calibration_error_by_hand():
    confidence = np.array([0.95, 0.95, 0.55, 1.0])
    right = np.array([True, False, True, True])
    # The last bin: confidence 2.9 of three, two right; the sixth bin: 0.45 too low.
    assert calibration_error(confidence, right) == pytest.approx((0.9 + 0.45) / 4)
    found = calibration_interval(confidence, right)
    assert found.low <= calibration_error(confidence, right) <= found.high


QUICK = [Setting(56, 5, RANDOM), Setting(56, 10, FIXED, 0.9), Setting(277, 5, RANDOM)]


@pytest.mark.parametrize("setting", QUICK, ids=str)
def test_confidence_interval_coverage_and_false_positive_rate(setting):
    tally = measure(setting, 400)
    assert tally.share("ours") >= 91.5  # 3.5 standard errors below 95
    assert tally.share("paired") <= 8.5
    assert tally.share("rows") < 85 and tally.share("rows_paired") > 9  # what this is for


FULL = [
    Setting(examples, prompts, kind)
    for kind in (FIXED, RANDOM)
    for prompts in (5, 10, 15)
    for examples in (56, 277, 1267)
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", FULL, ids=str)
def test_confidence_interval_coverage_in_every_setting(setting):
    tally = measure(setting, 20_000)  # standard error of a rate: 0.15 points
    assert tally.share("ours") >= 94
    assert tally.share("paired") <= 5.7


@pytest.mark.exhaustive
@pytest.mark.parametrize("accuracy", [0.6, 0.9])
def test_confidence_interval_coverage_of_one_prompt(accuracy):
    tally = measure(Setting(56, 1, FIXED, accuracy), 10_000)
    assert tally.share("wilson") >= 94
    assert tally.share("exact") <= 5.7 and tally.share("mid") <= 5.7


@pytest.mark.parametrize("sharpness", [1.0, 2.0])
def test_calibration_error_interval_coverage(sharpness):
    assert calibration_coverage(277, sharpness, 60).share("ours") >= 90
