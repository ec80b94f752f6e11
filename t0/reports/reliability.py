"""Reliability diagrams: how often predictions are right that are made with some confidence.

    found = reliabilities(read_runs([Path("eval")]))
    found[0].error, found[0].low, found[0].high       # ECE and its interval, in percent
    panels = reliability_panels(found, [0])           # one for each dataset

All prompts of a dataset are in one diagram. In the interval the rows of one example, under all of
its prompts, are drawn together, as are the examples of one document.

Assumptions: the confidence of a prediction is its share of the probability of the choices, by T0's
plain sum; ten bins of equal width.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from t0.reports import statistics
from t0.reports.diagnosis import calibration
from t0.reports.evaluations import EvaluatedRun
from t0.reports.example_scores import ExampleScores
from t0.reports.plots import MUTED, Mark, Panel, tooltip_id
from t0.reports.published import published

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LARGEST_POINT = 11.0
_SHOWN_ERRORS = 4


@dataclass(frozen=True)
class Reliability:
    """The calibration of one run on one dataset, over all prompts with scores.

    Attributes:
      run: the position of the evaluated checkpoint.
      mark: its letter and colour.
      bins: (mean confidence from 0 to 1, accuracy in percent, number of predictions) of each bin
        that has some.
      error: the expected calibration error in percent.
      low: the low end of its interval.
      high: the high end.
    """

    dataset: str
    run: int
    label: str
    mark: Mark
    bins: tuple[tuple[float, float, int], ...]
    error: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """The error with its interval."""
        return f"ECE {self.error:.1f} ({self.low:.1f} to {self.high:.1f})"


def reliabilities(runs: Sequence[EvaluatedRun]) -> list[Reliability]:
    """Returns the calibration of each dataset and run with scores, dataset by dataset."""
    found = []
    for dataset in dict.fromkeys(task.dataset for run in runs for task in run.tasks):
        for position, run in enumerate(runs):
            tasks = [task for task in run.tasks if task.dataset == dataset]
            scores = [task.scores for task in tasks if task.scores is not None and len(task.scores)]
            if scores:
                found.append(_reliability(dataset, position, run, scores))
    return found


def _reliability(
    dataset: str, position: int, run: EvaluatedRun, scores: Sequence[ExampleScores]
) -> Reliability:
    confidence = np.concatenate([one.confidence for one in scores])
    right = np.concatenate([one.correct for one in scores])
    units = [one.idx if one.documents is None else one.documents for one in scores]
    _, clusters = np.unique(np.concatenate(units).astype(str), return_inverse=True)
    interval = statistics.calibration_interval(confidence, right, clusters=clusters)
    return Reliability(
        dataset=dataset,
        run=position,
        label=run.label,
        mark=run.mark,
        bins=tuple(calibration(confidence, right)),
        error=100 * statistics.calibration_error(confidence, right),
        low=100 * interval.low,
        high=100 * interval.high,
    )


def reliability_panels(found: Sequence[Reliability], shown: Collection[int]) -> list[Panel]:
    """Returns a panel for each dataset.

    Args:
      found: the runs' calibration.
      shown: the positions of the runs to draw.
    """
    by_dataset: dict[str, list[Reliability]] = {}
    for one in found:
        if one.run in shown:
            by_dataset.setdefault(one.dataset, []).append(one)
    return [_panel(dataset, rows) for dataset, rows in by_dataset.items()]


def _panel(dataset: str, rows: Sequence[Reliability]) -> Panel:
    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        axes.plot([0, 100], [0, 100], linestyle=(0, (3, 3)), color=MUTED, linewidth=1)
        for one in rows:
            _draw(axes, one, tooltips)
        for line, one in enumerate(rows[:_SHOWN_ERRORS]):
            letter = f"{one.mark.letter} " if len(rows) > 1 else ""
            axes.annotate(
                letter + one.words,
                (0.03, 0.97 - 0.075 * line),
                xycoords="axes fraction",
                va="top",
                fontsize=7,
                color=one.mark.colour,
            )
        axes.set_xlim(-2, 102)
        axes.set_ylim(-2, 102)
        axes.set_xlabel("confidence (%)")
        axes.set_ylabel("accuracy (%)")
        return tooltips

    title = published()[dataset].title if dataset in published() else dataset
    words = "; ".join(f"{one.label}: {one.words}" for one in rows)
    return Panel(title, f"Accuracy against confidence on {title}. {words}", draw)


def _draw(axes: "Axes", one: Reliability, tooltips: list[str]) -> None:
    colour, most = one.mark.colour, max(count for *_, count in one.bins)
    places = [(100 * confidence, accuracy) for confidence, accuracy, _ in one.bins]
    axes.plot(*zip(*places, strict=True), color=colour, linewidth=1.4)
    for (x, y), (_, _, count) in zip(places, one.bins, strict=True):
        size = max(2.5, _LARGEST_POINT * (count / most) ** 0.5)
        gid = tooltip_id(len(tooltips))
        point = {"markersize": size, "color": colour, "alpha": 0.8, "clip_on": False}
        axes.plot([x], [y], "o", gid=gid, **point)
        tooltips.append(f"confidence {x:.1f} %: accuracy {y:.1f} %, {count:,} times ({one.label})")
