"""Finds the dataset row from which each example of a task was made.

    rows = cached_rows(files)                      # from the file next to the cache's files
    rows.count, rows.of(3)                         # 24, 4: row 3 was dropped
    rows = rendered_rows(source, "validation")     # without a cache: renders all rows

SeqIO numbers the examples that a prompt keeps (`idx` in a cache). If the prompt drops a row, all
later examples have other numbers than in other prompts of the same dataset. So scores, predictions
and samples use the number of the row. This module is the only one that converts numbers.
"""

import dataclasses
import posixpath
from collections.abc import Sequence
from typing import Any

import numpy as np

from t0.caching import record_rows
from t0.caching.record_rows import RowSource
from t0.errors import UserError

# The values of `numbered_by` in results files: the number of a row in its dataset, or the number of
# an example among the examples of its task.
ROW, EXAMPLE = "row", "example"


@dataclasses.dataclass(frozen=True)
class ExampleRows:
    """The rows of a task's examples.

    Attributes:
      count: the number of the dataset's rows, with the rows that the prompt drops.
      numbers: the row of each example, int64 [examples], ascending.
      where: the origin of the numbers, for messages.
      source: the dataset and the prompt.
    """

    count: int
    numbers: np.ndarray
    where: str
    source: RowSource

    def of(self, example: int) -> int:
        """Returns the row of an example.

        Raises:
          UserError: if there is no such example.
        """
        if not 0 <= example < len(self.numbers):
            raise self.missing(example)
        return int(self.numbers[example])

    def first(self, examples: int) -> "ExampleRows":
        """Returns the rows of the first examples, up to the row of the last of them."""
        numbers = self.numbers[:examples]
        count = int(numbers[-1]) + 1 if len(numbers) else 0
        return dataclasses.replace(self, count=min(self.count, count), numbers=numbers)

    def missing(self, example: int) -> UserError:
        """Returns the error for an example that has no row."""
        return UserError(
            f"{self.where} has {len(self.numbers):,} rows and no row of example {example:,}: it is "
            "damaged, or from another cache. Cache the task again"
        )


def cached_rows(files: Sequence[str]) -> ExampleRows | None:
    """Returns the rows of the examples in a cache; None if the cache does not record them.

    Args:
      files: the TFRecord files of a cached split.

    Raises:
      UserError: if the file with the rows is damaged.
    """
    folder, name = posixpath.split(files[0]) if files else ("", "")
    split = name.partition(".tfrecord")[0]
    rows = record_rows.read(folder, split) if files else None
    return rows and ExampleRows(rows.rows, rows.numbers, f"{folder}/rows.{split}.json", rows)


def rendered_rows(source: Any, split: str) -> ExampleRows:
    """Returns the rows of the examples that a prompt makes. It renders all rows.

    Args:
      source: a `PromptedSource`.
    """
    numbers = [index for index, _ in source.numbered_records(split)]
    count, dataset_split = source.open(split).num_rows, source.split_mapping[split]
    prompt = RowSource(source.dataset, source.subset, dataset_split, source.template.name, False)
    return ExampleRows(count, np.array(numbers, np.int64), f"the split '{split}'", prompt)
