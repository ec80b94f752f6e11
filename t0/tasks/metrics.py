"""Computes the metrics of all tasks: prompts, question answering, instructions and translation.

    [metric.__name__ for metric in plain_metrics("squad_v2", None, template)]   # ['squad']
    squad_metrics([["Denver Broncos", "the Broncos"]], ["denver broncos!"])
    # {"em": 100.0, "f1": 100.0}
    instruction_metrics([Expected(("Kabul",), "task1146_country_capital", "Misc.")], ["kabul."])
    # {"exact_match": 100.0, "rougeL": 100.0, "exact_match_for_misc.": 100.0, ...}
    Bleu()(["Guten Morgen."], ["Guten Tag."])                        # {"bleu": ...}, as t5's metric

Prompts: T5 has a table of metrics for GLUE and one for SuperGLUE. A prompt of these benchmarks has
the metrics of the table if its template has answer choices. All other prompts have the metrics that
the template names. A metric receives postprocessed targets and predictions. If one of the task's
metrics needs text (`reads_text`), both are text. Otherwise, both are class ids if the template's
choices are fixed, and stripped text if the choices depend on the row. The original code passes
values of a wrong type to some metrics, and its evaluation crashes (`docs/recipe.md` names these
metrics). Here, SQuAD-style metrics receive a list of answers, a generation prompt over a
classification dataset has metrics of generated text, and no metric is listed twice (SeqIO's
evaluator rejects a second `accuracy`).

Question answering: the metrics are exact match and F1 as in SQuAD's official scripts. A target is
the list of accepted answers. The answer with the highest score counts. If any question has no
answer, SQuAD 2.0's rules are used for all questions: the empty prediction is right for questions
without an answer and wrong for all other questions.

Instructions: the metrics are ROUGE-L and exact match with Tk-Instruct's rules. They are computed
over all instances, for each category and for each task. The reference with the highest score
counts. ROUGE-L is the F measure of Google's `rouge-score` with its stemmer. Exact match ignores
case, punctuation and spaces.

ROUGE: `rouge-score` reads only a-z and 0-9, so identical texts in Hindi or Chinese would score 0.
If most letters and digits of a text are not ASCII, the text is split into the words of its script.
All other texts, such as English texts, keep the scores of `rouge-score`.

Translation: the metric is sacreBLEU's BLEU, in percent.
"""

import collections
import functools
import itertools
import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import regex
import sacrebleu
from rouge_score import rouge_scorer

from t0.compat import gin, glue_utils, t5_postprocessors
from t0.compat import t5_metrics as t5
from t0.errors import UserError, unknown_name
from t0.prompts import Template

Metric = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]


def _adapt(metric: Metric, target: Callable, prediction: Callable) -> Metric:
    """Returns a metric that first changes each target and each prediction with a function."""

    def adapted(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        return metric([*map(target, targets)], [*map(prediction, predictions)])

    adapted.__name__ = metric.__name__
    return adapted


def _answers(metric: Metric) -> Metric:
    # These metrics take a list of accepted answers. Here, the target is the only accepted answer.
    return _adapt(metric, lambda target: [target], str)


# A correlation needs numbers. A text that is not a number counts as -1, as in T5's STS-B task.
_PEARSON, _SPEARMAN = (
    _adapt(metric, t5_postprocessors.string_to_float, t5_postprocessors.string_to_float)
    for metric in (t5.pearson_corrcoef, t5.spearman_corrcoef)
)

# A word is a character (with its marks) of a script without spaces, a run of letters and digits of
# any other script, or a symbol.
_NO_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_WORDS = regex.compile(
    rf"[{_NO_SPACES}]\p{{M}}*|[[\p{{L}}\p{{M}}\p{{N}}\u200c\u200d]--[{_NO_SPACES}]]+|\p{{So}}",
    regex.V1,
)
_CHARACTERS = regex.compile(r"[\p{L}\p{M}\p{N}\p{So}]")


class _RougeWords:
    """Splits mostly ASCII texts into words like `rouge-score`, and other texts by their script.

    Args:
      use_stemmer: whether to reduce English words of more than three letters to their stems.
    """

    def __init__(self, *, use_stemmer: bool) -> None:
        self._of_ascii = rouge_scorer.tokenizers.DefaultTokenizer(use_stemmer)

    def tokenize(self, text: str) -> list[str]:
        """Returns the words in lower case."""
        characters = _CHARACTERS.findall(text)
        if 2 * sum(map(str.isascii, characters)) >= len(characters):
            return self._of_ascii.tokenize(text)
        words = _WORDS.findall(text.lower())
        split = [self._of_ascii.tokenize(word) if word.isascii() else [word] for word in words]
        return list(itertools.chain.from_iterable(split))


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns T5's ROUGE values in percent, with words of any script."""
    return t5.rouge(targets, predictions, tokenizer=_RougeWords(use_stemmer=False))


# Promptsource's name of a metric -> T5's function. Four of promptsource's names are missing; T0's
# templates do not use them. T5 has no function for Mean Reciprocal Rank. T5's functions for AUC,
# MultiRC and Span Squad need probabilities, groups of answers and spans, in this order. The text of
# a prompt does not contain these.
_OF_TEXT: dict[str, Metric] = {
    "BLEU": t5.bleu,
    "ROUGE": rouge,
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

# T5's tables: benchmark -> its subset -> metrics. These metrics need class ids. So a template
# without answer choices has the metrics that it names instead.
_TABLES = {"glue": glue_utils.GLUE_METRICS, "super_glue": glue_utils.SUPERGLUE_METRICS}

# These metrics replace the entries of T5's tables that do not fit the outputs of prompts.
_FORCED: dict[tuple[str, str | None], list[Metric]] = {
    ("super_glue", "wsc.fixed"): [t5.accuracy],
    ("super_glue", "multirc"): [t5.accuracy],
    ("super_glue", "record"): [METRICS["Squad"]],
    ("glue", "stsb"): [_PEARSON, _SPEARMAN],
}


def plain_metrics(dataset: str, subset: str | None, template: Template) -> list[Metric]:
    """Returns the metric functions of a template's plain task.

    Raises:
      UserError: if the template names a metric that is not in `METRICS`.
    """
    if (dataset, subset) in _FORCED:
        return list(_FORCED[dataset, subset])
    table = _TABLES.get(dataset, {}) if template.answer_choices is not None else {}
    if subset in table:
        return list(table[subset])
    unknown = [name for name in template.metrics if name not in METRICS]
    if unknown:
        where = f"{template.where}: " if template.where else ""
        raise UserError(
            f"{where}template '{template.name}' names the metric '{unknown[0]}', which cannot be "
            f"computed from a prompt's text. Known: {', '.join(METRICS)}."
        )
    return list(dict.fromkeys(METRICS[name] for name in template.metrics))


def reads_text(metrics: Sequence[Metric]) -> bool:
    """Returns whether one of the metrics needs text instead of class ids."""
    return any(metric in _OF_TEXT.values() for metric in metrics)


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised_answer(answer: str) -> str:
    """Normalizes an answer for comparison, like SQuAD's official scripts.

    >>> normalised_answer("The  Broncos' quarterback!")
    'broncos quarterback'
    """
    text = answer.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def answers_match(answer: str, prediction: str) -> float:
    """Returns 1 if both texts are equal after `normalised_answer`, otherwise 0."""
    return float(normalised_answer(answer) == normalised_answer(prediction))


def answer_f1(answer: str, prediction: str) -> float:
    """Returns F1 (the harmonic mean of word precision and word recall), from 0 to 1."""
    expected, predicted = normalised_answer(answer).split(), normalised_answer(prediction).split()
    same = sum((collections.Counter(expected) & collections.Counter(predicted)).values())
    if not same:
        return 0.0
    precision, recall = same / len(predicted), same / len(expected)
    return 2 * precision * recall / (precision + recall)


def _f1_or_both_empty(answer: str, prediction: str) -> float:
    if not normalised_answer(answer) or not normalised_answer(prediction):
        return answers_match(answer, prediction)
    return answer_f1(answer, prediction)


def squad_scores(answers: Sequence[str], prediction: str, *, may_be_none: bool) -> dict[str, float]:
    """Returns exact match and F1 of one prediction, from 0 to 1.

    Args:
      answers: all accepted answers.
      prediction: the predicted text.
      may_be_none: whether questions of this dataset may have no answer.
    """
    if may_be_none:
        answers = [answer for answer in answers if normalised_answer(answer)] or [""]
    measures = {"em": answers_match, "f1": _f1_or_both_empty if may_be_none else answer_f1}
    return {
        name: max(measure(answer, prediction) for answer in answers)
        for name, measure in measures.items()
    }


def some_unanswerable(targets: Iterable[Sequence[str]]) -> bool:
    """Returns whether some questions are unanswerable. If so, SQuAD 2.0's rules apply."""
    return any(not answers for answers in targets)


def squad_metrics(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Returns `em` and `f1` in percent.

    If any question has no answer, the result also has both values for the questions with an answer
    (`em_answerable`, `f1_answerable`) and for the questions without an answer (`em_unanswerable`,
    `f1_unanswerable`).
    """
    may_be_none = some_unanswerable(targets)
    groups: dict[str, list[dict[str, float]]] = {"": []}
    for answers, prediction in zip(targets, predictions, strict=True):
        scores = squad_scores(answers, prediction, may_be_none=may_be_none)
        groups[""].append(scores)
        if may_be_none:
            kind = "_answerable" if answers else "_unanswerable"
            groups.setdefault(kind, []).append(scores)
    return {
        name + kind: _percent(scores, name)
        for kind, scores in groups.items()
        for name in ("em", "f1")
    }


class Expected(NamedTuple):
    """The accepted outputs of an instance, and the groups to which it belongs."""

    references: tuple[str, ...]
    task: str
    category: str


def normalised_output(text: str) -> str:
    """Normalizes a text for comparison: lower case, no punctuation, single spaces."""
    return " ".join(text.lower().translate(_WITHOUT_PUNCTUATION).split())


def outputs_match(reference: str, prediction: str) -> float:
    """Returns 1 if both texts are equal after `normalised_output`, otherwise 0."""
    return float(normalised_output(reference) == normalised_output(prediction))


@functools.cache
def _scorer() -> "rouge_scorer.RougeScorer":
    return rouge_scorer.RougeScorer(["rougeL"], tokenizer=_RougeWords(use_stemmer=True))


def rouge_l(reference: str, prediction: str) -> float:
    """Returns the F measure of ROUGE-L, from 0 to 1."""
    return _scorer().score(target=reference, prediction=prediction)["rougeL"].fmeasure


INSTRUCTION_MEASURES: dict[str, Callable[[str, str], float]] = {
    "exact_match": outputs_match,
    "rougeL": rouge_l,
}


def group_name(category: str) -> str:
    """Returns a category in the spelling that names of metrics use.

    >>> group_name("Data to Text")
    'data_to_text'
    """
    return "_".join(category.lower().split())


def instruction_metrics(
    targets: Sequence[Expected], predictions: Sequence[str]
) -> dict[str, float]:
    """Returns each metric in percent over all instances, for each category and for each task."""
    scores: dict[str, list[dict[str, float]]] = collections.defaultdict(list)
    for target, prediction in zip(targets, predictions, strict=True):
        example_scores = {
            name: max(measure(reference, prediction) for reference in target.references)
            for name, measure in INSTRUCTION_MEASURES.items()
        }
        for group in ("", group_name(target.category), target.task):
            scores[group].append(example_scores)
    # All instances first, then categories, then tasks.
    groups = sorted(scores, key=lambda group: (group != "", group in {t.task for t in targets}))
    return {
        name + (f"_for_{group}" if group else ""): _percent(scores[group], name)
        for group in groups
        for name in INSTRUCTION_MEASURES
    }


def _percent(scores: Sequence[dict[str, float]], name: str) -> float:
    return 100.0 * sum(example[name] for example in scores) / len(scores)


@gin.configurable("bleu", module="t0")
def bleu_tokenizer(tokenize: str = "intl") -> str:
    """Returns the name of sacreBLEU's tokenizer, which gin's `bleu.tokenize` can set.

    The default is `intl`, as in T5. WMT's papers use `13a`.

    Raises:
      UserError: if sacreBLEU has no tokenizer of this name.
    """
    tokenizers = sacrebleu.BLEU.TOKENIZERS
    if tokenize not in tokenizers:
        raise unknown_name("tokenizer", tokenize, tokenizers, "(gin: bleu.tokenize)")
    return tokenize


class Bleu:
    """BLEU in percent over a whole corpus, with sacreBLEU's defaults except for the tokenizer.

    Args:
      tokenize: the name of a tokenizer of sacreBLEU; None to use gin's `bleu.tokenize`.
    """

    __name__ = "bleu"

    def __init__(self, tokenize: str | None = None) -> None:
        self._tokenize = tokenize

    def __call__(self, targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
        """Returns {"bleu": value}."""
        return {"bleu": self._metric(targets, predictions)[1].score}

    def signature(self) -> str:
        """Returns sacreBLEU's signature, which lists the settings that BLEU values depend on."""
        metric, _ = self._metric(["."], ["."])
        return str(metric.get_signature())

    def _metric(self, targets: Sequence[str], predictions: Sequence[str]) -> tuple[Any, Any]:
        metric = sacrebleu.BLEU(tokenize=self._tokenize or bleu_tokenizer())
        # The metric has a signature only after it has processed references.
        return metric, metric.corpus_score(list(predictions), [list(targets)])
