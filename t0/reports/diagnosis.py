"""Diagnoses predictions for the page: confusion matrix, metrics per class, calibration.

    path = Path("eval/scores/super_glue_rte_GPT_3_style_score_eval_1000.jsonl")
    diagnosis = diagnose(read_scores(path))
    diagnosis["majority"], diagnosis["most_predicted"]    # 54.2, 97.0: nearly always one answer

    rows = reliability_rows(read_runs([Path("eval")]))
    rows[0]["error"], rows[0]["low"], rows[0]["high"]       # ECE and its interval, in percent
    panels = reliability_panels(rows, [0])                  # one for each dataset

    >>> calibrate(np.array([0.55, 0.95]), np.array([True, True]))["bins"]
    ((0.55, 100.0, 1), (0.95, 100.0, 1))
    >>> rows = measure_classes(np.array([[1, 1], [0, 2]]), ("yes", "no"))
    >>> rows[1]["recall"], round(rows[1]["f1"], 6)
    (100.0, 80.0)

The values of `t0.measures.rank_measures.MEASURES` are computed there.

A reliability diagram combines all prompts of a dataset. For the interval of the calibration error,
an example is drawn together with all its prompts and all examples of the same document.

Assumptions: the confidence of a prediction is its share of the total probability of the choices.
The probability of a choice comes from its summed log-likelihood, without length normalization.
There are ten bins of equal width.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from t0.measures.calibration import calibration_bins, calibration_error
from t0.measures.rank_measures import class_shares
from t0.reports import statistics
from t0.reports.evaluations import EvaluatedRun, tasks_by_dataset
from t0.reports.example_scores import ExampleScores, keep_apart
from t0.reports.plots import MUTED, Panel, tooltip_id
from t0.reports.published import title_of
from t0.reports.tables import MARK, group_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ANSWERS = 15  # a confusion matrix with more answers is not readable
_LARGEST_POINT = 11.0
_SHOWN_ERRORS = 4


def calibrate(
    confidence: np.ndarray, correct: np.ndarray, *, clusters: np.ndarray | None = None
) -> dict[str, Any]:
    """Computes the agreement of confidence and accuracy.

    Args:
      confidence: [E], the confidence of each prediction, from 0 to 1.
      correct: bool [E], whether each prediction is correct.
      clusters: int [E], the number of each prediction's group. Predictions of a group are drawn
        together for the interval. None if all predictions are independent.

    Returns:
      `bins`: for each non-empty bin, (mean confidence from 0 to 1, accuracy in percent, number of
      predictions); `error`: the calibration error in percent; `low`, `high`: the ends of the
      error's interval.
    """
    bin_numbers = calibration_bins(confidence)
    bins = []
    for number in np.unique(bin_numbers).tolist():
        in_bin = bin_numbers == number
        mean, accuracy = float(confidence[in_bin].mean()), 100 * float(correct[in_bin].mean())
        bins.append((round(mean, 4), round(accuracy, 4), int(in_bin.sum())))
    interval = statistics.calibration_interval(confidence, correct, clusters=clusters)
    error = calibration_error(confidence, correct)
    return {
        "bins": tuple(bins),
        "error": 100 * error,
        "low": 100 * interval.low,
        "high": 100 * interval.high,
    }


def diagnose(scores: ExampleScores | None) -> dict[str, Any] | None:
    """Diagnoses the predictions of one task in one run; returns None if there are no scores.

    Returns:
      the record that the page and `report.json` contain. Shares are in percent. The keys are:
        `answers`: the texts of the A choices; "choice 1", "choice 2" ... if the choices differ
          between examples;
        `same_choices`: whether all examples have the same choices;
        `confusion`: A lists of A integers, the number of examples by gold choice and prediction;
          None if A is more than `MOST_ANSWERS`;
        `majority`: the accuracy of the majority baseline;
        `most_predicted`, `most_predicted_answer`: the share of the most frequent prediction, and
          its text;
        `calibration`, `calibration_error`, `calibration_interval`: see `calibrate`;
        `accuracy_without_ties`: the accuracy on the examples in which only one choice has the
          highest score; None if there are no such examples;
        `entropy_bits`: the entropy of the distribution of predictions;
        `classes`: see `measure_classes`; None if the choices differ between examples.
    """
    if scores is None or not len(scores):
        return None
    values = scores.measures
    calibration = calibrate(scores.confidence, scores.correct)
    return {
        "answers": list(scores.answers),
        "same_choices": scores.labels is not None,
        "confusion": scores.confusion.tolist() if len(scores.answers) <= MOST_ANSWERS else None,
        "majority": values["majority_percent"],
        "most_predicted": values["most_predicted_percent"],
        "most_predicted_answer": values["most_predicted_answer"],
        "calibration": calibration["bins"],
        "calibration_error": calibration["error"],
        "calibration_interval": [calibration["low"], calibration["high"]],
        "accuracy_without_ties": values["accuracy_without_ties_percent"],
        "entropy_bits": values["prediction_entropy_bits"],
        "classes": scores.labels and measure_classes(scores.confusion, scores.labels),
    }


def measure_classes(confusion: np.ndarray, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Computes the metrics of each class.

    Args:
      confusion: int [C, C], the number of examples by gold class and prediction.
      classes: the texts of the C classes.

    Returns:
      a row for each class: its text as `class`; `precision`, `recall` and `f1` in percent (None if
      undefined); its number of examples as `support`, and of predictions as `predicted`.
    """
    shares = zip(*(100 * share for share in class_shares(confusion)), strict=True)
    counts = zip(confusion.sum(axis=1).tolist(), confusion.sum(axis=0).tolist(), strict=True)
    rows = []
    for text, values, (support, predicted) in zip(classes, shares, counts, strict=True):
        row = {"class": text}
        for name, value in zip(("precision", "recall", "f1"), values, strict=True):
            row[name] = None if np.isnan(value) else float(value)
        rows.append(row | {"support": support, "predicted": predicted})
    return rows


def reliability_rows(runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Returns a row with the calibration for each dataset and run with per-example scores."""
    rows = []
    for (dataset, position), tasks in tasks_by_dataset(runs).items():
        scores = keep_apart([task.scores for task in tasks if task.scores])
        if not scores:
            continue
        units = [s.idx if s.documents is None else s.documents for s in scores]
        _, clusters = np.unique(np.concatenate(units).astype(str), return_inverse=True)
        calibration = calibrate(
            np.concatenate([s.confidence for s in scores]),
            np.concatenate([s.correct for s in scores]),
            clusters=clusters,
        )
        run = runs[position]
        names = {"dataset": dataset, "run": position, "label": run.label, MARK: run.mark}
        rows.append(names | calibration)
    return rows


def reliability_panels(rows: Sequence[Mapping[str, Any]], shown: Collection[int]) -> list[Panel]:
    """Makes a reliability diagram for each dataset.

    Args:
      rows: the rows of `reliability_rows`.
      shown: the positions of the runs to draw.
    """
    by_dataset = group_by((row for row in rows if row["run"] in shown), "dataset")
    return [_reliability_panel(title_of(name), rows) for name, rows in by_dataset.items()]


def _reliability_panel(title: str, rows: Sequence[Mapping[str, Any]]) -> Panel:
    errors = [f"ECE {r['error']:.1f} ({r['low']:.1f} to {r['high']:.1f})" for r in rows]

    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        axes.plot([0, 100], [0, 100], linestyle=(0, (3, 3)), color=MUTED, linewidth=1)
        for number, (row, error) in enumerate(zip(rows, errors, strict=True)):
            label = f"{row[MARK].letter} " * (len(rows) > 1) + error
            _draw_reliability(axes, row, tooltips, label if number < _SHOWN_ERRORS else "")
        axes.legend(loc="upper left", fontsize=7, labelcolor="linecolor", handlelength=0)
        axes.set_xlim(-2, 102)
        axes.set_ylim(-2, 102)
        axes.set_xlabel("confidence (%)")
        axes.set_ylabel("accuracy (%)")
        return tooltips

    words = "; ".join(f"{row['label']}: {error}" for row, error in zip(rows, errors, strict=True))
    return Panel(title, f"Accuracy against confidence on {title}. {words}", draw)


def _draw_reliability(
    axes: "Axes", row: Mapping[str, Any], tooltips: list[str], label: str
) -> None:
    colour, largest = row[MARK].colour, max(count for *_, count in row["bins"])
    points = [(100 * confidence, accuracy) for confidence, accuracy, _ in row["bins"]]
    axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.4, label=label)
    for (x, y), (_, _, count) in zip(points, row["bins"], strict=True):
        size = max(2.5, _LARGEST_POINT * (count / largest) ** 0.5)
        gid = tooltip_id(len(tooltips))
        point = {"markersize": size, "color": colour, "alpha": 0.8, "clip_on": False}
        axes.plot([x], [y], "o", gid=gid, **point)
        tooltips.append(
            f"confidence {x:.1f} %: accuracy {y:.1f} %, {count:,} times ({row['label']})"
        )
