"""Judges ranked choices with T5's metrics, and decoded answers by exact match.

T5's `rank_classification` needs a tuple and a number for every choice, which take about 330 bytes.
So a task of 400,000 examples with two choices each took 270 MB. This module stores only the gold
choice and the prediction of each example. If the metric has areas under curves, the module also
stores the two scores of each example. All metrics other than rank classification get the same lists
as in T5.

    metrics = RankMetrics(task.metric_fns)
    for example, scores in metrics.accumulate(scored):    # yields every example again
        ...
    metrics.compute("task")     # {"accuracy": 54.2, "f1": 61.0, "auc-roc": 58.3, "auc-pr": 55.9}

Excluded examples (`MultipleChoiceExample.excluded`) are skipped, and every weight is 1.

T0's accuracy ranks choices by the plain sum of their tokens' log-probabilities. `accuracy_by` has
the accuracies if this sum is divided by the number of the choice's tokens (including EOS) or
characters:

    metrics.accuracy_by         # {"tokens": 53.1, "characters": 52.7}

Answers are decoded greedily from the same inputs as the choices:

    for line in answer_lines(decoder, task, most_tokens(task)):
        line["answer"], line["exact_match"], line["choice"]      # "True.", True, 0

All choices of such an example must have the same input. An answer that is more than `SLACK` tokens
longer than the longest choice of the task does not match any choice.
"""

import array
import collections
import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from t0.errors import UserError, say
from t0.evaluation.ranked_examples import MultipleChoiceExample, ScoringTask
from t0.measures import rank_measures
from t0.measures.choice_lengths import LENGTHS, best_by
from t0.training.metric_values import MetricValues

NORMALISATION = "lower case, single spaces, no punctuation at either end"
SLACK = 8
# The number of examples in a window. All examples of a window are decoded by the same shard.
WINDOW = 512
_LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256)

Metric = Callable[..., Mapping[str, float]]
# A record after T5's postprocessor: ((example, choice), is correct, weight, tokens).
_Target = tuple[tuple[int, int], bool, float, int]


class RankMetrics:
    """Accumulates a task's examples one by one, and then computes the task's metrics.

    Args:
      metric_fns: the task's metric functions.

    Attributes:
      ties: the number of examples in which several choices share the best score.
    """

    def __init__(self, metric_fns: Iterable[Metric]) -> None:
        self._metrics = [(metric, classes_of(metric)) for metric in metric_fns]
        self._by_list = any(classes is None for _, classes in self._metrics)
        self._keep_pairs = any(classes == (2,) for _, classes in self._metrics)
        self._gold, self._predicted = array.array("i"), array.array("i")
        self._choices = array.array("i")
        self._pairs = array.array("f")
        self._targets: list[_Target] = []
        self._scores: list[float] = []
        self._right_by = dict.fromkeys(LENGTHS, 0)
        self._chance = 0.0
        self.ties = 0

    @property
    def examples(self) -> int:
        """The number of counted examples."""
        return len(self._gold)

    @property
    def chance(self) -> float:
        """The accuracy of random guessing in percent: 100 / choices, averaged over the examples."""
        return self._chance / self.examples

    @property
    def accuracy_by(self) -> dict[str, float]:
        """Name in `LENGTHS` -> accuracy in percent if sums are divided by this length."""
        return {name: 100 * right / self.examples for name, right in self._right_by.items()}

    def accumulate(
        self, scored: Iterable[tuple[MultipleChoiceExample, np.ndarray]]
    ) -> Iterator[tuple[MultipleChoiceExample, np.ndarray]]:
        """Accumulates pairs (example, scores [C] of its choices), and yields the same pairs."""
        for example, row in scored:
            if not example.excluded:
                self._add(example, row)
            yield example, row

    def compute(self, task: str) -> dict[str, float]:
        """Returns name -> value, for all metrics. Accuracy and F1 are in percent.

        Args:
          task: the task's name, for messages.

        Raises:
          UserError: if an example has more or fewer choices than the metric has classes.
        """
        values = MetricValues(task)
        ranked = next((metric for metric, classes in self._metrics if classes is not None), None)
        for metric, classes in self._metrics:
            if classes is None:
                values.add(metric, metric(self._targets, self._scores))
            else:  # T5's ranking reports one accuracy, even for several numbers of classes
                values.add(ranked, self._compute_ranked(classes[0], task))
        for note in values.notes():
            say(note)
        return values.numbers

    def count(self, gold: int, row: np.ndarray, lengths: Mapping[str, Sequence[int]]) -> None:
        """Accumulates an example with exactly one correct choice.

        Args:
          gold: the index of the correct choice.
          row: the log-likelihoods [C] of the choices.
          lengths: name in `LENGTHS` -> the lengths [C] of the choices.
        """
        self._gold.append(gold)
        self._predicted.append(int(np.argmax(row)))
        self._choices.append(len(row))
        self._chance += 100 / len(row)
        self.ties += int(np.sum(row == row.max()) > 1)
        scores = row.tolist()
        if self._keep_pairs:
            self._pairs.extend(scores)
        for name, sizes in lengths.items():
            self._right_by[name] += int(best_by(scores, sizes) == gold)

    def _add(self, example: MultipleChoiceExample, row: np.ndarray) -> None:
        lengths = {
            "tokens": [len(choice.tokens) for choice in example.choices],
            "characters": [len(choice.text) for choice in example.choices],
        }
        self.count(example.gold, row, lengths)
        if self._by_list:
            for number, choice in enumerate(example.choices):
                key = (example.idx, number)
                self._targets.append((key, choice.is_correct, 1.0, len(choice.tokens)))
            self._scores.extend(row.tolist())

    def _compute_ranked(self, classes: int | None, task: str) -> dict[str, float]:
        gold, predicted = np.array(self._gold), np.array(self._predicted)
        values = {"accuracy": rank_measures.accuracy(gold == predicted)}
        if classes is None or classes == 1:
            return values
        others = np.flatnonzero(np.array(self._choices) != classes)
        if len(others):
            raise UserError(
                f"task {task}: its template has {classes} answer choices, but {len(others):,} of "
                f"{len(gold):,} examples have another number (the first: "
                f"{self._choices[others[0]]}). Its cache is incomplete or was made from another "
                "template: cache the task again. Or mesh_eval_dataset_fn.num_eval_examples, which "
                "counts choices, cuts an example"
            )
        if classes == 2:
            pairs = np.array(self._pairs, np.float32).reshape(-1, 2)
            return values | _compute_binary(gold, predicted, pairs)
        confusion = rank_measures.count_confusions(gold, predicted, classes)
        return values | {f"mean_{classes}class_f1": rank_measures.macro_f1_all_classes(confusion)}


def classes_of(metric: Metric) -> tuple[int | None] | None:
    """Returns (number of classes,) for T5's rank classification; None for all other metrics.

    The number is None if it varies between examples.
    """
    if _is_rank_classification(metric):
        return (None,)
    if isinstance(metric, functools.partial) and _is_rank_classification(metric.func):
        plain = not metric.args and metric.keywords.keys() <= {"num_classes"}
        return (metric.keywords.get("num_classes") or None,) if plain else None
    rank_classes: Any = getattr(metric, "rank_classes", None)
    return (rank_classes(),) if rank_classes else None


def _is_rank_classification(metric: Callable[..., Any]) -> bool:
    """Returns whether a metric has the name of T5's rank classification; does not import T5."""
    qualified_name = getattr(metric, "__module__", None), getattr(metric, "__qualname__", None)
    return qualified_name == ("t5.evaluation.metrics", "rank_classification")


@dataclasses.dataclass(frozen=True)
class RankClassification:
    """T5's rank classification, described by its number of classes; `RankMetrics` computes it.

    Attributes:
      classes: the number of classes; None if it varies between examples.
    """

    classes: int | None

    def rank_classes(self) -> int | None:
        """Returns the number of classes for `classes_of`."""
        return self.classes


def _compute_binary(
    gold: np.ndarray, predicted: np.ndarray, scores: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Returns F1, the area under the ROC curve, and the area under the precision-recall curve.

    Choice 1 is the positive class.
    """
    from scipy.special import softmax
    from sklearn import metrics

    positive = softmax(scores, axis=-1)[:, 1]
    values = {"f1": 100 * metrics.f1_score(gold, predicted, zero_division=0)}
    # If all examples have the same correct choice, the curves are undefined.
    if len(np.unique(gold)) == 2:
        values["auc-roc"] = 100 * metrics.roc_auc_score(gold, positive)
        values["auc-pr"] = 100 * metrics.average_precision_score(gold, positive)
    return values


class Decoder(Protocol):
    """A model that decodes answers."""

    def restore(self, checkpoint: str) -> int:
        """Loads a checkpoint's weights; returns the number of variables."""

    def decode(self, inputs: Sequence[np.ndarray], most_tokens: int) -> Iterable[str]:
        """Decodes each input [L] greedily to a text of at most `most_tokens` tokens."""


def normalize_answer(text: str) -> str:
    """Normalizes a text, so that answers and choices can be compared.

    >>> normalize_answer(" The  Cat."), normalize_answer("'True'"), normalize_answer("?")
    ('the cat', 'true', '?')
    """
    plain = " ".join(text.casefold().split())
    inside = [index for index, sign in enumerate(plain) if not _is_punctuation(sign)]
    return plain[inside[0] : inside[-1] + 1].strip() if inside else plain


def _is_punctuation(sign: str) -> bool:
    return unicodedata.category(sign).startswith("P") or sign.isspace()


def most_tokens(task: ScoringTask) -> int:
    """Returns the maximum number of tokens of a task's answers.

    The number is rounded up to one of a few values, because each value needs its own graph.
    """
    needed = max(longest for _, _, longest in task.sizes) + SLACK
    return next((length for length in _LENGTHS if needed <= length), needed)


def answer_lines(
    decoder: Decoder, task: ScoringTask, most: int, *, windows: Iterable[int] | None = None
) -> Iterator[dict[str, Any]]:
    """Decodes an answer to each example with one correct choice, and yields lines for the file.

    The lines are in the order of the dataset.

    Args:
      decoder: a decoder with a checkpoint's weights.
      most: the maximum number of tokens of an answer.
      windows: the numbers (from 0) of the windows to decode; None for all windows.

    Raises:
      UserError: if the choices of an example do not all have the same input.
    """
    selected_windows = None if windows is None else set(windows)
    examples = (example for example in task.examples() if not example.excluded)
    for number in itertools.count():
        window = list(itertools.islice(examples, WINDOW))
        if not window:
            return
        if selected_windows is None or number in selected_windows:
            inputs = [_input(task, example) for example in window]
            for example, answer in zip(window, decoder.decode(inputs, most), strict=True):
                yield answer_line(example, answer)


def windows_of(task: ScoringTask) -> int:
    """Returns the number of windows of a task."""
    return -(-int((task.gold >= 0).sum()) // WINDOW)


def _input(task: ScoringTask, example: MultipleChoiceExample) -> np.ndarray:
    first, *other_inputs = (choice.inputs for choice in example.choices)
    if any(not np.array_equal(first, other_input) for other_input in other_inputs):
        raise UserError(
            f"task {task.name}, example {example.idx}: its choices have different inputs, so "
            "there is no single prompt to answer. Evaluate it without --decode_answers"
        )
    return first


def answer_line(example: MultipleChoiceExample, answer: str) -> dict[str, Any]:
    """Judges the answer to one example, and returns its line for the answers file."""
    normalized = normalize_answer(answer)
    choices = [normalize_answer(choice.text) for choice in example.choices]
    return {
        "idx": example.idx,
        "answer": answer,
        "exact_match": normalized == choices[example.gold],
        "choice": choices.index(normalized) if normalized in choices else None,
    }


class AnswerCounts:
    """Counts a task's answers while they are written.

    Args:
      most: the maximum number of tokens of an answer.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: collections.Counter[str] = collections.Counter()

    def count_lines(self, lines: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Counts lines, and yields them unchanged."""
        for line in lines:
            no_choice = line["choice"] is None
            self._counts.update(examples=1, right=bool(line["exact_match"]), no_choice=no_choice)
            yield line

    def entry(self) -> dict[str, Any]:
        """Returns the field `decoded` for a task's entry in the results; shares are in percent."""
        share = 100 / max(1, self._counts["examples"])
        return {
            "exact_match": share * self._counts["right"],
            "no_choice": share * self._counts["no_choice"],
            "examples": self._counts["examples"],
            "normalisation": NORMALISATION,
            "most_tokens": self._most,
        }
