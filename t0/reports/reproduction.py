"""T0's table of held-out datasets: a run's means beside the published values, and how they differ.

    rows = reproduction(read_runs([Path("eval")])[0])
    rows[0]["title"], rows[0]["mean"], rows[0]["models"]["T0-3B"]     # value, difference, within
    for line in reproduction_lines(rows):
        print(line)

A row is of the datasets of which one value is published: ANLI's three rounds are one row. The last
row is the mean over the datasets, with T0's over the same. A difference is within where the
published value is in the run's interval: for these prompts, and other examples. Values are those
of `published.csv`, each compared with the source that it names.

Assumptions: the run's scores are beside its results; without them there is no interval.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from t0.reports import accuracies
from t0.reports.evaluations import EvaluatedRun, RankedTask
from t0.reports.published import MODELS, figures, published_mean
from t0.reports.statistics import FIXED, CrossedMean, crossed_mean, interval_of_share, mean_of_means

_HEADINGS = ("dataset", "prompts", "examples", "mean", "interval")


def reproduction(run: EvaluatedRun) -> list[dict[str, Any]]:
    """Returns a row for each published figure, and one of the mean over the datasets.

    Returns:
      `datasets`, `title`, `prompts`, `examples`; `mean`, `low` and `high` in percent, None where a
      dataset was not evaluated or has no scores; and `models`, model -> its published `value`, the
      `difference` of the run from it, and whether it is `within` the interval.
    """
    groups = dict.fromkeys((row.datasets, row.titles) for row in figures())
    tasks = {one: _tasks(run, one) for datasets, _ in groups for one in datasets}
    rows = [_row(datasets, ", ".join(titles), tasks) for datasets, titles in groups]
    there = [one for one, found in tasks.items() if found]
    if len(there) > 1:
        rows.append(_row(there, f"mean of {len(there)} of {len(tasks)}", tasks))
    return rows


def _tasks(run: EvaluatedRun, dataset: str) -> list[RankedTask]:
    return [task for task in run.tasks if task.dataset == dataset]


def _row(
    datasets: Sequence[str], title: str, tasks: Mapping[str, Sequence[RankedTask]]
) -> dict[str, Any]:
    found = [tasks[one] for one in datasets]
    row: dict[str, Any] = {
        "datasets": list(datasets),
        "title": title,
        "prompts": sum(map(len, found)),
        "examples": sum(max((task.examples for task in one), default=0) for one in found),
        **dict.fromkeys(("mean", "low", "high")),
    }
    if all(found):
        means = [sum(task.accuracy for task in one) / len(one) for one in found]
        row["mean"] = sum(means) / len(means)
    crossed = [_crossed(one) for one in found]
    if None not in crossed:
        interval = interval_of_share(crossed[0] if len(crossed) == 1 else mean_of_means(crossed))
        row |= {"low": 100 * float(interval.low), "high": 100 * float(interval.high)}
    values = {model: published_mean(datasets, model) for model in MODELS}
    row["models"] = {
        model: _beside(row, value) for model, value in values.items() if value is not None
    }
    return row


def _crossed(tasks: Sequence[RankedTask]) -> CrossedMean | None:
    scores = [task.scores for task in tasks if task.scores is not None and len(task.scores)]
    if not scores or len(scores) < len(tasks):
        return None
    grid = accuracies.shared_grid([scores])
    return crossed_mean(grid.right[0], prompts=FIXED, present=grid.present, clusters=grid.documents)


def _beside(row: Mapping[str, Any], value: float) -> dict[str, Any]:
    difference = None if row["mean"] is None else row["mean"] - value
    within = None if row["low"] is None else bool(row["low"] <= value <= row["high"])
    return {"value": value, "difference": difference, "within": within}


def reproduction_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the table in lines."""
    heads = [*_HEADINGS]
    for model in MODELS:
        heads += [model, "difference", ""]
    cells = [heads, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    return [
        "  ".join(
            text.ljust(width) if column == 0 or not heads[column] else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def _cells(row: Mapping[str, Any]) -> list[str]:
    if row["mean"] is None:
        found = [row["title"], *("-" for _ in range(3)), "not evaluated"]
    else:
        ends = "-" if row["low"] is None else f"{row['low']:.1f} to {row['high']:.1f}"
        counts = (f"{row['prompts']}", f"{row['examples']:,}")
        found = [row["title"], *counts, f"{row['mean']:.1f}", ends]
    for model in MODELS:
        beside = row["models"].get(model)
        if beside is None:
            found += ["-", "-", ""]
            continue
        gap = "-" if beside["difference"] is None else f"{beside['difference']:+.1f}"
        marks = {True: "within", False: "OUTSIDE", None: ""}
        found += [f"{beside['value']:.1f}", gap, marks[beside["within"]]]
    return found
