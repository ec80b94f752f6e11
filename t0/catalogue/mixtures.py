"""Selects the members and mixing rates of T0's eight mixtures and of the user's mixtures.

The mixing rate of a training task is the number of training examples of its dataset. If the dataset
has more than 500,000 training examples, the rate is 500,000 divided by the number of the dataset's
templates. The rate of a rank-evaluation task is its number of training examples, but at most
500,000.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from t0.catalogue.entries import CatalogueEntry, is_excluded
from t0.catalogue.prompted_task import SCORE_EVAL
from t0.errors import UserError, unknown_name
from t0.sources import OwnMixture

MAX_EXAMPLES_PER_DATASET = 500_000


@dataclasses.dataclass(frozen=True)
class MixtureRule:
    """The rule that selects the tasks of one of T0's mixtures.

    Attributes:
      groups: the groups whose datasets are selected.
      score_eval: whether the members are rank-evaluation tasks. If so, the rate of each member is
        the result of `examples_rate`.
      evaluation: whether `groups` are evaluation groups. If not, they are training groups.
      original_only: whether to select only prompts for the original task of their dataset.
      one_for_each_dataset: whether to use only the first selected prompt of each dataset.
    """

    groups: frozenset[str]
    score_eval: bool = False
    evaluation: bool = False
    original_only: bool = False
    one_for_each_dataset: bool = False


_T0 = frozenset({"BASE"})
_T0_PLUS = _T0 | {"GPT_EVAL"}
_T0_PLUS_PLUS = _T0_PLUS | {"SGLUE"}

RULES: dict[str, MixtureRule] = {
    "t0_train": MixtureRule(_T0),
    "t0+_train": MixtureRule(_T0_PLUS),
    "t0++_train": MixtureRule(_T0_PLUS_PLUS),
    "t0_eval_score_eval": MixtureRule(_T0, score_eval=True, evaluation=True, original_only=True),
    "t0_train_score_eval": MixtureRule(_T0, score_eval=True, original_only=True),
    "t0_train_one_og_prompt": MixtureRule(_T0, original_only=True, one_for_each_dataset=True),
    "t0_train_all_og_prompts": MixtureRule(_T0, original_only=True),
    "bias_fairness_eval_score_eval": MixtureRule(
        frozenset({"BIAS_FAIRNESS"}), score_eval=True, evaluation=True
    ),
}


def _group(entry: CatalogueEntry, rule: MixtureRule) -> str:
    return entry.dataset.eval_group if rule.evaluation else entry.dataset.train_group


def members(mixture: str, entries: Sequence[CatalogueEntry]) -> list[CatalogueEntry]:
    """Returns the entries that belong to `mixture`, in the order of `entries`."""
    rule = RULES[mixture]
    chosen = [entry for entry in entries if _group(entry, rule) in rule.groups]
    if rule.original_only:
        chosen = [entry for entry in chosen if entry.original_task]
    if rule.one_for_each_dataset:
        first: dict[tuple[str, str | None], CatalogueEntry] = {}
        for entry in chosen:
            first.setdefault((entry.task.dataset, entry.task.subset), entry)
        chosen = list(first.values())
    if rule.score_eval:
        chosen = [entry for entry in chosen if entry.task.template.answer_choices]
    suffix = SCORE_EVAL if rule.score_eval else ""
    return [entry for entry in chosen if not is_excluded(mixture, entry.task.name + suffix)]


def training_rate(entry: CatalogueEntry) -> int:
    """Returns the mixing rate of a training task, in examples.

    Raises:
      UserError: the task is one of the user's own tasks and has no train split.
    """
    if entry.dataset is not None:
        size = entry.dataset.train_size
    elif "train" in entry.task.split_mapping:
        size = entry.task.num_rows("train")
    else:
        raise UserError(
            f"task {entry.task.name} has no train split to take a mixing rate from; "
            "set 'rate' in mixtures.yaml"
        )
    if size > MAX_EXAMPLES_PER_DATASET:
        return MAX_EXAMPLES_PER_DATASET // entry.templates
    return size


def examples_rate(task: Any) -> float:
    """Returns the mixing rate of a rank-evaluation task: its training examples, at most 500,000.

    If the task is cached, the examples are the records of the cache, which has a record for each
    choice of each row. Otherwise, the examples are the raw rows. If a dataset has no train split
    (story_cloze), its first split is counted instead. The original code fails on such a dataset.
    """
    split = "train" if "train" in task.splits else task.splits[0]
    if task.cache_dir:
        return min(task.get_cached_stats(split)["examples"], MAX_EXAMPLES_PER_DATASET)
    return min(task.num_input_examples(split), MAX_EXAMPLES_PER_DATASET)


def mixture_tasks(
    mixture: str, entries: Sequence[CatalogueEntry]
) -> list[tuple[str, float | Callable[[Any], float]]]:
    """Returns (task name, rate) for each member of one of T0's mixtures."""
    if RULES[mixture].score_eval:
        return [
            (entry.task.name + SCORE_EVAL, examples_rate) for entry in members(mixture, entries)
        ]
    return [(entry.task.name, training_rate(entry)) for entry in members(mixture, entries)]


def own_mixture_tasks(
    mixture: OwnMixture, names: Collection[str]
) -> list[tuple[str, float | Callable[[Any], float]]]:
    """Returns (task name, rate) for each task that a user's mixture selects.

    Args:
      mixture: the mixture, as defined in a `mixtures.yaml`.
      names: the names of the registered tasks.

    Raises:
      UserError: a regular expression of the mixture matches no task.
    """
    rate = examples_rate if mixture.rate == "examples" else mixture.rate
    chosen: dict[str, None] = {}
    for expression in mixture.tasks:
        matches = [name for name in names if re.fullmatch(expression, name)]
        if not matches:
            raise unknown_name("task", expression, names, f"It is in {mixture.path}.")
        chosen.update(dict.fromkeys(matches))
    return [(name, rate) for name in chosen]
