"""The prompted tasks of T0 and of the user's own folders, before registration.

    >>> [row.train_group for row in datasets() if row.name == "sciq"]
    ['BASE']
    >>> len(catalogue_entries())
    592

The record of the T0 experiment is two tables beside this file. `datasets.csv`: one row for each
dataset: in which training group it is (BASE is T0; GPT_EVAL adds T0+, SGLUE adds T0++), in which
evaluation group, and the train size that its mixing rate uses. `exclusions.csv`: which tasks a
mixture leaves out, how the name matches, why.

Nothing is opened here but tables and `templates.yaml` files: no dataset, no network.
"""

import csv
import dataclasses
import functools
import pathlib
from collections.abc import Iterator

from t0.prompts import Template, read_template_file, template_file_path
from t0.sources import OwnDataset, data_dirs, find_own_datasets, open_split, split_sizes
from t0.tasks import SCORE_EVAL, PromptedTask

_HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A row of `datasets.csv`. Absent groups are empty strings, an absent train size is 0."""

    name: str
    subset: str | None
    train_group: str
    eval_group: str
    train_size: int


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """A row of `exclusions.csv`: `name` is a task's whole name or, with `substring`, part of it."""

    name: str
    match: str
    mixtures: frozenset[str]
    reason: str

    def covers(self, task: str) -> bool:
        """Returns whether this row leaves out `task`, a plain or a rank-evaluation name."""
        if self.match == "substring":
            return self.name in task
        return self.name in (task, task.removesuffix(SCORE_EVAL))


def _rows(file_name: str) -> list[dict[str, str]]:
    with (_HERE / file_name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@functools.cache
def datasets() -> tuple[Dataset, ...]:
    """Returns the datasets of the experiment in the table's order."""
    return tuple(
        Dataset(
            name=row["HF_name"],
            subset=row["subset"] or None,
            train_group=row["do_train"],
            eval_group=row["do_eval"],
            train_size=int(row["train_size"] or 0),
        )
        for row in _rows("datasets.csv")
    )


@functools.cache
def exclusions(mixture: str) -> tuple[Exclusion, ...]:
    """Returns the exclusions that apply to `mixture`."""
    table = (
        Exclusion(row["name"], row["match"], frozenset(row["mixtures"].split()), row["reason"])
        for row in _rows("exclusions.csv")
    )
    return tuple(row for row in table if mixture in row.mixtures)


def is_excluded(mixture: str, task: str) -> bool:
    """Returns whether `mixture` leaves out `task`."""
    return any(row.covers(task) for row in exclusions(mixture))


# ANLI keeps its three rounds in splits of its own naming; T0 makes a task of each round.
ANLI_ROUNDS = ("r1", "r2", "r3")
ANLI_SPLITS = {"train": "train", "validation": "dev", "test": "test"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A task with what the mixtures ask about it.

    Attributes:
      task: the definition.
      dataset: its row of the catalogue, None for a user's own data.
      templates: how many templates its dataset has.
    """

    task: PromptedTask
    dataset: Dataset | None
    templates: int

    @property
    def original_task(self) -> bool:
        """Whether the prompt asks for the task the dataset was made for."""
        return self.task.template.original_task


def _templates(dataset: Dataset) -> tuple[Template, ...]:
    path = template_file_path(dataset.name, dataset.subset)
    # jigsaw_toxicity_pred is in the table without any template in promptsource.
    return read_template_file(path, published=True).templates if path.exists() else ()


def _catalogue_entries(dataset: Dataset) -> Iterator[Entry]:
    templates = _templates(dataset)
    if not templates:
        return
    sizes = split_sizes(dataset.name, dataset.subset)
    if dataset.name == "anli":
        variants = [
            (f"_{r}", {split: f"{theirs}_{r}" for split, theirs in ANLI_SPLITS.items()})
            for r in ANLI_ROUNDS
        ]
    else:
        variants = [("", {split: split for split in sizes})]
    for suffix, mapping in variants:
        for template in templates:
            task = PromptedTask(
                dataset=dataset.name,
                subset=dataset.subset,
                template=template,
                split_mapping=mapping,
                num_rows={split: sizes[theirs] for split, theirs in mapping.items()},
                suffix=suffix,
            )
            yield Entry(task, dataset, len(templates))


@functools.cache
def catalogue_entries() -> tuple[Entry, ...]:
    """Returns the plain tasks of T0, in the order of `datasets.csv`."""
    return tuple(entry for row in datasets() for entry in _catalogue_entries(row))


def own_entries() -> list[Entry]:
    """Returns the tasks of the folders that `--data_dir` or `T0_DATA_DIR` names."""
    return [entry for own in find_own_datasets(data_dirs()) for entry in _own_entries(own)]


def _own_entries(own: OwnDataset) -> Iterator[Entry]:
    @functools.cache
    def count_rows(split: str) -> int:
        if own.splits[split] is None:  # one of T0's datasets, not on this machine
            return split_sizes(own.name, own.subset)[split]
        return open_split(own.name, own.subset, split).num_rows

    for template in own.template_file.templates:
        task = PromptedTask(
            dataset=own.name,
            subset=own.subset,
            template=template,
            split_mapping={split: split for split in own.splits},
            num_rows=count_rows,
        )
        yield Entry(task, None, len(own.template_file.templates))
