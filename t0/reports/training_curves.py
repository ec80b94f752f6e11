"""Reads `metrics.jsonl` of training runs into curves over steps, and draws them.

    {"step": 100, "loss": 3.2, "learning_rate": 0.001, "tokens_per_second": 5400.0}
    {"step": 200, "loss": 2.9, "learning_rate": 0.001, "tokens_per_second": 5500.0}
    {"step": 200, "validation_loss": 3.0, "eval/accuracy": 41.0}
    {"step": 200, "best_by": "validation_loss", "best_step": 200}

    curves = read_curves([Path("model/metrics.jsonl")])
    curves[0].value("loss", 200)                   # 2.9
    panels = curve_panels(curves, ["#0072b2"])     # one for each quantity, see t0.reports.plots

Assumptions: a resumed training repeats steps, so the last line of a step counts. The last line may
be incomplete while the training is running, and is then left out. The loss is in nats.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from t0.errors import UserError
from t0.files.any_path import any_path
from t0.reports.evaluation_plots import series_legend
from t0.reports.evaluations import EvaluatedRun
from t0.reports.plots import INK, RUN_COLOURS, Panel, step_axis, tooltip_id
from t0.reports.result_files import distinct_names, ends_alike, finite, is_integer, parsed_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# (keys in metrics.jsonl, title, axis label); there is a panel for each whose first key some run
# has. The keys after the first are the same quantity on held-out examples.
CURVE_PANELS = (
    # The mean over positions, padding included, as Mesh TensorFlow trains. Where rows have much
    # padding it is far below the next quantity, the mean over target tokens.
    (("loss", "validation_loss"), "Training loss", "loss (nats)"),
    (("loss_per_token", "validation_loss_per_token"), "NLL", "nats for each target token"),
    (("learning_rate",), "Learning rate", "learning rate"),
    (("tokens_per_second",), "Speed", "tokens per second"),
)
# Prefix of means over tasks, such as "eval/accuracy", and the largest number of their panels.
_OF_TASKS = "eval/"
_MOST_TASK_PANELS = 6
_SMOOTH_ABOVE_POINTS = 150
_NOISY = {"loss", "loss_per_token", "tokens_per_second"}


@dataclass(frozen=True)
class TrainingCurves:
    """One training run: for each quantity its (step, value) points in order of steps.

    Attributes:
      not_finite: number of values that were NaN or infinite, which are left out.
      best: the metric by which the best checkpoint was kept, and its step; None without one.
      stopped_early: the step at which the run was stopped early, or None.
    """

    label: str
    path: Path
    points: Mapping[str, tuple[tuple[int, float], ...]]
    not_finite: int
    best: tuple[str, int] | None = None
    stopped_early: int | None = None

    def value(self, key: str, step: int) -> float | None:
        """Returns a quantity's value at a step, None where it was not recorded."""
        return dict(self.points.get(key, ())).get(step)

    @property
    def notes(self) -> list[str]:
        """The report's notes about this run."""
        notes = []
        if self.not_finite:
            notes.append(f"{self.not_finite} values were not finite and are not drawn.")
        if self.best:
            metric, step = self.best
            value = self.value(metric, step)
            of = "" if value is None else f" of {value:.4g}"
            stop = "; none better came, and it stopped early at step {:,}"
            end = "" if self.stopped_early is None else stop.format(self.stopped_early)
            notes.append(f"the best {metric}{of} was at step {step:,}{end}.")
        return [f"Training run {self.label}: {note}" for note in notes]


def read_curves(paths: Sequence[Path]) -> tuple[TrainingCurves, ...]:
    """Reads each metrics file, or the `metrics.jsonl` of each model directory.

    Raises:
      UserError: if a file is missing, empty or malformed; it names file and line.
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
        curves.append(_read(file, label=f"{label} #{number + 1}" if number else label))
    return tuple(curves)


def _read(path: Path, *, label: str) -> TrainingCurves:
    values: dict[str, dict[int, float]] = {}
    not_finite = 0
    best: tuple[str, int] | None = None
    stopped_early: int | None = None
    for step, record in _records(path):
        best_step = record.pop("best_step", None)
        if is_integer(best_step) and isinstance(record.get("best_by"), str):
            best = record["best_by"], best_step
            # A run that was resumed with more patience has later lines without it.
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
        raise UserError(f"{path} holds no numbers by step. Was the training stopped at once?")
    return TrainingCurves(
        label=label,
        path=path,
        points={key: tuple(sorted(points.items())) for key, points in sorted(values.items())},
        not_finite=not_finite,
        best=best,
        stopped_early=stopped_early,
    )


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the step and the fields of each whole line."""
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
            if number == len(lines):  # no newline after it: still being written
                continue
            raise UserError(f"{path}, line {number}: not valid JSON ({error}).") from error
        step = record.get("step") if isinstance(record, dict) else None
        if not is_integer(step):
            raise UserError(f"{path}, line {number}: wanted an object with a whole 'step'.")
        yield step, record


def curve_legend(
    curves: Sequence[TrainingCurves], runs: Sequence[EvaluatedRun]
) -> list[tuple[str, str]]:
    """Returns (colour, text) for each training run: the colour of its checkpoints if known."""
    known = {name: colour for colour, name in series_legend(runs).values()}
    spare = [colour for colour in RUN_COLOURS if colour not in known.values()]
    legend = []
    for run in curves:
        colour = known.get(run.label) or _colour_by_folder(run, known)
        colour = colour or (spare.pop(0) if spare else INK)
        legend.append((colour, run.label))
    return legend


def _colour_by_folder(run: TrainingCurves, known: Mapping[str, str]) -> str | None:
    """Returns the colour of the model whose name is the end of the path of the run's folder."""
    folder = run.path.resolve().parent
    return next((known[n] for n in known if "/" in n and ends_alike(folder, PurePath(n))), None)


def curve_panels(curves: Sequence[TrainingCurves], colours: Sequence[str]) -> list[Panel]:
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
    keys: Sequence[str], title: str, label: str, curves: Sequence[tuple[str, TrainingCurves]]
) -> Panel:
    def draw(axes: "Axes") -> list[str]:
        from matplotlib.ticker import FuncFormatter

        tooltips: list[str] = []
        for colour, run in curves:
            for key in keys:
                _draw_curve(axes, run, key, colour)
            if run.stopped_early is not None:
                axes.axvline(run.stopped_early, color=colour, linewidth=0.9, linestyle=":")
            tooltips += _mark_best(axes, run, keys, colour, gid=tooltip_id(len(tooltips)))
        if min(axes.dataLim.intervaly) >= 0:
            axes.set_ylim(bottom=0)
        axes.set_ylabel(label)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        step_axis(axes)
        return tooltips

    return Panel(title, f"{title} against training step", draw)


def _draw_curve(axes: "Axes", run: TrainingCurves, key: str, colour: str) -> None:
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
    axes: "Axes", run: TrainingCurves, keys: Sequence[str], colour: str, *, gid: str
) -> list[str]:
    """Draws a star on the best evaluation, if the best was chosen by one of the panel's keys."""
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
