"""Decodes answers to ranked prompts, and judges them by exact match.

    for line in answer_lines(decoder, task, most_tokens(task)):
        line["answer"], line["exact_match"], line["choice"]      # "True.", True, 0

The file `answers/<task>_<step>.jsonl`, next to the folder `scores/`, has a line for each example
with exactly one correct choice:

    {"idx": 0, "answer": "True.", "exact_match": true, "choice": 0}

An answer is decoded greedily from the same input as the choices. It is an exact match if it equals
the correct choice after both are normalized (`NORMALISATION`). `choice` is the index of the first
choice that equals the answer, or null if no choice equals it. In the results, the task's entry has
the field `decoded` with three parts: the share of exact matches, the share of answers that equal no
choice, and the settings.

Assumptions: all choices of an example have the same input. An answer that is more than `SLACK`
tokens longer than the longest choice of the task does not match any choice.
"""

import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from t0.errors import UserError
from t0.scoring.examples import MultipleChoiceExample, ScoringTask

NORMALISATION = "lower case, single spaces, no punctuation at either end"
SLACK = 8
# The number of examples in a window. All examples of a window are decoded by the same shard.
WINDOW = 512
_LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256)


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
      task: the task.
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
        self._answers = self._right = self._listed = 0

    def count_lines(self, lines: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Counts lines, and yields them unchanged."""
        for line in lines:
            self._answers += 1
            self._right += bool(line["exact_match"])
            self._listed += line["choice"] is not None
            yield line

    def entry(self) -> dict[str, Any]:
        """Returns the field `decoded` for a task's entry in the results; shares are in percent."""
        share = 100 / max(1, self._answers)
        return {
            "exact_match": share * self._right,
            "no_choice": share * (self._answers - self._listed),
            "examples": self._answers,
            "normalisation": NORMALISATION,
            "most_tokens": self._most,
        }
