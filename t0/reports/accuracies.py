"""Computes accuracies of runs on the examples that they share, with intervals and paired tests.

    runs = read_runs([Path("eval")])
    tasks, grid = shared_tasks([[runs[0]], [runs[0]]], "super_glue/rte")    # lists of seeds
    difference = gap(grid, 0, 1)
    difference.difference, difference.p_value            # (0.0, 1.0)
    [row["mid_p_value"] for row in prompt_gaps(tasks, grid, 0, 1)]          # [1.0]

    >>> s = summarize_spread([50.0, 60.0, 90.0])
    >>> s["mean"], s["median"], s["first_quartile"], s["third_quartile"]
    (66.66666666666667, 60.0, 55.0, 75.0)

Accuracies are in percent. An interval generalizes to other examples and, if there are several
prompts, also to other similar prompts. The interval from `fixed_low` to `fixed_high` keeps the
prompts fixed, and generalizes only to other examples.

Assumptions: tasks with the same name have the same prompt and dataset in every run, and the same
`idx` means the same row of the dataset. Two runs scored the same example if the row, the gold
choice, the number of choices, and the texts of input and choices are equal. If a file has no
inputs, its texts are not compared with the texts of other runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from t0.reports import statistics
from t0.reports.example_scores import ExampleScores
from t0.reports.statistics import FIXED, RANDOM, CrossedMean, Interval

if TYPE_CHECKING:
    from t0.reports.evaluations import EvaluatedRun, RankedTask

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Grid:
    """Says which examples of a dataset each run got right, among the examples that all runs scored.

    P is the number of prompts, E the number of examples that all runs scored, and S the number of
    seeds of a run.

    Attributes:
      rows: int64 [E], the row of each example in the dataset.
      right: for each run, an array bool [S, P, E] that says whether its predictions are right.
      present: bool [P, E], whether each prompt has each example.
      documents: [E], the document of each example; None if the scores do not name documents.
      left_out: for each prompt, the number of examples that only some runs scored.
      other_texts: for each prompt, the number of examples whose texts differ between runs.
    """

    rows: np.ndarray
    right: tuple[np.ndarray, ...]
    present: np.ndarray
    documents: np.ndarray | None
    left_out: tuple[int, ...]
    other_texts: tuple[int, ...]

    def of_prompts(self, prompts: Sequence[int]) -> "Grid":
        """Returns the grid of only the prompts with these indices."""
        prompts = list(prompts)
        present = self.present[prompts]
        has_example = present.any(axis=0)
        return Grid(
            rows=self.rows[has_example],
            right=tuple(right[:, prompts][:, :, has_example] for right in self.right),
            present=present[:, has_example],
            documents=None if self.documents is None else self.documents[has_example],
            left_out=tuple(self.left_out[p] for p in prompts),
            other_texts=tuple(self.other_texts[p] for p in prompts),
        )


@dataclass(frozen=True)
class Accuracy:
    """A run's mean accuracy over prompts and seeds, with its intervals, in percent.

    Attributes:
      mean: the mean accuracy.
      low, high: the ends of the interval that generalizes to other examples and prompts.
      fixed_low, fixed_high: the ends of the interval that keeps the prompts fixed.
    """

    mean: float
    low: float
    high: float
    fixed_low: float
    fixed_high: float


@dataclass(frozen=True)
class Gap:
    """The mean accuracy of the second run minus that of the first, on examples that both scored.

    Attributes:
      examples: the number of examples that appear under at least one prompt.
      difference: the difference in percentage points.
      interval_low, interval_high: the ends of the difference's interval that generalizes to other
        examples and prompts, in percentage points.
      fixed_low, fixed_high: the ends of the difference's interval that keeps the prompts fixed.
      p_value: the p-value for the hypothesis that the runs do not differ. The test generalizes to
        other examples and prompts.
      fixed_p_value: the p-value for the same hypothesis. The test keeps the prompts fixed, and
        generalizes only to other examples.
      detectable: the smallest true difference, in percentage points, that the test would find in
        four of five repetitions of this evaluation.
      correlation: the correlation of the two runs' means by example; None if one run has the same
        mean on all examples.
      prompts: the number of prompts.
      estimates: the difference as a share from -1 to 1 with its variance, first for random prompts
        and then for fixed prompts.
    """

    examples: int
    difference: float
    interval_low: float
    interval_high: float
    fixed_low: float
    fixed_high: float
    p_value: float
    fixed_p_value: float
    detectable: float
    correlation: float | None
    prompts: int
    estimates: tuple[CrossedMean, CrossedMean]

    def row(self) -> dict[str, Any]:
        """Returns the columns of one row of a table, with p-values that are not adjusted."""
        return {key: value for key, value in vars(self).items() if key != "estimates"}


def summarize_spread(accuracies: Sequence[float]) -> dict[str, float]:
    """Computes the mean, the quartiles and the range of at least one accuracy.

    Quartiles that fall between two accuracies are interpolated linearly.
    """
    values = np.asarray(accuracies, float)
    shares = {"median": 50, "first_quartile": 25, "third_quartile": 75, "low": 0, "high": 100}
    percentiles = np.percentile(values, list(shares.values())).tolist()
    return {"mean": float(values.mean())} | dict(zip(shares, percentiles, strict=True))


def shared_grid(
    runs: Sequence[Sequence[ExampleScores] | Sequence[Sequence[ExampleScores]]],
    *,
    any_texts: bool = False,
) -> Grid:
    """Builds the grid with the examples that all runs scored.

    Args:
      runs: for each run, a list with the scores of each of P prompts, which are the same in all
        runs. A run with several seeds has such a list for each seed.
      any_texts: whether examples with equal rows count as the same even if their texts differ.
    """
    seeds = [[run] if isinstance(run[0], ExampleScores) else list(run) for run in runs]
    all_scores = [scores for run_scores in seeds for scores in run_scores]
    prompts = [
        _find_shared_examples(scores, any_texts=any_texts)
        for scores in zip(*all_scores, strict=True)
    ]
    indices, correct, prompt_documents, left_out, other_texts = zip(*prompts, strict=True)
    rows = np.unique(np.concatenate(indices))
    present = np.zeros((len(prompts), len(rows)), bool)
    right = [np.zeros((len(run_scores), *present.shape), bool) for run_scores in seeds]
    documents: np.ndarray | None = None
    for p, prompt_rows in enumerate(indices):
        columns = np.searchsorted(rows, prompt_rows)
        present[p, columns] = True
        evaluations = (evaluation for run_scores in right for evaluation in run_scores)
        for evaluation, is_correct in zip(evaluations, correct[p], strict=True):
            evaluation[p, columns] = is_correct
        if prompt_documents[p] is not None:
            documents = rows.astype(str).astype(object) if documents is None else documents
            documents[columns] = prompt_documents[p]
    return Grid(rows, tuple(right), present, documents, left_out, other_texts)


def _find_shared_examples(scores: Sequence[ExampleScores], *, any_texts: bool) -> tuple[Any, ...]:
    """Finds the examples that several evaluations of one prompt have in common.

    Returns:
      the row numbers of these examples; for each evaluation, whether it got each example right; the
      documents of the examples, or None; and the numbers for `Grid.left_out` and
      `Grid.other_texts`.
    """
    rows = scores[0].idx
    for other in scores[1:]:
        rows = np.intersect1d(rows, other.idx, assume_unique=True)
    all_rows = np.unique(np.concatenate([evaluation.idx for evaluation in scores]))
    order = [np.argsort(evaluation.idx) for evaluation in scores]
    positions = [o[np.searchsorted(s.idx[o], rows)] for o, s in zip(order, scores, strict=True)]
    same_answer = np.ones(len(rows), bool)
    for evaluation, indices in zip(scores[1:], positions[1:], strict=True):
        same_answer &= evaluation.gold[indices] == scores[0].gold[positions[0]]
        same_answer &= evaluation.choices[indices] == scores[0].choices[positions[0]]
    texts = np.stack([s.texts[indices] for s, indices in zip(scores, positions, strict=True)])
    texts = np.where(texts == 0, texts.max(axis=0), texts)
    same_texts = (texts == texts[0]).all(axis=0)
    shared = same_answer if any_texts else same_answer & same_texts
    documents = scores[0].documents
    return (
        rows[shared],
        [s.correct[indices[shared]] for s, indices in zip(scores, positions, strict=True)],
        None if documents is None else documents[positions[0][shared]],
        len(all_rows) - int(same_answer.sum()),
        int((same_answer & ~same_texts).sum()),
    )


def scores_of(tasks: Sequence["RankedTask"]) -> list[ExampleScores]:
    """Returns the per-example scores of the tasks that have such scores."""
    return [task.scores for task in tasks if task.scores is not None and len(task.scores)]


def shared_tasks(
    runs: Sequence[Sequence["EvaluatedRun"]], dataset: str, *, any_texts: bool = False
) -> tuple[list["RankedTask"], Grid | None]:
    """Returns the tasks of a dataset that all runs scored, and the grid of their shared examples.

    Args:
      runs: for each run, the evaluated checkpoints of its seeds.
      dataset: the dataset's name.
      any_texts: see `shared_grid`.
    """
    scored = [[scored_tasks(seed, dataset) for seed in seeds] for seeds in runs]
    all_tasks = [tasks for seeds in scored for tasks in seeds]
    names = [name for name in all_tasks[0] if all(name in tasks for tasks in all_tasks)]
    if not names:
        return [], None
    scores = [[[tasks[name].scores for name in names] for tasks in seeds] for seeds in scored]
    grid = shared_grid(scores, any_texts=any_texts)
    used = [p for p, present in enumerate(grid.present) if present.any()] or range(len(names))
    tasks = [all_tasks[0][names[p]] for p in used]
    return tasks, grid.of_prompts(used) if grid.present.any() else None


def scored_tasks(run: "EvaluatedRun", dataset: str) -> dict[str, "RankedTask"]:
    """Returns name -> task, for the tasks of a dataset with per-example scores in a run."""
    return {task.name: task for task in run.tasks if task.dataset == dataset and scores_of([task])}


def accuracy(grid: Grid, run: int) -> Accuracy:
    """Returns the mean accuracy of a run with its intervals."""
    means = [crossed_accuracy(grid, run, prompts) for prompts in (RANDOM, FIXED)]
    if grid.documents is None and grid.right[run].shape[:2] == (1, 1):
        interval = _wilson_interval(grid.right[run][0, 0])
        return _make_accuracy(means, [interval, interval])
    return _make_accuracy(means, [statistics.interval_of_share(mean) for mean in means])


def crossed_accuracy(grid: Grid, run: int, prompts: str) -> CrossedMean:
    """Returns the mean accuracy of a run as a share; see `statistics.crossed_mean`."""
    return statistics.crossed_mean(
        grid.right[run], prompts=prompts, present=grid.present, clusters=grid.documents
    )


def _make_accuracy(means: Sequence[CrossedMean], intervals: Sequence[Interval]) -> Accuracy:
    return Accuracy(
        100 * float(means[0].value), *(end for i in intervals for end in _to_percent(i))
    )


def _wilson_interval(right: np.ndarray) -> Interval:
    """Returns Wilson's interval for the accuracy of one prompt on independent examples [E]."""
    from scipy import stats

    test = stats.binomtest(int(right.sum()), right.size)
    return Interval(*test.proportion_ci(statistics.CONFIDENCE, method="wilson"))


def mean_accuracy(grids: Sequence[Grid], run: int) -> Accuracy:
    """Returns the unweighted mean of a run's accuracies over several datasets.

    The intervals of this mean do not generalize to other datasets.
    """
    means = [
        statistics.mean_of_means([crossed_accuracy(grid, run, prompts) for grid in grids])
        for prompts in (RANDOM, FIXED)
    ]
    return _make_accuracy(means, [statistics.interval_of_share(mean) for mean in means])


def gap(grid: Grid, first: int, second: int) -> Gap:
    """Returns the accuracy of the `second` run of a grid minus that of the `first`."""
    pair = (grid.right[first], grid.right[second])
    estimates = (
        statistics.crossed_difference(
            *pair, prompts=prompts, present=grid.present, clusters=grid.documents
        )
        for prompts in (RANDOM, FIXED)
    )
    weights = grid.present.sum(axis=0)
    by_example = [right.mean(axis=0).sum(axis=0) / weights for right in pair]
    return _make_gap(
        *estimates,
        examples=len(grid.rows),
        prompts=len(grid.present),
        correlation=statistics.correlation(*by_example),
    )


def mean_gap(gaps: Sequence[Gap]) -> Gap:
    """Returns the unweighted mean of the gaps on several datasets.

    The intervals and p-values of this mean do not generalize to other datasets.
    """
    estimates_by_kind = zip(*(dataset_gap.estimates for dataset_gap in gaps), strict=True)
    return _make_gap(
        *map(statistics.mean_of_means, estimates_by_kind),
        examples=sum(dataset_gap.examples for dataset_gap in gaps),
        prompts=sum(dataset_gap.prompts for dataset_gap in gaps),
    )


def _make_gap(
    random: CrossedMean,
    fixed: CrossedMean,
    *,
    examples: int,
    prompts: int,
    correlation: float | None = None,
) -> Gap:
    """Makes a gap from two estimates of its difference: for random and for fixed prompts."""
    low, high = _to_percent(statistics.interval_of_difference(random))
    fixed_low, fixed_high = _to_percent(statistics.interval_of_difference(fixed))
    return Gap(
        examples=examples,
        difference=100 * float(random.value),
        interval_low=low,
        interval_high=high,
        fixed_low=fixed_low,
        fixed_high=fixed_high,
        p_value=float(statistics.p_value(random)),
        fixed_p_value=float(statistics.p_value(fixed)),
        detectable=100 * float(statistics.minimum_detectable(random)),
        correlation=correlation,
        prompts=prompts,
        estimates=(random, fixed),
    )


def _to_percent(interval: Interval) -> tuple[float, float]:
    return 100 * float(interval.low), 100 * float(interval.high)


def prompt_gaps(
    tasks: Sequence["RankedTask"], grid: Grid, first: int, second: int
) -> list[dict[str, Any]]:
    """Returns a row for each prompt: both accuracies, their difference and McNemar's test.

    If a run has several seeds, the p-values come from a test of the mean difference instead of
    McNemar's test, and McNemar's counts are None.
    """
    rows = []
    for p, task in enumerate(tasks):
        prompt_grid = grid.of_prompts([p])
        pair = (prompt_grid.right[first], prompt_grid.right[second])
        columns = gap(prompt_grid, first, second).row()
        keys = ("examples", "difference", "interval_low", "interval_high")
        row = {
            "prompt": task.prompt,
            "task": task.name,
            "first_accuracy": 100 * float(pair[0].mean()),
            "second_accuracy": 100 * float(pair[1].mean()),
            **{key: columns[key] for key in keys},
        }
        if any(len(right) > 1 for right in pair):
            row |= dict.fromkeys(("first_only", "second_only"))
            row |= dict.fromkeys(("p_value", "mid_p_value"), columns["p_value"])
        else:
            test = statistics.mcnemar(*(right[0, 0] for right in pair))
            row |= {key: value.item() for key, value in vars(test).items()}
        rows.append(row)
    return rows


def bounds(interval: Interval | Accuracy | None, *, fixed: bool = False) -> dict[str, Any]:
    """Returns the ends of an interval as columns of a table; without an interval, they are None.

    Args:
      interval: an interval, an accuracy with its intervals, or None.
      fixed: whether to add the ends of the interval with fixed prompts.
    """
    ends = {"interval_low": "low", "interval_high": "high"}
    ends |= {"fixed_low": "fixed_low", "fixed_high": "fixed_high"} if fixed else {}
    return {column: getattr(interval, end) if interval else None for column, end in ends.items()}
