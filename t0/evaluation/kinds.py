"""Finds out whether a task is ranked, decoded or measured, from its metrics.

    kinds_of(tasks)                  # {"rank": [...], "decode": [...], "perplexity": [...]}

| a task with | is | result |
|---|---|---|
| metrics of scores (`..._score_eval`) | ranked: every answer choice is scored | `results_<step>.json` |
| metrics of texts | decoded | `decoded_<step>.json` |
| targets and no metrics (span corruption, language models) | measured: nats per target token | `perplexity_<step>.json` |
"""  # noqa: E501 (a table)

import collections
from collections.abc import Mapping, Sequence

from t0.compat import seqio
from t0.errors import UserError
from t0.feeding.objectives import objective_of

RANK, DECODE, PERPLEXITY = "rank", "decode", "perplexity"
_PARTICIPLES = {RANK: "ranked", PERPLEXITY: "measured (perplexity)", DECODE: "decoded"}


def kinds_of(tasks: Sequence[seqio.Task]) -> dict[str, list[seqio.Task]]:
    """Returns kind -> tasks. The kind "" has the tasks that cannot be evaluated."""
    tasks_by_kind: dict[str, list[seqio.Task]] = collections.defaultdict(list)
    for task in tasks:
        tasks_by_kind[_find_kind(task)].append(task)
    return dict(tasks_by_kind)


def is_ranked(task: seqio.Task) -> bool:
    """Returns whether a task is evaluated by ranking its answer choices."""
    return _find_kind(task) == RANK


def _find_kind(task: seqio.Task) -> str:
    if task.predict_metric_fns:
        return DECODE
    if task.score_metric_fns:
        return RANK
    if task.metric_fns:  # only SeqIO's own evaluator computes metrics of this kind
        return ""
    return PERPLEXITY if "targets" in task.output_features else ""


def describe(kinds: Mapping[str, Sequence[seqio.Task]]) -> str:
    """Returns a line with the number of tasks of each kind."""
    counts = [f"{len(tasks):,} {_PARTICIPLES[kind]}" for kind, tasks in kinds.items()]
    total = sum(len(tasks) for tasks in kinds.values())
    return f"evaluation of {total:,} task(s): {', '.join(counts)}"


def check_kinds(kinds: Mapping[str, Sequence[seqio.Task]]) -> None:
    """Raises a UserError if there is a task that cannot be ranked, decoded or measured."""
    if "" in kinds:
        raise UserError(
            f"task {kinds[''][0].name} cannot be evaluated in mode 'eval'. Expected a "
            "_score_eval task, a task with text metrics, or a task with targets"
        )


def check_shards(kinds: Mapping[str, Sequence[seqio.Task]], shards: int) -> None:
    """Raises a UserError if the run is divided into shards and a task is not ranked."""
    others = [task for kind, members in kinds.items() if kind != RANK for task in members]
    if shards != 1 and others:
        raise UserError(
            f"--num_shards={shards} is for ranked tasks, but {others[0].name} is not: evaluate "
            f"{'it' if len(others) == 1 else f'these {len(others)} tasks'} without --num_shards"
        )


def check_lengths(task: seqio.Task, lengths: Mapping[str, int] | None) -> None:
    """Raises a UserError if a measured task has no length for one of its features."""
    missing = [name for name in task.output_features if name not in (lengths or {})]
    if missing:
        example = {"inputs": 512, "targets": 114}
        lengths_of_task = {name: example.get(name, 512) for name in task.output_features}
        raise UserError(
            f"task {task.name} has no metrics, so its perplexity is measured, which needs a length "
            f"of {missing[0]}. TASK_FEATURE_LENGTHS (run.sequence_length) is "
            f'{dict(lengths) if lengths else None}: --gin.TASK_FEATURE_LENGTHS="{lengths_of_task}"'
        )
    objective_of(task, lengths)
