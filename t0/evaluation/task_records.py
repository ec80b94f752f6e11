"""Reads a task's answer choices: from its cache, from rendered rows, or with SeqIO.

    facts = rank_task_facts("rte_score_eval", "validation")
    read_records(dataset, "validation", examples=None, by_row=True)     # `records.TaskRecords`

If a task's cache contains final examples, the cache files are read directly. If a prompted task is
not read from a cache, its rows are rendered. Both ways work without TensorFlow. All other tasks are
read with SeqIO.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from t0.compat import seqio, t5_mesh, tfds
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.errors import original
from t0.evaluation import records
from t0.evaluation.ranked_examples import RankTaskFacts
from t0.evaluation.settings import first_records
from t0.feeding import data_spec
from t0.tasks.prompted_tasks import expand_choices, is_prompted

# The number of records that are fetched from TensorFlow together. If they were fetched one at a
# time, most of the time would be Python's overhead.
_RECORDS_AT_ONCE = 512


def rank_task_facts(
    name: str, split: str, metric_fns: Sequence[Callable[..., Any]] = ()
) -> RankTaskFacts:
    """Returns the facts about a task that are known before its records are read.

    Args:
      name: the task's name. If the task has no prompt, this is also its dataset's name in the
        results.
      metric_fns: the task's metric functions.
    """
    source = seqio.TaskRegistry.get(name).source if name in seqio.TaskRegistry.names() else None
    dataset = getattr(source, "dataset", None)
    if dataset is None:
        return RankTaskFacts(name, name, "", metric_fns)
    subset = f"/{source.subset}" if source.subset else ""
    row_split = getattr(source, "split_mapping", {}).get(split)
    rows = (dataset, source.subset, row_split) if row_split else None
    return RankTaskFacts(name, dataset + subset, source.template.name, metric_fns, rows)


def read_records(data: Any, split: str, examples: int | None, by_row: bool) -> records.TaskRecords:
    """Returns a task's records: from its cache files, from rendered rows, or with SeqIO."""
    name, use_cached = data.name, bool(bound("mesh_eval_dataset_fn.use_cached", False))
    registered = (
        name in seqio.TaskRegistry.names()
        and bound("run.eval_dataset_fn") is t5_mesh.mesh_eval_dataset_fn
    )
    task = seqio.TaskRegistry.get(name) if registered else None
    options = {"examples": examples, "by_row": by_row}
    if task and first_records() is None:
        if use_cached and data_spec.is_all_cached(task):
            return records.cached_records(name, data_spec.cache_files(task, split)[0], **options)
        if not use_cached and has_choices(task):
            features = task.output_features
            return records.prompted_records(task.source, split, features, **options)
    find = data_spec.find_rows(task, split, use_cached=use_cached) if task and by_row else None
    rows, read = find and find(), _choices_of(data)
    if rows and examples is not None and first_records() is not None:  # a sample of the first
        first = [*read]
        rows, read = rows.first(first[-1].example + 1 if first else 0), iter(first)
    return records.number_records(read, rows, **options)


def _choices_of(data: Any) -> Iterator[records.ChoiceRecord]:
    with tf.Graph().as_default():
        try:
            yield from map(records.record_of, _seqio_records(data))
        except tf.errors.OpError as error:
            raise original(error) from error


def has_choices(task: seqio.Task) -> bool:
    """Returns whether `records.rendered_rows` can render a task's rows with their choices."""
    return expand_choices in task.preprocessors and is_prompted(task)


def _seqio_records(data: Any) -> Iterator[dict[str, Any]]:
    dataset = data.dataset_fn()
    if "is_correct" not in dataset.element_spec:
        raise records.not_ranked(data.name)
    names = [name for name in records.FEATURES if name in dataset.element_spec]
    dataset = dataset.map(lambda record: {name: record[name] for name in names})
    for batch in tfds.as_numpy(dataset.ragged_batch(_RECORDS_AT_ONCE)):
        columns = [_rows(batch[name]) for name in names]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def _rows(column: Any) -> Sequence[Any]:
    if not hasattr(column, "row_splits"):
        return column
    values, splits = np.asarray(column.values), np.asarray(column.row_splits)
    return [values[a:b] for a, b in itertools.pairwise(splits)]
