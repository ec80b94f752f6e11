"""Computes mixing rates, in the order in which SeqIO's `mixing_rate_num_examples` computes them.

    rate = MixingRate(count_training_examples, cap=3000, temperature=2.0)   # a task -> its rate
    rate(task), rate.is_capped(task)
    task_rates("mine", mixtures, tasks)      # {"reviews_is_it_good": 54.77, ...}

The number of examples is multiplied by `scale`, is at most `cap`, and is then raised to the power
1 / `temperature`. A mixture inside a mixture divides its rate between its tasks, in proportion to
their rates in it.

The mixing rate of a training task of T0 is the number of training examples of its dataset. If the
dataset has more than 500,000 training examples, the rate is 500,000 divided by the number of the
dataset's templates. The rate of a rank-evaluation task is its number of training examples, but at
most 500,000.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t0.catalogue.entries import CatalogueEntry
from t0.errors import UserError

# A mixing rate: a number, or a function of the task.
Rate = float | Callable[[Any], float]
# Name of a mixture -> (name of a task or mixture, rate) for each of its members.
Mixtures = Mapping[str, Sequence[tuple[str, Rate]]]
MAX_EXAMPLES_PER_DATASET = 500_000


def count_training_examples(task: Any) -> int:
    """Returns the number of training examples of a task, a SeqIO task or a `ListedTask`.

    If the task is cached, the examples are the records of the cache. A rank-evaluation task has a
    record for each choice of each row. Otherwise, the examples are the raw rows. If a dataset has no
    train split (story_cloze), its first split is counted instead. The original code fails on such a
    dataset.
    """
    split = "train" if "train" in task.splits else task.splits[0]
    if task.cache_dir:
        return task.get_cached_stats(split)["examples"]
    return task.num_input_examples(split)


@dataclasses.dataclass(frozen=True)
class MixingRate:
    """A mixing rate that is computed from a number of examples, or from another rate.

    Attributes:
      base: the number, or a function that computes it from the task.
      cap: the largest rate after scaling.
      scale: the factor of the number.
      temperature: T in rate^(1/T).
    """

    base: Rate
    cap: float = math.inf
    scale: float = 1.0
    temperature: float = 1.0

    def __call__(self, task: Any) -> float:
        """Returns the rate of a task.

        Raises:
          UserError: the rate is too large or too small for a floating-point number.
        """
        base = compute_rate(self.base, task)
        try:
            rate = min(base * self.scale, self.cap)
            if self.temperature != 1.0:
                rate = rate ** (1.0 / self.temperature)
        except OverflowError:
            rate = math.inf
        if not math.isfinite(rate) or base > 0 >= rate:
            raise UserError(
                f"the mixing rate of {getattr(task, 'name', 'a mixture')} is {rate:g}, computed "
                f"from {base:g} with scale {self.scale:g}, cap {self.cap:g} and temperature "
                f"{self.temperature:g}. Change one of them in mixtures.yaml"
            )
        return rate

    def is_capped(self, task: Any) -> bool:
        """Returns whether a cap makes the rate of a task smaller."""
        return is_capped(self.base, task) or compute_rate(self.base, task) * self.scale > self.cap


@dataclasses.dataclass(frozen=True)
class TrainingRate:
    """T0's rule for the mixing rate of a training task.

    Attributes:
      entry: the task.
    """

    entry: CatalogueEntry

    def __call__(self, task: Any = None) -> int:
        """Returns the rate.

        Args:
          task: SeqIO passes the task. The rate depends only on `entry`.

        Raises:
          UserError: the task is one of the user's own tasks and has no train split.
        """
        size = self._count_rows()
        return MAX_EXAMPLES_PER_DATASET // self.entry.templates if self.is_capped(task) else size

    def is_capped(self, task: Any = None) -> bool:
        """Returns whether the dataset has too many examples to have them all as its rate."""
        return self._count_rows() > MAX_EXAMPLES_PER_DATASET

    def _count_rows(self) -> int:
        if self.entry.dataset is not None:
            return self.entry.dataset.train_size
        if "train" in self.entry.task.split_mapping:
            return self.entry.task.size("train")
        raise UserError(
            f"task {self.entry.task.name} has no train split to take a mixing rate from; "
            "set 'rate' in mixtures.yaml"
        )


examples_rate = MixingRate(count_training_examples, cap=MAX_EXAMPLES_PER_DATASET)


def compute_rate(rate: Rate, task: Any) -> float:
    """Returns a mixing rate as a number."""
    return float(rate(task) if callable(rate) else rate)


def is_capped(rate: Rate, task: Any) -> bool:
    """Returns whether a cap makes a rate smaller. For functions of other packages, returns False."""
    check = getattr(rate, "is_capped", None)
    return bool(check and check(task))


def task_names(name: str, mixtures: Mixtures, tasks: Mapping[str, Any]) -> set[str]:
    """Returns the names of a mixture's tasks, with those of the mixtures inside it."""
    names: set[str] = set()
    for member, _ in mixtures[name]:
        names |= {member} if member in tasks else task_names(member, mixtures, tasks)
    return names


def task_rates(name: str, mixtures: Mixtures, tasks: Mapping[str, Any]) -> dict[str, float]:
    """Returns the rate of each task of a mixture, computed in the order of SeqIO's `get_rate`.

    Args:
      name: the mixture's name.
      mixtures: the members of all mixtures.
      tasks: name -> task.

    Raises:
      UserError: all rates of a mixture inside the mixture are zero.
    """
    rates: dict[str, float] = {}
    for member, rate in mixtures[name]:
        if member in tasks:
            continue
        inner = task_rates(member, mixtures, tasks)
        total = sum(compute_rate(rate, tasks.get(task)) for task, rate in mixtures[member])
        if not total:
            raise UserError(f"the tasks of the mixture '{member}' in '{name}' have no examples")
        for task, inner_rate in inner.items():
            rates[task] = rates.get(task, 0.0) + compute_rate(rate, None) * inner_rate / total
    for member, rate in mixtures[name]:
        if member in tasks:
            rates[member] = rates.get(member, 0.0) + compute_rate(rate, tasks[member])
    return rates


def capped_tasks(name: str, mixtures: Mixtures, tasks: Mapping[str, Any]) -> set[str]:
    """Returns the names of a mixture's tasks whose rate would be larger without a cap.

    Args:
      name: the mixture's name.
      mixtures: the members of all mixtures.
      tasks: name -> task.
    """
    capped: set[str] = set()
    for member, rate in mixtures[name]:
        if member not in tasks:
            capped |= capped_tasks(member, mixtures, tasks)
        elif is_capped(rate, tasks[member]):
            capped.add(member)
    return capped
