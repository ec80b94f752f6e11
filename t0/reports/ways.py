"""Accuracy by other ways to judge, beside T0's plain sum of a choice's log-probabilities.

    rows = judged_rows(read_runs([Path("eval")]))
    rows[0]["sum"], rows[0]["characters"], rows[0]["decoded"]      # means over prompts, in percent

| way | the prediction is |
|---|---|
| sum | the choice of the greatest log-likelihood: T0's, the headline |
| tokens | that of the greatest log-likelihood divided by its tokens, EOS among them |
| characters | that of the greatest log-likelihood divided by its characters |
| decoded | what the model writes, which is right if it is the right choice after normalisation |

Assumptions: of the prompts of a dataset, a way counts that all of them have.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from t0.reports import accuracies
from t0.reports.evaluations import EvaluatedRun
from t0.reports.example_scores import ExampleScores

SUM = "sum"
# Way -> its heading in tables.
WAYS = {SUM: "Sum", "tokens": "By tokens", "characters": "By characters", "decoded": "Decoded"}


def judged_rows(runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Returns a row for each dataset and run of which all prompts have scores.

    Returns:
      `dataset`, `run` (its position), `label`, `prompts`; and for each of `WAYS` the mean over
      prompts in percent with `<way>_low` and `<way>_high`, None where a prompt lacks it.
    """
    rows = []
    for dataset in dict.fromkeys(task.dataset for run in runs for task in run.tasks):
        for position, run in enumerate(runs):
            found = [task.scores for task in run.tasks if task.dataset == dataset]
            if not found or any(scores is None or not len(scores) for scores in found):
                continue
            row = {"dataset": dataset, "run": position, "label": run.label, "prompts": len(found)}
            for way in WAYS:
                row |= _judged(way, found)
            rows.append(row)
    return rows


def _judged(way: str, scores: Sequence[ExampleScores]) -> dict[str, float | None]:
    names = (way, f"{way}_low", f"{way}_high")
    if way != SUM:
        if any(way not in one.right_by for one in scores):
            return dict.fromkeys(names)
        scores = [dataclasses.replace(one, correct=one.right_by[way]) for one in scores]
    found = accuracies.accuracy(accuracies.shared_grid([scores]), 0)
    return dict(zip(names, (found.mean, found.low, found.high), strict=True))
