"""Simulates how often t0.reports.statistics' intervals cover the truth, and its tests reject.

    .venv/bin/python benchmarks/interval_coverage.py                          # 10,000 for each row
    .venv/bin/python benchmarks/interval_coverage.py --evaluations=500        # half a minute

Each simulated evaluation has P prompts on the same E examples. A choice is right if

    level + prompt + example + (prompt and example) > 0

where all terms are normal: an example is easy or hard with every prompt, a prompt is good or bad,
and their interaction is noise. The standard deviations are in DEVIATIONS: prompts differ by about 6
points, and the outcomes of one example with two prompts correlate by 0.4, as in rank evaluations of
T0. Two compared runs share a part of each of the three terms.

With random prompts, every evaluation has new prompts, and the truth is the mean over all prompts.
With fixed prompts, the truth is the mean over the evaluation's prompts. Under the null hypothesis
both runs have the same accuracy: on average for random prompts, and exactly for fixed prompts,
because the second run's prompts are the first's in another order.

The peer is the usual method: every row (an example with a prompt) is one independent observation,
with the normal interval of a share, and a paired t-test over rows. The table also has the crossed
percentile bootstrap of prompts and examples (Owen, 2007). Prints Markdown tables, in percent.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from scipy import special, stats

from t0.measures.calibration import calibration_error
from t0.reports import statistics
from t0.reports.statistics import Interval

EXAMPLES, PROMPTS, ACCURACIES = (56, 277, 1267), (5, 10, 15), (0.6, 0.9)
KINDS = (statistics.FIXED, statistics.RANDOM)
# The standard deviations of the terms of the latent score (prompt, example, and their interaction),
# and the fraction of each term that two compared runs share.
DEVIATIONS = {"prompt": 0.25, "example": 1.2, "both": 1.0}
SHARED = {"prompt": 0.8, "example": 0.8, "both": 0.6}
SEEDS = 3
SEED_DEVIATIONS = {"seed": 0.08, "prompt": 0.08, "example": 0.5}
SHARPNESS = {"none": 1.0, "too sure, 10 points": 2.0}
CHUNK_CELLS = 2_000_000
Z = special.ndtri(0.975)


@dataclasses.dataclass(frozen=True)
class Setting:
    """The simulated setting: counts, fixed or random prompts, and the mean accuracy."""

    examples: int
    prompts: int
    kind: str = statistics.RANDOM
    accuracy: float = 0.6
    seeds: int = 1
    documents: bool = False

    @property
    def level(self) -> float:
        """The latent level that gives the accuracy over all prompts and examples."""
        return special.ndtri(self.accuracy) * np.sqrt(sum(d**2 for d in self.deviations.values()))

    @property
    def deviations(self) -> dict[str, float]:
        """The deviations of prompt, example and interaction, and of seeds if there are any."""
        return DEVIATIONS | ({"seeds": _seeds_deviation()} if self.seeds > 1 else {})

    @property
    def clusters(self) -> np.ndarray | None:
        """The document of each example: 1, 2 ... 9 examples for each in turn."""
        sizes = np.resize(np.arange(1, 10), self.examples)
        return (
            np.repeat(np.arange(self.examples), sizes)[: self.examples] if self.documents else None
        )


def _seeds_deviation() -> float:
    return float(np.sqrt(sum(d**2 for d in SEED_DEVIATIONS.values())))


Evaluations = tuple[np.ndarray, np.ndarray, np.ndarray]  # first [N, S, P, E], second, truth [N]


def simulated(setting: Setting, count: int, *, seed: int = 0) -> Iterator[Evaluations]:
    """Yields two equally good runs as arrays of 1 and 0, and the true accuracy of the first."""
    rng = np.random.default_rng(seed)
    chunk = max(1, CHUNK_CELLS // (setting.seeds * setting.prompts * setting.examples))
    for start in range(0, count, chunk):
        size = min(chunk, count - start)
        effects = _effects(setting, size, rng)
        runs = [_run(setting, effect, rng) for effect in effects]
        yield *runs, _truth(setting, effects[0][0])


def _effects(
    setting: Setting, size: int, rng: np.random.Generator
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Returns the effects of prompts [N, 1, P, 1], examples, and interactions, for two runs."""
    shapes = {
        "prompt": (size, 1, setting.prompts, 1),
        "example": (size, 1, 1, setting.examples),
        "both": (size, 1, setting.prompts, setting.examples),
    }
    runs = [_halves(name, shape, setting, rng) for name, shape in shapes.items()]
    first, second = zip(*runs, strict=True)
    if setting.kind == statistics.FIXED:
        second = (np.roll(first[0], 1, axis=2), *second[1:])
    return [first, second]


def _halves(
    name: str, shape: tuple[int, ...], setting: Setting, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns an effect in two runs that share a part of it."""
    common, *own = (_normal(rng, shape) for _ in range(3))
    if name == "example" and setting.documents:
        places = setting.clusters
        of_document = _normal(rng, (*shape[:-1], places.max() + 1))[..., places]
        common = np.sqrt(0.5) * (common + of_document)
    of_runs = [np.sqrt(SHARED[name]) * common + np.sqrt(1 - SHARED[name]) * part for part in own]
    return tuple(DEVIATIONS[name] * part for part in of_runs)


def _run(setting: Setting, effects: tuple[np.ndarray, ...], rng: np.random.Generator) -> np.ndarray:
    latent = np.float32(setting.level) + sum(effects)
    if setting.seeds > 1:
        size, _, prompts, examples = latent.shape
        shapes = {"seed": (1, 1), "prompt": (prompts, 1), "example": (1, examples)}
        for name, shape in shapes.items():
            drawn = _normal(rng, (size, setting.seeds, *shape))
            latent = latent + SEED_DEVIATIONS[name] * drawn
    return (latent > 0).astype(np.float32)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _truth(setting: Setting, of_prompts: np.ndarray) -> np.ndarray:
    if setting.kind == statistics.RANDOM:
        return np.full(len(of_prompts), setting.accuracy)
    others = np.sqrt(sum(d**2 for name, d in setting.deviations.items() if name != "prompt"))
    return special.ndtr((setting.level + of_prompts) / others).mean(axis=(1, 2, 3))


class Tally:
    """Counts how often intervals cover the truth, and adds up their widths."""

    def __init__(self) -> None:
        self.sums: dict[str, np.ndarray] = {}

    def interval(self, name: str, low: np.ndarray, high: np.ndarray, truth: np.ndarray) -> None:
        """Adds the intervals of some evaluations."""
        self._add(name, (low <= truth) & (truth <= high), high - low)

    def test(
        self, name: str, p_values: np.ndarray, interval: statistics.Interval | None = None
    ) -> None:
        """Adds the tests of some evaluations, with the interval of the difference."""
        widths = interval.high - interval.low if interval else np.zeros(len(p_values))
        self._add(name, p_values < 0.05, widths)

    def _add(self, name: str, hits: np.ndarray, widths: np.ndarray) -> None:
        added = np.array([hits.sum(), widths.sum(), len(hits)])
        self.sums[name] = self.sums.get(name, 0) + added

    def share(self, name: str) -> float:
        """The percentage of evaluations in which an interval covered, or a test rejected."""
        return float(100 * self.sums[name][0] / self.sums[name][2])

    def width(self, name: str) -> float:
        """The mean width of the intervals, in percentage points."""
        return float(100 * self.sums[name][1] / self.sums[name][2])


def measure(setting: Setting, evaluations: int, *, seed: int = 0) -> Tally:
    """Counts coverage and rejections of our method, of the crossed bootstrap, and over rows."""
    tally = Tally()
    options = {"prompts": setting.kind, "clusters": setting.clusters}
    evaluation_pairs = simulated(setting, evaluations, seed=seed)
    for number, (first, second, truth) in enumerate(evaluation_pairs):
        interval = statistics.interval_of_share(statistics.crossed_mean(first, **options))
        tally.interval("ours", interval.low, interval.high, truth)
        gap = statistics.crossed_difference(first, second, **options)
        tally.test("paired", statistics.p_value(gap), statistics.interval_of_difference(gap))
        _over_rows(tally, first, second, truth)
        if setting.prompts > 1 and setting.seeds == 1:
            interval = crossed_bootstrap(first[:, 0], seed=number)
            tally.interval("bootstrap", interval.low, interval.high, truth)
        elif setting.prompts == 1:
            _of_one_prompt(tally, first[:, 0, 0] > 0, second[:, 0, 0] > 0, truth)
    return tally


def crossed_bootstrap(values: np.ndarray, *, resamples: int = 1000, seed: int = 0) -> Interval:
    """Returns the percentile interval of the mean of values [..., P, E]; a batch shares its draws.

    Prompts and examples are drawn independently, both with replacement (Owen, 2007, Ann. Appl.
    Stat. 1).
    """
    rng = np.random.default_rng(seed)
    of_prompts, of_examples = (
        rng.multinomial(count, np.full(count, 1 / count), resamples).astype(np.float32) / count
        for count in values.shape[-2:]
    )
    by_prompt = values.astype(np.float32) @ of_examples.T
    means = np.einsum("...pr,rp->...r", by_prompt, of_prompts)
    tail = 50 * (1 - statistics.CONFIDENCE)
    return Interval(*np.percentile(means, (tail, 100 - tail), axis=-1))


def _over_rows(tally: Tally, first: np.ndarray, second: np.ndarray, truth: np.ndarray) -> None:
    rows = np.prod(first.shape[1:])
    mean, gains = first.mean(axis=(1, 2, 3)), second - first
    reach = Z * np.sqrt(mean * (1 - mean) / rows)
    tally.interval("rows", mean - reach, mean + reach, truth)
    error = gains.std(axis=(1, 2, 3)) / np.sqrt(rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        tally.test("rows_paired", 2 * special.ndtr(-np.abs(gains.mean(axis=(1, 2, 3))) / error))


def _of_one_prompt(tally: Tally, first: np.ndarray, second: np.ndarray, truth: np.ndarray) -> None:
    interval = statistics.score_interval(first.mean(axis=-1), np.array(first.shape[-1]), Z)
    tally.interval("wilson", interval.low, interval.high, truth)
    test = statistics.mcnemar(first, second)
    tally.test("exact", test.p_value)
    tally.test("mid", test.mid_p_value)


def few_differing(examples: int, share: float, better: float, evaluations: int) -> Tally:
    """Returns the coverage of the interval of a difference if few examples differ.

    Args:
      examples: E, with one prompt.
      share: the expected share of examples on which two runs differ.
      better: the share of these examples that the second run gets right.
      evaluations: the number of simulated evaluations.
    """
    rng, tally = np.random.default_rng(0), Tally()
    probabilities = [share * better, share * (1 - better), 1 - share]
    truth = np.array(share * (2 * better - 1))
    for won, lost, _ in rng.multinomial(examples, probabilities, evaluations):
        gains = np.zeros((1, 1, 1, examples))
        gains[..., :won], gains[..., won : won + lost] = 1, -1
        gap = statistics.crossed_difference(0 * gains, gains, prompts=statistics.FIXED)
        interval = statistics.interval_of_difference(gap)
        tally.interval("ours", interval.low, interval.high, truth)
        with np.errstate(divide="ignore", invalid="ignore"):
            test = stats.ttest_1samp(gains[0, 0, 0], 0)
            reach = np.nan_to_num(np.diff(test.confidence_interval()) / 2)
        tally.interval("t", gap.value - reach, gap.value + reach, truth)
    return tally


def calibration_coverage(examples: int, sharpness: float, evaluations: int) -> Tally:
    """Returns the coverage of the interval of the calibration error.

    Args:
      examples: E.
      sharpness: 1 for a perfectly calibrated model; larger for an overconfident model.
      evaluations: the number of simulated evaluations.
    """
    rng = np.random.default_rng(0)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        logit = np.abs(rng.normal(0, 1.5, count))
        return special.expit(sharpness * logit), special.expit(logit)

    truth = calibration_error(*draw(2_000_000)) if sharpness != 1 else 0.0
    tally = Tally()
    for _ in range(evaluations):
        confidence, share = draw(examples)
        interval = statistics.calibration_interval(confidence, rng.random(examples) < share)
        tally.interval("ours", *(np.array([v]) for v in (interval.low, interval.high, truth)))
    return tally


def table(heads: str, rows: Iterable[tuple[str, Tally]], columns: Sequence[str]) -> None:
    """Prints a Markdown table, row by row; a column without widths has only shares."""
    print(f"\n| {heads} |\n|{'---|' * (heads.count('|') + 1)}", flush=True)
    for name, tally in rows:
        cells = [f"{tally.share(column):.1f}" for column in columns]
        widths = [tally.width(column) for column in columns]
        texts = [f"{c} ({w:.1f})" if w else c for c, w in zip(cells, widths, strict=True)]
        print(f"| {name} | {' | '.join(texts)} |", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=10_000)
    count = parser.parse_args().evaluations
    print(f"{count:,} simulated evaluations for each row")
    for accuracy in ACCURACIES:
        cells = itertools.product(KINDS, PROMPTS, EXAMPLES)
        table(
            f"accuracy {accuracy:.0%}: prompts | examples | interval | crossed bootstrap "
            "| over rows | paired test | over rows",
            (
                (f"{p} {kind} | {e:,}", measure(Setting(e, p, kind, accuracy), count))
                for kind, p, e in cells
            ),
            ("ours", "bootstrap", "rows", "paired", "rows_paired"),
        )
    table(
        "one prompt: accuracy | examples | Wilson | normal | McNemar exact | mid-p",
        (
            (f"{a:.0%} | {e:,}", measure(Setting(e, 1, statistics.FIXED, a), count))
            for a, e in itertools.product(ACCURACIES, EXAMPLES)
        ),
        ("wilson", "rows", "exact", "mid"),
    )
    table(
        "one prompt: differing examples | of these better | examples | interval | Student's t",
        (
            (f"{s:.1%} | {b:.0%} | {e:,}", few_differing(e, s, b, min(count, 4000)))
            for s, b, e in itertools.product((0.005, 0.02, 0.05), (0.5, 0.8, 1.0), EXAMPLES)
        ),
        ("ours", "t"),
    )
    others = {f"{SEEDS} seeds": {"seeds": SEEDS}, "documents of 1 to 9": {"documents": True}}
    cells = itertools.product(others.items(), KINDS, EXAMPLES[1:])
    table(
        "10 prompts, accuracy 60% | examples | interval | over rows | paired test | over rows",
        (
            (f"{name}, prompts {kind} | {e:,}", measure(Setting(e, 10, kind, **options), count))
            for (name, options), kind, e in cells
        ),
        ("ours", "rows", "paired", "rows_paired"),
    )
    table(
        "calibration error | examples | interval",
        (
            (f"{name} | {e:,}", calibration_coverage(e, sharpness, min(count, 2000)))
            for (name, sharpness), e in itertools.product(SHARPNESS.items(), EXAMPLES)
        ),
        ("ours",),
    )


if __name__ == "__main__":
    main()
