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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from t0.errors import UserError
from t0.files.any_path import any_path
from t0.reports.plots import Panel, name_lines, run_colour, step_axis, tooltip_id
from t0.reports.result_files import distinct_names, finite, is_integer, number_lines, parsed_json

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
    Quantity("loss_per_token", "Loss", "nats per target token", "validation_loss_per_token"),
    # T5's loss is a mean over all positions, including padding. So its curve is the curve of the
    # nats per target token on another scale.
    Quantity("loss", "T5 loss", "nats per position", "validation_loss", "loss_per_token"),
    Quantity("learning_rate", "Learning rate", "learning rate"),
    Quantity("tokens_per_second", "Speed", "tokens per second"),
)
HELD_OUT_COLOUR = run_colour(1)
# Means over tasks, such as "eval/accuracy", have this prefix.
_OF_TASKS = "eval/"
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
    """

    label: str
    path: Path
    points: Mapping[str, tuple[tuple[int, float], ...]]
    not_finite: int
    best: tuple[str, int] | None = None
    stopped_early: int | None = None

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
            per_token = self.value("validation_loss_per_token", step)
            if metric == "validation_loss" and per_token is not None:
                value_text += f" (T5 loss; {per_token:.4g} nats per target token)"
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
    return tuple(_read_run(file, names[file.resolve().parent]) for file in dict.fromkeys(files))


def _read_run(path: Path, label: str) -> TrainingCurves:
    values: dict[str, dict[int, float]] = {}
    not_finite = 0
    best: tuple[str, int] | None = None
    stopped_early: int | None = None
    for step, record in _read_records(path):
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
    )


def _read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the step and the fields of each complete line."""
    for number, line in number_lines(path):
        try:
            record = parsed_json(line)
        except ValueError as error:
            if not line.endswith(b"\n"):  # the run may still be writing the last line
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
    dotted line marks the step of early stopping.
    """
    recorded = {key for run in curves for key in run.points}
    means = sorted(k for k in recorded if k.startswith(_OF_TASKS) and k.count("/") == 1)
    metrics = [key.removeprefix(_OF_TASKS) for key in means]
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
    ]


def _curve_panel(quantity: Quantity, curves: Sequence[TrainingCurves]) -> Panel:
    keys = [key for key in dict.fromkeys((quantity.key, quantity.held_out)) if key]

    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        for position, run in enumerate(curves):
            colour = run_colour(position)
            for key in keys:
                _draw_curve(axes, run, key, colour, alone=len(curves) == 1)
            if run.stopped_early is not None:
                axes.axvline(run.stopped_early, color=colour, linewidth=0.9, linestyle=":")
            tooltips += _mark_best(axes, run, keys, colour, gid=tooltip_id(len(tooltips)))
        if axes.dataLim.intervaly[0] >= 0:
            axes.set_ylim(bottom=0)
        axes.set_ylabel(quantity.label)
        step_axis(axes)
        if len(curves) == 1 and len(keys) > 1:
            name_lines(axes)
        return tooltips

    return Panel(quantity.title, f"{quantity.title} against training step", draw)


def _draw_curve(axes: "Axes", run: TrainingCurves, key: str, colour: str, *, alone: bool) -> None:
    """Draws the line of a quantity in one run, if the run has values of the quantity."""
    if key not in run.points:
        return
    steps, values = zip(*run.points[key], strict=True)
    if key.startswith(("validation_", _OF_TASKS)):
        look = {"color": HELD_OUT_COLOUR if alone else colour, "linewidth": 1.5, "zorder": 3}
        axes.plot(steps, values, "o-", markersize=3.5, label="held-out", **look)
        return
    if len(steps) > _SMOOTH_ABOVE_POINTS and key in _NOISY:
        axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.3)
        values = smoothed(values, radius=len(steps) // 50)
    marker = "o" if len(steps) == 1 else ""
    look = {"color": colour, "linewidth": 1.4, "alpha": 1.0 if alone else 0.6, "marker": marker}
    axes.plot(steps, values, label="training", **look)


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
    """Returns the last value of each quantity in each training run.

    Returns:
      a pair for each row: the name of the quantity, and a list with a text for each run.
    """
    keys = sorted({key for run in curves for key in run.points})
    steps = [f"{max(values[-1][0] for values in run.points.values()):,}" for run in curves]
    return [
        ("steps", steps),
        *(
            (key, [f"{run.points[key][-1][1]:.6g}" if key in run.points else "–" for run in curves])
            for key in keys
        ),
    ]
