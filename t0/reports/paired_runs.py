"""Two evaluated runs side by side: the tasks and examples that both scored, and what differs.

    runs = read_runs([Path("eval")])
    tasks, grid = shared_tasks([[runs[0]], [runs[0]]], "super_glue/rte")    # of each run its seeds
    gap_row(accuracies.gap(grid, 0, 1))["difference"]                       # 0.0
    [row["mid_p_value"] for row in prompt_gaps(tasks, grid, 0, 1)]          # [1.0]

Rows are dictionaries, for the tables of a report.

Assumptions: a task with the same name is the same prompt of the same dataset in every run; what the
two runs have with other texts is not compared, and said (`other_texts`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t0.reports import accuracies
from t0.reports.accuracies import Accuracy, Gap, Grid
from t0.reports.evaluations import EvaluatedRun, RankedTask
from t0.reports.statistics import Interval, mcnemar

SIGNIFICANT = 0.05

INTERVAL = ("interval_low", "interval_high")
# Of a mean over prompts, or of a difference of two: for these prompts alone, other examples.
FIXED = ("fixed_low", "fixed_high")
_ACCURACIES = ("first_accuracy", "second_accuracy")
_TEST = ("first_only", "second_only", "p_value", "mid_p_value")


def shared_tasks(
    runs: Sequence[Sequence[EvaluatedRun]], dataset: str, *, any_texts: bool = False
) -> tuple[list[RankedTask], Grid | None]:
    """Returns the tasks of a dataset that all runs scored, and what they share of the examples.

    Args:
      runs: for each run, its seeds.
      dataset: the dataset's name.
      any_texts: see `accuracies.shared_grid`.
    """
    known = [[_scored(seed, dataset) for seed in seeds] for seeds in runs]
    every = [tasks for seeds in known for tasks in seeds]
    names = [name for name in every[0] if all(name in tasks for tasks in every)]
    if not names:
        return [], None
    tables = [[[tasks[name].scores for name in names] for tasks in seeds] for seeds in known]
    grid = accuracies.shared_grid(tables, any_texts=any_texts)
    kept = [p for p, present in enumerate(grid.present) if present.any()]
    tasks = [every[0][names[p]] for p in range(len(names))]
    if not kept:
        return tasks, None
    return [tasks[p] for p in kept], grid.of_prompts(kept)


def _scored(run: EvaluatedRun, dataset: str) -> dict[str, RankedTask]:
    return {
        task.name: task
        for task in run.tasks
        if task.dataset == dataset and task.scores is not None and len(task.scores)
    }


def other_texts(tasks: Sequence[RankedTask], grid: Grid, *, any_texts: bool = False) -> list[str]:
    """Returns a sentence for each prompt of which the runs have other inputs or choices.

    Args:
      tasks: the prompts of the grid.
      grid: what the runs share.
      any_texts: whether such examples are compared nonetheless.
    """
    done = "are compared nonetheless" if any_texts else "are left out"
    return [
        f"{task.name}: {count:,} examples have other inputs or choices in one run than in another "
        f"and {done}: another version of the prompt, or of the rows."
        for task, count in zip(tasks, grid.other_texts, strict=True)
        if count
    ]


def prompt_gaps(
    tasks: Sequence[RankedTask], grid: Grid, first: int, second: int
) -> list[dict[str, Any]]:
    """Returns a row for each prompt: both accuracies, their difference and McNemar's test.

    With several seeds the test is of their means, and the counts are None.
    """
    rows = []
    for p, task in enumerate(tasks):
        one = grid.of_prompts([p])
        found = accuracies.gap(one, first, second)
        pair = (one.right[first], one.right[second])
        names = {"prompt": task.prompt, "task": task.name}
        accuracy = dict(zip(_ACCURACIES, (100 * float(r.mean()) for r in pair), strict=True))
        rows.append(names | accuracy | _difference(found) | _prompt_test(pair, found))
    return rows


def _prompt_test(pair: tuple[np.ndarray, np.ndarray], found: Gap) -> dict[str, Any]:
    if any(len(right) > 1 for right in pair):
        return dict(zip(_TEST, (None, None, found.p_value, found.p_value), strict=True))
    test = mcnemar(*(right[0, 0] for right in pair))
    counts = {name: int(getattr(test, name)) for name in _TEST[:2]}
    return counts | {name: float(getattr(test, name)) for name in _TEST[2:]}


def clear_prompts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Returns how many prompts the second run is better and worse on, before any correction."""
    clear = [row["difference"] for row in rows if row["p_value"] < SIGNIFICANT]
    return {"better": sum(gap > 0 for gap in clear), "worse": sum(gap < 0 for gap in clear)}


def gap_row(found: Gap) -> dict[str, Any]:
    """Returns a dataset's difference as a row of the tables, not yet adjusted for the others."""
    names = ("p_value", "fixed_p_value", "detectable", "correlation", "prompts")
    plain = {name: getattr(found, name) for name in names}
    return _difference(found) | fixed_bounds(found) | plain


def _difference(found: Gap) -> dict[str, Any]:
    return {"examples": found.examples, "difference": found.difference, **bounds(found)}


def bounds(found: Interval | Accuracy | Gap | None) -> dict[str, float | None]:
    """Returns the ends of an interval as columns; None where there is none."""
    low, high = (found.low, found.high) if found else (None, None)
    return dict(zip(INTERVAL, (low, high), strict=True))


def fixed_bounds(found: Accuracy | Gap | None) -> dict[str, float | None]:
    """Returns the ends of the interval for these prompts alone as columns."""
    low, high = (found.fixed_low, found.fixed_high) if found else (None, None)
    return dict(zip(FIXED, (low, high), strict=True))
