"""Accuracies of runs on the examples that they share, with intervals and paired tests, in percent.

    scores = read_scores(Path("eval/scores/super_glue_rte_GPT_3_style_score_eval_1000.jsonl"))
    grid = shared_grid([[scores], [scores]])    # of each run the scores of P prompts, here of one
    found = gap(grid, 0, 1)
    found.difference, found.p_value             # (0.0, 1.0)

    >>> s = spread([50.0, 60.0, 90.0])
    >>> s.mean, s.median, s.first_quartile, s.third_quartile
    (66.66666666666667, 60.0, 55.0, 75.0)

An interval is for other examples and, where there are several prompts, for other prompts like
these; that for these prompts alone is beside it (`fixed_low`, `fixed_high`).

Assumptions: the same `idx` in two prompts or runs is the same row of the dataset. Two runs scored
the same example if row, right choice, number of choices, and the texts of input and choices are the
same; files without inputs are compared by the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from t0.reports import statistics
from t0.reports.example_scores import ExampleScores
from t0.reports.statistics import FIXED, RANDOM, CrossedMean, Interval


@dataclass(frozen=True)
class Spread:
    """Location and spread of accuracies over prompts; quartiles interpolate linearly."""

    mean: float
    median: float
    first_quartile: float
    third_quartile: float
    low: float
    high: float


@dataclass(frozen=True)
class Grid:
    """What some runs got right on P prompts of a dataset, on examples that all of them scored.

    Attributes:
      rows: int64 [E], the examples' rows in the dataset.
      right: for each run, bool [S, P, E]; S is the number of its seeds.
      present: bool [P, E], which prompts have which examples.
      documents: [E], each example's document; None where the scores have none.
      left_out: for each prompt, the examples that only some runs scored.
      other_texts: for each prompt, the examples whose texts differ between the runs.
    """

    rows: np.ndarray
    right: tuple[np.ndarray, ...]
    present: np.ndarray
    documents: np.ndarray | None
    left_out: tuple[int, ...]
    other_texts: tuple[int, ...]

    def of_prompts(self, wanted: Sequence[int]) -> "Grid":
        """Returns the grid of some of the prompts."""
        wanted = list(wanted)
        present = self.present[wanted]
        kept = present.any(axis=0)
        return Grid(
            rows=self.rows[kept],
            right=tuple(one[:, wanted][:, :, kept] for one in self.right),
            present=present[:, kept],
            documents=None if self.documents is None else self.documents[kept],
            left_out=tuple(self.left_out[p] for p in wanted),
            other_texts=tuple(self.other_texts[p] for p in wanted),
        )


@dataclass(frozen=True)
class Accuracy:
    """A run's mean accuracy over prompts and seeds, with its intervals, in percent."""

    mean: float
    low: float
    high: float
    fixed_low: float
    fixed_high: float


@dataclass(frozen=True)
class Gap:
    """The second run's mean accuracy less the first's, on the examples that both scored.

    Attributes:
      examples: the number of examples that at least one prompt has.
      prompts: the number of prompts.
      difference: in percentage points, as are the ends of its intervals.
      p_value: of the test that there is none, for other examples and other prompts.
      fixed_p_value: the same, for these prompts alone.
      detectable: the least difference that is found in four of five evaluations like this one.
      correlation: of the two runs' means by example; None where one is constant.
      estimates: the difference as `statistics` has it, as a share: for other prompts, for these.
    """

    examples: int
    prompts: int
    difference: float
    low: float
    high: float
    fixed_low: float
    fixed_high: float
    p_value: float
    fixed_p_value: float
    detectable: float
    correlation: float | None
    estimates: tuple[CrossedMean, CrossedMean]


def spread(accuracies: Sequence[float]) -> Spread:
    """Returns the spread of at least one accuracy."""
    values = np.asarray(accuracies, float)
    low, first, median, third, high = np.percentile(values, (0, 25, 50, 75, 100))
    return Spread(*map(float, (values.mean(), median, first, third, low, high)))


def shared_grid(
    runs: Sequence[Sequence[ExampleScores] | Sequence[Sequence[ExampleScores]]],
    *,
    any_texts: bool = False,
) -> Grid:
    """Returns the grid of the examples that all runs scored.

    Args:
      runs: for each run, its scores of the same P prompts; or, of a run with several seeds, that
        for each seed.
      any_texts: whether examples are the same though their texts differ.
    """
    seeds = [[one] if isinstance(one[0], ExampleScores) else list(one) for one in runs]
    every = [of_prompts for one in seeds for of_prompts in one]
    joined = [_joined(scores, any_texts=any_texts) for scores in zip(*every, strict=True)]
    rows = np.unique(np.concatenate([found.idx for found in joined]))
    present = np.zeros((len(joined), len(rows)), bool)
    right = [np.zeros((len(one), *present.shape), bool) for one in seeds]
    documents: np.ndarray | None = None
    for p, found in enumerate(joined):
        columns = np.searchsorted(rows, found.idx)
        present[p, columns] = True
        flat = iter(found.correct)
        for one in right:
            for s in range(len(one)):
                one[s, p, columns] = next(flat)
        if found.documents is not None:
            if documents is None:
                documents = rows.astype(str).astype(object)
            documents[columns] = found.documents
    return Grid(
        rows=rows,
        right=tuple(right),
        present=present,
        documents=documents,
        left_out=tuple(found.left_out for found in joined),
        other_texts=tuple(found.other_texts for found in joined),
    )


@dataclass(frozen=True)
class _Joined:
    idx: np.ndarray
    correct: list[np.ndarray]
    documents: np.ndarray | None
    left_out: int
    other_texts: int


def _joined(scores: Sequence[ExampleScores], *, any_texts: bool) -> _Joined:
    """Returns what several evaluations of one prompt have in common."""
    rows = scores[0].idx
    for other in scores[1:]:
        rows = np.intersect1d(rows, other.idx, assume_unique=True)
    every = np.unique(np.concatenate([one.idx for one in scores]))
    order = [np.argsort(one.idx) for one in scores]
    places = [o[np.searchsorted(one.idx[o], rows)] for o, one in zip(order, scores, strict=True)]
    same = np.ones(len(rows), bool)
    for one, at in zip(scores[1:], places[1:], strict=True):
        same &= one.gold[at] == scores[0].gold[places[0]]
        same &= one.choices[at] == scores[0].choices[places[0]]
    texts = np.stack([one.texts[at] for one, at in zip(scores, places, strict=True)])
    known = np.where(texts == 0, texts.max(axis=0), texts)
    alike = (known == known[0]).all(axis=0)
    kept = same if any_texts else same & alike
    documents = scores[0].documents
    return _Joined(
        idx=rows[kept],
        correct=[one.correct[at[kept]] for one, at in zip(scores, places, strict=True)],
        documents=None if documents is None else documents[places[0][kept]],
        left_out=len(every) - int(same.sum()),
        other_texts=int((same & ~alike).sum()),
    )


def accuracy(grid: Grid, run: int) -> Accuracy:
    """Returns the mean accuracy of a run with its intervals."""
    means = [_mean(grid, run, prompts) for prompts in (RANDOM, FIXED)]
    if grid.documents is None and grid.right[run].shape[:2] == (1, 1):
        found = [_wilson(grid.right[run][0, 0])] * 2
    else:
        found = [statistics.interval_of_share(mean) for mean in means]
    return Accuracy(100 * float(means[0].value), *_percent(found[0]), *_percent(found[1]))


def _wilson(right: np.ndarray) -> Interval:
    """Returns the interval of one prompt's accuracy, whose examples [E] are independent."""
    from scipy import stats

    found = stats.binomtest(int(right.sum()), right.size)
    return Interval(*found.proportion_ci(statistics.CONFIDENCE, method="wilson"))


def mean_accuracy(grids: Sequence[Grid], run: int) -> Accuracy:
    """Returns the plain mean of a run's accuracies on several datasets, which are fixed."""
    means = [
        statistics.mean_of_means([_mean(grid, run, prompts) for grid in grids])
        for prompts in (RANDOM, FIXED)
    ]
    found = [statistics.interval_of_share(mean) for mean in means]
    return Accuracy(100 * float(means[0].value), *_percent(found[0]), *_percent(found[1]))


def prompt_interval(scores: ExampleScores) -> Interval:
    """Returns the interval of one prompt's accuracy, in percent."""
    found = accuracy(shared_grid([[scores]]), 0)
    return Interval(found.low, found.high)


def gap(grid: Grid, first: int, second: int) -> Gap:
    """Returns the difference of two runs of a grid."""
    given = {"present": grid.present, "clusters": grid.documents}
    pair = (grid.right[first], grid.right[second])
    random, fixed = (
        statistics.crossed_difference(*pair, prompts=kind, **given) for kind in (RANDOM, FIXED)
    )
    weights = grid.present.sum(axis=0)
    by_example = [one.mean(axis=0).sum(axis=0) / weights for one in pair]
    return made_gap(
        random,
        fixed,
        examples=len(grid.rows),
        prompts=len(grid.present),
        correlation=statistics.correlation(*by_example),
    )


def made_gap(
    random: CrossedMean,
    fixed: CrossedMean,
    *,
    examples: int,
    prompts: int,
    correlation: float | None = None,
) -> Gap:
    """Returns a gap from a difference for other prompts, and for these alone."""
    intervals = [statistics.interval_of_difference(one) for one in (random, fixed)]
    low, high, fixed_low, fixed_high = (v for one in intervals for v in _percent(one))
    return Gap(
        examples=examples,
        prompts=prompts,
        difference=100 * float(random.value),
        low=low,
        high=high,
        fixed_low=fixed_low,
        fixed_high=fixed_high,
        p_value=float(statistics.p_value(random)),
        fixed_p_value=float(statistics.p_value(fixed)),
        detectable=100 * float(statistics.minimum_detectable(random)),
        correlation=correlation,
        estimates=(random, fixed),
    )


def mean_gap(gaps: Sequence[Gap]) -> Gap:
    """Returns the plain mean of the gaps of several datasets, which are fixed."""
    of_kinds = zip(*(one.estimates for one in gaps), strict=True)
    return made_gap(
        *map(statistics.mean_of_means, of_kinds),
        examples=sum(one.examples for one in gaps),
        prompts=sum(one.prompts for one in gaps),
    )


def _mean(grid: Grid, run: int, prompts: str) -> CrossedMean:
    return statistics.crossed_mean(
        grid.right[run], prompts=prompts, present=grid.present, clusters=grid.documents
    )


def _percent(found: Interval) -> tuple[float, float]:
    return 100 * float(found.low), 100 * float(found.high)
