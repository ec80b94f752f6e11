"""Lists the prompted tasks of T0 and of the user's data folders, before they are registered.

    >>> [row.train_group for row in datasets() if row.name == "sciq"]
    ['BASE']
    >>> len(catalogue_entries())
    592

Two tables next to this file describe the T0 experiment. `datasets.csv` has a row for each dataset,
with its training group, its evaluation group, and the train size that determines its mixing rate.
T0 is trained on the training group BASE. T0+ is also trained on GPT_EVAL, and T0++ also on SGLUE.
`exclusions.csv` lists the tasks that a mixture excludes, how the names of tasks are matched, and
the reason.

This module reads these tables and `templates.yaml` files. It makes no network call and reads no
rows of T0's datasets. It counts the rows of a user's own data when their number is needed.
"""

import csv
import dataclasses
import functools
import pathlib
from collections.abc import Iterator

from t0.catalogue.prompted_task import SCORE_EVAL, PromptedTask
from t0.prompts import read_template_file, template_file_path
from t0.sources import OwnDataset, data_dirs, find_own_datasets, open_split, split_sizes

_HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A row of `datasets.csv`.

    Attributes:
      name: the dataset's name on the Hugging Face hub.
      subset: the dataset's configuration, or None.
      train_group: the dataset's group for training mixtures; empty if there is no such group.
      eval_group: the dataset's group for evaluation mixtures; empty if there is no such group.
      train_size: the number of training examples that determines the mixing rate; 0 if missing.
    """

    name: str
    subset: str | None
    train_group: str
    eval_group: str
    train_size: int


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """A row of `exclusions.csv`.

    Attributes:
      name: a task's name, or a part of it if `match` is "substring".
      match: "exact" if `name` is a task's whole name, or "substring" if it is a part of the name.
        If "exact", the name of a plain task also covers the task's rank-evaluation task.
      mixtures: the mixtures that exclude the tasks.
      reason: why the tasks are excluded.
    """

    name: str
    match: str
    mixtures: frozenset[str]
    reason: str

    def covers(self, task: str) -> bool:
        """Returns whether this row excludes a task, which may be a plain or rank-evaluation task.

        Args:
          task: the task's name.
        """
        if self.match == "substring":
            return self.name in task
        return self.name in (task, task.removesuffix(SCORE_EVAL))


def _rows(file_name: str) -> list[dict[str, str]]:
    with (_HERE / file_name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@functools.cache
def datasets() -> tuple[Dataset, ...]:
    """Returns the datasets of the T0 experiment, in the order of `datasets.csv`."""
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
    """Returns whether `mixture` excludes `task`."""
    return any(row.covers(task) for row in exclusions(mixture))


# The names of ANLI's splits contain one of its three rounds. T0 has a task for each round.
ANLI_ROUNDS = ("r1", "r2", "r3")
ANLI_SPLITS = {"train": "train", "validation": "dev", "test": "test"}


@dataclasses.dataclass(frozen=True)
class CatalogueEntry:
    """A task, with the facts about it that mixtures need.

    Attributes:
      task: the task.
      dataset: the row of `datasets.csv` for the task's dataset; None for the user's own data.
      templates: the number of templates of the task's dataset.
    """

    task: PromptedTask
    dataset: Dataset | None
    templates: int


def _catalogue_entries(dataset: Dataset) -> Iterator[CatalogueEntry]:
    path = template_file_path(dataset.name, dataset.subset)
    if not path.exists():  # promptsource has no templates for jigsaw_toxicity_pred
        return
    templates = read_template_file(path, published=True).templates
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
            yield CatalogueEntry(task, dataset, len(templates))


@functools.cache
def catalogue_entries() -> tuple[CatalogueEntry, ...]:
    """Returns the plain tasks of T0, in the order of `datasets.csv`."""
    return tuple(entry for row in datasets() for entry in _catalogue_entries(row))


def own_entries() -> list[CatalogueEntry]:
    """Returns the tasks of the user's data folders (`--data_dir` or `T0_DATA_DIR`)."""
    return [entry for own in find_own_datasets(data_dirs()) for entry in _own_entries(own)]


def _own_entries(own: OwnDataset) -> Iterator[CatalogueEntry]:
    @functools.cache
    def count_rows(split: str) -> int:
        if own.splits[split] is None:  # a split of a T0 dataset whose rows are not on this machine
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
        yield CatalogueEntry(task, None, len(own.template_file.templates))
