"""What rank evaluation says of its data before it scores: sizes, label balance, what is cut.

    notes, warnings = lines(tasks)
    # super_glue/rte: 10 prompts, 277 examples; the first choice is correct in 53%
    # WARNING: anli_GPT_3_style_r1_score_eval: 12.0% of inputs are longer than 64 tokens ...

Prompts of one dataset have one line. Label balance is the share of the examples whose correct
choice stands at the most frequent place: an accuracy below it is no better than one fixed answer.
"""

import collections
from collections.abc import Sequence

import numpy as np

from t0.feeding.cut_warning import LOUD, cut_warning
from t0.scoring.reading import ScoringTask

_PLACES = ("first", "second", "third", "fourth", "fifth")
_SHOWN_WARNINGS = 12


def lines(tasks: Sequence[ScoringTask]) -> tuple[list[str], list[str]]:
    """Returns notes about the data, and warnings."""
    by_dataset: dict[str, list[ScoringTask]] = collections.defaultdict(list)
    for task in tasks:
        by_dataset[task.dataset].append(task)
    notes = [_note(dataset, prompts) for dataset, prompts in by_dataset.items()]
    warnings = [warning for task in tasks for warning in _warnings(task)]
    more = len(warnings) - _SHOWN_WARNINGS
    if more > 0:
        warnings = [*warnings[:_SHOWN_WARNINGS], f"... and {more:,} more such tasks"]
    return notes, warnings


def majority(task: ScoringTask) -> tuple[int, float]:
    """Returns the place at which most correct choices stand, from 0, and its share of examples."""
    gold = task.gold[task.gold >= 0]
    counts = np.bincount(gold) if len(gold) else np.zeros(1, np.int64)
    return int(counts.argmax()), float(counts.max() / max(1, len(gold)))


def _note(dataset: str, prompts: Sequence[ScoringTask]) -> str:
    sizes = sorted({len(task.choices) for task in prompts})
    found = collections.Counter(majority(task) for task in prompts)
    (place, share), _ = found.most_common(1)[0]
    nth = _PLACES[place] if place < len(_PLACES) else f"{place + 1}th"
    same = "" if len(found) == 1 else " (most prompts)"
    cut = {
        "inputs": sum(task.truncated.inputs for task in prompts),
        "choices": sum(task.truncated.targets for task in prompts),
    }
    words = [f"{count:,} {what} cut" for what, count in cut.items() if count]
    left_out = sum(found.count for task in prompts for found in task.excluded.values())
    words += [f"{left_out:,} examples left out"] if left_out else []
    many = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    count = f"{len(prompts)} prompt" + ("s" if len(prompts) > 1 else "")
    text = f"  {dataset}: {count}, {many} examples; the {nth} choice is correct in {share:.0%}"
    return "; ".join([text + same, *words])


def _warnings(task: ScoringTask) -> list[str]:
    shares = {
        "inputs": task.truncated.inputs / len(task.choices),
        "targets": task.truncated.targets / int(task.choices.sum()),
    }
    return [
        cut_warning(task.name, feature, share, task.lengths[feature])
        for feature, share in shares.items()
        if share > LOUD
    ]
