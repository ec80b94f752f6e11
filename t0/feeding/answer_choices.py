"""Groups the records of a rank-evaluation task into examples with all of their answer choices.

    source = ChoiceSource(CachedSource("rte_score_eval", files, 4_980, FEATURES))
    source.choices                             # 2, the largest number of choices of an example
    next(source.blocks(epoch=0, first=0, seed=7))[0]
    # {"inputs": int32 [n], "targets": int32 [2, m]}: the right choice first, padded with zeros

A cache of such a task has one record for each choice, as SeqIO's `rank_classification` writes it.
The choices of an example may lie in different files, so the records of a split are read together
and stay in memory. As in rank evaluation, the feature `weight` is not used, and an example is
only used if exactly one of its choices is right and no other choice has the same tokens.
"""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from t0.errors import UserError
from t0.feeding.reading import CachedSource, ExampleBlock, shuffled
from t0.feeding.token_files import Ragged

# The features of a record: the numbers of its example and of its choice, the token ids, and whether
# the choice is right.
FEATURES = ("idx", "inputs", "targets", "is_correct")


class ChoiceBlock(ExampleBlock):
    """A block of examples. `order` has the records of each example, the right choice first."""

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        group = self.order[index]
        choices = [self.features["targets"].sequence(record) for record in group]
        targets = np.zeros((len(choices), max(map(len, choices))), np.int32)
        for row, choice in zip(targets, choices, strict=True):
            row[: len(choice)] = choice
        return {"inputs": self.features["inputs"].sequence(group[0]), "targets": targets}


@dataclasses.dataclass(frozen=True)
class ChoiceSource:
    """The examples of a rank-evaluation task, each with all of its answer choices.

    Attributes:
      records: the task's records, with the features that `FEATURES` names.
      cache: None, because an example consists of several records.
    """

    records: CachedSource
    cache: None = None

    @property
    def name(self) -> str:
        """The task's name."""
        return self.records.name

    @property
    def examples(self) -> int:
        """The number of examples."""
        return len(self._examples.order)

    @property
    def choices(self) -> int:
        """The largest number of choices of an example."""
        return max(map(len, self._examples.order))

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[ExampleBlock]:
        """Yields one block with all examples, unshuffled if `seed` is None.

        An epoch has no other blocks.
        """
        if first == 0:
            examples = self._examples
            order = shuffled(self.name, epoch, 0, seed, self.examples).tolist()
            yield dataclasses.replace(examples, order=[examples.order[i] for i in order])

    @functools.cached_property
    def _examples(self) -> ChoiceBlock:
        """All examples, in the order of their numbers.

        Raises:
          UserError: if the losses are not defined for the records.
        """
        features = self.records.read(self.records.files)
        numbers, right = features["idx"], features["is_correct"]
        if (numbers.lengths != 2).any() or (right.lengths != 1).any():
            raise UserError(
                f"task {self.name} has records without answer choices, and choice_losses needs "
                "them. Train on its rank-evaluation form (_score_eval), or unset choice_losses"
            )
        pairs = numbers.values.reshape(-1, 2)
        if len(np.unique(pairs, axis=0)) < len(pairs):
            raise UserError(
                f"task {self.name} has several records with the same idx; choice_losses needs a "
                "different idx for each answer choice. Was each shard of its source numbered from "
                "0? Cache the task again from a source with one shard"
            )
        example, choice = pairs.T
        order = np.lexsort((choice, right.values == 0, example))
        starts = np.flatnonzero(np.diff(example[order], prepend=-1))
        groups = [
            group
            for group in np.split(order, starts[1:])
            if right.values[group].sum() == 1 and self._is_unambiguous(features, group)
        ]
        if not groups:
            raise UserError(
                f"task {self.name} has no example with exactly one right answer choice in this "
                "split, so choice_losses cannot train on it. Do its rows have labels?"
            )
        return ChoiceBlock(features, groups, 0)

    def _is_unambiguous(self, features: dict[str, Ragged], group: np.ndarray) -> bool:
        """Returns whether no wrong choice of an example has the same tokens as the right choice."""
        inputs, *others = (features["inputs"].sequence(record) for record in group)
        right, *wrong = (features["targets"].sequence(record) for record in group)
        if not all(np.array_equal(inputs, other) for other in others):
            fault = "answer choices of one example with different inputs"
        elif not all(map(len, (right, *wrong))):
            fault = "an answer choice without tokens"
        else:
            return not any(np.array_equal(right, choice) for choice in wrong)
        raise UserError(
            f"task {self.name} has {fault}, which choice_losses cannot compare. Repair the task, "
            "or unset choice_losses"
        )
