"""Computes the metrics of a task's decoded texts, with confidence intervals.

    judged = judge("mt_en_de", [t5_metrics.bleu], targets, predictions)
    judged.metrics          # {"bleu": 21.3}
    judged.intervals        # {"bleu": [20.1, 22.5]}
    judged.signatures       # {"bleu": "nrefs:1|case:mixed|eff:no|tok:intl|smooth:exp|version:2.6.0"}

Targets and predictions have passed through the task's postprocessor.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import t5_metrics
from t0.compat import tf1 as tf
from t0.tasks.metrics import Bleu
from t0.training.metric_values import MetricValues

# For the interval of a metric: the number of batches, the minimum number of examples in each batch,
# and Student's t for 19 degrees of freedom and 95 %.
BATCHES = 20
FEWEST = 5
_STUDENT = 2.093
_ROUNDING = 1e-9  # percent


@dataclasses.dataclass
class Judged:
    """The values of a task's metrics.

    Attributes:
      metrics: name -> value.
      signatures: name -> sacreBLEU's signature, for BLEU scores.
      intervals: name -> 95 % confidence interval, for the values that have one.
      summaries: serialized `tf.Summary` messages of metrics for TensorBoard, which have no values.
      notes: a line for each value that is not a number.
    """

    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    signatures: dict[str, str] = dataclasses.field(default_factory=dict)
    intervals: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    summaries: list[bytes] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


def judge(
    task: str,
    metric_fns: Sequence[Callable[..., Any]],
    targets: Sequence[Any],
    predictions: Sequence[Any],
) -> Judged:
    """Computes the metrics of a task.

    Args:
      task: the task's name, for messages.
      metric_fns: T5's functions of targets and predictions, which return name -> value, or a
        `tf.Summary`.
      targets: the postprocessed targets.
      predictions: the postprocessed predictions for the same examples.

    Raises:
      UserError: if two metrics return values with the same name.
    """
    judged, values = Judged(), MetricValues(task)
    for metric in metric_fns:
        returned = metric(targets, predictions)
        if isinstance(returned, tf.Summary):
            judged.summaries.append(returned.SerializeToString())
            continue
        numbers = values.add(metric, returned)
        judged.metrics |= numbers
        judged.intervals |= intervals(metric, numbers, targets, predictions)
        signature = signature_of(metric)
        if signature:
            judged.signatures |= dict.fromkeys(numbers, signature)
            print(f"{task}: {', '.join(numbers)} is sacreBLEU's {signature}")
    judged.notes += values.notes()
    return judged


def signature_of(metric: Callable[..., Any]) -> str | None:
    """Returns sacreBLEU's signature for a BLEU metric; None for all other metrics."""
    if metric is t5_metrics.bleu:
        return Bleu("intl").signature()
    return metric.signature() if isinstance(metric, Bleu) else None


def intervals(
    metric: Callable[..., Any],
    whole: Mapping[str, float],
    targets: Sequence[Any],
    predictions: Sequence[Any],
) -> dict[str, list[float]]:
    """Returns a 95 % confidence interval for each value of a metric, by batch means.

    The examples are distributed over `BATCHES` batches, and the metric is computed for each batch.
    The standard error of the value over all examples is the standard deviation of the batches'
    values, divided by the square root of the number of batches. So the metric is computed on each
    example only one more time. The estimate is unbiased for a mean over examples. For a corpus
    metric such as BLEU, the estimate is close if a batch has many sentences.

    If all batches have the same value, this method gives no interval. In this case, a value of 0 or
    100 percent gets Wilson's interval for a proportion (for 0 of 100 examples: 0 to 3.7), and any
    other value gets no interval.

    Args:
      metric: T5's function of targets and predictions, which returns name -> value.
      whole: the metric's values over all examples.
      targets: the targets. If there are fewer than `BATCHES` times `FEWEST` targets, the result is
        empty.
      predictions: the predictions for the same examples.
    """
    if len(targets) != len(predictions) or len(targets) < BATCHES * FEWEST:
        return {}
    from scipy.stats import binomtest

    batches = []
    for number in range(BATCHES):
        try:
            returned = metric(targets[number::BATCHES], predictions[number::BATCHES])
            batches.append(MetricValues("").add(metric, returned))
        except Exception:  # noqa: BLE001 (the metric may be undefined for so few examples)
            return {}
    bounds = {}
    for name, value in whole.items():
        values = np.array([batch.get(name, np.nan) for batch in batches])
        if not (np.isfinite(values).all() and math.isfinite(value)):
            continue
        if np.ptp(values) > _ROUNDING:
            margin = _STUDENT * float(values.std(ddof=1)) / math.sqrt(BATCHES)
            bounds[name] = [value - margin, value + margin]
        elif min(abs(value), abs(100 - value)) < _ROUNDING:
            share = binomtest(len(targets) * (value > 50), len(targets))
            bounds[name] = [100 * float(end) for end in share.proportion_ci(method="wilson")]
    return bounds
