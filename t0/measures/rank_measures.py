"""Measures ranked answer choices: accuracy, F1, majority, entropy, correlation.

`MEASURES` lists the values that a report has for each prompt. Rank evaluation computes accuracy and
F1 for results files with the same functions.

    >>> confusion = count_confusions(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), 2)
    >>> confusion.tolist(), round(macro_f1(confusion), 2), balanced_accuracy(confusion)
    ([[1, 1], [0, 2]], 73.33, 75.0)
    >>> round(matthews_correlation(confusion), 2)
    57.74

    measure(read_scores(path))["macro_f1_percent"]     # None if the choices differ between examples

A class is an answer choice of a prompt whose choices are the same in all examples. If the choices
differ between examples, an answer is the position of a choice instead of its text.

| mean over classes | values | classes |
|---|---|---|
| `macro_f1` | F1 | the classes that have examples |
| `macro_f1_all_classes` | F1, or 0 if F1 is undefined | all answer choices |
| `balanced_accuracy` | recall | the classes that have examples |

Assumption: there is at least one example.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from t0.measures.calibration import calibration_error


class RankOutcomes(Protocol):
    """The outcomes of a prompt's E examples, such as `t0.reports.example_scores.ExampleScores`.

    Attributes:
      correct: bool [E], whether the prediction is the gold choice.
      confidence: float [E], the share of the prediction in the probability of all choices.
      tied: bool [E], whether several choices have exactly the highest log-likelihood.
      labels: the texts of the C choices; None if the choices differ between examples.
      right_by: normalization -> bool [E], whether the prediction under it is correct.
      confusion: see `count_confusions`.
      answers: the names of the C choices: their texts, or "choice 1", "choice 2" and so on.
    """

    correct: np.ndarray
    confidence: np.ndarray
    tied: np.ndarray
    labels: tuple[str, ...] | None
    right_by: Mapping[str, np.ndarray]
    confusion: np.ndarray
    answers: tuple[str, ...]


def count_confusions(gold: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Returns the confusion matrix: int [C, C], the number of examples by gold and prediction.

    Args:
      gold: int [E], the index of the right choice, below C.
      predicted: int [E], the index of the predicted choice, below C.
      classes: C, the number of choices.
    """
    cells = np.asarray(gold, np.int64) * classes + predicted
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def accuracy(correct: np.ndarray) -> float:
    """Returns the share of correct predictions in percent, from bool [E]."""
    return 100 * float(np.mean(correct))


def class_shares(confusion: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns precision, recall and F1 of each class, from 0 to 1; NaN if undefined.

    Precision is undefined if the class is never predicted, recall if it has no examples, and F1 in
    both cases together.
    """
    right, support, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    with np.errstate(invalid="ignore"):
        return right / predicted, right / support, 2 * right / (support + predicted)


def macro_f1(confusion: np.ndarray) -> float:
    """Returns the mean F1 of the classes that have examples, in percent."""
    return _mean_present(confusion, class_shares(confusion)[2])


def macro_f1_all_classes(confusion: np.ndarray) -> float:
    """Returns the mean F1 of all classes in percent; an undefined F1 counts as 0."""
    return 100 * float(np.mean(np.nan_to_num(class_shares(confusion)[2])))


def balanced_accuracy(confusion: np.ndarray) -> float:
    """Returns the mean recall of the classes that have examples, in percent."""
    return _mean_present(confusion, class_shares(confusion)[1])


def _mean_present(confusion: np.ndarray, shares: np.ndarray) -> float:
    return float(np.mean(100 * shares[confusion.sum(axis=1) > 0]))


def matthews_correlation(confusion: np.ndarray) -> float:
    """Returns the Matthews correlation of gold and predicted classes, from -100 to 100.

    With more than two classes, it is the R_K of Gorodkin (2004, Comput. Biol. Chem. 28). If all
    gold or all predicted classes are the same, it is 0, as in T5's `matthews_corrcoef`.
    """
    gold, predicted = (confusion.sum(axis=axis).astype(float) for axis in (1, 0))
    total, right = float(confusion.sum()), float(np.trace(confusion))
    spread = (total**2 - gold @ gold) * (total**2 - predicted @ predicted)
    return 100 * float((right * total - gold @ predicted) / np.sqrt(spread)) if spread else 0.0


def _entropy_bits(outcomes: RankOutcomes) -> float:
    """Returns the entropy of the distribution of predictions."""
    counts = outcomes.confusion.sum(axis=0)
    shares = counts[counts > 0] / len(outcomes.correct)
    return abs(float((shares * np.log2(shares)).sum()))


def _largest_share(outcomes: RankOutcomes, axis: int) -> float:
    return 100.0 * int(outcomes.confusion.sum(axis=axis).max()) / len(outcomes.correct)


def _accuracy_by(name: str) -> Callable[[RankOutcomes], float | None]:
    def compute(outcomes: RankOutcomes) -> float | None:
        return accuracy(outcomes.right_by[name]) if name in outcomes.right_by else None

    return compute


def _accuracy_without_ties(outcomes: RankOutcomes) -> float | None:
    return None if outcomes.tied.all() else accuracy(outcomes.correct[~outcomes.tied])


def _of_classes(compute: Callable[[np.ndarray], float]) -> Callable[[RankOutcomes], float | None]:
    """Returns a function that is None if the choices differ between examples."""
    return lambda outcomes: compute(outcomes.confusion) if outcomes.labels else None


@dataclass(frozen=True)
class Measure:
    """A value that a report has for each prompt.

    Attributes:
      name: the key of its mean over prompts.
      compute: outcomes -> value; None if it is undefined.
      unit: the end of the key of a prompt's value; "" for a text.
      averaged: whether rows of datasets have the mean over prompts.
      heading: its heading in the table of means over classes; "" for a measure without classes.
      short: the heading in the terminal.
      meaning: the explanation above the table.
    """

    name: str
    compute: Callable[[RankOutcomes], float | str | None]
    unit: str = "percent"
    averaged: bool = False
    heading: str = ""
    short: str = ""
    meaning: str = ""

    @property
    def column(self) -> str:
        """The key of a prompt's value, such as "majority_percent"."""
        return f"{self.name}_{self.unit}" if self.unit else self.name


def _class_measure(
    name: str, compute: Callable[[np.ndarray], float], heading: str, short: str, meaning: str = ""
) -> Measure:
    return Measure(
        name, _of_classes(compute), averaged=True, heading=heading, short=short, meaning=meaning
    )


# In the order of the columns of `report.csv`.
MEASURES = (
    # The accuracy of always giving the most frequent gold answer.
    Measure("majority", lambda outcomes: _largest_share(outcomes, axis=1), averaged=True),
    # The share of the most frequent prediction, and its text.
    Measure("most_predicted", lambda outcomes: _largest_share(outcomes, axis=0), averaged=True),
    Measure(
        "most_predicted_answer",
        lambda outcomes: outcomes.answers[int(outcomes.confusion.sum(axis=0).argmax())],
        unit="",
    ),
    Measure("accuracy_by_tokens", _accuracy_by("tokens")),
    Measure("accuracy_by_characters", _accuracy_by("characters")),
    Measure("decoded_exact_match", _accuracy_by("decoded")),
    Measure("accuracy_without_ties", _accuracy_without_ties),
    Measure("prediction_entropy", _entropy_bits, unit="bits"),
    _class_measure(
        "macro_f1",
        macro_f1,
        "Macro F1",
        "macro F1",
        "Macro F1: the mean F1 of the classes that have examples; next to it, the mean over all "
        "choices, in which a class without examples and predictions counts as 0.",
    ),
    _class_measure(
        "macro_f1_all_classes", macro_f1_all_classes, "Over all choices", "over all choices"
    ),
    _class_measure(
        "balanced_accuracy",
        balanced_accuracy,
        "Balanced accuracy",
        "balanced accuracy",
        "Balanced accuracy: the mean recall of the classes that have examples.",
    ),
    _class_measure(
        "matthews_correlation",
        matthews_correlation,
        "Matthews",
        "Matthews",
        "Matthews: the correlation of right and predicted choices, from -100 to 100; 0 if all "
        "predictions are the same.",
    ),
    Measure(
        "calibration_error",
        lambda outcomes: 100 * calibration_error(outcomes.confidence, outcomes.correct),
    ),
)
CLASS_MEASURES = tuple(measure for measure in MEASURES if measure.heading)


def measure(outcomes: RankOutcomes | None) -> dict[str, float | str | None]:
    """Returns column -> value for all `MEASURES`; all values are None without outcomes."""
    return {m.column: m.compute(outcomes) if outcomes else None for m in MEASURES}
