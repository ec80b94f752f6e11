"""Plots of evaluations: accuracy over prompts, and accuracy and metrics over training steps.

    summary = summarise(read_named_runs(["eval"])[0])
    panels = box_panels(summary)        # one for each dataset
    panels = step_panels(summary)       # one for each dataset of which a series has two steps
    panels = metric_panels(summary)     # one for each such task and metric of mode `eval`

A box shows quartiles and median, its whiskers the range over prompts, each point one prompt, the
diamond the mean. Runs are side by side under their letters. The dotted line is chance, the dashed
lines are published values.

Assumptions: accuracies are in percent; T5's metrics in `UNITS` are between 0 and 100; the range of
other metrics is unknown.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from t0.reports.evaluations import EvaluatedRun
from t0.reports.plots import Panel, limit_percent, step_axis, tooltip_id
from t0.reports.published import published
from t0.reports.summary import WHOLE, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BOXES = 8
# The largest number of pictures of a kind; the tables hold the other values.
MOST_METRIC_PANELS = 24
# Panels of any plot; T0++ has 62 datasets, and results with thousands would be drawn for minutes.
MOST_PANELS = 100
# Metric with values from 0 to 100 -> the unit on its axis.
UNITS = {
    **dict.fromkeys(("accuracy", "sequence_accuracy", "exact_match", "em", "f1"), "%"),
    **dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), "F measure, %"),
    "bleu": "0 to 100",
}
_OFFSETS = (0.0, 0.1, -0.1, 0.2, -0.2)  # in units of the distance between two boxes
# About the percentage points that a drawn point covers, and half of the diamond.
_POINT_HEIGHT, _DIAMOND_HEIGHT = 1.0, 1.5
_REFERENCE_STYLE = {
    "T0-11B": ((0, (6, 2)), "#7a4b94"),
    "T0-3B": ((0, (3, 2)), "#4c7a3f"),
    "chance": ((0, (1, 2)), "#555555"),
}


def axis_label(metric: str) -> str:
    """Returns a metric's name with its unit, if the unit is known.

    >>> axis_label("em"), axis_label("edit_distance")
    ('em (%)', 'edit_distance')
    """
    return f"{metric} ({UNITS[metric]})" if metric in UNITS else metric


def run_legend(runs: Sequence[EvaluatedRun]) -> list[tuple[str, str]]:
    """Returns (colour, text) for each run, with its letter where there are several."""
    letters = [f"{run.mark.letter}  " if len(runs) > 1 else "" for run in runs]
    return [
        (run.mark.colour, letter + run.label) for letter, run in zip(letters, runs, strict=True)
    ]


def series_legend(runs: Sequence[EvaluatedRun]) -> dict[str, tuple[str, str]]:
    """Returns (colour, text) for each series of checkpoints: the colour of its first run."""
    found: dict[str, tuple[str, str]] = {}
    for run in runs:
        found.setdefault(run.series, (run.mark.colour, run.name))
    names = [name for _, name in found.values()]
    return {
        series: (colour, f"{name} ({Path(series).name})" if names.count(name) > 1 else name)
        for series, (colour, name) in found.items()
    }


def boxed_runs(runs: Sequence[EvaluatedRun]) -> tuple[int, ...]:
    """Returns the positions of the ranked runs to draw: all, or each series' last if too many."""
    ranked = [i for i, run in enumerate(runs) if run.tasks]
    if len(ranked) <= MOST_BOXES:
        return tuple(ranked)
    last: dict[str, int] = {}
    for i in ranked:
        run = runs[i]
        best = last.get(run.series)
        if best is None or (run.step or 0) >= (runs[best].step or 0):
            last[run.series] = i
    return tuple(sorted(last.values()))


def box_panels(summary: Summary, *, whole: bool = True) -> list[Panel]:
    """Returns a panel of box plots for each dataset, in the order of the report.

    Args:
      summary: the report's content.
      whole: whether each axis is from 0 to 100, so that panels can be compared.
    """
    boxed = summary.datasets[summary.datasets.run.isin(boxed_runs(summary.runs))]
    return [
        _box_panel(rows, summary.prompts[summary.prompts.dataset == dataset], whole=whole)
        for dataset, rows in boxed.groupby("dataset", sort=False)
    ]


def _box_panel(rows: pd.DataFrame, prompts: pd.DataFrame, *, whole: bool) -> Panel:
    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        for place, row in enumerate(rows.itertuples()):
            _draw_box(axes, place, row, prompts[prompts.run == row.run], tooltips)
        values = prompts.accuracy[prompts.run.isin(rows.run)]
        lines_at = references(rows)
        limit_percent(axes, [*values, *lines_at.values()], whole=whole)
        axes.set_xlim(-0.6, len(rows) - 0.4)
        draw_references(axes, lines_at)
        axes.set_xticks(range(len(rows)), [mark.letter for mark in rows.mark])
        if len(rows) == 1:
            axes.set_xticks([])
        axes.set_xlabel(_counts_label(rows))
        return tooltips

    title = rows.title.iloc[0]
    means = "; ".join(f"{row.label}: mean {row.mean:.1f} %" for row in rows.itertuples())
    return Panel(title, f"Accuracy over prompts on {title}. {means}", draw)


def _draw_box(
    axes: "Axes", place: int, row: Any, prompts: pd.DataFrame, tooltips: list[str]
) -> None:
    colour = row.mark.colour
    line = {"color": colour, "linewidth": 1.2}
    axes.bxp(
        [
            {
                "med": row.median,
                "q1": row.first_quartile,
                "q3": row.third_quartile,
                "whislo": row.low,
                "whishi": row.high,
                "fliers": [],
            }
        ],
        positions=[place],
        widths=0.52,
        showfliers=False,
        patch_artist=True,
        boxprops={"facecolor": colour + "26", "edgecolor": colour, "linewidth": 1.2},
        medianprops={"color": colour, "linewidth": 2.2},
        whiskerprops=line,
        capprops=line,
    )
    prompts = prompts.sort_values("accuracy", kind="stable")
    offsets = swarm(list(prompts.accuracy), mean=row.mean)
    for prompt, offset in zip(prompts.itertuples(), offsets, strict=True):
        axes.plot(
            [place + offset],
            [prompt.accuracy],
            "o",
            markersize=4.2,
            color=colour,
            alpha=0.75,
            markeredgecolor="white",
            markeredgewidth=0.5,
            gid=tooltip_id(len(tooltips)),
            zorder=3,
        )
        tooltips.append(f"{prompt.prompt}: {prompt.accuracy:.1f} % ({row.label})")
    axes.plot(
        [place],
        [row.mean],
        "D",
        markersize=5.5,
        color="white",
        markeredgecolor=colour,
        markeredgewidth=1.6,
        gid=tooltip_id(len(tooltips)),
        zorder=4,
    )
    tooltips.append(f"mean over {len(prompts)} prompts: {row.mean:.1f} % ({row.label})")


def swarm(ascending: Sequence[float], *, mean: float = math.inf) -> list[float]:
    """Returns sideways offsets that keep points of close values apart, the first in the middle.

    Args:
      ascending: values in percent.
      mean: the value at which the diamond is drawn in the middle; points close to it are moved.

    >>> swarm([50.0, 50.1, 60.0])
    [0.0, 0.1, 0.0]
    """
    last: dict[float, float] = {}
    offsets = []
    for value in ascending:
        hidden = (0.0,) if abs(value - mean) < _DIAMOND_HEIGHT else ()
        places = [o for o in _OFFSETS if o not in hidden]
        free = [o for o in places if value - last.get(o, -math.inf) >= _POINT_HEIGHT]
        # If no offset is free, the one whose last point is farthest below overlaps least.
        offset = free[0] if free else min(places, key=last.__getitem__)
        last[offset] = value
        offsets.append(offset)
    return offsets


def _counts_label(rows: pd.DataFrame) -> str:
    fewest, most = rows.prompts.min(), rows.prompts.max()
    low, high = rows.fewest_examples.min(), rows.most_examples.max()
    examples = f"{low:,}" if low == high else f"{low:,}–{high:,}"
    counts = f"{fewest}" if fewest == most else f"{fewest}–{most}"
    return f"{counts} prompt{'' if counts == '1' else 's'}, {examples} examples"


def references(rows: pd.DataFrame) -> dict[str, float]:
    """Returns the reference lines of a dataset: chance (mean over its rows), published values."""
    chances = [chance for chance in rows.chance if chance is not None]
    lines = {"chance": sum(chances) / len(chances)} if chances else {}
    facts = published().get(rows.dataset.iloc[0])
    return lines | (dict(facts.values) if facts else {})


def draw_references(axes: "Axes", lines: dict[str, float]) -> None:
    """Draws the lines and writes their names at the right margin, moved apart where close."""
    low, high = axes.get_ylim()
    names = sorted(lines, key=lines.__getitem__)
    gap = 0.075 * (high - low)
    places = [lines[name] for name in names]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    if places:
        excess = max(0.0, places[-1] - high)
        places = [place - excess for place in places]
    for name, place in zip(names, places, strict=True):
        style, colour = _REFERENCE_STYLE[name]
        axes.axhline(lines[name], linestyle=style, color=colour, linewidth=1.3, zorder=1)
        axes.annotate(
            f"{name} {lines[name]:.1f}",
            (1.015, place),
            annotation_clip=False,
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7,
            color=colour,
        )


def step_panels(summary: Summary, *, whole: bool = True) -> list[Panel]:
    """Returns a panel for each dataset that a series has at two steps or more; see `box_panels`."""
    rows = _with_series(summary.datasets, summary.runs)
    return [
        _step_panel(found, whole=whole)
        for _, found in rows.groupby("dataset", sort=False)
        if _has_two_steps(found)
    ]


def _with_series(rows: pd.DataFrame, runs: Sequence[EvaluatedRun]) -> pd.DataFrame:
    """Returns the rows of runs whose step is known, with their series and its colour."""
    legend = series_legend(runs)
    series = [runs[run].series for run in rows.run]
    rows = rows.assign(series=series, colour=[legend[name][0] for name in series])
    return rows[rows.step.notna()]


def _has_two_steps(rows: pd.DataFrame) -> bool:
    return bool((rows.groupby("series").step.nunique() > 1).any())


def _step_panel(rows: pd.DataFrame, *, whole: bool) -> Panel:
    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        for _, line in rows.groupby("series", sort=False):
            line = line.sort_values("step", kind="stable")
            steps, colour = list(line.step), line.colour.iloc[0]
            low, high = list(line.first_quartile), list(line.third_quartile)
            axes.fill_between(steps, low, high, color=colour, alpha=0.16, linewidth=0)
            axes.plot(steps, list(line["mean"]), color=colour, linewidth=1.6)
            for row in line.itertuples():
                gid = tooltip_id(len(tooltips))
                axes.plot([row.step], [row.mean], "o", markersize=4, color=colour, gid=gid)
                tooltips.append(f"{row.label}: mean {row.mean:.1f} %")
        lines_at = references(rows)
        edges = [*rows.first_quartile, *rows.third_quartile, *rows["mean"]]
        limit_percent(axes, [*edges, *lines_at.values()], whole=whole)
        draw_references(axes, lines_at)
        step_axis(axes)
        return tooltips

    title = rows.title.iloc[0]
    return Panel(title, f"Mean accuracy on {title} against training step", draw)


def metric_panels(summary: Summary) -> list[Panel]:
    """Returns a panel for each metric of a task that a series has at two steps or more."""
    rows = summary.metrics[(summary.metrics.kind == WHOLE) & summary.metrics.value.notna()]
    rows = _with_series(rows, summary.runs)
    return [
        _metric_panel(task, metric, found)
        for (task, metric), found in rows.groupby(["task", "metric"], sort=False)
        if _has_two_steps(found)
    ]


def _metric_panel(task: str, metric: str, rows: pd.DataFrame) -> Panel:
    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        for _, line in rows.groupby("series", sort=False):
            line = line.sort_values("step", kind="stable")
            colour = line.colour.iloc[0]
            axes.plot(list(line.step), list(line.value), color=colour, linewidth=1.6)
            for row in line.itertuples():
                gid = tooltip_id(len(tooltips))
                axes.plot([row.step], [row.value], "o", markersize=4, color=colour, gid=gid)
                tooltips.append(f"{row.label}: {metric} {row.value:.4g}")
        if metric in UNITS and rows.value.min() >= 0 and rows.value.max() <= 100:
            limit_percent(axes, list(rows.value))
        axes.set_ylabel(axis_label(metric))
        step_axis(axes)
        return tooltips

    return Panel(f"{task}: {metric}", f"{metric} of {task} against training step", draw)
