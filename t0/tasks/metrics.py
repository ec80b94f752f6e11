"""Which metrics a plain task is judged by: T5's tables for (super_)glue, else the template's own.

    [metric.__name__ for metric in plain_metrics("squad_v2", None, template)]   # ['squad']

A metric gets the postprocessed targets and predictions: class ids where a template's choices are
fixed, else stripped text; always text where `reads_text(metrics)`.

The original binds some metrics to what they cannot read, and crashes when it evaluates (fault 2 of
the design notes). Mended here: SQuAD-style metrics get the list of answers that they ask for, a
generation prompt over a classification dataset is judged as generated text, and no metric stands
twice (SeqIO's evaluator refuses the second `accuracy`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from t0.compat import glue_utils, t5_postprocessors
from t0.compat import t5_metrics as t5
from t0.errors import UserError
from t0.prompts import Template

Metric = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]


def _answers(metric: Metric) -> Metric:
    # A target text is its one acceptable answer; the SQuAD metrics score against the best of many.
    def over_answers(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
        return metric([[target] for target in targets], predictions)

    over_answers.__name__ = metric.__name__
    return over_answers


def _numbers(metric: Metric) -> Metric:
    # A correlation is over numbers; a text that is none counts as -1, as in T5's own STS-B task.
    def over_numbers(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        return metric(
            [*map(t5_postprocessors.string_to_float, targets)],
            [*map(t5_postprocessors.string_to_float, predictions)],
        )

    over_numbers.__name__ = metric.__name__
    return over_numbers


_PEARSON = _numbers(t5.pearson_corrcoef)
_SPEARMAN = _numbers(t5.spearman_corrcoef)

# promptsource's metric names (its own spelling) -> T5's functions. It has more names, for which T5
# has no function (Mean Reciprocal Rank) or one that a prompt's text cannot feed (AUC, MultiRC and
# Span Squad want probabilities, groups of answers, and spans); no template of T0 uses them.
_OF_TEXT: dict[str, Metric] = {
    "BLEU": t5.bleu,
    "ROUGE": t5.rouge,
    "Squad": _answers(t5.squad),
    "Trivia QA": _answers(t5.trivia_qa),
    "COQA F1": _answers(t5.coqa_f1),
    "Edit Distance": t5.edit_distance,
}
METRICS: dict[str, Metric] = {
    **_OF_TEXT,
    "Accuracy": t5.accuracy,
    "Sequence Accuracy": t5.sequence_accuracy,
    "Pearson Correlation": _PEARSON,
    "Spearman Correlation": _SPEARMAN,
    "Other": t5.accuracy,
}

# Benchmarks with a table of metrics for each subset. They read class ids, so a template without
# answer choices is judged by its own metrics instead.
_TABLES = {
    "glue": glue_utils.GLUE_METRICS,
    "super_glue": glue_utils.SUPERGLUE_METRICS,
}

# Where T5's own table does not fit what the prompts produce.
_FORCED: dict[tuple[str, str | None], list[Metric]] = {
    ("super_glue", "wsc.fixed"): [t5.accuracy],
    ("super_glue", "multirc"): [t5.accuracy],
    ("super_glue", "record"): [METRICS["Squad"]],
    ("glue", "stsb"): [_PEARSON, _SPEARMAN],
}


def _by_dataset(dataset: str, subset: str | None, template: Template) -> Sequence[Metric] | None:
    if (dataset, subset) in _FORCED:
        return _FORCED[dataset, subset]
    if template.answer_choices is None:
        return None
    return _TABLES.get(dataset, {}).get(subset)


def plain_metrics(dataset: str, subset: str | None, template: Template) -> list[Metric]:
    """Returns the metric functions of the plain task of `template`.

    Raises:
      UserError: if the template names a metric that is not in `METRICS`.
    """
    by_dataset = _by_dataset(dataset, subset, template)
    if by_dataset is not None:
        return list(by_dataset)
    unknown = [name for name in template.metrics if name not in METRICS]
    if unknown:
        where = f"{template.where}: " if template.where else ""
        raise UserError(
            f"{where}template '{template.name}' names the metric '{unknown[0]}', which cannot be "
            f"computed from a prompt's text. Known: {', '.join(METRICS)}."
        )
    return list(dict.fromkeys(METRICS[name] for name in template.metrics))


def reads_text(metrics: Sequence[Metric]) -> bool:
    """Tells whether one of the metrics reads words, so that class ids would not do."""
    return any(metric in _OF_TEXT.values() for metric in metrics)
