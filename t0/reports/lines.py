"""Lines over training steps: accuracy of checkpoints, and what training logged.

    panels = step_panels(dataset_rows(runs), runs)     # none unless a series has two steps
    panels = curve_panels(read_curves([Path("model/metrics.jsonl")]), ["#0072b2"])

Assumptions: accuracies in percent, the loss in nats as the training writes it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from t0.reports import figures
from t0.reports.curves import Curves
from t0.reports.folders import ends_alike
from t0.reports.plots import Panel, draw_references, limit_percent, references
from t0.reports.read import Run
from t0.reports.summary import DatasetRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# (keys in metrics.jsonl, title, axis label); a panel for each whose first key some run has. What
# comes after the first key is of the same kind on held-out examples.
CURVE_PANELS = (
    # By position, padding included, as Mesh TensorFlow trains; where packing is loose it hides
    # what the next one shows.
    (("loss", "validation_loss"), "Training loss", "loss (nats)"),
    (("loss_per_token", "validation_loss_per_token"), "NLL", "nats for each target token"),
    (("learning_rate",), "Learning rate", "learning rate"),
    (("tokens_per_second",), "Speed", "tokens per second"),
)
# Means over tasks, such as "eval/accuracy": a panel for each, up to so many.
_OF_TASKS = "eval/"
_MOST_TASK_PANELS = 6
_SMOOTH_ABOVE_POINTS = 150
_NOISY = {"loss", "loss_per_token", "tokens_per_second"}


def step_panels(rows: Sequence[DatasetRow], runs: Sequence[Run]) -> list[Panel]:
    """Returns a panel for each dataset that a series has at two steps or more; else none."""
    lines: dict[str, dict[str, list[DatasetRow]]] = {}
    for row in rows:
        if runs[row.run].step is not None:
            lines.setdefault(row.dataset, {}).setdefault(runs[row.run].series, []).append(row)
    colours = {series: colour for series, (colour, _) in series_legend(runs).items()}
    panels = []
    for found in lines.values():
        if any(len({runs[row.run].step for row in line}) > 1 for line in found.values()):
            panels.append(_step_panel(found, runs, colours))
    return panels


def series_legend(runs: Sequence[Run]) -> dict[str, tuple[str, str]]:
    """Returns (colour, text) for each series of checkpoints: the colour of its first run."""
    found: dict[str, tuple[str, str]] = {}
    for position, run in enumerate(runs):
        found.setdefault(run.series, (figures.run_colour(position), run.name))
    names = [name for _, name in found.values()]
    return {
        series: (colour, f"{name} ({Path(series).name})" if names.count(name) > 1 else name)
        for series, (colour, name) in found.items()
    }


def _step_panel(
    lines: dict[str, list[DatasetRow]], runs: Sequence[Run], colours: Mapping[str, str]
) -> Panel:
    rows = [row for line in lines.values() for row in line]

    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        for name, line in lines.items():
            colour = colours[name]
            line = sorted(line, key=lambda row: runs[row.run].step)
            steps = [runs[row.run].step for row in line]
            low = [row.spread.first_quartile for row in line]
            high = [row.spread.third_quartile for row in line]
            axes.fill_between(steps, low, high, color=colour, alpha=0.16, linewidth=0)
            axes.plot(steps, [row.spread.mean for row in line], color=colour, linewidth=1.6)
            for row, step in zip(line, steps, strict=True):
                gid = figures.tooltip_id(len(tooltips))
                axes.plot([step], [row.spread.mean], "o", markersize=4, color=colour, gid=gid)
                tooltips.append(f"{runs[row.run].label}: mean {row.spread.mean:.1f} %")
        lines_at = references(rows)
        edges = [v for r in rows for v in (r.spread.first_quartile, r.spread.third_quartile)]
        means = [row.spread.mean for row in rows]
        limit_percent(axes, [*edges, *means, *lines_at.values()])
        draw_references(axes, lines_at)
        step_axis(axes)
        return tooltips

    return Panel(rows[0].title, f"Mean accuracy on {rows[0].title} against training step", draw)


def step_axis(axes: "Axes") -> None:
    """Labels the x axis as training steps."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.set_xlabel("training step")


def curve_legend(curves: Sequence[Curves], runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Returns (colour, text) for each training run: the colour of its checkpoints if known."""
    known = {name: colour for colour, name in series_legend(runs).values()}
    spare = [colour for colour in figures.RUN_COLOURS if colour not in known.values()]
    legend = []
    for run in curves:
        colour = known.get(run.label) or _colour_by_folder(run, known)
        colour = colour or (spare.pop(0) if spare else figures.INK)
        legend.append((colour, run.label))
    return legend


def _colour_by_folder(run: Curves, known: Mapping[str, str]) -> str | None:
    """Returns the colour of the model whose name is the end of the path to the run's folder."""
    folder = run.path.resolve().parent
    return next((known[n] for n in known if "/" in n and ends_alike(folder, PurePath(n))), None)


def curve_panels(curves: Sequence[Curves], colours: Sequence[str]) -> list[Panel]:
    """Returns a panel for each known quantity that some training run recorded.

    Held-out quantities are dashed, with a dot for each evaluation; a star marks the best one, a
    dotted line the step at which a run was stopped early.
    """
    drawn = list(zip(colours, curves, strict=True))
    recorded = {key for run in curves for key in run.points}
    means = sorted(k for k in recorded if k.startswith(_OF_TASKS) and k.count("/") == 1)
    metrics = [key.removeprefix(_OF_TASKS) for key in means[:_MOST_TASK_PANELS]]
    tasks = [((_OF_TASKS + m,), f"Tasks: {m}", f"{m}, mean over tasks") for m in metrics]
    panels = (CURVE_PANELS[0], *tasks, *CURVE_PANELS[1:])
    return [
        _curve_panel(keys, title, label, drawn)
        for keys, title, label in panels
        if keys[0] in recorded
    ]


def _curve_panel(
    keys: Sequence[str], title: str, label: str, curves: Sequence[tuple[str, Curves]]
) -> Panel:
    def draw(axes: "Axes") -> list[str]:
        from matplotlib.ticker import FuncFormatter

        tooltips: list[str] = []
        for colour, run in curves:
            for key in keys:
                _draw_curve(axes, run, key, colour)
            if run.stopped_early is not None:
                axes.axvline(run.stopped_early, color=colour, linewidth=0.9, linestyle=":")
            tooltips += _mark_best(axes, run, keys, colour, gid=figures.tooltip_id(len(tooltips)))
        if min(axes.dataLim.intervaly) >= 0:
            axes.set_ylim(bottom=0)
        axes.set_ylabel(label)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        step_axis(axes)
        return tooltips

    return Panel(title, f"{title} against training step", draw)


def _draw_curve(axes: "Axes", run: Curves, key: str, colour: str) -> None:
    if key not in run.points:
        return
    steps, values = zip(*run.points[key], strict=True)
    if key.startswith(("validation_", _OF_TASKS)):
        axes.plot(steps, values, "o--", color=colour, linewidth=1.3, markersize=3.5)
        return
    if len(steps) > _SMOOTH_ABOVE_POINTS and key in _NOISY:
        axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.3)
        values = smoothed(values, radius=len(steps) // 50)
    axes.plot(steps, values, color=colour, linewidth=1.5, marker="o" if len(steps) == 1 else "")


def _mark_best(
    axes: "Axes", run: Curves, keys: Sequence[str], colour: str, *, gid: str
) -> list[str]:
    """Draws a star on the best evaluation, if one of the panel's keys judged it."""
    value = run.value(*run.best) if run.best and run.best[0] in keys else None
    if value is None:
        return []
    metric, step = run.best
    axes.plot([step], [value], "*", color=colour, markersize=10, gid=gid, zorder=3)
    return [f"{run.label}: best {metric} {value:.4g}, at step {step:,}"]


def smoothed(values: Sequence[float], *, radius: int) -> list[float]:
    """Returns the mean of the 2 x radius + 1 values around each, fewer towards the ends.

    The window stays centred, so a curve that falls steeply is not shifted.

    >>> smoothed([1.0, 2.0, 6.0, 7.0], radius=1)
    [1.0, 3.0, 5.0, 7.0]
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    reach = np.minimum(radius, np.minimum(places, places[::-1]))
    means = (sums[places + reach + 1] - sums[places - reach]) / (2 * reach + 1)
    return means.tolist()
