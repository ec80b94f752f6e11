"""Reads per-example scores (`scores/<task>_<step>.jsonl`) as a stream into compact arrays.

Each line is an example, in the order of the dataset:

    {"idx": 3, "choices": [{"text": "True", "log_likelihood": -0.4, "tokens": 2},
                           {"text": "False", "log_likelihood": -1.2, "tokens": 2}],
     "gold": 1, "prediction": 0}

Optional fields are: `inputs`, the prompted text; `document`, a text or number that is equal in all
rows of one document; and `tokens` and `characters`, the lengths of a choice.

Samples of lm-evaluation-harness can also be read, see `lm_eval_samples`. One file of samples may
contain all prompts of a dataset.

If answers were decoded for the same prompts, they are in `answers/<task>_<step>.jsonl`, with one
line for each example:

    {"idx": 3, "answer": "Trve", "exact_match": false}

    scores = read_scores(Path("eval/scores/super_glue_rte_GPT_3_style_score_eval_1000.jsonl"))
    scores.accuracy, scores.confidence.mean()    # 54.15, 0.61

Only a few numbers of each example are kept, so memory does not grow with the length of the texts.
`ExampleScores.records` reads the texts again, one example at a time.

Assumptions: `idx` is the number of a row in the dataset, the same in every prompt and run. If the
gold choice of a line is null or -1, the example is excluded and left out. If a score is not finite,
an index is out of range, or the prediction is not the likeliest choice, a UserError names the file
and line.
"""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from t0.errors import UserError
from t0.reports.lm_eval_samples import HarnessPrompt, exported_sample, is_sample
from t0.reports.result_files import finite, is_integer, json_object

# Log-likelihoods may be rounded. So a prediction is accepted if the difference between its
# log-likelihood and the highest one is at most this.
_ROUNDING_NATS = 1e-4
# The lengths by which a choice's log-likelihood may be divided.
LENGTHS = ("tokens", "characters")
# The statistics of an example, and their types in `ExampleScores`.
_STATISTICS = ("idx", "gold", "prediction", "correct", "confidence", "choices", "tied", "texts")
_TYPES = (np.int64, np.int32, np.int32, bool, np.float32, np.int32, bool, np.uint32)


@dataclass(frozen=True)
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
      task: the task of these examples; None if the file has only one task.
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
    right_by: Mapping[str, np.ndarray] = field(default_factory=dict)
    task: str | None = None

    def __len__(self) -> int:
        return len(self.idx)

    def records(self) -> Iterator[Mapping[str, Any]]:
        """Yields the records of the examples again, without checking them a second time.

        Raises:
          UserError: if the file cannot be read again.
        """
        for where, record in _read_records(self.path):
            if is_sample(record):
                prompt, record, _ = exported_sample(record, where, self.path.stem)
                if prompt.name != self.task:
                    continue
            if _has_gold(record):
                yield record

    @property
    def accuracy(self) -> float:
        """The share of correct predictions in percent."""
        return 100.0 * float(self.correct.mean())

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
    columns = _ScoreColumns()
    for where, record in _read_records(path):
        columns.add(record, where)
    return columns.scores(path)


@dataclass(frozen=True)
class HarnessSamples:
    """The scores in a samples file of lm-evaluation-harness.

    Attributes:
      prompts: prompt -> its scores, in the order of the file.
      lines: the number of samples.
      with_eos: {True} if the choices were scored with EOS, {False} if they were scored without it,
        and both values if samples differ.
    """

    prompts: Mapping[HarnessPrompt, ExampleScores]
    lines: int
    with_eos: frozenset[bool]


def read_samples(path: Path, task: str) -> HarnessSamples:
    """Reads a samples file of lm-evaluation-harness; `lm_eval_samples` describes the format.

    Args:
      path: the file.
      task: the name of the harness's task, for messages.

    Raises:
      OtherTask: if `t0 export-eval` did not write the task.
      UserError: if the file cannot be read, or a line is malformed; the message names file and
        line.
    """
    columns_by_prompt: dict[HarnessPrompt, _ScoreColumns] = {}
    with_eos, lines = set(), 0
    for where, sample in _read_records(path):
        prompt, record, eos = exported_sample(sample, where, task)
        columns = columns_by_prompt.get(prompt) or _ScoreColumns()
        if columns.add(record, where):
            columns_by_prompt[prompt] = columns
        with_eos.add(eos)
        lines += 1
    prompts = {
        prompt: columns.scores(path, prompt.name) for prompt, columns in columns_by_prompt.items()
    }
    return HarnessSamples(prompts, lines, frozenset(with_eos))


class _ScoreColumns:
    """Collects the statistics of examples while they are read."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, bool, float, int, bool, int]] = []
        self._documents: list[str | None] = []
        self._right_by: dict[str, list[bool | None]] = {name: [] for name in LENGTHS}
        self._labels: set[tuple[str, ...]] = set()
        self._seen: set[int] = set()

    def add(self, record: Mapping[str, Any], where: str) -> bool:
        """Checks a record and adds its numbers.

        If the record has no gold choice, adds nothing and returns False.

        Args:
          record: a line of the file.
          where: the file and line, for messages.
        """
        choices = record.get("choices")
        if not isinstance(choices, list) or not choices:
            raise UserError(
                f"{where}: 'choices' must be a list of at least one, got {choices!r:.80}."
            )
        if not _has_gold(record):
            return False
        checked = [_check_choice(choice, where) for choice in choices]
        texts, likelihoods, tokens, characters = zip(*checked, strict=True)
        idx = _read_integer(record, "idx", where)
        gold, prediction = (
            _read_integer(record, key, where, below=len(choices)) for key in ("gold", "prediction")
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
        tied = likelihoods.count(best) > 1
        share = 1 / sum([math.exp(value - best) for value in likelihoods])
        numbers = (idx, gold, prediction, prediction == gold)
        checksum = _compute_checksum(inputs_of(record), texts)
        self._rows.append((*numbers, share, len(choices), tied, checksum))
        document = record.get("document")
        self._documents.append(None if document is None else str(document))
        for name, lengths in zip(LENGTHS, (tokens, characters), strict=True):
            self._right_by[name].append(_is_right_by(lengths, likelihoods, gold))
        if len(self._labels) < 2:
            self._labels.add(texts)
        return True

    def scores(self, path: Path, task: str | None = None) -> ExampleScores:
        """Returns the statistics of all examples that were added, as arrays."""
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(_STATISTICS)
        arrays = map(np.array, columns, _TYPES)
        has_documents = self._documents and None not in self._documents
        return ExampleScores(
            path=path,
            **dict(zip(_STATISTICS, arrays, strict=True)),
            labels=next(iter(self._labels)) if len(self._labels) == 1 else None,
            documents=np.array(self._documents, object) if has_documents else None,
            right_by={
                name: np.array(right, bool)
                for name, right in self._right_by.items()
                if None not in right
            },
            task=task,
        )


def _is_right_by(
    lengths: Sequence[int | None], likelihoods: Sequence[float], gold: int
) -> bool | None:
    """Returns whether the choice with the highest quotient of log-likelihood and length is correct.

    Args:
      lengths: the length of each choice, in tokens or characters.
      likelihoods: the log-likelihood of each choice, in nats.
      gold: the index of the gold choice.

    Returns:
      whether that choice is correct; None if a length is unknown.
    """
    if None in lengths:
        return None
    shares = [value / max(1, length) for value, length in zip(likelihoods, lengths, strict=True)]
    return shares.index(max(shares)) == gold


def with_answers(scores: ExampleScores, path: Path) -> ExampleScores:
    """Returns the scores with the correctness of the decoded answers in a file.

    Raises:
      UserError: if the file is malformed, or some example of the scores is missing in it.
    """
    correct_by_idx = {}
    for where, record in _read_records(path):
        right = record.get("exact_match")
        if not isinstance(right, bool):
            raise UserError(f"{where}: 'exact_match' must be true or false, got {right!r:.80}.")
        correct_by_idx[_read_integer(record, "idx", where)] = right
    missing = [idx for idx in scores.idx.tolist() if idx not in correct_by_idx]
    if missing:
        raise UserError(
            f"{path} has no answer for idx {missing[0]}, which {scores.path} has. The files are "
            "from different evaluations, or one is incomplete: evaluate again."
        )
    decoded = np.array([correct_by_idx[idx] for idx in scores.idx.tolist()], bool)
    return replace(scores, right_by={**scores.right_by, "decoded": decoded})


def _compute_checksum(inputs: str | None, texts: tuple[str, ...]) -> int:
    if inputs is None:
        return 0
    text = "\0".join([" ".join(text.split()) for text in (inputs, *texts)])
    return max(1, zlib.crc32(text.encode(errors="surrogatepass")))


def _has_gold(record: Mapping[str, Any]) -> bool:
    return record.get("gold") not in (None, -1)


def _read_records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield where, json_object(line, where)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}.") from error


def inputs_of(record: Mapping[str, Any]) -> str | None:
    """Returns the prompted text of a record; None if this text is missing."""
    for key in ("inputs", "input"):
        if isinstance(value := record.get(key), str):
            return value
    return None


def _check_choice(choice: object, where: str) -> tuple[str, float, int | None, int]:
    """Checks a choice; returns its text, log-likelihood, number of tokens and of characters."""
    text = choice.get("text") if isinstance(choice, dict) else None
    if not isinstance(text, str):
        raise UserError(f"{where}: a choice must be an object with a 'text', got {choice!r:.80}.")
    value = choice.get("log_likelihood")
    log_likelihood = finite(value)
    if log_likelihood is None:
        raise UserError(
            f"{where}: 'log_likelihood' of choice {text!r:.40} must be a finite number "
            f"of nats, got {value!r:.80}. The model or the scoring is broken for this example."
        )
    tokens = choice.get("tokens")
    if tokens is not None and not is_integer(tokens):
        raise UserError(f"{where}: 'tokens' must be a count, got {tokens!r:.80}.")
    characters = choice.get("characters")
    if characters is None:
        characters = len(text)
    elif not is_integer(characters) or characters < 0:
        raise UserError(f"{where}: 'characters' must be a count, got {characters!r:.80}.")
    return text, log_likelihood, tokens, characters


def _read_integer(
    record: Mapping[str, Any], key: str, where: str, *, below: int | None = None
) -> int:
    value = record.get(key)
    if not is_integer(value) or value < 0:
        raise UserError(f"{where}: '{key}' must be a whole number from 0, got {value!r:.80}.")
    if below is not None and value >= below:
        raise UserError(f"{where}: '{key}' is {value}, but there are {below} choices.")
    return value
