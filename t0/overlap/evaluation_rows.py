"""Reads evaluation rows with their texts: the fields that prompts read, and the prompted texts.

    chosen = evaluation_sets(read_listing(), ["reviews_.*"], "validation")
    for batch in chosen[0].batches():
        batch.texts[0], batch.parts[0]     # "A fine film.", "review": a field of row batch.rows[0]

A set is a split of a dataset with the selected prompts; plain and rank-evaluation tasks are
combined. Its rows are read once for all prompts. The fields are the texts in all columns that at
least one prompt reads. A column with lists or records gives one field for each text in it.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.catalogue import SCORE_EVAL, PromptedTask
from t0.catalogue.listing import Listing
from t0.errors import AbsentData, UserError

ROWS_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class RowBatch:
    """Some rows of an evaluation set, and their texts.

    Attributes:
      rows: the rows' numbers in the split.
      texts: the texts of all rows.
      owner: for each text, the index in `rows` of its row, int64 [texts].
      parts: for each text, its column's name or its prompt's index.
      is_field: whether each text is a field, bool [texts].
      numbers: for each prompted text, the number of the example, which equals `idx` in the scores;
        -1 for fields.
    """

    rows: list[int]
    texts: list[str]
    owner: np.ndarray
    parts: list[Any]
    is_field: np.ndarray
    numbers: list[int]


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """A split of a dataset, and prompts for it.

    Attributes:
      name: the dataset's name, with its subset.
      split: the dataset's name of the split.
      prompts: the tasks.
      of_task: the tasks' name of the split.
    """

    name: str
    split: str
    prompts: tuple[PromptedTask, ...]
    of_task: str

    @property
    def place(self) -> tuple[str, str | None, str]:
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
        rows = enumerate(self.prompts[0].open(self.of_task).rows())
        columns = self.columns
        kept = [0] * len(self.prompts)
        while some := list(itertools.islice(rows, ROWS_AT_ONCE)):
            yield self._batch(some, columns, kept)

    def _batch(
        self,
        rows: Sequence[tuple[int, Mapping[str, Any]]],
        columns: frozenset[str],
        kept: list[int],
    ) -> RowBatch:
        found: list[tuple[int, Any, int, str]] = []
        for place, (index, row) in enumerate(rows):
            for column, value in row.items():
                if (name := column.replace("-", "_")) in columns:
                    found += ((place, part, -1, text) for part, text in texts_in(name, value))
            for number, prompt in enumerate(self.prompts):
                example = prompt.compiled.example(row, index)
                if example is not None:
                    found.append((place, number, kept[number], example.inputs))
                    kept[number] += 1
        owner, parts, numbers, texts = (
            ([*column] for column in zip(*found, strict=True)) if (found) else ([], [], [], [])
        )
        return RowBatch(
            rows=[index for index, _ in rows],
            texts=texts,
            owner=np.array(owner, np.int64),
            parts=parts,
            is_field=np.array([number < 0 for number in numbers], bool),
            numbers=numbers,
        )


def texts_in(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields (name, text) for each text in a column's value, at any depth.

    >>> list(texts_in("answers", {"text": ["a", "b"], "start": [3]}))
    [('answers.text', 'a'), ('answers.text', 'b')]
    """
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from texts_in(f"{name}.{key}", part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from texts_in(name, part)


def evaluation_sets(
    listing: Listing, expressions: Iterable[str], split: str, *, skip_absent: bool = False
) -> tuple[list[EvaluationSet], list[str]]:
    """Returns the evaluation sets of the selected tasks and mixtures, sorted by name.

    Args:
      listing: all tasks and mixtures.
      expressions: mixtures, tasks, or regular expressions of tasks.
      split: the tasks' name of the split.
      skip_absent: whether to leave out sets whose data is missing.

    Returns:
      the sets, and a note for each task or set that was left out.

    Raises:
      UserError: if a name is unknown, no task has the split, or its data is missing.
    """
    names = dict.fromkeys(name for one in expressions for name in listing.select(one))
    groups: dict[tuple[Any, ...], dict[str, PromptedTask]] = collections.defaultdict(dict)
    without: dict[str, tuple[str, ...]] = {}
    for name in names:
        task = listing.tasks[name].task
        if split not in task.split_mapping:
            without[name.removesuffix(SCORE_EVAL)] = tuple(task.split_mapping)
            continue
        key = (task.dataset, task.subset or "", task.suffix, task.split_mapping[split])
        groups[key][task.name] = task
    if not groups:
        name, splits = next(iter(without.items()))
        raise UserError(
            f"no task of {', '.join(expressions)} has a split '{split}'; {name} has: "
            f"{', '.join(splits)}. Name one of them by --eval_split"
        )
    notes = [f"{name}: left out, it has no split '{split}'" for name in without]
    sets = []
    for (dataset, subset, suffix, of_dataset), tasks in sorted(groups.items()):
        title = "/".join(filter(None, (dataset, subset))) + suffix
        prompts = tuple(tasks[name] for name in sorted(tasks))
        try:
            for prompt in prompts:
                prompt.open(split)
        except AbsentData as error:
            if not skip_absent:
                raise UserError(f"{error}\nOr leave it out by --skip_absent_splits.") from error
            notes.append(f"{title}, split '{of_dataset}': left out, its data is absent")
            continue
        sets.append(EvaluationSet(title, of_dataset, prompts, split))
    if not sets:
        raise UserError(
            f"the data of no task of {', '.join(expressions)} is here: name its folder by "
            "--data_dir"
        )
    return sets, notes
