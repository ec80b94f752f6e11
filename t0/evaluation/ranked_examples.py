"""Joins records into rank-evaluation examples, and truncates, counts and checks the examples.

A record has one answer choice, and an example has all choices of a row. For example, ten records
become five examples if each row has two choices.

    task = count_task(facts, read_records, {"inputs": 1024, "targets": 256})
    for example in task.examples():      # idx ascending, choices in the template's order
        example.choices[example.gold].text

Memory holds only a few numbers for each example, not the examples' texts.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from t0.caching.row_numbers import EXAMPLE, ROW
from t0.errors import UserError
from t0.evaluation.records import ChoiceRecord, ReadRecords
from t0.feeding.packing import LOUD, cut_warning
from t0.sources.documents import COLUMNS, documents_in_rows, ids_in_rows

EOS = 1

# The reasons for excluding an example, which are also strings in results files.
NO_CORRECT_CHOICE = "no correct choice"
SEVERAL_CORRECT_CHOICES = "several correct choices"
EQUAL_TOKENS = "the right choice has the same tokens as a wrong one"

_EQUAL_TOKENS_HINT = (
    ". The vocabulary may map different characters to its unknown token, or the length limit may "
    "cut the choices where they are still equal: `t0 show TASK --ids` prints their tokens. Write "
    "choices of characters that the vocabulary has, or raise the limit of 'targets'"
)
_SHOWN_WARNINGS = 12
# If the documents are unknown, results files have this text instead of the number of documents.
UNKNOWN = "unknown"

Lengths = Mapping[str, int] | None
# (choices, input tokens, target tokens of the longest choice)
Size = tuple[int, int, int]
# (task, example, choice). Tasks and examples are numbered from 0 in the order in which they are
# read.
ScoreKey = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class AnswerChoice:
    """One answer choice.

    Attributes:
      text: the choice's text.
      tokens: the choice's token ids with EOS, [T].
      is_correct: whether it is the correct choice.
      inputs: the token ids of the input that the choice answers, [L].
    """

    text: str
    tokens: np.ndarray
    is_correct: bool
    inputs: np.ndarray

    def reads_as(self, other: "AnswerChoice") -> bool:
        """Returns whether a model reads two choices as equal: the same tokens and inputs."""
        return np.array_equal(self.tokens, other.tokens) and np.array_equal(
            self.inputs, other.inputs
        )


@dataclasses.dataclass(frozen=True)
class MultipleChoiceExample:
    """One row of a dataset with its answer choices.

    Attributes:
      idx: the row's number.
      choices: the answer choices, in the template's order.
      text: the prompted input as text; empty if the records do not contain this text.
      document: the `idx` of the first example with the same document; None if the documents are
        unknown, or if no two examples share a document.
      id: the id of the row in the user's data; None if the rows have no ids.
    """

    idx: int
    choices: tuple[AnswerChoice, ...]
    text: str = ""
    document: int | None = None
    id: str | None = None

    @property
    def gold(self) -> int:
        """The index of the correct choice; -1 if the example is excluded."""
        if self.excluded:
            return -1
        return next(i for i, choice in enumerate(self.choices) if choice.is_correct)

    @property
    def excluded(self) -> str | None:
        """The reason for excluding the example from the accuracy; None if it is not excluded."""
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
      keys: for each choice, (number of the task, number of the example, number of the choice).
    """

    inputs: np.ndarray
    targets: tuple[np.ndarray, ...]
    keys: tuple[ScoreKey, ...]

    @property
    def size(self) -> Size:
        """The group's (C, L, T): choices, input tokens, target tokens of the longest choice."""
        longest = max(len(target) for target in self.targets)
        return len(self.targets), len(self.inputs), longest

    @property
    def tokens(self) -> tuple[int, int]:
        """(number of input tokens, at least 1; number of target tokens of all choices)."""
        return max(1, len(self.inputs)), sum(map(len, self.targets))


@dataclasses.dataclass
class Truncation:
    """The numbers of inputs and of targets that were truncated to the model's limits."""

    inputs: int = 0
    targets: int = 0


@dataclasses.dataclass(frozen=True)
class RankTaskFacts:
    """The facts about a rank-evaluation task that do not come from its records.

    Attributes:
      name: the task's name.
      dataset: the task's dataset with its subset, as in results files.
      prompt: the name of the task's prompt; "" if the task has no prompt.
      metric_fns: the task's metric functions.
      rows: (dataset, subset, split) of the rows from which a prompted task is rendered; None for
        other tasks. If the records do not contain the documents, the documents are found in these
        rows.
      truncated: the numbers of inputs and targets that have already been truncated when
        `count_task` reads the records.
    """

    name: str
    dataset: str
    prompt: str
    metric_fns: Sequence[Callable[..., Mapping[str, float]]]
    rows: tuple[str, str | None, str] | None = None
    truncated: Truncation = dataclasses.field(default_factory=Truncation)


@dataclasses.dataclass(frozen=True)
class ScoringTask:
    """A task whose records have been counted and checked.

    Attributes:
      facts: the facts about the task that do not come from its records.
      read: a function that reads the task's records in order.
      lengths: the limits in tokens to which the examples are truncated.
      choices: the number of choices for each example, in the order of `idx`.
      gold: the index of each example's correct choice; -1 if the example is excluded.
      sizes: (choices, input tokens, target tokens of the longest choice) -> number of groups with
        this size, after truncation. See `ChoiceGroup`.
      tokens: (number of input tokens, number of target tokens of all choices) -> number of groups
        with these numbers, after truncation.
      truncated: the numbers of truncated inputs and targets.
      excluded: reason -> `idx` of the examples that are excluded from the accuracy.
      documents: for each example, the `idx` of the first example with the same document; None if
        the documents are unknown.
      ids: the id of each example's row in the user's data; None if the rows have no ids.
      numbered_by: the meaning of `idx`: `ROW` or `EXAMPLE`.
    """

    facts: RankTaskFacts
    read: ReadRecords
    lengths: Lengths
    choices: np.ndarray
    gold: np.ndarray
    sizes: Mapping[Size, int]
    tokens: Mapping[tuple[int, int], int]
    truncated: Truncation
    excluded: Mapping[str, Sequence[int]]
    documents: Sequence[int] | None = None
    ids: Sequence[str] | None = None
    numbered_by: str = EXAMPLE

    @property
    def name(self) -> str:
        """The task's name."""
        return self.facts.name

    @property
    def document_count(self) -> int | str | None:
        """The number of documents; None if no two rows share a document; `UNKNOWN` if unknown."""
        if self.documents is not None:
            return len(set(self.documents))
        dataset = self.facts.dataset
        return UNKNOWN if {dataset, dataset.partition("/")[0]} & COLUMNS.keys() else None

    def examples(self) -> Iterator[MultipleChoiceExample]:
        """Yields the examples in the order of `idx`, truncated to the limits."""
        count = self.document_count
        shared = isinstance(count, int) and count < len(self.choices)
        for number, (example, _) in enumerate(_examples_of(self.read())):
            example, _ = truncate(example, self.lengths)
            document = self.documents[number] if shared else None
            row_id = self.ids[number] if self.ids else None
            yield dataclasses.replace(example, document=document, id=row_id)


def _examples_of(
    records: Iterator[ChoiceRecord],
) -> Iterator[tuple[MultipleChoiceExample, str | None]]:
    """Joins the adjacent records of each example; yields (example, key of its document or None)."""
    for idx, group in itertools.groupby(records, key=lambda record: record.example):
        by_choice = {record.choice: record for record in group}
        first = next(iter(by_choice.values()))
        choices = tuple(
            AnswerChoice(record.text, record.targets, record.is_correct, record.inputs)
            for record in by_choice.values()
        )
        yield MultipleChoiceExample(idx, choices, first.input_text), first.document


def count_task(
    facts: RankTaskFacts,
    read: ReadRecords,
    lengths: Lengths,
    *,
    rows: int | None = None,
    max_excluded_share: float = 0.5,
    max_truncated_targets_share: float = 0.5,
) -> ScoringTask:
    """Counts and checks a task's examples.

    Args:
      facts: the task's name, prompt and metrics.
      read: a function that reads the task's records in order.
      lengths: the model's limits {"inputs": tokens, "targets": tokens}; None for no limits.
      rows: see `TaskRecords`.
      max_excluded_share: the maximum share of examples that are excluded.
      max_truncated_targets_share: the maximum share of choices that are truncated.

    Raises:
      UserError: if the split is empty, if its labels are hidden, if too many examples are excluded,
        or if too many choices are truncated.
    """
    task = count_examples(facts, read, lengths, rows=rows)
    if not len(task.choices):
        raise UserError(f"task {facts.name} has no examples in this split")
    _check_excluded(task, max_excluded_share)
    _check_truncated(task, max_truncated_targets_share)
    return task


def count_examples(
    facts: RankTaskFacts, read: ReadRecords, lengths: Lengths, *, rows: int | None = None
) -> ScoringTask:
    """Counts a task's examples, which may be unlabeled; see `count_task` for the arguments."""
    choices: list[int] = []
    gold: list[int] = []
    numbers: list[int] = []
    keys: list[str | None] = []
    sizes: collections.Counter[Size] = collections.Counter()
    tokens: collections.Counter[tuple[int, int]] = collections.Counter()
    truncated, excluded = facts.truncated, collections.defaultdict[str, list[int]](list)
    for whole, document in _examples_of(read()):
        example, cut = truncate(whole, lengths)
        numbers.append(example.idx)
        keys.append(document)
        choices.append(len(example.choices))
        gold.append(example.gold)
        groups = choice_groups(0, 0, example)
        sizes.update(group.size for group in groups)
        tokens.update(group.tokens for group in groups)
        truncated.inputs += cut.inputs
        truncated.targets += cut.targets
        if example.excluded:
            excluded[example.excluded].append(example.idx)
    return ScoringTask(
        facts=facts,
        read=read,
        lengths=lengths,
        choices=np.array(choices, np.int32),
        gold=np.array(gold, np.int32),
        sizes=dict(sizes),
        tokens=dict(tokens),
        truncated=truncated,
        excluded=dict(excluded),
        documents=_first_of_document(numbers, keys, facts, rows),
        ids=_read_rows(ids_in_rows, numbers, facts, rows),
        numbered_by=EXAMPLE if rows is None else ROW,
    )


def _read_rows(
    read: Callable[..., list[str] | None],
    numbers: Sequence[int],
    facts: RankTaskFacts,
    rows: int | None,
) -> list[str] | None:
    """Reads the documents or the ids of the examples with these numbers from the dataset's rows."""
    if facts.rows is None:
        return None
    if rows is None or len(numbers) == rows:  # the example with index i was made from row i
        return read(*facts.rows, len(numbers))
    return read(*facts.rows, rows, numbers)


def _first_of_document(
    numbers: Sequence[int], keys: Sequence[str | None], facts: RankTaskFacts, rows: int | None
) -> tuple[int, ...] | None:
    """Finds, for each example, the number of the first example with the same document.

    Returns:
      one number for each example; None if the documents are unknown.
    """
    documents: Sequence[str | None] | None = keys
    if None in keys:
        documents = _read_rows(documents_in_rows, numbers, facts, rows)
    if documents is None:
        return None
    first: dict[str | None, int] = {}
    return tuple(
        first.setdefault(key, number) for key, number in zip(documents, numbers, strict=True)
    )


def truncate(
    example: MultipleChoiceExample, lengths: Lengths
) -> tuple[MultipleChoiceExample, Truncation]:
    """Truncates inputs and targets to the limits, as training does.

    Args:
      example: the whole example.
      lengths: the limits {"inputs": L, "targets": T} in tokens; None for no limits. A truncated
        target still ends with EOS.

    Returns:
      (truncated example, numbers of truncated inputs and targets). An input counts only once, not
      for each of its choices.
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
    """Groups an example's choices by their input. In T0's tasks, this gives one group."""
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


def _check_excluded(task: ScoringTask, allowed: float) -> None:
    examples, excluded = len(task.choices), sum(map(len, task.excluded.values()))
    if len(task.excluded.get(NO_CORRECT_CHOICE, ())) == examples:
        raise UserError(
            f"task {task.name}: none of its {examples} examples has a correct choice. The labels "
            "of this split are hidden, or its template never renders the target among the choices; "
            "score another split (run.dataset_split = 'validation')"
        )
    if excluded > allowed * examples or excluded == examples:
        first, reason = min((listed[0], name) for name, listed in task.excluded.items())
        raise UserError(
            f"task {task.name}: {excluded} of {examples} examples cannot be judged (the first: "
            f"example {first}, {reason}), more than the "
            f"share of {allowed:g} allowed (gin: score_eval.max_excluded_share)"
            + (_EQUAL_TOKENS_HINT if EQUAL_TOKENS in task.excluded else "")
        )


def _check_truncated(task: ScoringTask, allowed: float) -> None:
    choices = int(task.choices.sum())
    if task.lengths and task.truncated.targets > allowed * choices:
        raise UserError(
            f"task {task.name}: {task.truncated.targets:,} of {choices:,} choices are longer than "
            f"{task.lengths['targets']} tokens and would be scored without their ends, more than "
            f"the share of {allowed:g} allowed. Raise run.sequence_length's 'targets', or allow it "
            "(gin: score_eval.max_truncated_targets_share)"
        )


def note_on_numbers(tasks: Sequence[ScoringTask]) -> list[str]:
    """Returns a line about the tasks of a dataset whose examples are not numbered by row."""
    names = [task.name for task in tasks if task.facts.rows and task.numbered_by == EXAMPLE]
    if not names:
        return []
    return [
        f"{len(names):,} task(s), such as {names[0]}: the cache does not record the rows of the "
        "dataset (rows.<split>.json is missing), so examples are numbered without dropped rows, "
        "and reports do not pair them with other prompts. Cache again to number them by row"
    ]


def warn_of_truncation(tasks: Sequence[ScoringTask]) -> list[str]:
    """Returns warnings about tasks with many truncated inputs or targets."""
    warnings = []
    for task in tasks:
        shares = {
            "inputs": task.truncated.inputs / len(task.choices),
            "targets": task.truncated.targets / int(task.choices.sum()),
        }
        warnings += [
            cut_warning(task.name, feature, share, task.lengths[feature])
            for feature, share in shares.items()
            if share > LOUD
        ]
    more = len(warnings) - _SHOWN_WARNINGS
    return warnings if more <= 0 else [*warnings[:_SHOWN_WARNINGS], f"... and {more:,} more"]
