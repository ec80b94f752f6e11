"""Registers few-shot forms of prompted tasks with SeqIO, for evaluations and for gin's mixtures.

    names = add_few_shot_tasks(["rte_mine_score_eval"], FewShot(k=4), vocabulary_measure(1024))
    names                          # ["rte_mine_4shot_score_eval"]
    few_shot_facts(names)          # {"num_fewshot": 4, "fewshot_seed": 0}

A few-shot task differs from its zero-shot task only in the inputs, in which exemplars from the
training rows stand before the row (`t0.catalogue.exemplars`). The few-shot tasks of the user's
`mixtures.yaml` are registered with the catalogue (`t0.tasks.prompted_tasks.task_definitions`).
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from t0.catalogue import SCORE_EVAL
from t0.catalogue.exemplars import FewShotPrompts, check_few_shot
from t0.catalogue.mixture_members import few_shot_forms
from t0.catalogue.prompted_task import FewShotForm, few_shot_name
from t0.compat import seqio
from t0.errors import UserError
from t0.prompts.few_shot import FewShot, TextMeasure
from t0.sources import OwnMixture
from t0.tasks.prompted_tasks import PromptedSource, few_shot_prompts


def check_few_shot_tasks(tasks: Iterable[str], few_shot: FewShot) -> None:
    """Checks that tasks can have few-shot prompts, without reading their data.

    Raises:
      UserError: a task is not made from a prompt or is few-shot already, or `check_few_shot` refuses
        it.
    """
    for name in tasks:
        source = seqio.TaskRegistry.get(name).source
        if not isinstance(source, PromptedSource):
            raise UserError(
                f"task {name} is not made from a prompt, so it has no few-shot form: leave it out"
            )
        if source.few_shot is not None:
            raise UserError(f"task {name} is few-shot already: leave it out, or leave K out")
        check_few_shot(source, few_shot)


def add_few_shot_tasks(tasks: Sequence[str], few_shot: FewShot, measure: TextMeasure) -> list[str]:
    """Registers the few-shot forms of tasks, and returns their names.

    Forms of the same names from an earlier call are replaced.

    Args:
      tasks: the names of prompted tasks.
      few_shot: the settings.
      measure: how the texts are measured.

    Raises:
      UserError: a task cannot have few-shot prompts, its training rows cannot be read or are fewer
        than the exemplars, or another task has the name of a few-shot form.
    """
    check_few_shot_tasks(tasks, few_shot)

    # Build all tasks before registering any, so that an error leaves the registry unchanged.
    built, stored = [], {}
    for name in tasks:
        source = seqio.TaskRegistry.get(name).source
        rows = source.open(few_shot.split)
        data = source.dataset, source.subset, source.split_mapping[few_shot.split]
        if data not in stored:
            stored[data] = list(rows.rows())
        prompts = FewShotPrompts(source, FewShotForm(few_shot), stored[data], measure)
        built.append(_few_shot_task(name, prompts))
    for task in built:
        _replace(task)
    return [task.name for task in built]


def add_mixture_tasks(mixtures: Sequence[OwnMixture]) -> None:
    """Registers the few-shot tasks that mixtures define.

    Raises:
      UserError: a definition selects no task, or a task that cannot have few-shot prompts.
    """
    every = {name: seqio.TaskRegistry.get(name).source for name in seqio.TaskRegistry.names()}
    sources = {
        name: source
        for name, source in every.items()
        if isinstance(source, PromptedSource) and source.few_shot is None
    }
    built = [
        _few_shot_task(ranked, few_shot_prompts(sources[ranked], form))
        for name, form in few_shot_forms(mixtures, sources).values()
        for ranked in (name, name + SCORE_EVAL)
        if ranked in sources
    ]
    for task in built:
        _replace(task)


def _few_shot_task(zero_shot: str, prompts: FewShotPrompts) -> seqio.Task:
    task = seqio.TaskRegistry.get(zero_shot)
    source = copy.copy(task.source)
    source.reports = {}
    source.few_shot = prompts
    return task.replace(name=few_shot_name(zero_shot, prompts.few_shot), source=source)


def _replace(task: seqio.Task) -> None:
    if task.name in seqio.TaskRegistry.names():
        if getattr(seqio.TaskRegistry.get(task.name).source, "few_shot", None) is None:
            raise UserError(
                f"the few-shot form {task.name} has the name of another task: rename the other one"
            )
        seqio.TaskRegistry.remove(task.name)
    seqio.TaskRegistry.add_provider(task.name, task)


def few_shot_facts(tasks: Iterable[str]) -> dict[str, Any]:
    """Returns the facts about the exemplars of tasks for a results file; {} for zero-shot tasks."""
    for name in tasks:
        if name in seqio.TaskRegistry.names():
            few_shot = getattr(seqio.TaskRegistry.get(name).source, "few_shot", None)
            if few_shot is not None:
                return few_shot.few_shot.facts()
    return {}
