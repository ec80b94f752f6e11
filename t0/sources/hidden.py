"""Which rows have their label withheld, as test splits of competitions do.

    hidden_label("super_glue", {"premise": "...", "label": -1})    # True
    hidden_label("winogrande", {"sentence": "...", "answer": ""})  # True
    hidden_label("my_own", {"text": "...", "label": 1})            # False

A rank of answer choices against such a label means nothing: in most of T0's templates -1 picks the
last choice without a word (the original scored those rows).
"""

from collections.abc import Callable
from typing import Any

from t0.prompts import is_missing

WITHHELD = (-1, "-1", "-1.0", "", None)


def _withheld(value: object) -> bool:
    return not isinstance(value, list | dict) and (value in WITHHELD or is_missing(value))


def _no_text(value: Any) -> bool:  # noqa: ANN401
    """True for no answer at all, or only empty ones; a dict of lists is judged by its `text`."""
    texts = value.get("text", []) if isinstance(value, dict) else value
    return not any(texts or [])


def _no_output(value: Any) -> bool:  # noqa: ANN401
    return not any(item.get("answer") for item in value or [])


def _no_value(value: Any) -> bool:  # noqa: ANN401
    return (value or {}).get("value") in ("<unk>", "", None)


# Datasets whose label stands in another column than `label`: the column, and when it is withheld.
# Only datasets where every row of a labelled split has an answer may use `_no_text`: in squad_v2
# and duorc an empty answer is an answer.
_OTHER_COLUMNS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "winogrande": ("answer", _withheld),
    "common_gen": ("target", _withheld),
    "qasc": ("answerKey", _withheld),
    "ai2_arc": ("answerKey", _withheld),
    "openbookqa": ("answerKey", _withheld),
    "quartz": ("answerKey", _withheld),
    "story_cloze": ("answer_right_ending", _withheld),
    "trec": ("label-coarse", _withheld),
    "super_glue": ("answers", _no_text),  # record; the other subsets have `label`
    "ropes": ("answers", _no_text),
    "adversarial_qa": ("answers", _no_text),
    "kilt_tasks": ("output", _no_output),
    "trivia_qa": ("answer", _no_value),
}


def hidden_label(dataset: str, row: dict[str, Any]) -> bool:
    """Says whether the label of this row is withheld: -1, empty or None where a label belongs.

    Args:
        dataset: the dataset's name, as in T0's tables. Of others, the column `label` is looked at.
        row: a raw row, as `SplitRows.rows` gives it.
    """
    column, is_withheld = _OTHER_COLUMNS.get(dataset, ("label", _withheld))
    if column in row:
        return is_withheld(row[column])
    return "label" in row and _withheld(row["label"])
