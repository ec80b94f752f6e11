"""Loads T0's rendered prompts for lm-evaluation-harness, and averages over prompts as T0 does.

`t0 export-eval` writes this module next to the YAML files that refer to its functions
(`!function t0_prompts.load`). The module imports only `datasets`, which the harness depends on.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROWS = Path(__file__).resolve().parent / "rows"


def load(prompts: Sequence[str], split: str, **_unused: object) -> dict[str, Any]:
    """Loads the rows of all prompts of a dataset, grouped by example.

    Each example has one row for each prompt, and these rows are adjacent. So `--limit` selects the
    first examples with all their prompts, instead of cutting off prompts.

    Args:
      prompts: the names of files in `rows`, without `.jsonl`.
      split: the split that was exported.

    Returns:
      {split: rows}.
    """
    import datasets

    rows = []
    for position, prompt in enumerate(prompts):
        with (ROWS / f"{prompt}.jsonl").open(encoding="utf-8") as lines:
            rows += [(row["idx"], position, row) for row in map(json.loads, lines)]
    rows.sort(key=lambda entry: entry[:2])
    return {split: datasets.Dataset.from_list([row for _, _, row in rows])}


def process_results(
    doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]
) -> dict[str, Any]:
    """Returns the value of one row for each metric.

    The value for "acc" is 1.0 if the model's choice is correct, or else 0.0. The metrics
    "prompt_mean" and "prompt_median" need the accuracy of each prompt, so their value is the pair
    of the row's prompt and this number.

    Args:
      doc: a row that `load` returned.
      results: for each choice, its log-likelihood, and whether greedy decoding would produce the
        choice.
    """
    likelihoods = [likelihood for likelihood, _ in results]
    right = float(likelihoods.index(max(likelihoods)) == doc["gold"])
    of_prompt = (doc["prompt"], right)
    return {"acc": right, "prompt_mean": of_prompt, "prompt_median": of_prompt}


def prompt_mean(pairs: Iterable[tuple[str, float]]) -> float:
    """Returns the mean of the prompts' accuracies.

    Args:
      pairs: for each row, its prompt, and 1.0 if the model's choice is correct or else 0.0.
    """
    return statistics.fmean(_accuracies(pairs))


def prompt_median(pairs: Iterable[tuple[str, float]]) -> float:
    """Returns the median of the prompts' accuracies.

    Args:
      pairs: for each row, its prompt, and 1.0 if the model's choice is correct or else 0.0.
    """
    return statistics.median(_accuracies(pairs))


def _accuracies(pairs: Iterable[tuple[str, float]]) -> list[float]:
    of_prompts = defaultdict(list)
    for prompt, right in pairs:
        of_prompts[prompt].append(right)
    return [statistics.fmean(right) for right in of_prompts.values()]
