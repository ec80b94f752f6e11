"""Computes precision, recall and F1 of each class, macro F1 and balanced accuracy.

    >>> gold, predicted = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    >>> metrics = measure_classes(gold, predicted, ("yes", "no", "maybe"))
    >>> [row["class"] for row in metrics.rows], [row["support"] for row in metrics.rows]
    (['yes', 'no', 'maybe'], [3, 1, 0])
    >>> {name: round(value, 1) for name, value in metrics.means.items()}
    {'macro_f1': 73.3, 'macro_f1_all_classes': 48.9, 'balanced_accuracy': 83.3}

All values are in percent. Undefined values are None: the precision if a class is never predicted,
the recall if a class has no examples, and the F1 if a class has neither predictions nor examples.

| mean | values | classes |
|---|---|---|
| `macro_f1` | F1 | the classes that have examples |
| `macro_f1_all_classes` | F1, or 0 if F1 is undefined | all answer choices |
| `balanced_accuracy` | recall | the classes that have examples |

`macro_f1_all_classes` equals scikit-learn's macro F1 if `labels` lists all answer choices.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

# The keys of `ClassMetrics.means`.
MEANS = ("macro_f1", "macro_f1_all_classes", "balanced_accuracy")


@dataclass(frozen=True)
class ClassMetrics:
    """The metrics of the classes of one task in one run.

    Attributes:
      rows: for each class, its text as `class`, `precision`, `recall` and `f1` in percent (None if
        undefined), its number of examples as `support`, and its number of predictions as
        `predicted`.
      means: one of `MEANS` -> the mean over classes in percent.
    """

    rows: list[dict[str, Any]]
    means: dict[str, float]


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

    *shares, support = precision_recall_fscore_support(
        gold, predicted, labels=range(len(classes)), zero_division=np.nan
    )
    precision, recall, f1 = (100 * share for share in shares)
    columns = {
        "precision": precision,
        "recall": recall,
        "f1": f1,
        "support": support,
        "predicted": np.bincount(predicted, minlength=len(classes)),
    }
    rows: list[dict[str, Any]] = [{"class": name} for name in classes]
    for name, values in columns.items():
        for row, value in zip(rows, values.tolist(), strict=True):
            row[name] = None if np.isnan(value) else value
    occurs = support > 0
    means = f1[occurs].mean(), np.nan_to_num(f1).mean(), recall[occurs].mean()
    return ClassMetrics(rows, dict(zip(MEANS, map(float, means), strict=True)))
