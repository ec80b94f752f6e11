"""The examples of rank-evaluation tasks, which are read once and kept on local disk.

A task has one record for each choice: `idx` [2] (the example's number and the choice's), `inputs`
and `targets` as token ids, `is_correct`, and the texts. Ten records of five examples with two
choices each become five examples. Stock SeqIO shuffles its caches, so records may come in any
order: a temporary SQLite file sorts them. The same file is used for every checkpoint.

    with ExampleStore() as store:
        task = kept_task(facts, store.add(records), {"inputs": 1024, "targets": 256}, store=store)
        for example in task.examples():      # idx ascending, choices in the template's order
            example.choices[example.gold].text

Records come from SeqIO (`t0.scoring.task_records`) or from a cache's files
(`t0.scoring.cached_records`). Memory holds only a few counts for each task, and does not grow with
the examples' texts.
"""

import collections
import dataclasses
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t0.errors import UserError
from t0.files import publishing

EOS = 1
# The features of a record that are read.
FEATURES = (
    "idx",
    "inputs",
    "targets",
    "is_correct",
    "inputs_pretokenized",
    "targets_pretokenized",
)

# Why an example is excluded; these strings are in results files.
NO_CORRECT_CHOICE = "no correct choice"
SEVERAL_CORRECT_CHOICES = "several correct choices"
EQUAL_TOKENS = "the right choice has the same tokens as a wrong one"

_EQUAL_TOKENS_HINT = (
    ". The vocabulary may map different characters to its unknown token, or the length limit may "
    "cut the choices where they are still equal: `t0 show TASK --ids` prints their tokens. Write "
    "choices of characters that the vocabulary has, or raise the limit of 'targets'"
)
# The most excluded examples whose numbers are kept, for each reason.
_LISTED = 20
_CACHE_KIB = 32 * 1024
_TABLE = """
CREATE TABLE task_{task} (
    example INTEGER, choice INTEGER, inputs BLOB, tokens BLOB, correct INTEGER,
    choice_text TEXT, input_text TEXT, PRIMARY KEY (example, choice)
) WITHOUT ROWID"""

Lengths = Mapping[str, int] | None
# (choices, input tokens, target tokens of the longest choice)
Size = tuple[int, int, int]
# (task, example, choice); task and example count from 0 in reading order.
ScoreKey = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class AnswerChoice:
    """One answer choice.

    Attributes:
      text: the choice's text.
      tokens: the choice's token ids with EOS, [T].
      is_correct: whether it is the correct choice.
      inputs: the input's token ids, given which the choice is scored, [L].
    """

    text: str
    tokens: np.ndarray
    is_correct: bool
    inputs: np.ndarray

    def reads_as(self, other: "AnswerChoice") -> bool:
        """Returns whether the model cannot tell the two apart: equal tokens after equal inputs."""
        return np.array_equal(self.tokens, other.tokens) and np.array_equal(
            self.inputs, other.inputs
        )


@dataclasses.dataclass(frozen=True)
class MultipleChoiceExample:
    """One row of a dataset with its answer choices.

    Attributes:
      idx: the row's number.
      choices: the answer choices, in the template's order.
      text: the prompted input as text; empty if the records lack it.
      document: the number of the first example of the same document; None if it is not known.
    """

    idx: int
    choices: tuple[AnswerChoice, ...]
    text: str = ""
    document: int | None = None

    @property
    def gold(self) -> int:
        """The index of the correct choice; -1 if the example is excluded."""
        if self.excluded:
            return -1
        return next(i for i, choice in enumerate(self.choices) if choice.is_correct)

    @property
    def excluded(self) -> str | None:
        """Why the example is left out of the accuracy, or None."""
        correct = [choice for choice in self.choices if choice.is_correct]
        if len(correct) != 1:
            return SEVERAL_CORRECT_CHOICES if correct else NO_CORRECT_CHOICE
        equal = sum(choice.reads_as(correct[0]) for choice in self.choices)
        return EQUAL_TOKENS if equal > 1 else None


@dataclasses.dataclass(frozen=True)
class ChoiceGroup:
    """Choices with the same input, which is encoded once for all of them.

    Attributes:
      inputs: the input's token ids, [L].
      targets: the token ids of each choice.
      keys: (task, example, choice) of each choice.
    """

    inputs: np.ndarray
    targets: tuple[np.ndarray, ...]
    keys: tuple[ScoreKey, ...]

    @property
    def size(self) -> Size:
        """(C, L, T)."""
        longest = max(len(target) for target in self.targets)
        return len(self.targets), len(self.inputs), longest

    @property
    def tokens(self) -> tuple[int, int]:
        """The numbers of input tokens, at least 1, and of target tokens of all choices."""
        return max(1, len(self.inputs)), sum(map(len, self.targets))


@dataclasses.dataclass
class Truncation:
    """The numbers of inputs and targets that were truncated to the model's limits."""

    inputs: int = 0
    targets: int = 0


@dataclasses.dataclass
class ExcludedExamples:
    """Examples that are left out for one reason: their number, and the `idx` of the first."""

    count: int = 0
    first: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class TaskFacts:
    """What is known of a rank-evaluation task before its records are read.

    Attributes:
      name: the task's name.
      dataset: its dataset with the subset, as in results files.
      prompt: its prompt's name; "" for a task without one.
      metric_fns: its metric functions.
      documents: number of examples -> each example's document, or None (`t0.scoring.documents`).
    """

    name: str
    dataset: str
    prompt: str
    metric_fns: Sequence[Callable[..., Mapping[str, float]]]
    documents: Callable[[int], Sequence[int] | None] = lambda examples: None


def not_ranked(task: str) -> UserError:
    """Returns the error about a task whose records have no answer choices."""
    return UserError(
        f"task {task} is not a rank-evaluation task (its records have no answer choices); its "
        f"rank-evaluation form, if it has one, is {task}_score_eval"
    )


@dataclasses.dataclass(frozen=True)
class ScoringTask:
    """A task whose records were read.

    Attributes:
      name: the task's name.
      number: the task's number in the store.
      store: the store of its examples.
      lengths: the limits in tokens that its examples are truncated to.
      choices: the number of choices of each example, in the order of `idx`.
      gold: the index of each example's correct choice; -1 if the example is excluded.
      sizes: size -> number of groups of choices, after truncation.
      tokens: (input tokens, target tokens of all choices) -> number of groups, likewise.
      truncated: the numbers of truncated inputs and targets.
      excluded: reason -> examples that are left out of the accuracy.
      metric_fns: the task's metric functions.
      dataset: its dataset with the subset.
      prompt: its prompt's name.
      documents: each example's document, in the order of `idx`; None if they are not known.
    """

    name: str
    number: int
    store: "ExampleStore"
    lengths: Lengths
    choices: np.ndarray
    gold: np.ndarray
    sizes: Mapping[Size, int]
    tokens: Mapping[tuple[int, int], int]
    truncated: Truncation
    excluded: Mapping[str, ExcludedExamples]
    metric_fns: Sequence[Callable[..., Mapping[str, float]]]
    dataset: str = ""
    prompt: str = ""
    documents: Sequence[int] | None = None

    def examples(self) -> Iterator[MultipleChoiceExample]:
        """Yields the examples, truncated to the limits, in the order of `idx`."""
        for number, whole in enumerate(self.store.examples(self.number)):
            one = truncate(whole, self.lengths)[0]
            known = None if self.documents is None else self.documents[number]
            yield one if known is None else dataclasses.replace(one, document=known)


class ExampleStore:
    """The examples of tasks in a temporary file, which is removed when the `with` block ends.

    The next process removes the file of a process that was killed.
    """

    def __enter__(self) -> "ExampleStore":
        publishing.remove_leftovers([tempfile.gettempdir()])
        self._folder = tempfile.TemporaryDirectory(
            prefix="t0_scoring_", suffix=f".{publishing.unfinished_tag()}"
        )
        self._file = sqlite3.connect(Path(self._folder.name) / "records.sqlite")
        # The file is not needed after the process: so no journal and no waiting for the disk.
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KIB}"):
            self._file.execute(f"PRAGMA {pragma}")
        self._tasks = 0
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._folder.cleanup()

    def add(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Stores a task's records, and returns the task's number, the argument of `examples`.

        Args:
          records: records in any order, with numpy values: `idx` [2] and the fields of `choice_of`.

        Raises:
          UserError: if the disk is full.
        """
        task, self._tasks = self._tasks, self._tasks + 1
        self._file.execute(_TABLE.format(task=task))
        statement = f"INSERT OR REPLACE INTO task_{task} VALUES (?, ?, ?, ?, ?, ?, ?)"
        try:
            with self._file:
                self._file.executemany(statement, map(_row, records))
        except sqlite3.OperationalError as error:
            raise UserError(
                f"cannot keep the records of a task in {self._folder.name}: {error}. "
                "TMPDIR names another folder"
            ) from error
        return task

    def examples(self, task: int) -> Iterator[MultipleChoiceExample]:
        """Yields a task's examples, not truncated, in the order of `idx`.

        Several readers may run at once.
        """
        rows = self._file.execute(f"SELECT * FROM task_{task} ORDER BY example, choice")
        idx, text, choices = -1, "", []
        for example, _, inputs, tokens, correct, choice_text, input_text in rows:
            if choices and example != idx:
                yield MultipleChoiceExample(idx, tuple(choices), text)
                choices = []
            idx, text = example, input_text
            choices.append(
                AnswerChoice(
                    text=choice_text,
                    tokens=np.frombuffer(tokens, np.int32),
                    is_correct=bool(correct),
                    inputs=np.frombuffer(inputs, np.int32),
                )
            )
        if choices:
            yield MultipleChoiceExample(idx, tuple(choices), text)


def kept_task(
    facts: TaskFacts,
    number: int,
    lengths: Lengths,
    *,
    store: ExampleStore,
    max_excluded_share: float = 0.5,
    max_truncated_targets_share: float = 0.5,
) -> ScoringTask:
    """Counts and checks a task's examples, whose records are in the store.

    Args:
      facts: the task's name, prompt and metrics.
      number: the task's number in the store.
      lengths: the model's limits {"inputs": tokens, "targets": tokens}, or None for no limits.
      store: the store with the examples.
      max_excluded_share: the share of examples that may be excluded.
      max_truncated_targets_share: the share of choices that may exceed the limit.

    Raises:
      UserError: if the split is empty, its labels are hidden, or too many examples are excluded or
        too many choices truncated.
    """
    choices: list[int] = []
    gold: list[int] = []
    sizes: collections.Counter[Size] = collections.Counter()
    tokens: collections.Counter[tuple[int, int]] = collections.Counter()
    truncated, excluded = Truncation(), collections.defaultdict(ExcludedExamples)
    for whole in store.examples(number):
        example, cut = truncate(whole, lengths)
        choices.append(len(example.choices))
        gold.append(example.gold)
        groups = choice_groups(0, 0, example)
        sizes.update(group.size for group in groups)
        tokens.update(group.tokens for group in groups)
        truncated.inputs += cut.inputs
        truncated.targets += cut.targets
        if example.excluded:
            found = excluded[example.excluded]
            found.count += 1
            if found.count <= _LISTED:
                found.first.append(example.idx)
    if not choices:
        raise UserError(f"task {facts.name} has no examples in this split")
    task = ScoringTask(
        name=facts.name,
        number=number,
        store=store,
        lengths=lengths,
        choices=np.array(choices, np.int32),
        gold=np.array(gold, np.int32),
        sizes=dict(sizes),
        tokens=dict(tokens),
        truncated=truncated,
        excluded=dict(excluded),
        metric_fns=facts.metric_fns,
        dataset=facts.dataset,
        prompt=facts.prompt,
        documents=facts.documents(len(choices)),
    )
    _check_excluded(task, max_excluded_share)
    _check_truncated(task, max_truncated_targets_share)
    return task


def choice_of(record: Mapping[str, Any]) -> AnswerChoice:
    """Returns a record's choice.

    Args:
      record: numpy values `inputs` [L], `targets` [T], `is_correct` and perhaps
        `targets_pretokenized`, the text.
    """
    return AnswerChoice(
        text=text_of(record.get("targets_pretokenized", "")),
        tokens=np.asarray(record["targets"], np.int32),
        is_correct=bool(record["is_correct"]),
        inputs=np.asarray(record["inputs"], np.int32),
    )


def truncate(
    example: MultipleChoiceExample, lengths: Lengths
) -> tuple[MultipleChoiceExample, Truncation]:
    """Truncates inputs and targets to the limits, as training does.

    Args:
      example: the whole example.
      lengths: the limits {"inputs": L, "targets": T} in tokens, or None for no limits. A truncated
        target still ends in EOS.

    Returns:
      the example and the numbers of truncated inputs and targets; an input counts once for all of
      its choices.
    """
    cut = Truncation()
    if lengths is None:
        return example, cut

    def shorten(choice: AnswerChoice) -> AnswerChoice:
        tokens = choice.tokens
        if len(tokens) > lengths["targets"]:
            cut.targets += 1
            tokens = np.append(tokens[: lengths["targets"] - 1], np.int32(EOS))
        return dataclasses.replace(choice, tokens=tokens, inputs=choice.inputs[: lengths["inputs"]])

    cut.inputs = int(any(len(choice.inputs) > lengths["inputs"] for choice in example.choices))
    choices = tuple(shorten(choice) for choice in example.choices)
    return dataclasses.replace(example, choices=choices), cut


def choice_groups(task: int, number: int, example: MultipleChoiceExample) -> list[ChoiceGroup]:
    """Groups an example's choices by their input. In T0's tasks, all choices have one input."""
    by_input: dict[bytes, list[int]] = {}
    for choice, content in enumerate(example.choices):
        by_input.setdefault(content.inputs.tobytes(), []).append(choice)
    return [
        ChoiceGroup(
            inputs=example.choices[choices[0]].inputs,
            targets=tuple(example.choices[c].tokens for c in choices),
            keys=tuple((task, number, c) for c in choices),
        )
        for choices in by_input.values()
    ]


def text_of(value: Any) -> str:
    """Returns a record's text as a string; TensorFlow's texts are bytes."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def _row(record: Mapping[str, Any]) -> tuple[Any, ...]:
    choice = choice_of(record)
    return (
        int(record["idx"][0]),
        int(record["idx"][1]),
        choice.inputs.tobytes(),
        choice.tokens.tobytes(),
        int(choice.is_correct),
        choice.text,
        text_of(record.get("inputs_pretokenized", "")),
    )


def _check_excluded(task: ScoringTask, allowed: float) -> None:
    examples = len(task.choices)
    if _count(task, NO_CORRECT_CHOICE) == examples:
        raise UserError(
            f"task {task.name}: none of its {examples} examples has a correct choice. The labels "
            "of this split are hidden, or its template never renders the target among the choices; "
            "score another split (run.dataset_split = 'validation')"
        )
    excluded = sum(found.count for found in task.excluded.values())
    if excluded > allowed * examples or excluded == examples:
        first, reason = min((found.first[0], reason) for reason, found in task.excluded.items())
        raise UserError(
            f"task {task.name}: {excluded} of {examples} examples cannot be judged (the first: "
            f"example {first}, {reason}), more than the "
            f"share of {allowed:g} allowed (gin: score_eval.max_excluded_share)"
            + (_EQUAL_TOKENS_HINT if EQUAL_TOKENS in task.excluded else "")
        )


def _count(task: ScoringTask, reason: str) -> int:
    return task.excluded[reason].count if reason in task.excluded else 0


def _check_truncated(task: ScoringTask, allowed: float) -> None:
    choices = int(task.choices.sum())
    if task.lengths and task.truncated.targets > allowed * choices:
        raise UserError(
            f"task {task.name}: {task.truncated.targets:,} of {choices:,} choices are longer than "
            f"{task.lengths['targets']} tokens and would be scored without their ends, more than "
            f"the share of {allowed:g} allowed. Raise run.sequence_length's 'targets', or allow it "
            "(gin: score_eval.max_truncated_targets_share)"
        )
