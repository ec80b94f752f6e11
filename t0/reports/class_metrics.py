"""Computes precision, recall and F1 of each class, macro F1 and balanced accuracy.

    >>> gold, predicted = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    >>> metrics = measure_classes(gold, predicted, ("yes", "no", "maybe"))
    >>> [row["class"] for row in metrics.rows()], [row["support"] for row in metrics.rows()]
    (['yes', 'no', 'maybe'], [3, 1, 0])
    >>> round(metrics.macro_f1, 1), round(metrics.macro_f1_all_classes, 1)
    (73.3, 48.9)

All values are in percent. Undefined values are None: the precision if a class is never predicted,
the recall if a class has no examples, and the F1 if a class has neither predictions nor examples.

| mean | classes | value if F1 is undefined |
|---|---|---|
| `macro_f1` | the classes that have examples | |
| `macro_f1_all_classes` | all answer choices, as scikit-learn with `labels` | 0 |
| `balanced_accuracy` | the classes that have examples (mean recall) | |
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

# The properties of `ClassMetrics` that are means over classes.
MEANS = ("macro_f1", "macro_f1_all_classes", "balanced_accuracy")


@dataclass(frozen=True)
class ClassMetrics:
    """The metrics of the C classes of one task in one run, in percent; NaN if undefined.

    Attributes:
      classes: the texts of the answer choices.
      precision: float [C], the share of correct predictions among the predictions of the class.
      recall: float [C], the share of correct predictions among the examples of the class.
      f1: float [C], the harmonic mean of precision and recall.
      support: int [C], the number of examples of each class.
      predicted: int [C], the number of predictions of each class.
    """

    classes: tuple[str, ...]
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    support: np.ndarray
    predicted: np.ndarray

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that have examples."""
        return float(self.f1[self.support > 0].mean())

    @property
    def macro_f1_all_classes(self) -> float:
        """The mean F1 of all classes; an undefined F1 counts as 0."""
        return float(np.nan_to_num(self.f1).mean())

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes that have examples."""
        return float(self.recall[self.support > 0].mean())

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each class; an undefined value is None."""
        names = ("precision", "recall", "f1", "support", "predicted")
        columns = zip(*(getattr(self, name).tolist() for name in names), strict=True)
        rows = [dict(zip(names, values, strict=True)) for values in columns]
        return [
            {"class": name}
            | {key: None if np.isnan(value) else value for key, value in row.items()}
            for name, row in zip(self.classes, rows, strict=True)
        ]


def measure_classes(
    gold: np.ndarray, predicted: np.ndarray, classes: tuple[str, ...]
) -> ClassMetrics:
    """Computes the metrics of each class.

    Args:
      gold: int [E], the class of each example. E is at least 1.
      predicted: int [E], the predicted class of each example.
      classes: the texts of the classes.
    """
    from sklearn.metrics import precision_recall_fscore_support

    numbers = range(len(classes))
    *shares, support = precision_recall_fscore_support(
        gold, predicted, labels=numbers, zero_division=np.nan
    )
    counts = np.bincount(predicted, minlength=len(classes))
    return ClassMetrics(classes, *(100 * share for share in shares), support, counts)
