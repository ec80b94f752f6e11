"""How Super-NaturalInstructions is judged: ROUGE-L and exact match, over all and for each group.

    targets = [Expected(("Kabul",), "task1146_country_capital", "Misc.")]
    metrics(targets, ["kabul."])
    # {"exact_match": 100.0, "rougeL": 100.0, "exact_match_for_misc.": 100.0, ...}

The rules are Tk-Instruct's: the best of the references counts; ROUGE-L is the F measure of Google's
`rouge-score` with its stemmer; a match is exact up to case, punctuation and spaces. Values are
percentages.
"""

import collections
import functools
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rouge_score import rouge_scorer

from t0.compat import tf

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Expected(NamedTuple):
    """What an instance accepts, and the groups that it counts for."""

    references: tuple[str, ...]
    task: str
    category: str


def postprocess(
    output: str, example: Mapping[str, Any] | None = None, is_target: bool = False
) -> str | Expected:
    """Returns a prediction as stripped text, a target with its references and groups."""
    if not is_target:
        return output.strip()
    text = tf.compat.as_text
    return Expected(
        references=tuple(text(reference) for reference in example["references"]),
        task=text(example["task"]),
        category=text(example["category"]),
    )


def normalised(text: str) -> str:
    """Returns text as it is compared: in lower case, without punctuation and superfluous spaces."""
    return " ".join(text.lower().translate(_WITHOUT_PUNCTUATION).split())


def exact_match(reference: str, prediction: str) -> float:
    """Returns 1 if both are the same once normalised, else 0."""
    return float(normalised(reference) == normalised(prediction))


@functools.cache
def _scorer() -> rouge_scorer.RougeScorer:
    return rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)


def rouge_l(reference: str, prediction: str) -> float:
    """Returns the F measure of ROUGE-L, 0 to 1."""
    return _scorer().score(target=reference, prediction=prediction)["rougeL"].fmeasure


MEASURES: dict[str, Callable[[str, str], float]] = {"exact_match": exact_match, "rougeL": rouge_l}


def group_name(category: str) -> str:
    """Returns a category as it stands in a metric's name.

    >>> group_name("Data to Text")
    'data_to_text'
    """
    return "_".join(category.lower().split())


def metrics(targets: Sequence[Expected], predictions: Sequence[str]) -> dict[str, float]:
    """Returns each measure over all instances, by category and by task, in percent."""
    scores: dict[str, list[dict[str, float]]] = collections.defaultdict(list)
    for target, prediction in zip(targets, predictions, strict=True):
        judged = {
            name: max(measure(reference, prediction) for reference in target.references)
            for name, measure in MEASURES.items()
        }
        for group in ("", group_name(target.category), target.task):
            scores[group].append(judged)
    # The whole first, then categories, then tasks.
    groups = sorted(scores, key=lambda group: (group != "", group in {t.task for t in targets}))
    return {
        name + (f"_for_{group}" if group else ""): _percent(one[name] for one in scores[group])
        for group in groups
        for name in MEASURES
    }


def _percent(values: Iterable[float]) -> float:
    listed = list(values)
    return 100.0 * sum(listed) / len(listed)
