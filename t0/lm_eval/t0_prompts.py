"""Loads T0's rendered prompts for lm-evaluation-harness, and averages over prompts as T0 does.

The YAML files beside this file name its functions (`!function t0_prompts.load`). It imports nothing
but the harness's own dependency `datasets`. It was written by `t0 export-eval`.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROWS = Path(__file__).resolve().parent / "rows"


def load(prompts: Sequence[str], split: str, **_unused: object) -> dict[str, Any]:
    """Returns {split: rows of all prompts}, of each example all prompts before the next example.

    So `--limit` takes the first examples under every prompt, not the first prompt alone.

    Args:
      prompts: the names of files in `rows`, without `.jsonl`.
      split: the split that was exported.
    """
    import datasets

    rows = []
    for position, prompt in enumerate(prompts):
        with (ROWS / f"{prompt}.jsonl").open(encoding="utf-8") as lines:
            rows += [(row["idx"], position, row) for row in map(json.loads, lines)]
    rows.sort(key=lambda found: found[:2])
    return {split: datasets.Dataset.from_list([row for _, _, row in rows])}


def process_results(
    doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]
) -> dict[str, Any]:
    """Returns the metrics of one example: right or wrong, and for which prompt.

    Args:
      doc: a row of `load`.
      results: (log-likelihood, whether it is what greedy decoding gives) of each choice.
    """
    likelihoods = [likelihood for likelihood, _ in results]
    right = float(likelihoods.index(max(likelihoods)) == doc["gold"])
    of_prompt = (doc["prompt"], right)
    return {"acc": right, "prompt_mean": of_prompt, "prompt_median": of_prompt}


def prompt_mean(pairs: Iterable[tuple[str, float]]) -> float:
    """Returns the mean over prompts of their accuracies; `pairs` are (prompt, right)."""
    return statistics.fmean(_accuracies(pairs))


def prompt_median(pairs: Iterable[tuple[str, float]]) -> float:
    """Returns the median over prompts of their accuracies; `pairs` are (prompt, right)."""
    return statistics.median(_accuracies(pairs))


def _accuracies(pairs: Iterable[tuple[str, float]]) -> list[float]:
    of_prompts = defaultdict(list)
    for prompt, right in pairs:
        of_prompts[prompt].append(right)
    return [statistics.fmean(right) for right in of_prompts.values()]
