"""Reads per-example scores (`scores/<task>_<step>.jsonl`) as a stream into small arrays.

One line for each example, in dataset order:

    {"idx": 3, "choices": [{"text": "True", "log_likelihood": -0.4, "tokens": 2},
                           {"text": "False", "log_likelihood": -1.2, "tokens": 2}],
     "gold": 1, "prediction": 0}

`inputs` is the prompted text, `document` (a text or a number) what the rows of one document share;
both may be absent, as may `tokens` and `characters`, the lengths of a choice. Samples of
lm-evaluation-harness are read as well: a file of all prompts of a dataset, see `lm_eval_samples`.

Beside the scores there may be the answers that were decoded for the same prompts, a line for each
example (`answers/<task>_<step>.jsonl`):

    {"idx": 3, "answer": "Trve", "exact_match": false}

    scores = read_scores(Path("eval/scores/super_glue_rte_GPT_3_style_score_eval_1000.jsonl"))
    scores.accuracy, scores.confidence.mean()    # 54.15, 0.61

For each example a few numbers are kept and no text, so memory does not grow with the length of the
texts; `read_examples` yields the texts, one example after another.

Assumptions: `idx` is the row of the dataset, the same in every prompt and run. A line without a
gold choice (null or -1) is an excluded example and is left out. A score that is not finite, an
index out of range or a prediction that is not the likeliest choice is a UserError that names file
and line.
"""

import functools
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t0.errors import UserError
from t0.reports.lm_eval_samples import Exported, exported_sample, is_sample
from t0.reports.result_files import finite, is_integer, json_object

# Log-likelihoods may be rounded: a prediction this close to the best choice counts as the best.
_ROUNDING_NATS = 1e-4
# By what a choice's log-likelihood is divided, beside T0's plain sum.
LENGTHS = ("tokens", "characters")


class ScoredChoice(NamedTuple):
    """One answer choice: its text, log-likelihood in nats, length in tokens and characters."""

    text: str
    log_likelihood: float
    tokens: int | None
    characters: int = 0


class ScoredExample(NamedTuple):
    """One scored example; `inputs` is the prompted text where the file holds it.

    `document` is what the rows of one document share: the field `document`, a text or a number.
    """

    idx: int
    choices: tuple[ScoredChoice, ...]
    gold: int
    prediction: int
    inputs: str | None
    document: str | None = None


@dataclass(frozen=True)
class ExampleScores:
    """The numbers of one task's E examples that statistics need, in file order.

    Attributes:
      idx: int64 [E], row of the dataset.
      gold: int32 [E], index of the correct choice.
      prediction: int32 [E], index of the predicted choice.
      correct: bool [E], whether the prediction is the gold choice.
      confidence: float32 [E], the predicted choice's share of the probability of all choices.
      choices: int32 [E], number of answer choices.
      tied: bool [E], whether two or more choices share the highest log-likelihood exactly.
      labels: the texts of the choices, if they are the same in all examples, else None.
      texts: uint32 [E], a checksum of input and choices without regard to spaces; 0 if the file
        does not have the input.
      documents: [E], what the rows of one document share; None if the file does not say.
      right_by: another way to judge -> bool [E], what is right by it: the log-likelihood divided by
        "tokens" or by "characters", and "decoded" answers; ways that the files do not have lack.
      task: the task of the file that these are of, where it has several; None for all of it.
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

    def examples(self) -> Iterator[ScoredExample]:
        """Yields the examples with their texts, which are read again; see `read_examples`."""
        return (example for _, example in read_examples(self.path, self.task))

    def records(self) -> Iterator[Mapping[str, Any]]:
        """Yields the records of the examples again, which were checked when they were read first.

        Raises:
          UserError: if the file cannot be read again.
        """
        return (line for _, line in _score_lines(self.path, self.task) if _has_gold(line))

    @property
    def accuracy(self) -> float:
        """Share of correct predictions, percent."""
        return 100.0 * float(self.correct.mean())

    @property
    def chance(self) -> float:
        """Accuracy of guessing, percent: 100 / number of choices, averaged over the examples."""
        return float((100.0 / self.choices).mean())


def read_scores(path: Path) -> ExampleScores:
    """Reads one task's scores.

    Args:
      path: a `.jsonl` file as described in the module's header.

    Raises:
      UserError: if the file cannot be read, or a line is malformed; it names file and line.
    """
    columns = _Columns()
    for where, example in read_examples(path):
        columns.add(example, where)
    return columns.scores(path)


@dataclass(frozen=True)
class Samples:
    """The scores in a samples file of lm-evaluation-harness.

    Attributes:
      prompts: prompt -> its scores, in the file's order.
      lines: the number of samples.
      with_eos: whether a choice was scored with its EOS; both where samples differ.
    """

    prompts: Mapping[Exported, ExampleScores]
    lines: int
    with_eos: frozenset[bool]


def read_samples(path: Path, task: str) -> Samples:
    """Reads a samples file of lm-evaluation-harness, as `lm_eval_samples` describes it.

    Args:
      path: the file.
      task: the harness's task, for messages.

    Raises:
      OtherTask: if the task is not one that we exported.
      UserError: if the file cannot be read, or a line is malformed; it names file and line.
    """
    found: dict[Exported, _Columns] = {}
    with_eos, lines = set(), 0
    for where, record in _lines(path):
        prompt, line, eos = exported_sample(record, where, task)
        example = _example(line, where)
        if example is not None:
            found.setdefault(prompt, _Columns()).add(example, where)
        with_eos.add(eos)
        lines += 1
    prompts = {prompt: columns.scores(path, prompt.name) for prompt, columns in found.items()}
    return Samples(prompts, lines, frozenset(with_eos))


@dataclass
class _Columns:
    """The numbers of the examples that were read so far."""

    rows: list[tuple[int, int, int, bool, float, int, bool, int]] = field(default_factory=list)
    documents: list[str | None] = field(default_factory=list)
    right_by: dict[str, list[bool | None]] = field(
        default_factory=lambda: {name: [] for name in LENGTHS}
    )
    labels: set[tuple[str, ...]] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)

    def add(self, example: ScoredExample, where: str) -> None:
        if example.idx in self.seen:
            raise UserError(f"{where}: idx {example.idx} occurs twice. Evaluate this task again.")
        self.seen.add(example.idx)
        likelihoods = [choice.log_likelihood for choice in example.choices]
        best = max(likelihoods)
        right = example.prediction == example.gold
        tied = likelihoods.count(best) > 1
        share = 1 / sum([math.exp(value - best) for value in likelihoods])
        given = (example.idx, example.gold, example.prediction, right)
        self.rows.append((*given, share, len(likelihoods), tied, _checksum(example)))
        self.documents.append(example.document)
        for name in LENGTHS:
            self.right_by[name].append(_right_by(example, name))
        if len(self.labels) < 2:
            self.labels.add(tuple(choice.text for choice in example.choices))

    def scores(self, path: Path, task: str | None = None) -> ExampleScores:
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * 8
        idx, gold, prediction, correct, confidence, choices, tied_flags, texts = columns
        known = self.documents and None not in self.documents
        return ExampleScores(
            path=path,
            idx=np.array(idx, np.int64),
            gold=np.array(gold, np.int32),
            prediction=np.array(prediction, np.int32),
            correct=np.array(correct, bool),
            confidence=np.array(confidence, np.float32),
            choices=np.array(choices, np.int32),
            tied=np.array(tied_flags, bool),
            labels=next(iter(self.labels)) if len(self.labels) == 1 else None,
            texts=np.array(texts, np.uint32),
            documents=np.array(self.documents, object) if known else None,
            right_by={
                name: np.array(found, bool)
                for name, found in self.right_by.items()
                if None not in found
            },
            task=task,
        )


def _right_by(example: ScoredExample, name: str) -> bool | None:
    """Returns whether the likeliest choice by length is right; None where a length is unknown."""
    lengths = [getattr(choice, name) for choice in example.choices]
    if None in lengths:
        return None
    shares = [
        choice.log_likelihood / max(1, length)
        for choice, length in zip(example.choices, lengths, strict=True)
    ]
    return shares.index(max(shares)) == example.gold


def with_answers(scores: ExampleScores, path: Path) -> ExampleScores:
    """Returns the scores with what is right by the decoded answers in a file.

    Raises:
      UserError: if the file is malformed, or lacks an example of the scores.
    """
    found = {}
    for where, record in _lines(path):
        right = record.get("exact_match")
        if not isinstance(right, bool):
            raise UserError(f"{where}: 'exact_match' must be true or false, got {right!r:.80}.")
        found[_integer(record, "idx", where)] = right
    missing = [idx for idx in scores.idx.tolist() if idx not in found]
    if missing:
        raise UserError(
            f"{path} has no answer for idx {missing[0]}, which {scores.path} has. The two are of "
            "different evaluations, or one is incomplete: evaluate again."
        )
    decoded = np.array([found[idx] for idx in scores.idx.tolist()], bool)
    return replace(scores, right_by={**scores.right_by, "decoded": decoded})


def _checksum(example: ScoredExample) -> int:
    if example.inputs is None:
        return 0
    choices = _joined_choices(tuple([choice.text for choice in example.choices]))
    text = " ".join(example.inputs.split()) + choices
    return max(1, zlib.crc32(text.encode(errors="surrogatepass")))


@functools.lru_cache(maxsize=256)  # most examples of a task have the same choices
def _joined_choices(texts: tuple[str, ...]) -> str:
    return "".join(["\0" + " ".join(text.split()) for text in texts])


def read_examples(path: Path, task: str | None = None) -> Iterator[tuple[str, ScoredExample]]:
    """Yields file and line, and the example, of each line with a gold choice; see `read_scores`.

    Args:
      path: a file of scores, or of samples of lm-evaluation-harness.
      task: of samples, the task that is wanted; None for all.
    """
    for where, line in _score_lines(path, task):
        example = _example(line, where)
        if example is not None:
            yield where, example


def _score_lines(path: Path, task: str | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields file and line, and the record of an example; see `read_examples`."""
    for where, record in _lines(path):
        if is_sample(record):
            prompt, line, _ = exported_sample(record, where, path.stem)
            if task in (None, prompt.name):
                yield where, line
        else:
            yield where, record


def _has_gold(record: Mapping[str, Any]) -> bool:
    return record.get("gold") not in (None, -1)


def _lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        name = str(path)
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                where = f"{name}, line {number}"
                if not line.strip():
                    continue
                yield where, json_object(line, where)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}.") from error


def _example(record: Mapping[str, Any], where: str) -> ScoredExample | None:
    """Returns the checked example, or None when it has no gold choice."""
    choices = record.get("choices")
    if not isinstance(choices, list) or not choices:
        raise UserError(f"{where}: 'choices' must be a list of at least one, got {choices!r:.80}.")
    if not _has_gold(record):
        return None
    example = ScoredExample(
        idx=_integer(record, "idx", where),
        choices=tuple([_choice(choice, where) for choice in choices]),
        gold=_integer(record, "gold", where, below=len(choices)),
        prediction=_integer(record, "prediction", where, below=len(choices)),
        inputs=inputs_of(record),
        document=None if record.get("document") is None else str(record["document"]),
    )
    best = max([choice.log_likelihood for choice in example.choices])
    if example.choices[example.prediction].log_likelihood < best - _ROUNDING_NATS:
        raise UserError(
            f"{where}: prediction {example.prediction} is not the choice of the highest "
            f"log-likelihood ({best:g} nats). The file does not fit its scores: evaluate again."
        )
    return example


def inputs_of(record: Mapping[str, Any]) -> str | None:
    """Returns the prompted text of a record, None if it has none."""
    for key in ("inputs", "input"):
        if isinstance(value := record.get(key), str):
            return value
    return None


def _choice(choice: object, where: str) -> ScoredChoice:
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
    return ScoredChoice(text, log_likelihood, tokens, characters)


def _integer(record: Mapping[str, Any], key: str, where: str, *, below: int | None = None) -> int:
    value = record.get(key)
    if not is_integer(value) or value < 0:
        raise UserError(f"{where}: '{key}' must be a whole number from 0, got {value!r:.80}.")
    if below is not None and value >= below:
        raise UserError(f"{where}: '{key}' is {value}, but there are {below} choices.")
    return value
