"""Finds prompted tasks, their caches and mixtures by name, without SeqIO's registries.

    listing = read_listing(["/data/cache"])
    listing.tasks["super_glue_rte_GPT_3_style"].task.template.name      # "GPT-3 style"
    listing.members("t0_train")                  # [("adversarial_qa_dbert_...", 10000), ...]
    listing.select("super_glue_rte_.*")          # names of tasks

A template with answer choices has two tasks: a plain task and a rank-evaluation task, whose name
ends in `_score_eval`. This module also selects the members of T0's eight mixtures and of the user's
mixtures.
"""

import dataclasses
import functools
import itertools
import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from t0.catalogue.entries import CatalogueEntry, catalogue_entries, is_excluded, own_entries
from t0.catalogue.mixing_rates import (
    Rate,
    TrainingRate,
    capped_tasks,
    count_training_examples,
    examples_rate,
    task_names,
    task_rates,
)
from t0.catalogue.mixture_members import few_shot_forms, resolve_mixtures
from t0.catalogue.prompted_task import SCORE_EVAL, PromptedTask
from t0.errors import UserError, reading, unknown_name
from t0.files import paths
from t0.files.untrusted import parsed_json
from t0.sources import data_dirs, find_own_mixtures


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
        chosen = [entry for entry in chosen if entry.task.template.original_task]
    if rule.one_for_each_dataset:
        first: dict[tuple[str, str | None], CatalogueEntry] = {}
        for entry in chosen:
            first.setdefault((entry.task.dataset, entry.task.subset), entry)
        chosen = list(first.values())
    if rule.score_eval:
        chosen = [entry for entry in chosen if entry.task.template.answer_choices]
    suffix = SCORE_EVAL if rule.score_eval else ""
    return [entry for entry in chosen if not is_excluded(mixture, entry.task.name + suffix)]


def mixture_tasks(mixture: str, entries: Sequence[CatalogueEntry]) -> list[tuple[str, Rate]]:
    """Returns (task name, rate) for each member of one of T0's mixtures."""
    if RULES[mixture].score_eval:
        return [
            (entry.task.name + SCORE_EVAL, examples_rate) for entry in members(mixture, entries)
        ]
    return [(entry.task.name, TrainingRate(entry)) for entry in members(mixture, entries)]


@dataclasses.dataclass(frozen=True)
class ListedTask:
    """A task of the catalogue or of the user's folders, with the cache methods of a SeqIO task.

    Attributes:
      name: the name under which the task is registered.
      task: the task's template and data.
      ranked: whether this is the template's rank-evaluation task.
      cache_dirs: folders that may contain the task's cache.
    """

    name: str
    task: PromptedTask
    ranked: bool
    cache_dirs: tuple[str, ...] = ()

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.task.split_mapping)

    @functools.cached_property
    def cache_dir(self) -> str | None:
        """The folder with the finished cache of this task; None if the task is not cached."""
        folders = (posixpath.join(folder, self.name) for folder in self.cache_dirs)
        return next((f for f in folders if paths.exists(posixpath.join(f, "COMPLETED"))), None)

    def get_cached_stats(self, split: str) -> Mapping[str, Any]:
        """Returns the statistics of a cached split.

        Raises:
          UserError: the statistics are missing or damaged.
        """
        path = posixpath.join(self.cache_dir, f"stats.{split}.json")
        with reading(path, ValueError):
            return parsed_json(paths.read_bytes(path))

    def num_input_examples(self, split: str) -> int:
        """Returns the number of raw rows of a split."""
        return self.task.size(split)


def tasks_by_name(
    known: Collection[str] = (), cache_dirs: Sequence[str] = ()
) -> dict[str, ListedTask]:
    """Returns name -> task, for the tasks of T0 and of the user's data folders.

    Args:
      known: names of tasks that are already taken.
      cache_dirs: folders with cached tasks.

    Raises:
      UserError: two prompts have the same task name, or a task's name is already taken.
    """
    tasks: dict[str, ListedTask] = {}

    def add(task: PromptedTask) -> None:
        # If a template has no answer choices, it has no rank-evaluation task.
        for ranked in (False, True) if task.template.answer_choices else (False,):
            name = task.name + SCORE_EVAL if ranked else task.name
            if name in known or name in tasks:
                where = task.template.where or f"template '{task.template.name}'"
                raise UserError(
                    f"{where}: a task '{name}' exists already. A task is named after dataset, "
                    "subset and template: rename the template or the dataset."
                )
            tasks[name] = ListedTask(name, task, ranked, tuple(cache_dirs))

    for entry in itertools.chain(catalogue_entries(), own_entries()):
        add(entry.task)
    zero_shot = {name: listed.task for name, listed in tasks.items()}
    own = find_own_mixtures(data_dirs())
    for name, form in few_shot_forms(own, zero_shot).values():
        add(dataclasses.replace(zero_shot[name], few_shot=form))
    return tasks


def mixtures_by_name(
    tasks: Sequence[str], known: Collection[str] = ()
) -> dict[str, list[tuple[str, Rate]]]:
    """Returns the members of T0's mixtures and of the user's mixtures.

    Args:
      tasks: the names of all tasks.
      known: names of mixtures that are already taken.

    Returns:
      name of a mixture -> a list of (name of a task or mixture, rate), one for each member. A
        mixture follows the mixtures that it contains.

    Raises:
      UserError: a user's mixture has a mistake, such as a name that is already taken.
    """
    mixtures = {name: mixture_tasks(name, catalogue_entries()) for name in RULES}
    others = dict.fromkeys(known, ()) | mixtures
    return mixtures | resolve_mixtures(find_own_mixtures(data_dirs()), tasks, others)


@dataclasses.dataclass(frozen=True)
class Listing:
    """The tasks and mixtures that `import t0.seqio_tasks` registers.

    Attributes:
      tasks: name -> task.
      mixtures: name -> a list of (name of a task or mixture, rate), one for each member.
    """

    tasks: Mapping[str, ListedTask]
    mixtures: Mapping[str, list[tuple[str, Rate]]]

    def members(self, mixture: str) -> list[tuple[str, float]]:
        """Returns (task name, rate as a number) for each task of a mixture, sorted by name."""
        return sorted(task_rates(mixture, self.mixtures, self.tasks).items())

    def capped(self, mixture: str) -> set[str]:
        """Returns the names of a mixture's tasks whose rate would be larger without a cap."""
        return capped_tasks(mixture, self.mixtures, self.tasks)

    def training_examples(self, name: str) -> int | None:
        """Returns the number of a task's training examples, those of its cache if it has one."""
        task = self.tasks[name]
        return count_training_examples(task) if "train" in task.splits else None

    def sizes(self, name: str) -> dict[str, int]:
        """Returns split -> number of raw rows, for the splits of the task `name`."""
        task = self.tasks[name]
        return {split: task.num_input_examples(split) for split in task.splits}

    def select(self, expression: str) -> list[str]:
        """Returns the sorted names of a mixture's members, or of the tasks that match.

        A task matches if the regular expression `expression` matches at the start of its name.

        Args:
          expression: the name of a mixture, or a regular expression for names of tasks.

        Raises:
          UserError: nothing matches. The message suggests similar names.
        """
        if expression in self.mixtures:
            return sorted(task_names(expression, self.mixtures, self.tasks))
        return matching(expression, self.tasks, self.mixtures)


def matching(
    expression: str, tasks: Collection[str], mixtures: Collection[str], hint: str = ""
) -> list[str]:
    """Returns the sorted names of the tasks that match a regular expression.

    A task matches if the expression matches at the start of its name.

    Args:
      expression: the regular expression.
      tasks: the names of all tasks.
      mixtures: the names of all mixtures, for the error message.
      hint: advice for the error message if no task matches.

    Raises:
      UserError: the expression is invalid, or matches no task.
    """
    try:
        pattern = re.compile(expression)
    except re.error as error:
        # The text may also be a misspelled mixture. For example, `t0++_trian` is a valid expression
        # in Python 3.11, but not in Python 3.10.
        hint = f"It is not a regular expression: {error}."
        raise unknown_name("task or mixture", expression, [*mixtures, *tasks], hint) from error
    names = sorted(name for name in tasks if pattern.match(name))
    if not names:
        raise unknown_name("task or mixture", expression, [*mixtures, *tasks], hint)
    return names


def read_listing(cache_dirs: Sequence[str] = ()) -> Listing:
    """Reads the tasks and mixtures of T0 and of the user's data folders.

    Args:
      cache_dirs: folders with cached tasks.

    Raises:
      UserError: a template file or `mixtures.yaml` is malformed, or a name is used twice.
    """
    tasks = tasks_by_name(cache_dirs=cache_dirs)
    return Listing(tasks, mixtures_by_name(list(tasks)))
