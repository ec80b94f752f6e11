"""Computes accuracies of runs on the examples that they share, with intervals and paired tests.

    runs = read_runs([Path("eval")])
    scored = scored_tasks(runs[0], "super_glue/rte")
    tasks, grid = shared_tasks([[scored], [scored]])     # two runs, each with one seed
    difference = gap([grid], 0, 1)
    difference["difference"], difference["p_value"]      # (0.0, 1.0)
    [row["mid_p_value"] for row in prompt_gaps(tasks, grid, 0, 1)]          # [1.0]

    >>> s = summarize_spread([50.0, 60.0, 90.0])
    >>> s["mean"], s["median"], s["first_quartile"], s["third_quartile"]
    (66.66666666666667, 60.0, 55.0, 75.0)

Accuracies are in percent. An interval generalizes to other examples and, if there are several
prompts, also to other similar prompts. The interval from `fixed_low` to `fixed_high` keeps the
prompts fixed, and generalizes only to other examples.

Assumptions: tasks with the same name have the same prompt and dataset in every run. If two tasks
number their examples by row, the same `idx` means the same row of the dataset. Tasks that number
their examples in different ways (`numbered_by`) are not paired. Two runs scored the same example if
the row, the gold choice, the number of choices, and the texts of input and choices are equal. If a
file has no inputs, its texts are not compared with the texts of other runs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from t0.reports import statistics
from t0.reports.evaluations import EvaluatedRun, RankedTask
from t0.reports.example_scores import ExampleScores, keep_apart
from t0.reports.statistics import FIXED, RANDOM, CrossedMean, Interval

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Grid:
    """The table of a dataset's outcomes: which examples each run got right, under each prompt.

    Means by prompt, by example or by run are reductions of its axes. P is the number of prompts, E
    the number of examples that all runs scored, and S the number of seeds of a run.

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
    tables = [keep_apart(prompts) for run_prompts in seeds for prompts in run_prompts]
    rows = np.unique(np.concatenate([scores.idx for prompts in tables for scores in prompts]))
    columns = [[np.searchsorted(rows, scores.idx) for scores in prompts] for prompts in tables]

    def lay_out(statistic: str) -> np.ndarray:
        """Returns [evaluations, P, E]; 0 for the examples that an evaluation has not scored."""
        shape = (len(tables), len(tables[0]), len(rows))
        table = np.zeros(shape, getattr(tables[0][0], statistic).dtype)
        for evaluation, prompts in enumerate(tables):
            for p, scores in enumerate(prompts):
                table[evaluation, p, columns[evaluation][p]] = getattr(scores, statistic)
        return table

    choices, gold, texts = map(lay_out, ("choices", "gold", "texts"))
    same_answer = (choices[0] > 0) & ((choices == choices[0]) & (gold == gold[0])).all(axis=0)
    texts = np.where(texts == 0, texts.max(axis=0), texts)
    same_texts = (texts == texts[0]).all(axis=0)
    present = same_answer if any_texts else same_answer & same_texts
    documents: np.ndarray | None = None
    for prompt_present, scores, indices in zip(present, tables[0], columns[0], strict=True):
        if scores.documents is not None:
            documents = rows.astype(str).astype(object) if documents is None else documents
            is_shared = prompt_present[indices]
            documents[indices[is_shared]] = scores.documents[is_shared]
    has_example = present.any(axis=0)
    right = (lay_out("correct") & present).compress(has_example, axis=-1)
    return Grid(
        rows=rows[has_example],
        right=tuple(np.split(right, np.cumsum([len(run) for run in seeds])[:-1])),
        present=present.compress(has_example, axis=-1),
        documents=None if documents is None else documents[has_example],
        left_out=tuple(((choices > 0).any(axis=0) & ~same_answer).sum(axis=-1).tolist()),
        other_texts=tuple((same_answer & ~same_texts).sum(axis=-1).tolist()),
    )


def shared_tasks(
    runs: Sequence[Sequence[Mapping[str, RankedTask]]], *, any_texts: bool = False
) -> tuple[list[RankedTask], Grid | None]:
    """Returns the tasks of a dataset that all runs scored, and the grid of their shared examples.

    A task is left out if the runs number its examples in different ways.

    Args:
      runs: for each run and seed, the scored tasks of a dataset, see `scored_tasks`.
      any_texts: see `shared_grid`.
    """
    numbered = collect_numberings(runs)
    names = [name for name, numberings in numbered.items() if len(numberings) == 1]
    if not names:
        return [], None
    scores = [[[tasks[name].scores for name in names] for tasks in seeds] for seeds in runs]
    grid = shared_grid(scores, any_texts=any_texts)
    used = [p for p, present in enumerate(grid.present) if present.any()] or range(len(names))
    tasks = [runs[0][0][names[p]] for p in used]
    return tasks, grid.of_prompts(used) if grid.present.any() else None


def collect_numberings(runs: Sequence[Sequence[Mapping[str, RankedTask]]]) -> dict[str, set[str]]:
    """Returns name of a task that all runs scored -> the ways in which they number its examples."""
    seeds = [tasks for run in runs for tasks in run]
    common = [name for name in seeds[0] if all(name in tasks for tasks in seeds)]
    return {name: {tasks[name].scores.numbered_by for tasks in seeds} for name in common}


def scored_tasks(run: EvaluatedRun, dataset: str) -> dict[str, RankedTask]:
    """Returns name -> task, for the tasks of a dataset with per-example scores in a run."""
    return {task.name: task for task in run.tasks if task.dataset == dataset and task.scores}


def accuracy(grids: Sequence[Grid], run: int) -> dict[str, float]:
    """Returns the mean accuracy of a run over prompts, seeds and datasets, in percent.

    Args:
      grids: the grid of each dataset. Their accuracies have equal weights, and the intervals do not
        generalize to other datasets.
      run: the position of the run in the grids.

    Returns:
      `mean`; `low`, `high`: the interval that generalizes to other examples and prompts;
      `fixed_low`, `fixed_high`: the interval that keeps the prompts fixed.
    """
    estimates = estimate(grids, run)
    right, documents = grids[0].right[run], grids[0].documents
    if len(grids) == 1 and documents is None and right.shape[:2] == (1, 1):
        intervals = [_wilson_interval(right[0, 0])] * 2
    else:
        intervals = [statistics.interval_of_share(estimate) for estimate in estimates]
    ends = (end for interval in intervals for end in _to_percent(interval))
    keys = ("low", "high", "fixed_low", "fixed_high")
    return {"mean": 100 * float(estimates[0].value)} | dict(zip(keys, ends, strict=True))


def estimate(grids: Sequence[Grid], *runs: int) -> list[CrossedMean]:
    """Returns a mean over the grids as a share: first for random prompts, then for fixed prompts.

    Args:
      grids: the grid of each dataset, as for `accuracy`.
      runs: the position of one run, for its accuracy, or of two runs, for the gain of the second.
    """
    crossed = statistics.crossed_mean if len(runs) == 1 else statistics.crossed_difference
    estimates = []
    for prompts in (RANDOM, FIXED):
        means = [
            crossed(
                *(grid.right[run] for run in runs),
                prompts=prompts,
                present=grid.present,
                clusters=grid.documents,
            )
            for grid in grids
        ]
        estimates.append(means[0] if len(means) == 1 else statistics.mean_of_means(means))
    return estimates


def _wilson_interval(right: np.ndarray) -> Interval:
    """Returns Wilson's interval for the accuracy of one prompt on independent examples [E]."""
    from scipy import stats

    test = stats.binomtest(int(right.sum()), right.size)
    return Interval(*test.proportion_ci(statistics.CONFIDENCE, method="wilson"))


def gap(grids: Sequence[Grid], first: int, second: int) -> dict[str, Any]:
    """Returns the accuracy of the `second` run minus that of the `first`, in percentage points.

    Args:
      grids: the grid of each dataset, as for `accuracy`.
      first: the position of the first run in the grids.
      second: the position of the second run.

    Returns:
      the columns of a row of a table:
        `examples`: the number of examples that appear under at least one prompt;
        `difference`, `interval_low`, `interval_high`, `fixed_low`, `fixed_high`: the difference and
          its intervals;
        `p_value`: the p-value, which is not adjusted, for the hypothesis that the runs do not
          differ; the test generalizes to other examples and prompts;
        `fixed_p_value`: the p-value of the test that generalizes only to other examples;
        `detectable`: the smallest true difference that the test would find in four of five
          repetitions of this evaluation; None if there is only one example or document;
        `correlation`: the correlation of the two runs' means by example; None for several datasets,
          or if one run has the same mean on all examples;
        `prompts`: the number of prompts.
    """
    random, fixed = estimate(grids, first, second)
    low, high = _to_percent(statistics.interval_of_difference(random))
    fixed_low, fixed_high = _to_percent(statistics.interval_of_difference(fixed))
    by_example = [mean_by_example(grids[0], run) for run in (first, second)]
    detectable = 100 * float(statistics.minimum_detectable(random))
    return {
        "examples": sum(len(grid.rows) for grid in grids),
        "difference": 100 * float(random.value),
        "interval_low": low,
        "interval_high": high,
        "fixed_low": fixed_low,
        "fixed_high": fixed_high,
        "p_value": float(statistics.p_value(random)),
        "fixed_p_value": float(statistics.p_value(fixed)),
        "detectable": None if math.isnan(detectable) else detectable,
        "correlation": statistics.correlation(*by_example) if len(grids) == 1 else None,
        "prompts": sum(len(grid.present) for grid in grids),
    }


def mean_by_example(grid: Grid, run: int) -> np.ndarray:
    """Returns the share of an example's prompts and seeds under which a run is right, [E]."""
    return grid.right[run].mean(axis=0).sum(axis=0) / grid.present.sum(axis=0)


def count_differing(grid: Grid, first: int, second: int) -> int:
    """Counts the examples on which two runs, averaged over seeds, differ under any prompt."""
    first_mean, second_mean = (grid.right[run].mean(axis=0) for run in (first, second))
    return int((first_mean != second_mean).any(axis=0).sum())


def _to_percent(interval: Interval) -> tuple[float, float]:
    return 100 * float(interval.low), 100 * float(interval.high)


def prompt_gaps(
    tasks: Sequence[RankedTask], grid: Grid, first: int, second: int
) -> list[dict[str, Any]]:
    """Returns a row for each prompt: both accuracies, their difference and McNemar's test.

    If a run has several seeds, the p-values come from a test of the mean difference instead of
    McNemar's test, and McNemar's counts are None.
    """
    rows = []
    for p, task in enumerate(tasks):
        prompt_grid = grid.of_prompts([p])
        pair = (prompt_grid.right[first], prompt_grid.right[second])
        columns = gap([prompt_grid], first, second)
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


def name_columns(accuracy: Mapping[str, float] | None, **columns: str) -> dict[str, Any]:
    """Returns column of a table -> value of an accuracy; None if the accuracy is unknown.

    Args:
      accuracy: the result of `accuracy`, or None.
      columns: column -> key of the accuracy.
    """
    return {column: accuracy and accuracy[key] for column, key in columns.items()}
