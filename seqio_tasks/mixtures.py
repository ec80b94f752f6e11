"""The eight mixtures of the original, as a table, and the mixtures of the user's own folders.

Mixing rates: a training task counts its dataset's train size, or 500,000 shared among the
dataset's templates where it is larger; a rank-evaluation task counts its examples, at most 500,000.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence

from seqio_tasks.catalogue import Entry, is_excluded
from t0.compat import seqio
from t0.errors import UserError, unknown_name
from t0.sources import OwnMixture
from t0.tasks import SCORE_EVAL

MAX_EXAMPLES_PER_DATASET = 500_000


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which tasks a mixture of the original takes.

    Attributes:
      groups: the training groups, or the evaluation groups, that its datasets belong to.
      score_eval: take the rank-evaluation tasks and rate them by examples.
      evaluation: `groups` names evaluation groups.
      original_only: only prompts for the dataset's original task.
      one_for_each_dataset: only the first such prompt of each dataset.
    """

    groups: frozenset[str]
    score_eval: bool = False
    evaluation: bool = False
    original_only: bool = False
    one_for_each_dataset: bool = False


_T0 = frozenset({"BASE"})
_T0_PLUS = _T0 | {"GPT_EVAL"}
_T0_PLUS_PLUS = _T0_PLUS | {"SGLUE"}

RULES: dict[str, Rule] = {
    "t0_train": Rule(_T0),
    "t0+_train": Rule(_T0_PLUS),
    "t0++_train": Rule(_T0_PLUS_PLUS),
    "t0_eval_score_eval": Rule(_T0, score_eval=True, evaluation=True, original_only=True),
    "t0_train_score_eval": Rule(_T0, score_eval=True, original_only=True),
    "t0_train_one_og_prompt": Rule(_T0, original_only=True, one_for_each_dataset=True),
    "t0_train_all_og_prompts": Rule(_T0, original_only=True),
    "bias_fairness_eval_score_eval": Rule(
        frozenset({"BIAS_FAIRNESS"}), score_eval=True, evaluation=True
    ),
}


def _group(entry: Entry, rule: Rule) -> str:
    return entry.dataset.eval_group if rule.evaluation else entry.dataset.train_group


def members(mixture: str, entries: Sequence[Entry]) -> list[Entry]:
    """Returns the entries of `mixture`, in the order given, exclusions left out."""
    rule = RULES[mixture]
    chosen = [entry for entry in entries if _group(entry, rule) in rule.groups]
    if rule.original_only:
        chosen = [entry for entry in chosen if entry.original_task]
    if rule.one_for_each_dataset:
        first: dict[tuple[str, str | None], Entry] = {}
        for entry in chosen:
            first.setdefault((entry.task.dataset, entry.task.subset), entry)
        chosen = list(first.values())
    if rule.score_eval:
        chosen = [entry for entry in chosen if entry.task.template.answer_choices]
    suffix = SCORE_EVAL if rule.score_eval else ""
    return [entry for entry in chosen if not is_excluded(mixture, entry.task.name + suffix)]


def training_rate(entry: Entry) -> int:
    """Returns the mixing rate of a training task, in examples.

    Raises:
      UserError: for a user's own data without a train split.
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


def examples_rate(task: seqio.Task) -> float:
    """Returns a task's training examples, at most 500,000: the rate of rank-evaluation tasks.

    Counted after prompting where the task is cached, before it elsewhere. A dataset without a
    train split (story_cloze) is rated by its first split; the original fails on it.
    """
    split = "train" if "train" in task.splits else task.splits[0]
    if task.cache_dir:
        return min(task.get_cached_stats(split)["examples"], MAX_EXAMPLES_PER_DATASET)
    return min(task.num_input_examples(split), MAX_EXAMPLES_PER_DATASET)


def mixture_tasks(
    mixture: str, entries: Sequence[Entry]
) -> list[tuple[str, float | Callable[[seqio.Task], float]]]:
    """Returns (task name, rate) for each member of an original mixture."""
    if RULES[mixture].score_eval:
        return [
            (entry.task.name + SCORE_EVAL, examples_rate) for entry in members(mixture, entries)
        ]
    return [(entry.task.name, training_rate(entry)) for entry in members(mixture, entries)]


def own_mixture_tasks(
    mixture: OwnMixture, names: Sequence[str]
) -> list[tuple[str, float | Callable[[seqio.Task], float]]]:
    """Returns (task name, rate) for each task that a user's mixture selects.

    Args:
      mixture: from `mixtures.yaml`: regular expressions that match whole task names, and a rate,
        a number or "examples".
      names: the registered tasks.

    Raises:
      UserError: if an expression is malformed or matches no task.
    """
    rate = examples_rate if mixture.rate == "examples" else mixture.rate
    chosen: dict[str, None] = {}
    for expression in mixture.tasks:
        try:
            pattern = re.compile(expression)
        except re.error as error:
            raise UserError(
                f"{mixture.path}: mixture {mixture.name}: '{expression}' is not a regular "
                f"expression ({error})"
            ) from error
        matching = [name for name in names if pattern.fullmatch(name)]
        if not matching:
            raise unknown_name("task", expression, names, f"It is in {mixture.path}.")
        chosen.update(dict.fromkeys(matching))
    return [(name, rate) for name in chosen]
