"""What a prompt's predictions are: confusion matrix, majority baseline, ties, calibration.

    >>> gold, predicted = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1])
    >>> confusion(gold, predicted, 2).tolist()      # a row for each right choice
    [[1, 2], [0, 1]]
    >>> calibration(np.array([0.55, 0.95]), np.array([True, True]))
    [(0.55, 100.0, 1), (0.95, 100.0, 1)]

    path = Path("eval/scores/super_glue_rte_GPT_3_style_score_eval_1000.jsonl")
    diagnosis = diagnose(read_scores(path))
    diagnosis.majority, diagnosis.most_predicted    # 54.2, 97.0: nearly always the same answer

The majority baseline is the accuracy of the answer that is right most often, the same for every
example. Where the choices are other texts in each example, answers are the choices' positions.

Assumptions: the confidence of a prediction is its share of the probability of the choices, each
by its summed log-likelihood, without length normalisation.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from t0.reports import statistics
from t0.reports.example_scores import ExampleScores

MOST_ANSWERS = 15  # a larger confusion matrix is not readable


@dataclass(frozen=True)
class Diagnosis:
    """The predictions of one task in one run; shares are in percent.

    Attributes:
      answers: the texts of the A choices, or their positions from "choice 1".
      fixed: whether the choices are the same texts in every example.
      matrix: int [A, A], the number of examples by right choice (row) and prediction (column); None
        if there are more than `MOST_ANSWERS`.
      majority: the accuracy of the answer that is right most often.
      most_predicted: the share of the answer that is predicted most often.
      most_predicted_answer: that answer.
      bins: (mean confidence from 0 to 1, accuracy, number of examples) of each bin that has some.
      calibration_error: the mean distance between confidence and accuracy over the examples.
      calibration_low: the low end of its interval.
      calibration_high: the high end.
      without_ties: the accuracy on examples without several choices of the same highest score; None
        if there are none.
      entropy: of the distribution over answers that the predictions have, in bits: 0 if they are
        all the same answer.
    """

    answers: tuple[str, ...]
    fixed: bool
    matrix: np.ndarray | None
    majority: float
    most_predicted: float
    most_predicted_answer: str
    bins: tuple[tuple[float, float, int], ...]
    calibration_error: float
    calibration_low: float
    calibration_high: float
    without_ties: float | None
    entropy: float


def diagnose(scores: ExampleScores) -> Diagnosis | None:
    """Returns what the predictions of a task are; None without examples."""
    if not len(scores):
        return None
    count = int(scores.choices.max())
    answers = answers_of(scores)
    gold = np.bincount(scores.gold, minlength=count)
    predicted = np.bincount(scores.prediction, minlength=count)
    bins = calibration(scores.confidence, scores.correct)
    interval = statistics.calibration_interval(scores.confidence, scores.correct)
    decided = scores.correct[~scores.tied]
    shares = predicted[predicted > 0] / len(scores)
    return Diagnosis(
        answers=answers,
        fixed=scores.labels is not None,
        matrix=(
            confusion(scores.gold, scores.prediction, count) if count <= MOST_ANSWERS else None
        ),
        majority=100.0 * int(gold.max()) / len(scores),
        most_predicted=100.0 * int(predicted.max()) / len(scores),
        most_predicted_answer=answers[int(predicted.argmax())],
        bins=tuple(bins),
        calibration_error=100 * statistics.calibration_error(scores.confidence, scores.correct),
        calibration_low=100 * interval.low,
        calibration_high=100 * interval.high,
        without_ties=100 * float(decided.mean()) if len(decided) else None,
        entropy=abs(float((shares * np.log2(shares)).sum())),
    )


def answers_of(scores: ExampleScores) -> tuple[str, ...]:
    """Returns the texts of a task's choices; their positions if examples have other choices."""
    count = int(scores.choices.max())
    return scores.labels or tuple(f"choice {number + 1}" for number in range(count))


def confusion(gold: np.ndarray, predicted: np.ndarray, count: int) -> np.ndarray:
    """Returns the examples [count, count] by right choice [E] and predicted choice [E]."""
    return np.bincount(gold * count + predicted, minlength=count * count).reshape(count, count)


def calibration(confidence: np.ndarray, correct: np.ndarray) -> list[tuple[float, float, int]]:
    """Returns (mean confidence, accuracy in percent, examples) of each bin of confidence."""
    return list(_bins(confidence, correct))


def _bins(confidence: np.ndarray, correct: np.ndarray) -> Iterator[tuple[float, float, int]]:
    places = statistics.calibration_bins(confidence)
    for place in range(statistics.BINS):
        inside = places == place
        if inside.any():
            mean, accuracy = float(confidence[inside].mean()), 100 * float(correct[inside].mean())
            yield round(mean, 4), round(accuracy, 4), int(inside.sum())
