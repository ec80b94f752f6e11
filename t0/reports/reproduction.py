"""T0's table of held-out datasets: a run's means next to the published values, and how they differ.

    rows = reproduction(read_runs([Path("eval")])[0])
    rows[0]["title"], rows[0]["mean"], rows[0]["models"]["T0-3B"]     # value, difference, within
    for line in reproduction_table(rows).lines():
        print(line)

A row is of the datasets of which one value is published: ANLI's three rounds are one row. The last
row is the mean over the datasets, with T0's over the same. A difference is within if the
published value is in the run's interval: for these prompts, and other examples. Values are those
of `published.csv`, each compared with the source that it names.

Assumptions: the run's scores are beside its results; without them there is no interval.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t0.reports import accuracies
from t0.reports.evaluations import EvaluatedRun, RankedTask
from t0.reports.published import MODELS, figures, published_mean
from t0.reports.statistics import FIXED, CrossedMean, crossed_mean, interval_of_share, mean_of_means
from t0.reports.tables import Column, Row, Table


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


def reproduction_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the table of `reproduction` for the terminal."""
    columns = [
        Column("title", "", "dataset", css="t"),
        Column("prompts", "", "prompts"),
        Column("examples", "", "examples"),
        Column("mean", "", "mean"),
        Column("low", "", "interval", text=_interval),
    ]
    for model in MODELS:
        columns += [
            Column(model, "", model, text=_published(model, "value", "{:.1f}")),
            Column(model, "", "difference", text=_published(model, "difference", "{:+.1f}")),
            Column(model, "", "within", text=_published(model, "within", "{}")),
        ]
    return Table("reproduction", "Reproduction", columns, rows)


def _interval(row: Row) -> str:
    if row["mean"] is None:
        return "not evaluated"
    return "–" if row["low"] is None else f"{row['low']:.1f} to {row['high']:.1f}"


def _published(model: str, key: str, form: str) -> Callable[[Row], str]:
    words = {True: "within", False: "OUTSIDE"}

    def text(row: Row) -> str:
        value = row["models"].get(model, {}).get(key)
        return "–" if value is None else form.format(words[value] if key == "within" else value)

    return text
