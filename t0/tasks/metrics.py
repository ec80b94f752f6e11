"""The metrics of all tasks: of prompts, of question answering, of instructions and of translation.

    [metric.__name__ for metric in plain_metrics("squad_v2", None, template)]   # ['squad']
    squad_metrics([["Denver Broncos", "the Broncos"]], ["denver broncos!"])
    # {"em": 100.0, "f1": 100.0}
    instruction_metrics([Expected(("Kabul",), "task1146_country_capital", "Misc.")], ["kabul."])
    # {"exact_match": 100.0, "rougeL": 100.0, "exact_match_for_misc.": 100.0, ...}
    Bleu()(["Guten Morgen."], ["Guten Tag."])                        # {"bleu": ...}, as t5's metric

Prompts: T5's tables for (super_)glue, else the template's own. A metric gets the postprocessed
targets and predictions: class ids where a template's choices are fixed, else stripped text; always
text where `reads_text(metrics)`. The original binds some metrics to what they cannot read, and
crashes when it evaluates (fault 2 of the design notes). Mended here: SQuAD-style metrics get the
list of answers that they need, a generation prompt over a classification dataset is judged as
generated text, and no metric is listed twice (SeqIO's evaluator refuses the second `accuracy`).

Question answering: exact match and F1 as SQuAD's official scripts compute them. A target is the
list of accepted answers; the best one counts. Where some question has none, the rules are those of
SQuAD 2.0 for all: the empty prediction is right there, and wrong elsewhere.

Instructions: ROUGE-L and exact match by Tk-Instruct's rules, over all and for each group: the best
of the references counts; ROUGE-L is the F measure of Google's `rouge-score` with its stemmer; a
match is exact up to case, punctuation and spaces.

Translation: BLEU by sacreBLEU, with its signature. Values are percentages.
"""

import collections
import functools
import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rouge_score import rouge_scorer
from sacrebleu.metrics.bleu import BLEU, BLEUScore

from t0.compat import gin, glue_utils, t5_postprocessors
from t0.compat import t5_metrics as t5
from t0.errors import UserError, unknown_name
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
    """Returns whether one of the metrics reads words, so that class ids would not do."""
    return any(metric in _OF_TEXT.values() for metric in metrics)


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised_answer(answer: str) -> str:
    """Returns an answer as the official scripts compare it.

    >>> normalised_answer("The  Broncos' quarterback!")
    'broncos quarterback'
    """
    text = answer.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def answers_match(answer: str, prediction: str) -> float:
    """Returns 1 if both are the same once normalised_answer, else 0."""
    return float(normalised_answer(answer) == normalised_answer(prediction))


def answer_f1(answer: str, prediction: str) -> float:
    """Returns the harmonic mean of the precision and recall of words, 0 to 1; 0 for no words."""
    wanted, got = normalised_answer(answer).split(), normalised_answer(prediction).split()
    same = sum((collections.Counter(wanted) & collections.Counter(got)).values())
    if not same:
        return 0.0
    precision, recall = same / len(got), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _f1_or_both_empty(answer: str, prediction: str) -> float:
    if not normalised_answer(answer) or not normalised_answer(prediction):
        return answers_match(answer, prediction)
    return answer_f1(answer, prediction)


Measures = dict[str, Callable[[str, str], float]]
_SQUAD_1: Measures = {"em": answers_match, "f1": answer_f1}
_SQUAD_2: Measures = {"em": answers_match, "f1": _f1_or_both_empty}


def squad_scores(answers: Sequence[str], prediction: str, *, may_be_none: bool) -> dict[str, float]:
    """Returns exact match and F1 of one prediction, 0 to 1.

    Args:
      answers: all that are accepted.
      prediction: the text.
      may_be_none: whether questions of this dataset may have no answer.
    """
    if may_be_none:
        answers = [answer for answer in answers if normalised_answer(answer)] or [""]
    measures = _SQUAD_2 if may_be_none else _SQUAD_1
    return {
        name: max(measure(answer, prediction) for answer in answers)
        for name, measure in measures.items()
    }


def some_unanswerable(targets: Iterable[Sequence[str]]) -> bool:
    """Returns whether a question has no answer, so that the rules of SQuAD 2.0 hold."""
    return any(not answers for answers in targets)


def squad_metrics(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Returns `em` and `f1` in percent; where some question has no answer, of both kinds, too."""
    may_be_none = some_unanswerable(targets)
    groups: dict[str, list[dict[str, float]]] = {"": []}
    for answers, prediction in zip(targets, predictions, strict=True):
        judged = squad_scores(answers, prediction, may_be_none=may_be_none)
        groups[""].append(judged)
        if may_be_none:
            kind = "_answerable" if answers else "_unanswerable"
            groups.setdefault(kind, []).append(judged)
    return {
        name + kind: 100.0 * sum(one[name] for one in judged) / len(judged)
        for kind, judged in groups.items()
        for name in ("em", "f1")
    }


class Expected(NamedTuple):
    """What an instance accepts, and the groups that it counts for."""

    references: tuple[str, ...]
    task: str
    category: str


def normalised_output(text: str) -> str:
    """Returns text as it is compared: in lower case, without punctuation and superfluous spaces."""
    return " ".join(text.lower().translate(_WITHOUT_PUNCTUATION).split())


def outputs_match(reference: str, prediction: str) -> float:
    """Returns 1 if both are the same once normalised_output, else 0."""
    return float(normalised_output(reference) == normalised_output(prediction))


@functools.cache
def _scorer() -> rouge_scorer.RougeScorer:
    return rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)


def rouge_l(reference: str, prediction: str) -> float:
    """Returns the F measure of ROUGE-L, 0 to 1."""
    return _scorer().score(target=reference, prediction=prediction)["rougeL"].fmeasure


INSTRUCTION_MEASURES: dict[str, Callable[[str, str], float]] = {
    "exact_match": outputs_match,
    "rougeL": rouge_l,
}


def group_name(category: str) -> str:
    """Returns a category as it is spelled in a metric's name.

    >>> group_name("Data to Text")
    'data_to_text'
    """
    return "_".join(category.lower().split())


def instruction_metrics(
    targets: Sequence[Expected], predictions: Sequence[str]
) -> dict[str, float]:
    """Returns each measure over all instances, by category and by task, in percent."""
    scores: dict[str, list[dict[str, float]]] = collections.defaultdict(list)
    for target, prediction in zip(targets, predictions, strict=True):
        judged = {
            name: max(measure(reference, prediction) for reference in target.references)
            for name, measure in INSTRUCTION_MEASURES.items()
        }
        for group in ("", group_name(target.category), target.task):
            scores[group].append(judged)
    # The whole first, then categories, then tasks.
    groups = sorted(scores, key=lambda group: (group != "", group in {t.task for t in targets}))
    return {
        name + (f"_for_{group}" if group else ""): _percent(one[name] for one in scores[group])
        for group in groups
        for name in INSTRUCTION_MEASURES
    }


def _percent(values: Iterable[float]) -> float:
    listed = list(values)
    return 100.0 * sum(listed) / len(listed)


@gin.configurable("bleu", module="t0")
def bleu_tokenizer(tokenize: str = "intl") -> str:
    """Returns sacreBLEU's tokenizer (gin: `bleu.tokenize`): T5's, or 13a as in WMT's papers.

    Raises:
      UserError: if sacreBLEU has none of that name.
    """
    if tokenize not in BLEU.TOKENIZERS:
        raise unknown_name("tokenizer", tokenize, BLEU.TOKENIZERS, "(gin: bleu.tokenize)")
    return tokenize


class Bleu:
    """BLEU in percent over a whole corpus, with sacreBLEU's defaults but for the tokenizer.

    Args:
      tokenize: sacreBLEU's name of a tokenizer; None for what gin says.
    """

    __name__ = "bleu"

    def __init__(self, tokenize: str | None = None) -> None:
        self._tokenize = tokenize

    def __call__(self, targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
        """Returns {"bleu": value}."""
        return {"bleu": self._metric(targets, predictions)[1].score}

    def signature(self) -> str:
        """Returns sacreBLEU's signature, without which a BLEU says little."""
        metric, _ = self._metric(["."], ["."])
        return str(metric.get_signature())

    def _metric(self, targets: Sequence[str], predictions: Sequence[str]) -> tuple[BLEU, BLEUScore]:
        metric = BLEU(tokenize=self._tokenize or bleu_tokenizer())
        # It knows its signature after it has seen references.
        return metric, metric.corpus_score(list(predictions), [list(targets)])
