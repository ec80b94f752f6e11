"""Every prompted task of the catalogue, and of the user's own folders, before registration.

Nothing is opened here but tables and `templates.yaml` files: no dataset, no network.
"""

import dataclasses
import functools
from collections.abc import Iterator

from seqio_tasks.catalogue import Dataset, datasets
from t0.prompts import Template, read_template_file, template_file_path
from t0.sources import OwnDataset, data_dirs, find_own_datasets, open_split, split_sizes
from t0.tasks import PromptedTask

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
    # jigsaw_toxicity_pred stands in the table without any template in promptsource.
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
