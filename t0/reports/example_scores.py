"""Reads per-example scores (`scores/<task>_<step>.jsonl`) as a stream into compact arrays.

Each line is a `ScoreLine`, in the order of the dataset. `lm_eval_samples` converts samples of
lm-evaluation-harness to such lines. One file of samples may contain all prompts of a dataset. If
answers were decoded for the same prompts, `answers/<task>_<step>.jsonl` has one line for each
example.

    scores = read_scores(Path("eval/scores/super_glue_rte_GPT_3_style_score_eval_1000.jsonl"))
    scores.accuracy, scores.confidence.mean()    # 54.15, 0.61

Only a few numbers of each example are kept, so memory does not grow with the length of the texts.
`ExampleScores.records` reads the texts again, one example at a time.

Assumptions: if `numbered_by` is `ROW`, `idx` is the number of a row in the dataset, the same in
every prompt and run. If it is `EXAMPLE`, a prompt's examples are numbered without the rows that the
prompt drops, as in results of earlier versions. So the same `idx` may be another row in another
prompt, and examples are paired only with examples that are numbered in the same way. If the gold
choice of a line is null or -1, the example is excluded and left out. If a score is not finite, an
index is out of range, or the prediction is not the likeliest choice, a UserError names the file and
line.
"""

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t0.config.plain_data import Count, OpenRecord
from t0.errors import UserError
from t0.measures import rank_measures
from t0.measures.choice_lengths import LENGTHS, best_by
from t0.reports.result_files import EXAMPLE, ROW, field, read_json_lines, read_record

# Log-likelihoods may be rounded. So a prediction is accepted if the difference between its
# log-likelihood and the highest one is at most this.
_ROUNDING_NATS = 1e-4
# Statistic of an example -> its type in `ExampleScores`.
_TYPES = {
    "idx": np.int64,
    "gold": np.int32,
    "prediction": np.int32,
    "correct": bool,
    "confidence": np.float32,
    "choices": np.int32,
    "tied": bool,
    "texts": np.uint32,
}


@dataclasses.dataclass
class ScoredChoice(OpenRecord):
    """A choice: its log-likelihood in nats, and its lengths."""

    text: str
    log_likelihood: float
    tokens: Count | None = None
    characters: Count | None = None


@dataclasses.dataclass
class ScoreLine(OpenRecord):
    """An example's line. The document is a text or number, equal in all rows of one document."""

    idx: Count
    gold: Count
    prediction: Count
    choices: Sequence[ScoredChoice]
    document: Any = None
    numbered_by: Any = None


@dataclasses.dataclass(frozen=True)
class ExampleScores:
    """The statistics of one task's E examples, in file order.

    Attributes:
      idx: int64 [E], the number of each example's row in the dataset.
      gold: int32 [E], the index of the gold choice.
      prediction: int32 [E], the index of the predicted choice.
      correct: bool [E], whether the prediction is the gold choice.
      confidence: float32 [E], the probability of the predicted choice divided by the sum of the
        probabilities of all choices.
      choices: int32 [E], the number of answer choices.
      tied: bool [E], whether two or more choices have exactly the highest log-likelihood.
      labels: the texts of the choices; None if the choices differ between examples.
      texts: uint32 [E], a checksum of the input and the choices without whitespace; 0 if the file
        has no inputs.
      documents: [E], the document of each row; None if the file has no documents.
      right_by: normalization -> bool [E], whether the prediction under this normalization is
        correct. "tokens" and "characters" divide the log-likelihood of a choice by its number of
        tokens or characters. "decoded" compares the decoded answer with the gold choice. If the
        files do not have the required lengths or answers, the normalization is missing.
      lines: the function that yields the file and line, and the record, of each example of the task.
      numbered_by: the meaning of `idx`: `ROW` or `EXAMPLE`.
    """

    path: Path
    idx: np.ndarray
    gold: np.ndarray
    prediction: np.ndarray
    correct: np.ndarray
    confidence: np.ndarray
    choices: np.ndarray
    tied: np.ndarray
    labels: tuple[str, ...] | None
    texts: np.ndarray
    documents: np.ndarray | None = None
    right_by: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    lines: Callable[[Path], Iterator[tuple[str, Mapping[str, Any]]]] = read_json_lines
    numbered_by: str = EXAMPLE

    def __len__(self) -> int:
        return len(self.idx)

    def records(self) -> Iterator[Mapping[str, Any]]:
        """Yields the records of the examples again, without checking them a second time.

        Raises:
          UserError: if the file cannot be read again.
        """
        for _, record in self.lines(self.path):
            if _has_gold(record):
                yield record

    @property
    def accuracy(self) -> float:
        """The share of correct predictions in percent."""
        return rank_measures.accuracy(self.correct)

    @functools.cached_property
    def answers(self) -> tuple[str, ...]:
        """The texts of the choices; "choice 1" and so on if they differ between examples."""
        return self.labels or tuple(f"choice {n + 1}" for n in range(int(self.choices.max())))

    @functools.cached_property
    def confusion(self) -> np.ndarray:
        """The number of examples by gold choice and prediction; see `count_confusions`."""
        return rank_measures.count_confusions(self.gold, self.prediction, len(self.answers))

    @functools.cached_property
    def measures(self) -> dict[str, float | str | None]:
        """Column -> value for all `MEASURES`."""
        return rank_measures.measure(self)

    @property
    def chance(self) -> float:
        """The accuracy of guessing in percent: 100 / number of choices, averaged over examples."""
        return float((100.0 / self.choices).mean())


def read_scores(path: Path) -> ExampleScores:
    """Reads one task's scores.

    Args:
      path: a `.jsonl` file in the format that this module's header describes.

    Raises:
      UserError: if the file cannot be read, or a line is malformed; the message names file and
        line.
    """
    columns = ScoreColumns()
    for where, record in read_json_lines(path):
        columns.add(record, where)
    return columns.scores(path)


class ScoreColumns:
    """Collects the statistics of examples while they are read."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._labels: set[tuple[str, ...]] = set()
        self._seen: set[int] = set()
        self._numbered_by: set[Any] = set()

    def add(self, record: Mapping[str, Any], where: str) -> bool:
        """Checks a record and adds its numbers.

        If the record has no gold choice, adds nothing and returns False.

        Args:
          record: a line of the file.
          where: the file and line, for messages.
        """
        if not _has_gold(record):
            return False
        line = read_record(record, ScoreLine, where)
        idx, gold, prediction, choices = line.idx, line.gold, line.prediction, line.choices
        texts = tuple([choice.text for choice in choices])
        likelihoods = [choice.log_likelihood for choice in choices]
        if max(gold, prediction) >= len(choices):
            raise UserError(
                f"{where}: 'gold' or 'prediction' is not one of {len(choices)} choices."
            )
        best = max(likelihoods)
        if likelihoods[prediction] < best - _ROUNDING_NATS:
            raise UserError(
                f"{where}: prediction {prediction} is not the choice of the highest "
                f"log-likelihood ({best:g} nats). The file contradicts itself: evaluate again."
            )
        if idx in self._seen:
            raise UserError(f"{where}: idx {idx} occurs twice. Evaluate this task again.")
        self._seen.add(idx)
        self._numbered_by.add(line.numbered_by)
        if len(self._labels) < 2:
            self._labels.add(texts)
        tokens = [choice.tokens for choice in choices]
        characters = [len(c.text) if c.characters is None else c.characters for c in choices]
        self._rows.append(
            (
                *(idx, gold, prediction, prediction == gold),
                1 / sum([math.exp(value - best) for value in likelihoods]),
                len(choices),
                likelihoods.count(best) > 1,
                _compute_checksum(inputs_of(record), texts),
                None if line.document is None else str(line.document),
                None if None in tokens else best_by(likelihoods, tokens) == gold,
                best_by(likelihoods, characters) == gold,
            )
        )
        return True

    def scores(self, path: Path, **fields: Any) -> ExampleScores:
        """Returns the statistics of all examples that were added, as arrays, and other fields."""
        columns = [*zip(*self._rows, strict=True)] or [()] * (len(_TYPES) + 3)
        arrays = dict(zip(_TYPES, map(np.array, columns, _TYPES.values()), strict=True))
        documents, *right_by = columns[len(_TYPES) :]
        return ExampleScores(
            path=path,
            **arrays,
            labels=next(iter(self._labels)) if len(self._labels) == 1 else None,
            documents=None if None in (documents or [None]) else np.array(documents, object),
            right_by={
                name: np.array(right, bool)
                for name, right in zip(LENGTHS, right_by, strict=True)
                if None not in right
            },
            **fields,
            numbered_by=ROW if self._numbered_by == {ROW} else EXAMPLE,
        )


def keep_apart(prompts: Sequence[ExampleScores]) -> list[ExampleScores]:
    """Returns the scores of a dataset's prompts so that only equal rows have equal numbers.

    If some prompts are numbered by row and others by example, the numbers of the latter become
    negative, and their documents are marked. So they are not paired with the rows.
    """
    if len({scores.numbered_by for scores in prompts}) < 2:
        return [*prompts]
    return [scores if scores.numbered_by == ROW else _not_by_row(scores) for scores in prompts]


def _not_by_row(scores: ExampleScores) -> ExampleScores:
    documents = scores.documents
    if documents is not None:
        documents = np.array([f"{scores.numbered_by} {document}" for document in documents], object)
    return dataclasses.replace(scores, idx=-1 - scores.idx, documents=documents)


def with_answers(scores: ExampleScores, path: Path) -> ExampleScores:
    """Returns the scores with the correctness of the decoded answers in a file.

    Raises:
      UserError: if the file is malformed, or some example of the scores is missing in it.
    """
    correct_by_idx = {}
    for where, record in read_json_lines(path):
        idx = field(record, "idx", Count, where)
        correct_by_idx[idx] = field(record, "exact_match", bool, where)
    missing = [idx for idx in scores.idx.tolist() if idx not in correct_by_idx]
    if missing:
        raise UserError(
            f"{path} has no answer for idx {missing[0]}, which {scores.path} has. The files are "
            "from different evaluations, or one is incomplete: evaluate again."
        )
    decoded = np.array([correct_by_idx[idx] for idx in scores.idx.tolist()], bool)
    return dataclasses.replace(scores, right_by={**scores.right_by, "decoded": decoded})


def _compute_checksum(inputs: str | None, texts: tuple[str, ...]) -> int:
    if inputs is None:
        return 0
    text = "\0".join([" ".join(text.split()) for text in (inputs, *texts)])
    return max(1, zlib.crc32(text.encode(errors="surrogatepass")))


def _has_gold(record: Mapping[str, Any]) -> bool:
    return record.get("gold") not in (None, -1)


def inputs_of(record: Mapping[str, Any]) -> str | None:
    """Returns the prompted text of a record; None if this text is missing."""
    for key in ("inputs", "input"):
        if isinstance(value := record.get(key), str):
            return value
    return None
