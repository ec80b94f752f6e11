"""Task metrics while training: a few examples of each task, decoded or ranked, then its metrics.

    tasks = read_tasks("t0_train", "validation", lengths, examples=64, use_cached=True)
    measured(tasks, outputs)
    # {"eval/sciq_Multiple_Choice/accuracy": 41.2, ..., "eval/accuracy": 38.0}

Names are T5's: `eval/<task>/<metric>`; `eval/<metric>` is the mean over the tasks that have it.
Examples are the first of a split, read once and kept. A metric that reads predictions gets decoded
and postprocessed text, one that reads scores gets log-likelihoods, as SeqIO's evaluation gives
them; an example of rank evaluation comes with all of its choices.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import gin, seqio
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.feeding.opening import known_mixture
from t0.training.outputs import Outputs

PREFIX = "eval/"


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is evaluated while training; None for what the training data has itself.

    Attributes:
      mixture: its tasks are evaluated.
      split: of each; examples: the most that are taken of each.
      use_cached: whether caches are read.
    """

    mixture: str | None
    split: str
    examples: int
    use_cached: bool | None


@gin.configurable("task_metrics", module="t0")
def choice(
    mixture_or_task_name: str | None = None,
    split: str = "validation",
    examples: int = 64,
    use_cached: bool | None = None,
) -> Choice:
    """Returns what is evaluated while training; gin sets it as `task_metrics.NAME`.

    Args:
      mixture_or_task_name: None for the training mixture.
      split: tasks without it are left out.
      examples: of each task, the first of the split (rank evaluation: rows, one for each choice).
      use_cached: None for what the training data does.
    """
    if examples < 1:
        raise UserError(f"task_metrics.examples is {examples}; wanted a number above 0")
    return Choice(mixture_or_task_name, split, examples, use_cached)


@dataclasses.dataclass(frozen=True)
class TaskExamples:
    """Examples of a task, read.

    Attributes:
      task: SeqIO's.
      rows: the examples as SeqIO's task gives them.
      inputs, targets: int32 [N, L] and [N, T], cut or padded.
      wanted: the postprocessed targets, which the metrics read.
    """

    task: seqio.Task
    rows: Sequence[Mapping[str, Any]]
    inputs: np.ndarray
    targets: np.ndarray
    wanted: Sequence[Any]


def read_tasks(
    mixture_or_task_name: str,
    split: str,
    lengths: Mapping[str, int],
    *,
    examples: int,
    use_cached: bool,
) -> list[TaskExamples]:
    """Reads the first examples of each task that has metrics and the split.

    Raises:
      UserError: for an unknown mixture, or one without such a task.
    """
    mixture = known_mixture(mixture_or_task_name)
    tasks = [task for task in seqio.get_subtasks(mixture) if split in task.splits]
    judged = [task for task in tasks if task.predict_metric_fns or task.score_metric_fns]
    if not judged:
        raise UserError(
            f"no task of {mixture_or_task_name} has metrics and a split '{split}': name another "
            "mixture (task_metrics.mixture_or_task_name) or split (task_metrics.split)"
        )
    return [_read(task, split, lengths, examples, use_cached) for task in judged]


def _read(
    task: seqio.Task, split: str, lengths: Mapping[str, int], examples: int, use_cached: bool
) -> TaskExamples:
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = task.get_dataset(
            dict(lengths), split=split, use_cached=use_cached, shuffle=False, num_epochs=1
        )
        following = tf.data.make_one_shot_iterator(dataset).get_next()
        rows = list(_first(_elements(session, following), examples))
    if not rows:
        raise UserError(f"the split '{split}' of {task.name} is empty: nothing to evaluate on")
    return TaskExamples(
        task=task,
        rows=rows,
        inputs=_block([row["inputs"] for row in rows], lengths["inputs"]),
        targets=_block([row["targets"] for row in rows], lengths["targets"]),
        wanted=[task.postprocess_fn(_text(task, row), example=row, is_target=True) for row in rows],
    )


def _elements(session: tf.Session, following: Any) -> Iterator[dict[str, Any]]:
    while True:
        try:
            yield session.run(following)
        except tf.errors.OutOfRangeError:
            return


def _first(rows: Iterable[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """Yields the first rows, and after them the other choices of the last one's example."""
    rows = iter(rows)
    last = None
    for last in itertools.islice(rows, count):
        yield last
    if last is not None and np.ndim(last.get("idx", 0)):
        number = last["idx"][0]
        yield from itertools.takewhile(lambda row: row["idx"][0] == number, rows)


def _block(ids: Sequence[np.ndarray], length: int) -> np.ndarray:
    block = np.zeros((len(ids), length), np.int32)
    for row, values in zip(block, ids, strict=True):
        row[: min(length, len(values))] = values[:length]
    return block


def _text(task: seqio.Task, row: Mapping[str, Any]) -> str:
    written = row.get("targets_pretokenized")
    if written is None:
        vocabulary = task.output_features["targets"].vocabulary
        return vocabulary.decode([int(x) for x in row["targets"]])
    return written.decode("utf-8") if isinstance(written, bytes) else str(written)


def measured(tasks: Sequence[TaskExamples], outputs: Outputs) -> dict[str, float]:
    """Returns the metrics of each task and their means, by the names of the module's header."""
    found: dict[str, float] = {}
    together: dict[str, list[float]] = collections.defaultdict(list)
    for examples in tasks:
        for metric, value in _of_task(examples, outputs).items():
            found[f"{PREFIX}{examples.task.name}/{metric}"] = value
            together[metric].append(value)
    return found | {PREFIX + name: float(np.mean(values)) for name, values in together.items()}


def _of_task(examples: TaskExamples, outputs: Outputs) -> dict[str, float]:
    task, values = examples.task, {}
    if task.predict_metric_fns:
        predictions = _predicted(examples, outputs)
        for function in task.predict_metric_fns:
            values |= function(examples.wanted, predictions)
    if task.score_metric_fns:
        scores = outputs.score(examples.inputs, examples.targets).tolist()
        for function in task.score_metric_fns:
            values |= function(examples.wanted, scores)
    return {name: float(value) for name, value in values.items() if np.ndim(value) == 0}


def _predicted(examples: TaskExamples, outputs: Outputs) -> list[Any]:
    task = examples.task
    vocabulary = task.output_features["targets"].vocabulary
    texts = [vocabulary.decode(ids) for ids in outputs.decode(examples.inputs).tolist()]
    return [
        task.postprocess_fn(text, example=row, is_target=False)
        for text, row in zip(texts, examples.rows, strict=True)
    ]
