"""Reads evaluation rows and their texts: the fields that prompts read, and the rendered inputs.

    chosen = evaluation_sets(read_listing(), ["reviews_.*"], "validation")
    for batch in chosen[0].batches():
        batch.texts[0], batch.origins[0]   # "A fine film.", "review": a field of row batch.rows[0]

An evaluation set is a split of a dataset, together with the selected prompts for it. If a prompt
has a plain task and a rank-evaluation task, they count as one prompt. The rows of a set are read
once for all prompts.

A row has two kinds of texts. Its fields are the texts in the columns that at least one prompt
reads. If one of these columns contains lists or records, each text in them is a field. Its prompted
texts are the inputs that the prompts render from it.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.catalogue import SCORE_EVAL, PromptedTask
from t0.catalogue.listing import ListedTask, Listing
from t0.errors import AbsentData, UserError

ROWS_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class RowBatch:
    """Some rows of an evaluation set, and their texts.

    Attributes:
      rows: the rows' numbers in the split.
      texts: the texts of all rows: fields and prompted texts.
      owner: for each text, the index of its row in `rows`, int64 [texts].
      origins: for each text, the name of its field or the index of its prompt.
      is_field: whether each text is a field, bool [texts].
    """

    rows: list[int]
    texts: list[str]
    owner: np.ndarray
    origins: list[Any]
    is_field: np.ndarray


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """A split of a dataset, and the selected prompts that render its rows.

    Attributes:
      name: the dataset's name, with its subset.
      split: the name of the split in the dataset.
      prompts: the prompts, each with its task.
      task_split: the name of the split in the prompts' tasks.
    """

    name: str
    split: str
    prompts: tuple[PromptedTask, ...]
    task_split: str

    @property
    def split_id(self) -> tuple[str, str | None, str]:
        """The dataset, subset and split."""
        return self.prompts[0].dataset, self.prompts[0].subset, self.split

    @property
    def columns(self) -> frozenset[str]:
        """The columns that at least one of the prompts reads."""
        return frozenset().union(*(prompt.compiled.columns for prompt in self.prompts))

    def batches(self) -> Iterator[RowBatch]:
        """Yields all rows in batches.

        Raises:
          UserError: if the rows cannot be read, or a template fails on a row.
        """
        rows = enumerate(self.prompts[0].open(self.task_split).rows())
        columns = self.columns
        while batch_rows := list(itertools.islice(rows, ROWS_AT_ONCE)):
            yield self._make_batch(batch_rows, columns)

    def _make_batch(
        self, rows: Sequence[tuple[int, Mapping[str, Any]]], columns: frozenset[str]
    ) -> RowBatch:
        entries: list[tuple[int, Any, str]] = []
        for position, (index, row) in enumerate(rows):
            for column, value in row.items():
                if (name := column.replace("-", "_")) in columns:
                    entries += ((position, field, text) for field, text in texts_in(name, value))
            for number, prompt in enumerate(self.prompts):
                example = prompt.compiled.example(row, index)
                if example is not None and (prompt.template.published or example.has_target):
                    entries.append((position, number, example.inputs))
        owner, origins, texts = (
            ([*column] for column in zip(*entries, strict=True)) if entries else ([], [], [])
        )
        return RowBatch(
            rows=[index for index, _ in rows],
            texts=texts,
            owner=np.array(owner, np.int64),
            origins=origins,
            is_field=np.array([isinstance(origin, str) for origin in origins], bool),
        )


def texts_in(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields (name, text) for each text in a column's value, at any depth.

    >>> list(texts_in("answers", {"text": ["a", "b"], "start": [3]}))
    [('answers.text', 'a'), ('answers.text', 'b')]
    """
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, element in value.items():
            yield from texts_in(f"{name}.{key}", element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from texts_in(name, element)


def evaluation_sets(
    listing: Listing, expressions: Iterable[str], split: str, *, skip_absent: bool = False
) -> tuple[list[EvaluationSet], list[str]]:
    """Returns the evaluation sets of the selected tasks and mixtures, sorted by name.

    Args:
      listing: all tasks and mixtures.
      expressions: names of mixtures or tasks, or regular expressions that match tasks.
      split: the name of the split in the tasks.
      skip_absent: whether to leave out sets whose data is missing.

    Returns:
      the sets, and a note for each task or set that was left out.

    Raises:
      UserError: if a name is unknown, if no task has the split, or if data is missing.
    """
    listed, notes = select_tasks(listing, expressions, split, flag="--eval_split")
    groups: dict[tuple[Any, ...], list[PromptedTask]] = collections.defaultdict(list)
    for task in {task.name: task for task in (each.task for each in listed)}.values():
        groups[task.dataset, task.subset or "", task.suffix, task.split_mapping[split]].append(task)
    sets = []
    for (dataset, subset, suffix, dataset_split), tasks in sorted(groups.items()):
        title = "/".join(filter(None, (dataset, subset))) + suffix
        prompts = tuple(sorted(tasks, key=lambda task: task.name))
        if all_present(prompts, split, notes, skip_absent=skip_absent):
            sets.append(EvaluationSet(title, dataset_split, prompts, split))
    if not sets:
        raise no_data(expressions)
    return sets, notes


def select_tasks(
    listing: Listing, expressions: Iterable[str], split: str, *, flag: str
) -> tuple[list[ListedTask], list[str]]:
    """Returns the selected tasks that have a split, and a note for each task without it.

    Args:
      listing: all tasks and mixtures.
      expressions: names of mixtures or tasks, or regular expressions that match tasks.
      split: the name of the split in the tasks.
      flag: the flag that sets the split, for the message.

    Raises:
      UserError: if a name is unknown, or no task has the split.
    """
    names = dict.fromkeys(name for expression in expressions for name in listing.select(expression))
    selected, other_splits = [], {}
    for name in names:
        task = listing.tasks[name].task
        if split in task.split_mapping:
            selected.append(listing.tasks[name])
        else:
            other_splits[name.removesuffix(SCORE_EVAL)] = tuple(task.split_mapping)
    if not selected:
        name, splits = next(iter(other_splits.items()))
        raise UserError(
            f"no task of {', '.join(expressions)} has a split '{split}'; {name} has: "
            f"{', '.join(splits)}. Choose one of them with {flag}"
        )
    return selected, [f"{name}: left out, it has no split '{split}'" for name in other_splits]


def all_present(
    tasks: Iterable[PromptedTask], split: str, notes: list[str], *, skip_absent: bool
) -> bool:
    """Returns whether the data of all tasks exists. If it is left out, adds a note.

    Raises:
      UserError: if data is missing and must not be left out, or cannot be read.
    """
    for task in tasks:
        try:
            task.open(split)
        except AbsentData as error:
            if not skip_absent:
                raise UserError(f"{error}\nOr leave it out with --skip_absent_splits.") from error
            name = "/".join(filter(None, (task.dataset, task.subset)))
            split_name = task.split_mapping[split]
            notes.append(f"{name}, split '{split_name}': left out, its data is missing")
            return False
    return True


def no_data(expressions: Iterable[str]) -> UserError:
    """Returns the error for tasks whose data was all left out."""
    return UserError(
        f"found no data for the tasks of {', '.join(expressions)}. Name the folder of the data "
        "with --data_dir"
    )
