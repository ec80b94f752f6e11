"""Registers few-shot forms of prompted tasks with SeqIO, for evaluations.

    names = add_few_shot_tasks(["rte_mine_score_eval"], FewShot(k=4), vocabulary_measure(1024))
    names                          # ["rte_mine_4shot_score_eval"]
    few_shot_facts(names)          # {"num_fewshot": 4, "fewshot_seed": 0}

A few-shot task differs from its zero-shot task only in the inputs, in which exemplars from the
training rows stand before the row (`t0.catalogue.exemplars`). The records are rendered when the task
is read. They cannot be cached.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from t0.catalogue import SCORE_EVAL
from t0.catalogue.exemplars import FewShotPrompts, check_few_shot
from t0.compat import seqio
from t0.errors import UserError
from t0.prompts.few_shot import FewShot, TextMeasure
from t0.tasks.prompted_tasks import PromptedSource
from t0.tasks.vocabulary import default_vocabulary


def few_shot_name(task: str, k: int) -> str:
    """Returns the name of a task's few-shot form.

    >>> few_shot_name("super_glue_rte_GPT_3_style_score_eval", 4)
    'super_glue_rte_GPT_3_style_4shot_score_eval'
    """
    suffix = SCORE_EVAL if task.endswith(SCORE_EVAL) else ""
    return f"{task.removesuffix(SCORE_EVAL)}_{k}shot{suffix}"


def vocabulary_measure(length: int) -> TextMeasure:
    """Measures texts in the tasks' vocabulary.

    Args:
      length: the maximum number of tokens of the inputs, which do not end in EOS.
    """
    vocabulary = default_vocabulary()

    def count(text: str) -> int:
        return len(vocabulary.encode(text))

    return TextMeasure(count, lambda inputs, answers: count(inputs) <= length)


def check_few_shot_tasks(tasks: Iterable[str], few_shot: FewShot) -> None:
    """Checks that tasks can have few-shot prompts, without reading their data.

    Raises:
      UserError: a task is not made from a prompt, or `check_few_shot` refuses it.
    """
    for name in tasks:
        source = seqio.TaskRegistry.get(name).source
        if not isinstance(source, PromptedSource):
            raise UserError(
                f"task {name} is not made from a prompt, so it has no few-shot form: leave it out"
            )
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
        task = seqio.TaskRegistry.get(name)
        source = copy.copy(task.source)
        source.reports = {}
        rows = source.open(few_shot.split)
        data = source.dataset, source.subset, source.split_mapping[few_shot.split]
        if data not in stored:
            stored[data] = list(rows.rows())
        source.few_shot = FewShotPrompts(task.source, few_shot, stored[data], measure)
        built.append(task.replace(name=few_shot_name(name, few_shot.k), source=source))
    for task in built:
        _replace(task)
    return [task.name for task in built]


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
