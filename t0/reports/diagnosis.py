"""Diagnoses predictions: confusion matrix, majority baseline, ties, calibration, reliability.

    path = Path("eval/scores/super_glue_rte_GPT_3_style_score_eval_1000.jsonl")
    diagnosis = diagnose(read_scores(path))
    diagnosis.majority, diagnosis.most_predicted    # 54.2, 97.0: nearly always the same answer

    rows = reliability_rows(read_runs([Path("eval")]))
    rows[0]["error"], rows[0]["low"], rows[0]["high"]       # ECE and its interval, in percent
    panels = reliability_panels(rows, [0])                  # one for each dataset

    >>> gold, predicted = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1])
    >>> confusion_matrix(gold, predicted, 2).tolist()      # a row for each gold choice
    [[1, 2], [0, 1]]
    >>> calibrate(np.array([0.55, 0.95]), np.array([True, True])).bins
    ((0.55, 100.0, 1), (0.95, 100.0, 1))

The majority baseline always predicts the most frequent gold answer. If the choices differ between
examples, an answer is the position of a choice instead of its text.

A reliability diagram combines all prompts of a dataset. For the interval of the calibration error,
an example is drawn together with all its prompts and all examples of the same document.

Assumptions: the confidence of a prediction is its share of the total probability of the choices.
The probability of a choice comes from its summed log-likelihood, without length normalization.
There are ten bins of equal width.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from t0.reports import accuracies, statistics
from t0.reports.class_metrics import ClassMetrics, measure_classes
from t0.reports.evaluations import EvaluatedRun
from t0.reports.example_scores import ExampleScores
from t0.reports.held_out import title_of
from t0.reports.plots import MUTED, Panel, tooltip_id
from t0.reports.tables import MARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ANSWERS = 15  # a confusion matrix with more answers is not readable
_LARGEST_POINT = 11.0
_SHOWN_ERRORS = 4


@dataclass(frozen=True)
class Calibration:
    """The agreement of confidence and accuracy.

    Attributes:
      bins: for each non-empty bin, (mean confidence from 0 to 1, accuracy in percent, number of
        predictions).
      error: the calibration error in percent. It is the distance between confidence and accuracy in
        a bin, averaged over bins that are weighted by their number of predictions.
      low: the low end of the error's interval.
      high: the high end of the error's interval.
    """

    bins: tuple[tuple[float, float, int], ...]
    error: float
    low: float
    high: float


def calibrate(
    confidence: np.ndarray, correct: np.ndarray, *, clusters: np.ndarray | None = None
) -> Calibration:
    """Computes the calibration of predictions.

    Args:
      confidence: [E], the confidence of each prediction, from 0 to 1.
      correct: bool [E], whether each prediction is correct.
      clusters: int [E], the number of each prediction's group. Predictions of a group are drawn
        together for the interval. None if all predictions are independent.
    """
    bin_numbers = statistics.calibration_bins(confidence)
    bins = []
    for number in np.unique(bin_numbers).tolist():
        in_bin = bin_numbers == number
        mean, accuracy = float(confidence[in_bin].mean()), 100 * float(correct[in_bin].mean())
        bins.append((round(mean, 4), round(accuracy, 4), int(in_bin.sum())))
    interval = statistics.calibration_interval(confidence, correct, clusters=clusters)
    error = statistics.calibration_error(confidence, correct)
    return Calibration(tuple(bins), 100 * error, 100 * interval.low, 100 * interval.high)


@dataclass(frozen=True)
class Diagnosis:
    """The predictions of one task in one run; shares are in percent.

    Attributes:
      answers: the texts of the A choices; "choice 1", "choice 2" ... if the choices differ between
        examples.
      fixed: whether all examples have the same choices.
      matrix: int [A, A], the number of examples by gold choice (row) and prediction (column); None
        if A is more than `MOST_ANSWERS`.
      majority: the accuracy of the majority baseline.
      most_predicted: the share of the most frequent prediction.
      most_predicted_answer: the answer that is predicted most frequently.
      calibration: the agreement of confidence and accuracy.
      without_ties: the accuracy on the examples in which only one choice has the highest score;
        None if there are no such examples.
      entropy: the entropy of the distribution of predictions, in bits; 0 if all predictions are the
        same.
      classes: the metrics of each answer; None if the choices differ between examples.
    """

    answers: tuple[str, ...]
    fixed: bool
    matrix: np.ndarray | None
    majority: float
    most_predicted: float
    most_predicted_answer: str
    calibration: Calibration
    without_ties: float | None
    entropy: float
    classes: ClassMetrics | None


def diagnose(scores: ExampleScores) -> Diagnosis | None:
    """Diagnoses a task's predictions; returns None if there are no examples."""
    if not len(scores):
        return None
    count = int(scores.choices.max())
    answers = scores.labels or tuple(f"choice {number + 1}" for number in range(count))
    gold = np.bincount(scores.gold, minlength=count)
    predicted = np.bincount(scores.prediction, minlength=count)
    decided = scores.correct[~scores.tied]
    shares = predicted[predicted > 0] / len(scores)
    matrix = confusion_matrix(scores.gold, scores.prediction, count)
    return Diagnosis(
        answers=answers,
        fixed=scores.labels is not None,
        matrix=matrix if count <= MOST_ANSWERS else None,
        majority=100.0 * int(gold.max()) / len(scores),
        most_predicted=100.0 * int(predicted.max()) / len(scores),
        most_predicted_answer=answers[int(predicted.argmax())],
        calibration=calibrate(scores.confidence, scores.correct),
        without_ties=100 * float(decided.mean()) if len(decided) else None,
        entropy=abs(float((shares * np.log2(shares)).sum())),
        classes=scores.labels and measure_classes(scores.gold, scores.prediction, scores.labels),
    )


def confusion_matrix(gold: np.ndarray, predicted: np.ndarray, count: int) -> np.ndarray:
    """Counts examples by gold choice (row) and predicted choice (column).

    Args:
      gold: int [E], the gold choice of each example.
      predicted: int [E], the predicted choice of each example.
      count: the number of choices.

    Returns:
      int [count, count].
    """
    return np.bincount(gold * count + predicted, minlength=count * count).reshape(count, count)


def reliability_rows(runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Returns a row with the calibration for each dataset and run with per-example scores."""
    rows = []
    for dataset in dict.fromkeys(task.dataset for run in runs for task in run.tasks):
        for position, run in enumerate(runs):
            scores = accuracies.scores_of([task for task in run.tasks if task.dataset == dataset])
            if not scores:
                continue
            units = [s.idx if s.documents is None else s.documents for s in scores]
            _, clusters = np.unique(np.concatenate(units).astype(str), return_inverse=True)
            calibration = calibrate(
                np.concatenate([s.confidence for s in scores]),
                np.concatenate([s.correct for s in scores]),
                clusters=clusters,
            )
            names = {"dataset": dataset, "run": position, "label": run.label, MARK: run.mark}
            rows.append(names | vars(calibration))
    return rows


def reliability_panels(rows: Sequence[Mapping[str, Any]], shown: Collection[int]) -> list[Panel]:
    """Makes a reliability diagram for each dataset.

    Args:
      rows: the rows of `reliability_rows`.
      shown: the positions of the runs to draw.
    """
    by_dataset: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["run"] in shown:
            by_dataset.setdefault(row["dataset"], []).append(row)
    return [_reliability_panel(title_of(name), rows) for name, rows in by_dataset.items()]


def _reliability_panel(title: str, rows: Sequence[Mapping[str, Any]]) -> Panel:
    errors = [f"ECE {r['error']:.1f} ({r['low']:.1f} to {r['high']:.1f})" for r in rows]

    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        axes.plot([0, 100], [0, 100], linestyle=(0, (3, 3)), color=MUTED, linewidth=1)
        for row in rows:
            _draw_reliability(axes, row, tooltips)
        for line, (row, error) in enumerate(zip(rows[:_SHOWN_ERRORS], errors, strict=False)):
            axes.annotate(
                (f"{row[MARK].letter} " if len(rows) > 1 else "") + error,
                (0.03, 0.97 - 0.075 * line),
                xycoords="axes fraction",
                va="top",
                fontsize=7,
                color=row[MARK].colour,
            )
        axes.set_xlim(-2, 102)
        axes.set_ylim(-2, 102)
        axes.set_xlabel("confidence (%)")
        axes.set_ylabel("accuracy (%)")
        return tooltips

    words = "; ".join(f"{row['label']}: {error}" for row, error in zip(rows, errors, strict=True))
    return Panel(title, f"Accuracy against confidence on {title}. {words}", draw)


def _draw_reliability(axes: "Axes", row: Mapping[str, Any], tooltips: list[str]) -> None:
    colour, largest = row[MARK].colour, max(count for *_, count in row["bins"])
    points = [(100 * confidence, accuracy) for confidence, accuracy, _ in row["bins"]]
    axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.4)
    for (x, y), (_, _, count) in zip(points, row["bins"], strict=True):
        size = max(2.5, _LARGEST_POINT * (count / largest) ** 0.5)
        gid = tooltip_id(len(tooltips))
        point = {"markersize": size, "color": colour, "alpha": 0.8, "clip_on": False}
        axes.plot([x], [y], "o", gid=gid, **point)
        tooltips.append(
            f"confidence {x:.1f} %: accuracy {y:.1f} %, {count:,} times ({row['label']})"
        )
