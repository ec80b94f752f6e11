"""Compares a run's accuracies on T0's held-out datasets with the published accuracies.

    rows = reproduction(read_runs([Path("eval")])[0])
    rows[0]["title"], rows[0]["mean"], rows[0]["models"]["T0-3B"]     # value, difference, within
    for line in reproduction_table(rows).lines():
        print(line)
    for line in headlines(read_runs([Path("eval")])):
        print(line)

    held out, 2 of T0's 11 datasets: mean 51.2   chance 50.0   T0-3B 57.9   T0-11B 70.5

The accuracy of a dataset is the mean over its prompts. The held-out mean is the mean over datasets,
and each of ANLI's three rounds counts as a dataset. A published accuracy is called "within" if it
lies in the run's interval. This interval keeps the prompts fixed and generalizes to other examples.

Assumptions: the per-example scores are next to the run's results. Without scores, there is no
interval.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t0.reports import accuracies
from t0.reports.evaluations import EvaluatedRun
from t0.reports.published import MODELS, held_out_titles, published_accuracies, published_means
from t0.reports.statistics import interval_of_share
from t0.reports.tables import ReportColumn, ReportTable, Row


def reproduction(run: EvaluatedRun) -> list[dict[str, Any]]:
    """Compares a run with the published accuracies, by dataset and on average.

    Returns:
      a row for each row of `published.csv` and, if the run has several held-out datasets, a row for
      the mean over these datasets. The rows have these keys:
        `datasets`, `title`, `prompts`, `examples`;
        `mean`, `chance`, `low`, `high`: in percent; None if a dataset was not evaluated or has no
          scores;
        `models`: model -> its published `value`, the run's `difference` from this value, and
          whether the value is `within` the run's interval.
    """
    groups = dict.fromkeys((row["datasets"], row["titles"]) for row in published_accuracies())
    rows = [_make_row(run, datasets, ", ".join(titles)) for datasets, titles in groups]
    evaluated = _list_evaluated(run)
    if len(evaluated) > 1:
        title = f"mean of {len(evaluated)} of {len(held_out_titles())}"
        rows.append(_make_row(run, evaluated, title))
    return rows


def held_out_means(runs: Sequence[EvaluatedRun]) -> list[tuple[EvaluatedRun, dict[str, Any]]]:
    """Returns pairs: a checkpoint, and its held-out mean as a row of `reproduction`.

    Checkpoints that were not evaluated on held-out datasets are left out.
    """
    evaluated = [(run, _list_evaluated(run)) for run in runs]
    return [(run, _make_row(run, datasets, "")) for run, datasets in evaluated if datasets]


def headlines(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Returns one line for each checkpoint with a held-out mean. The line contains the mean."""
    lines = []
    for run, row in held_out_means(runs):
        words = [f"mean {row['mean']:.1f}"]
        words += [] if row["chance"] is None else [f"chance {row['chance']:.1f}"]
        words += [f"{model} {published['value']:.1f}" for model, published in row["models"].items()]
        name = f"{run.label}: " if len(runs) > 1 else ""
        coverage = f"{len(row['datasets'])} of T0's {len(held_out_titles())} datasets"
        lines.append(f"{name}held out, {coverage}: " + "   ".join(words))
    return lines


def _list_evaluated(run: EvaluatedRun) -> list[str]:
    datasets = {task.dataset for task in run.tasks}
    return [dataset for dataset in held_out_titles() if dataset in datasets]


def _make_row(run: EvaluatedRun, datasets: Sequence[str], title: str) -> dict[str, Any]:
    tasks_by_dataset = [[task for task in run.tasks if task.dataset == name] for name in datasets]
    row: dict[str, Any] = {
        "datasets": list(datasets),
        "title": title,
        "prompts": sum(map(len, tasks_by_dataset)),
        "examples": sum(
            max((task.examples for task in tasks), default=0) for tasks in tasks_by_dataset
        ),
        **dict.fromkeys(("mean", "low", "high", "chance")),
    }
    if all(tasks_by_dataset):
        row["mean"] = _mean_of_means(
            [[task.accuracy for task in tasks] for tasks in tasks_by_dataset]
        )
        chances = [[t.chance for t in tasks if t.chance is not None] for tasks in tasks_by_dataset]
        row["chance"] = _mean_of_means(chances) if all(chances) else None
    scores = [[task.scores for task in tasks] for tasks in tasks_by_dataset]
    if all(scores) and all(map(all, scores)):
        grids = [accuracies.shared_grid([prompts]) for prompts in scores]
        _, fixed = accuracies.estimate(grids, 0)
        interval = interval_of_share(fixed)
        row |= {"low": 100 * float(interval.low), "high": 100 * float(interval.high)}
    row["models"] = {
        model: {
            "value": value,
            "difference": None if row["mean"] is None else row["mean"] - value,
            "within": None if row["low"] is None else bool(row["low"] <= value <= row["high"]),
        }
        for model, value in published_means(datasets).items()
    }
    return row


def _mean_of_means(groups: Sequence[Sequence[float]]) -> float:
    return float(np.mean([np.mean(values) for values in groups]))


def reproduction_table(rows: Sequence[Mapping[str, Any]]) -> ReportTable:
    """Formats the rows of `reproduction` as a table for the terminal."""
    columns = [
        ReportColumn("title", "", "dataset", css="t"),
        ReportColumn("prompts", "", "prompts"),
        ReportColumn("examples", "", "examples"),
        ReportColumn("mean", "", "mean"),
        ReportColumn("low", "", "interval", text=_format_interval),
    ]
    for model in MODELS:
        for key in _PUBLISHED:
            text = functools.partial(_format_published, model=model, key=key)
            head = model if key == "value" else key
            columns.append(ReportColumn(key, "", head, text=text))
    return ReportTable("reproduction", "Reproduction", columns, rows)


# Key in a row's `models` -> the format of its value.
_PUBLISHED = {
    "value": "{:.1f}".format,
    "difference": "{:+.1f}".format,
    "within": {True: "within", False: "OUTSIDE"}.get,
}


def _format_published(row: Row, model: str, key: str) -> str:
    value = row["models"].get(model, {}).get(key)
    return "–" if value is None else _PUBLISHED[key](value)


def _format_interval(row: Row) -> str:
    if row["mean"] is None:
        return "not evaluated"
    return "–" if row["low"] is None else f"{row['low']:.1f} to {row['high']:.1f}"
