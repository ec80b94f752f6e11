"""Lines over training steps of what mode `eval` measured: a panel for each task and measure.

panels = metric_panels(generations(runs), runs)    # none unless a series has two steps
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from t0.reports import figures
from t0.reports.generation import UNITS, Generation, MetricRow, axis_label
from t0.reports.lines import series_legend, step_axis
from t0.reports.plots import Panel, limit_percent
from t0.reports.read import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# That are drawn: more would be a wall of pictures.
MOST_PANELS = 24


def metric_panels(found: Sequence[Generation], runs: Sequence[Run]) -> list[Panel]:
    """Returns a panel for each measure that a series has at two steps or more."""
    colours = {series: colour for series, (colour, _) in series_legend(runs).items()}
    panels = []
    for generation in found:
        for measure in generation.measures:
            lines: dict[str, list[MetricRow]] = {}
            for row in generation.rows:
                known = row.value is not None and runs[row.run].step is not None
                if row.measure == measure and known:
                    lines.setdefault(runs[row.run].series, []).append(row)
            if any(len({runs[row.run].step for row in line}) > 1 for line in lines.values()):
                panels.append(_panel(generation.task, measure, lines, runs, colours))
    return panels


def _panel(
    task: str,
    measure: str,
    lines: Mapping[str, Sequence[MetricRow]],
    runs: Sequence[Run],
    colours: Mapping[str, str],
) -> Panel:
    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        for series, line in lines.items():
            ordered = sorted(line, key=lambda row: runs[row.run].step)
            steps = [runs[row.run].step for row in ordered]
            colour = colours[series]
            axes.plot(steps, [row.value for row in ordered], color=colour, linewidth=1.6)
            for row, step in zip(ordered, steps, strict=True):
                gid = figures.tooltip_id(len(tooltips))
                axes.plot([step], [row.value], "o", markersize=4, color=colour, gid=gid)
                tooltips.append(f"{runs[row.run].label}: {measure} {row.value:.4g}")
        values = [row.value for line in lines.values() for row in line]
        if measure in UNITS and min(values) >= 0 and max(values) <= 100:
            limit_percent(axes, values)
        axes.set_ylabel(axis_label(measure))
        step_axis(axes)
        return tooltips

    return Panel(f"{task}: {measure}", f"{measure} of {task} against training step", draw)
