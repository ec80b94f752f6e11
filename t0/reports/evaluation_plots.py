"""Plots evaluations: accuracy over prompts, accuracy and metrics over steps, differences.

    runs = read_runs([Path("eval")])
    prompts = prompt_rows(runs)
    datasets = dataset_rows(runs, prompts)
    panels = box_panels(datasets, prompts, boxed_runs(runs))    # one for each dataset
    panels = step_panels(datasets, runs)         # one for each dataset if a series has two steps
    panels = metric_panels(metric_rows(runs), runs)     # one for each such task and metric

A run is one evaluated checkpoint. A series consists of the evaluated checkpoints of one training
run, and is a line in plots over steps.

In a box plot, the box shows the quartiles and the median over prompts, and the whiskers show the
range. Each point is a prompt, and the diamond is the mean over prompts. Runs are side by side and
labelled with their letters. The dotted line is the accuracy of guessing (chance), and the dashed
lines are published accuracies.

A difference from the baseline is a point with two intervals. The thin interval generalizes to other
examples and prompts. The thick interval keeps the prompts fixed. The point is filled if the
difference is significant.

Assumptions: accuracies are in percent. T5's metrics in `UNITS` are between 0 and 100. The range of
other metrics is unknown.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from t0.reports.accuracies import SIGNIFICANT
from t0.reports.comparison import ComparedDataset, RunComparison
from t0.reports.diagnosis import reliability_panels
from t0.reports.evaluations import EvaluatedRun, last_of_series
from t0.reports.plots import Panel, name_lines, percent_axis, run_colour, step_axis, tooltip_id
from t0.reports.published import published_means
from t0.reports.tables import MARK, Row, group_by, span
from t0.reports.training_curves import TrainingCurves, curve_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BOXES = 8
_DIFFERENCES_OF_A_PANEL = 12
_LABEL_CHARACTERS = 18
# The maximum number of panels in any plot. The 62 datasets of T0++ fit. Thousands of panels would
# take minutes to draw.
MOST_PANELS = 100
# Metric -> the unit on its axis. All of these metrics have values from 0 to 100.
UNITS = {
    **dict.fromkeys(("accuracy", "sequence_accuracy", "exact_match", "em", "f1"), "%"),
    **dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), "F measure, %"),
    "bleu": "0 to 100",
}
# Horizontal offsets of the points in a box plot. Prompts sorted by accuracy use them in turn, so
# that points do not overlap. The distance between boxes is 1.
_OFFSETS = (0.1, -0.1, 0.2, -0.2)
_REFERENCE_STYLE = {
    "T0-11B": ((0, (6, 2)), "#7a4b94"),
    "T0-3B": ((0, (3, 2)), "#4c7a3f"),
    "chance": ((0, (1, 2)), "#555555"),
}


@dataclass(frozen=True)
class Plot:
    """A plot of a report, which consists of panels.

    Attributes:
      name: the name of the picture without its extension.
      legend: for each run or series, its colour and its text in the legend.
      compares: whether the plot belongs to the comparison of runs.
    """

    name: str
    heading: str
    caption: str
    panels: Sequence[Panel]
    legend: Sequence[tuple[str, str]]
    compares: bool = False

    @property
    def anchor(self) -> str:
        """The id of the plot on the page."""
        return self.name.replace("_", "-")


def axis_label(metric: str) -> str:
    """Returns a metric's name, with its unit if the unit is known.

    >>> axis_label("em"), axis_label("edit_distance")
    ('em (%)', 'edit_distance')
    """
    return f"{metric} ({UNITS[metric]})" if metric in UNITS else metric


def series_legend(runs: Sequence[EvaluatedRun]) -> dict[str, tuple[str, str]]:
    """Returns series -> (colour, text), with the colour of the first checkpoint in the series."""
    entries: dict[str, tuple[str, str]] = {}
    for run in runs:
        entries.setdefault(run.series, (run.mark.colour, run.name))
    return entries


def list_plots(
    runs: Sequence[EvaluatedRun],
    rows: Mapping[str, Sequence[Row]],
    reliabilities: Sequence[Row],
    comparison: RunComparison | None,
    curves: Sequence[TrainingCurves],
) -> list[Plot]:
    """Returns the plots of a report that have a panel.

    Args:
      runs: the evaluated checkpoints.
      rows: name of a table -> its rows, for `datasets`, `prompts` and `metrics`.
      reliabilities: the rows of `diagnosis.reliability_rows`.
      comparison: the comparison of the runs, or None.
      curves: the curves of the training runs.
    """
    boxed = boxed_runs(runs)
    all_boxed = len(boxed) == sum(bool(run.tasks) for run in runs)
    last = "" if all_boxed else " Only the last checkpoint of each series is shown."
    letters = [f"{run.mark.letter}  " if len(runs) > 1 else "" for run in runs]
    legend = [(runs[i].mark.colour, letters[i] + runs[i].label) for i in boxed]
    plots = [
        Plot(
            "accuracy",
            "Accuracy over prompts",
            "Each point is one prompt: point at it, tap it, or choose a panel with "
            "the tab key and move between points with the arrow keys. The box shows "
            "quartiles and median, the diamond the mean. Dotted: chance. Dashed: published means "
            f"over prompts of T0-3B and T0-11B.{last}",
            box_panels(rows["datasets"], rows["prompts"], boxed),
            legend,
        ),
        Plot(
            "reliability",
            "Calibration",
            "Accuracy against confidence, the predicted choice’s share of the probability "
            "of all choices, in ten bins over all prompts; a larger point has more examples. Below "
            "the diagonal, a model is overconfident. ECE: the mean distance from the diagonal, "
            f"with an interval that resamples each example together with all its prompts.{last}",
            reliability_panels(reliabilities, boxed),
            legend,
        ),
        Plot(
            "accuracy_by_step",
            "Accuracy against step",
            "Mean over prompts, with the band between the quartiles.",
            step_panels(rows["datasets"], runs),
            [*series_legend([run for run in runs if run.tasks]).values()],
        ),
        Plot(
            "metrics_by_step",
            "Metrics against step",
            "The tasks’ metrics of the decoded text.",
            metric_panels(rows["metrics"], runs),
            [*series_legend([run for run in runs if run.decoded]).values()],
        ),
        Plot(
            "training",
            "Training curves",
            "As logged during training; long curves are smoothed, the raw values pale. "
            "With dots: on held-out examples. Star: the best evaluation. Dotted line: the run was "
            "stopped early.",
            curve_panels(curves),
            [(run_colour(position), run.label) for position, run in enumerate(curves)],
        ),
    ]
    if comparison:
        names = [(run.mark.colour, f"{run.mark.letter}  {run.name}") for run in comparison.runs]
        plots.append(
            Plot(
                "run_differences",
                f"Intervals of the differences from {comparison.baseline_letter}",
                "Thin: the 95 % interval for other examples and prompts; thick: for these "
                "prompts only. A filled point is significant after adjustment over the table.",
                difference_panels(comparison),
                [name for i, name in enumerate(names) if i != comparison.baseline],
                compares=True,
            )
        )
    return [_limit_panels(plot) for plot in plots if plot.panels]


def _limit_panels(plot: Plot) -> Plot:
    if len(plot.panels) <= MOST_PANELS:
        return plot
    note = f" The first {MOST_PANELS} of {len(plot.panels)}; the tables have all."
    return replace(plot, caption=plot.caption + note, panels=plot.panels[:MOST_PANELS])


def boxed_runs(runs: Sequence[EvaluatedRun]) -> tuple[int, ...]:
    """Returns the positions of the runs to draw in box plots.

    If at most `MOST_BOXES` runs have a rank evaluation, all of them are drawn. Otherwise, only the
    last checkpoint of each series (training run) is drawn.
    """
    ranked = [i for i, run in enumerate(runs) if run.tasks]
    return tuple(ranked) if len(ranked) <= MOST_BOXES else last_of_series(runs, ranked)


def box_panels(
    datasets: Sequence[Row], prompts: Sequence[Row], boxed: Collection[int]
) -> list[Panel]:
    """Makes a panel of box plots for each dataset, in the order of the report.

    Args:
      datasets: the rows of the table of datasets.
      prompts: the rows of the table of prompts.
      boxed: the positions of the runs to draw.
    """
    prompts_of = group_by(prompts, "dataset", "run")
    rows_of = group_by((row for row in datasets if row["run"] in boxed), "dataset")
    return [
        _box_panel([(row, prompts_of[dataset, row["run"]]) for row in rows])
        for dataset, rows in rows_of.items()
    ]


def _box_panel(boxes: Sequence[tuple[Row, Sequence[Row]]]) -> Panel:
    rows = [row for row, _ in boxes]

    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        for position, (row, prompts) in enumerate(boxes):
            _draw_box(axes, position, row, prompts, tooltips)
        references = reference_lines(rows)
        percent_axis(axes)
        axes.set_xlim(-0.6, len(rows) - 0.4)
        draw_references(axes, references)
        axes.set_xticks(range(len(rows)), [row[MARK].letter for row in rows])
        if len(rows) == 1:
            axes.set_xticks([])
        axes.set_xlabel(_describe_counts(rows))
        return tooltips

    title = rows[0]["title"]
    means = "; ".join(f"{row['label']}: mean {row['mean']:.1f} %" for row in rows)
    return Panel(title, f"Accuracy over prompts on {title}. {means}", draw)


def _draw_box(
    axes: "Axes", position: int, row: Row, prompts: Sequence[Row], tooltips: list[str]
) -> None:
    colour = row[MARK].colour
    line = {"color": colour, "linewidth": 1.2}
    prompts = sorted(prompts, key=itemgetter("accuracy_percent"))
    axes.boxplot(
        [[prompt["accuracy_percent"] for prompt in prompts]],
        positions=[position],
        widths=0.52,
        whis=(0, 100),
        patch_artist=True,
        boxprops={"facecolor": colour + "26", "edgecolor": colour, "linewidth": 1.2},
        medianprops={"color": colour, "linewidth": 2.2},
        whiskerprops=line,
        capprops=line,
    )
    point = {"markersize": 4.2, "color": colour, "alpha": 0.75}
    point |= {"markeredgecolor": "white", "markeredgewidth": 0.5, "zorder": 3}
    for prompt, offset in zip(prompts, itertools.cycle(_OFFSETS), strict=False):
        accuracy, gid = prompt["accuracy_percent"], tooltip_id(len(tooltips))
        axes.plot([position + offset], [accuracy], "o", gid=gid, **point)
        tooltips.append(f"{prompt['prompt']}: {accuracy:.1f} % ({row['label']})")
    mean = {"markersize": 5.5, "color": "white", "markeredgecolor": colour, "markeredgewidth": 1.6}
    axes.plot([position], [row["mean"]], "D", gid=tooltip_id(len(tooltips)), zorder=4, **mean)
    tooltips.append(f"mean over {len(prompts)} prompts: {row['mean']:.1f} % ({row['label']})")


def _describe_counts(rows: Sequence[Row]) -> str:
    prompts = [row["prompts"] for row in rows]
    examples = span(
        min(row["fewest_examples"] for row in rows), max(row["most_examples"] for row in rows)
    )
    counts = span(min(prompts), max(prompts))
    return f"{counts} prompt{'' if counts == '1' else 's'}, {examples} examples"


def reference_lines(rows: Sequence[Row]) -> dict[str, float]:
    """Returns name -> accuracy in percent, for a dataset's reference lines.

    These are chance (the mean over `rows`, which must be for one dataset) and the published
    accuracies.
    """
    chances = [row["chance"] for row in rows if row["chance"] is not None]
    lines = {"chance": sum(chances) / len(chances)} if chances else {}
    return lines | published_means([rows[0]["dataset"]])


def draw_references(axes: "Axes", lines: dict[str, float]) -> None:
    """Draws reference lines, and names them at the right margin."""
    for name, value in lines.items():
        style, colour = _REFERENCE_STYLE[name]
        look = {"linestyle": style, "color": colour, "linewidth": 1.3, "zorder": 1}
        axes.axhline(value, label=f"{name} {value:.1f}", **look)
    name_lines(axes)


def step_panels(datasets: Sequence[Row], runs: Sequence[EvaluatedRun]) -> list[Panel]:
    """Makes a panel for each dataset that a series was evaluated on at two or more steps."""
    return [
        _series_panel(rows, "mean", "mean {:.1f} %", rows[0]["title"], "Mean accuracy")
        for rows in _group_with_two_steps(datasets, runs, "dataset")
    ]


def metric_panels(metrics: Sequence[Row], runs: Sequence[EvaluatedRun]) -> list[Panel]:
    """Makes a panel for each metric of each task on which a series has two or more steps."""
    values = [row for row in metrics if not row["group"] and row["value"] is not None]
    panels = []
    for rows in _group_with_two_steps(values, runs, "task", "metric"):
        task, metric = rows[0]["task"], rows[0]["metric"]
        panels.append(
            _series_panel(
                rows, "value", metric + " {:.4g}", f"{task}: {metric}", axis_label(metric)
            )
        )
    return panels


def _group_with_two_steps(
    rows: Sequence[Row], runs: Sequence[EvaluatedRun], *keys: str
) -> list[list[Row]]:
    """Groups rows by keys, and adds each row's series and colour.

    Returns:
      the groups in which at least one series has two or more steps.
    """
    legend = series_legend(runs)
    marked = [
        {**row, "series": series, "colour": legend[series][0]}
        for row in rows
        if row["step"] is not None
        for series in [runs[row["run"]].series]
    ]
    return [
        group_rows
        for group_rows in group_by(marked, *keys).values()
        if len(group_by(group_rows, "series", "step")) > len(group_by(group_rows, "series"))
    ]


def _series_panel(rows: Sequence[Row], key: str, tooltip: str, title: str, label: str) -> Panel:
    """Makes a panel that draws a value against the step, with a line for each series.

    Args:
      rows: the rows of a dataset, or of a metric of a task.
      key: the key of the value: `mean` for datasets, and `value` for metrics.
      tooltip: the format of a value in a tooltip.
      title: the title of the panel.
      label: the name of the value.
    """

    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        for series in dict.fromkeys(row["series"] for row in rows):
            line = sorted((r for r in rows if r["series"] == series), key=itemgetter("step"))
            colour, steps = line[0]["colour"], [row["step"] for row in line]
            if key == "mean":
                quartiles = ([r[q] for r in line] for q in ("first_quartile", "third_quartile"))
                axes.fill_between(steps, *quartiles, color=colour, alpha=0.16, linewidth=0)
            axes.plot(steps, [row[key] for row in line], color=colour, linewidth=1.6)
            for row in line:
                gid = tooltip_id(len(tooltips))
                axes.plot([row["step"]], [row[key]], "o", markersize=4, color=colour, gid=gid)
                tooltips.append(f"{row['label']}: {tooltip.format(row[key])}")
        if key == "mean":
            percent_axis(axes)
            draw_references(axes, reference_lines(rows))
        else:
            axes.set_ylabel(label)
        step_axis(axes)
        return tooltips

    return Panel(title, f"{label} on {title} against training step", draw)


def difference_panels(comparison: RunComparison) -> list[Panel]:
    """Makes panels of the differences from the baseline.

    Each run except the baseline has panels with up to twelve datasets each.
    """
    panels = []
    for run in range(len(comparison.runs)):
        rows = [row for row in comparison.rows if run in row.differences]
        chunks = [
            rows[start : start + _DIFFERENCES_OF_A_PANEL]
            for start in range(0, len(rows), _DIFFERENCES_OF_A_PANEL)
        ]
        panels += [_difference_panel(comparison, run, chunk) for chunk in chunks]
    return panels


def _difference_panel(comparison: RunComparison, run: int, rows: list[ComparedDataset]) -> Panel:
    names = [comparison.runs[index].name for index in (run, comparison.baseline)]
    gaps = [row.differences[run] for row in rows]

    def draw(axes: "Axes") -> list[str]:
        tooltips = []
        colour = comparison.runs[run].mark.colour
        axes.axvline(0, color="#555555", linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        for kind, width in (("interval", 1.1), ("fixed", 3)):
            ends = [[gap[f"{kind}_{end}"] for gap in gaps] for end in ("low", "high")]
            axes.hlines(range(len(rows)), *ends, color=colour, linewidth=width)
        point = {"markersize": 5.5, "markeredgecolor": colour, "markeredgewidth": 1.4, "zorder": 3}
        for position, (row, gap) in enumerate(zip(rows, gaps, strict=True)):
            fill = colour if gap["adjusted_p_value"] < SIGNIFICANT else "white"
            gid = tooltip_id(position)
            axes.plot([gap["difference"]], [position], "o", color=fill, gid=gid, **point)
            tooltips.append(
                f"{row.title}: {gap['difference']:+.1f} points, {gap['interval_low']:.1f} to "
                f"{gap['interval_high']:.1f}, adjusted p {gap['adjusted_p_value']:.2g}"
            )
        axes.set_yticks(range(len(rows)), [_shorten_title(row.title) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(*_find_axis_limits(comparison))
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("difference (points)")
        return tooltips

    title = f"{comparison.runs[run].mark.letter} minus {comparison.baseline_letter}"
    words = (f"{r.title}: {gap['difference']:+.1f}" for r, gap in zip(rows, gaps, strict=True))
    return Panel(title, f"{names[0]} minus {names[1]}, in points. {'; '.join(words)}", draw)


def _find_axis_limits(comparison: RunComparison) -> tuple[float, float]:
    """Returns axis limits that suit all difference panels, so that the panels can be compared."""
    gaps = [gap for row in comparison.rows for gap in row.differences.values()]
    keys = ("interval_low", "interval_high", "fixed_low", "fixed_high")
    ends = [0.0, *(gap[key] for gap in gaps for key in keys)]
    pad = 0.05 * (max(ends) - min(ends)) + 0.5
    return min(ends) - pad, max(ends) + pad


def _shorten_title(title: str) -> str:
    return title if len(title) <= _LABEL_CHARACTERS else f"{title[: _LABEL_CHARACTERS - 1]}…"
