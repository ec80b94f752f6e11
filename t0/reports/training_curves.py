"""Reads `metrics.jsonl` of training runs into curves over steps, and draws them.

    {"step": 100, "loss": 3.2, "learning_rate": 0.001, "tokens_per_second": 5400.0}
    {"step": 200, "loss": 2.9, "learning_rate": 0.001, "tokens_per_second": 5500.0}
    {"step": 200, "validation_loss": 3.0, "eval/accuracy": 41.0}
    {"step": 200, "best_by": "validation_loss", "best_step": 200}

    curves = read_curves([Path("model/metrics.jsonl")])
    curves[0].value("loss", 200)                   # 2.9
    panels = curve_panels(curves)                  # one for each quantity, see t0.reports.plots
    training_table(curves)[0]                      # ("steps", ["200"])

Assumptions: a resumed training run may repeat steps. If it does, the last value of a quantity at a
step is used. While a run is still training, the last line of its file may be incomplete. Such a
line is ignored. The loss is in nats.
"""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from t0.errors import UserError
from t0.files.any_path import any_path
from t0.reports.plots import Panel, name_lines, run_colour, step_axis, tooltip_id
from t0.reports.result_files import distinct_names, finite, is_integer, parsed_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Quantity:
    """A quantity that has its own panel.

    Attributes:
      key: the quantity's name in metrics.jsonl for training batches.
      title: the panel's title.
      label: the label of the y axis.
      held_out: the quantity's name in metrics.jsonl for held-out examples; empty if it has no such
        name.
      instead: the key of another quantity. If the other quantity was recorded, this quantity has no
        panel.
    """

    key: str
    title: str
    label: str
    held_out: str = ""
    instead: str = ""


QUANTITIES = (
    Quantity("loss_per_token", "NLL", "nats per target token", "validation_loss_per_token"),
    # Mesh TensorFlow's training loss is a mean over all positions, including padding. So its curve
    # is the curve of the NLL on another scale.
    Quantity("loss", "Training loss", "loss (nats)", "validation_loss", "loss_per_token"),
    Quantity("learning_rate", "Learning rate", "learning rate"),
    Quantity("tokens_per_second", "Speed", "tokens per second"),
)
# Quantities that are drawn only if they change.
_SETTINGS = {"learning_rate"}
# Names of facts about a run. The first record of the run's metrics contains these facts.
_FACTS = ("parameters", "batch_sequences", "batch_tokens")
# An axis of losses is logarithmic if the largest value is at least this many times the smallest.
_LOG_FROM_RATIO = 3.0
HELD_OUT_COLOUR = run_colour(1)
# Means over tasks, such as "eval/accuracy", have this prefix. At most this many of them have
# panels.
_OF_TASKS = "eval/"
_MOST_TASK_PANELS = 6
_SMOOTH_ABOVE_POINTS = 150
_NOISY = {"loss", "loss_per_token", "tokens_per_second"}


@dataclass(frozen=True)
class TrainingCurves:
    """The curves of one training run.

    Attributes:
      points: quantity -> its (step, value) pairs, in order of steps.
      not_finite: the number of NaN or infinite values, which are left out of `points`.
      best: (metric that selected the best checkpoint, step of this checkpoint); None if no
        checkpoint was selected.
      stopped_early: the step at which early stopping ended the run; None if it did not stop early.
      facts: the sizes of the model and of a batch, if recorded.
      configuration: gin's values as text, from `configuration.json` next to the metrics.
    """

    label: str
    path: Path
    points: Mapping[str, tuple[tuple[int, float], ...]]
    not_finite: int
    best: tuple[str, int] | None = None
    stopped_early: int | None = None
    facts: Mapping[str, int] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)

    def value(self, key: str, step: int) -> float | None:
        """Returns a quantity's value at a step; None if it was not recorded."""
        return dict(self.points.get(key, ())).get(step)

    @property
    def notes(self) -> list[str]:
        """The sentences about this run that the report shows as notes."""
        notes = []
        if self.not_finite:
            notes.append(f"{self.not_finite} values were not finite and are not drawn.")
        if self.best:
            metric, step = self.best
            value = self.value(metric, step)
            value_text = "" if value is None else f" of {value:.4g}"
            stop = "; nothing better followed, and the run stopped early at step {:,}"
            end = "" if self.stopped_early is None else stop.format(self.stopped_early)
            notes.append(f"the best {metric}{value_text} was at step {step:,}{end}.")
        return [f"Training run {self.label}: {note}" for note in notes]


def read_curves(paths: Sequence[Path]) -> tuple[TrainingCurves, ...]:
    """Reads the training curves in metrics files, or in model directories with a `metrics.jsonl`.

    Raises:
      UserError: if a file is missing, empty or malformed; the message names file and line.
    """
    files = [path / "metrics.jsonl" if path.is_dir() else path for path in map(any_path, paths)]
    for file in files:
        if not file.is_file():
            raise UserError(f"metrics file {file} does not exist. Give a run's metrics.jsonl.")
    names = distinct_names({file.resolve().parent for file in files})
    curves: list[TrainingCurves] = []
    for file in files:
        label = names[file.resolve().parent]
        number = sum(t == label or t.startswith(f"{label} #") for t in (c.label for c in curves))
        curves.append(_read_run(file, label=f"{label} #{number + 1}" if number else label))
    return tuple(curves)


def _read_run(path: Path, *, label: str) -> TrainingCurves:
    values: dict[str, dict[int, float]] = {}
    not_finite = 0
    best: tuple[str, int] | None = None
    stopped_early: int | None = None
    facts: dict[str, int] = {}
    for step, record in _read_records(path):
        fact_values = {key: record.pop(key) for key in _FACTS if key in record}
        facts |= {key: value for key, value in fact_values.items() if is_integer(value)}
        best_step = record.pop("best_step", None)
        if is_integer(best_step) and isinstance(record.get("best_by"), str):
            best = record["best_by"], best_step
            # A run that stopped early may have been resumed with more patience. In this case, its
            # later lines have no `stopped_early`.
            stopped_early = step if record.get("stopped_early") else None
        for key, value in record.items():
            if key == "step" or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            number = finite(value)
            if number is None:
                not_finite += 1
            else:
                values.setdefault(key, {})[step] = number
    if not values:
        raise UserError(f"{path} has no numbers by step. Was the training stopped immediately?")
    return TrainingCurves(
        label=label,
        path=path,
        points={key: tuple(sorted(points.items())) for key, points in sorted(values.items())},
        not_finite=not_finite,
        best=best,
        stopped_early=stopped_early,
        facts=facts,
        configuration=_read_configuration(path.parent / "configuration.json"),
    )


def _read_configuration(path: Path) -> dict[str, str]:
    """Returns the values of gin's parameters; {} if the file is missing or has another format."""
    try:
        content = parsed_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    values = content if isinstance(content, dict) else {}
    return {key: value for key, value in values.items() if isinstance(value, str)}


def _read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the step and the fields of each complete line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}.") from error
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = parsed_json(line)
        except ValueError as error:
            if number == len(lines):  # the run may still be writing the last line
                continue
            raise UserError(f"{path}, line {number}: not valid JSON ({error}).") from error
        step = record.get("step") if isinstance(record, dict) else None
        if not is_integer(step):
            raise UserError(f"{path}, line {number}: expected an object with an integer 'step'.")
        yield step, record


def curve_panels(curves: Sequence[TrainingCurves]) -> list[Panel]:
    """Makes a panel for each known quantity that at least one training run recorded.

    Values on training batches are a pale line. Values on held-out examples are a dark line with a
    dot for each evaluation. The panel names both lines. A star marks the best evaluation, and a
    dotted line marks the step of early stopping. The axis of losses is logarithmic if their range
    is large.
    """
    recorded = {key for run in curves for key in run.points}
    means = sorted(k for k in recorded if k.startswith(_OF_TASKS) and k.count("/") == 1)
    metrics = [key.removeprefix(_OF_TASKS) for key in means[:_MOST_TASK_PANELS]]
    tasks = [
        Quantity(_OF_TASKS + m, f"Tasks: {m}", f"{m}, mean over tasks", held_out=_OF_TASKS + m)
        for m in metrics
    ]
    losses = [quantity for quantity in QUANTITIES if quantity.held_out]
    others = [quantity for quantity in QUANTITIES if not quantity.held_out]
    return [
        _curve_panel(quantity, curves)
        for quantity in (*losses, *tasks, *others)
        if quantity.key in recorded and quantity.instead not in recorded
        if quantity.key not in _SETTINGS or any(_is_changing(run, quantity.key) for run in curves)
    ]


def _is_changing(run: TrainingCurves, key: str) -> bool:
    values = [value for _, value in run.points.get(key, ())]
    return bool(values) and max(values) - min(values) > 1e-3 * abs(max(values))


def _curve_panel(quantity: Quantity, curves: Sequence[TrainingCurves]) -> Panel:
    keys = [key for key in dict.fromkeys((quantity.key, quantity.held_out)) if key]

    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        ends: list[tuple[float, str, str]] = []
        for position, run in enumerate(curves):
            colour = run_colour(position)
            for key in keys:
                ends += _draw_curve(axes, run, key, colour, alone=len(curves) == 1)
            if run.stopped_early is not None:
                axes.axvline(run.stopped_early, color=colour, linewidth=0.9, linestyle=":")
            tooltips += _mark_best(axes, run, keys, colour, gid=tooltip_id(len(tooltips)))
        _scale_axis(axes, logarithmic="loss" in quantity.key)
        axes.set_ylabel(quantity.label)
        step_axis(axes)
        if len({name for _, name, _ in ends}) > 1:
            name_lines(axes, ends)
        return tooltips

    return Panel(quantity.title, f"{quantity.title} against training step", draw)


def _scale_axis(axes: "Axes", *, logarithmic: bool) -> None:
    """Makes the y axis start at 0.

    If `logarithmic` is set and the values are far apart, the axis becomes logarithmic instead.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    formatter = FuncFormatter(lambda value, _: f"{value:,.6g}")
    low, high = axes.dataLim.intervaly
    if logarithmic and low > 0 and high / low >= _LOG_FROM_RATIO:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif low >= 0:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(formatter)


def _draw_curve(
    axes: "Axes", run: TrainingCurves, key: str, colour: str, *, alone: bool
) -> list[tuple[float, str, str]]:
    """Draws the line of a quantity in one run.

    Returns:
      a list with the last value, the name and the colour of the line; [] if the run has no values
      of the quantity.
    """
    if key not in run.points:
        return []
    steps, values = zip(*run.points[key], strict=True)
    held_out = key.startswith(("validation_", _OF_TASKS))
    if held_out:
        colour = HELD_OUT_COLOUR if alone else colour
        axes.plot(steps, values, "o-", color=colour, linewidth=1.5, markersize=3.5, zorder=3)
    else:
        if len(steps) > _SMOOTH_ABOVE_POINTS and key in _NOISY:
            axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.3)
            values = smoothed(values, radius=len(steps) // 50)
        marker = "o" if len(steps) == 1 else ""
        pale = 1.0 if alone else 0.6
        axes.plot(steps, values, color=colour, linewidth=1.4, alpha=pale, marker=marker)
    return [(values[-1], "held-out" if held_out else "training", colour)]


def _mark_best(
    axes: "Axes", run: TrainingCurves, keys: Sequence[str], colour: str, *, gid: str
) -> list[str]:
    """Draws a star on the best evaluation if one of the panel's keys selected it."""
    value = run.value(*run.best) if run.best and run.best[0] in keys else None
    if value is None:
        return []
    metric, step = run.best
    axes.plot([step], [value], "*", color=colour, markersize=10, gid=gid, zorder=3)
    return [f"{run.label}: best {metric} {value:.4g}, at step {step:,}"]


def smoothed(values: Sequence[float], *, radius: int) -> list[float]:
    """Returns a moving average over 2 x radius + 1 values, and over fewer values near the ends.

    The window stays centred, so a steeply falling curve is not shifted.

    >>> smoothed([1.0, 2.0, 6.0, 7.0], radius=1)
    [1.0, 3.0, 5.0, 7.0]
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    positions = np.arange(len(values))
    reach = np.minimum(radius, np.minimum(positions, positions[::-1]))
    means = (sums[positions + reach + 1] - sums[positions - reach]) / (2 * reach + 1)
    return means.tolist()


def training_table(curves: Sequence[TrainingCurves]) -> list[tuple[str, list[str]]]:
    """Returns a table with the sizes, final values, best values and times of training runs.

    Returns:
      a pair for each row: the name of the row, and a list with a text for each run.
    """
    columns = [_list_final_values(run) for run in curves]
    rows = [(name, [column[name] for column in columns]) for name in (columns or [{}])[0]]
    return [(name, [text or "–" for text in texts]) for name, texts in rows if any(texts)]


_FINAL = {
    "final training NLL, nats per token": "loss_per_token",
    "final held-out NLL, nats per token": "validation_loss_per_token",
    "final T5 loss": "loss",
    "final accuracy without EOS": "token_accuracy_without_eos",
    "final learning rate": "learning_rate",
}
_SIZES = {
    "parameters": "parameters",
    "sequences per step": "batch_sequences",
    "tokens per step, including padding": "batch_tokens",
}


def _list_final_values(run: TrainingCurves) -> dict[str, str]:
    """Returns name of a row in `training_table` -> the run's text; "" for unrecorded values."""
    points, best_value = run.points, run.value(*run.best) if run.best else None
    held_out = points.get("validation_loss_per_token", ())
    least = min(((value, step) for step, value in held_out), default=None)
    best = "" if best_value is None else f" {best_value:.4g}"
    speeds = [value for _, value in points.get("tokens_per_second", ())]
    return {
        "steps": f"{max(key_points[-1][0] for key_points in points.values()):,}",
        **{
            name: f"{points[key][-1][1]:.4g}" if key in points else ""
            for name, key in _FINAL.items()
        },
        "best held-out NLL": f"{least[0]:.4g} at step {least[1]:,}" if least else "",
        "best checkpoint by": f"{run.best[0]}{best} at step {run.best[1]:,}" if run.best else "",
        **{name: f"{run.facts[key]:,}" if key in run.facts else "" for name, key in _SIZES.items()},
        "tokens per second, median": f"{float(np.median(speeds)):,.0f}" if speeds else "",
        "time of all steps": _format_duration(run),
    }


def _format_duration(run: TrainingCurves) -> str:
    """Returns the total time of the logged steps as a text; "" if the time is unknown.

    The `seconds_per_step` of a line is the mean over the steps since the previous line.
    """
    points = run.points.get("seconds_per_step", ())
    if len(points) < 2:
        return ""
    steps = [step for step, _ in points]
    since = np.diff([max(0, 2 * steps[0] - steps[1]), *steps])
    seconds = round(float((since * np.array([pace for _, pace in points])).sum()))
    return str(datetime.timedelta(seconds=seconds))
