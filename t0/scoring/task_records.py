"""Reads the records of rank-evaluation tasks through SeqIO, cached or not.

with ExampleStore() as store:
    task = read_task(dataset, {"inputs": 1024, "targets": 256}, store=store)
dataset_and_prompt("super_glue_rte_GPT_3_style_score_eval")   # "super_glue/rte", "GPT-3 style"
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from t0.compat import seqio, tfds
from t0.compat import tf1 as tf
from t0.errors import original
from t0.scoring.reading import (
    FEATURES,
    ExampleStore,
    Lengths,
    ScoringTask,
    TaskFacts,
    kept_task,
    not_ranked,
)

# Records that are read from TensorFlow at once; one at a time, Python's overhead would dominate.
_AT_ONCE = 512


def read_task(
    dataset: Any,
    lengths: Lengths,
    *,
    store: ExampleStore,
    documents: Callable[[str, int], Sequence[int] | None] = lambda task, examples: None,
    **shares: float,
) -> ScoringTask:
    """Reads one task's records.

    Args:
      dataset: a Mesh TensorFlow `EvalDataset` whose `dataset_fn` returns unpadded records.
      lengths: the model's limits {"inputs": tokens, "targets": tokens}, or None for no limits.
      store: the store for the examples.
      documents: (task's name, number of examples) -> each example's document, or None.
      **shares: the shares that `kept_task` allows.

    Raises:
      UserError: if the records are not rank-evaluation records, or `kept_task` raises one.
    """
    with tf.Graph().as_default():
        try:
            number = store.add(_records(dataset))
        except tf.errors.OpError as error:
            raise original(error) from error
    name = dataset.name
    known = functools.partial(documents, name)
    facts = TaskFacts(name, *dataset_and_prompt(name), dataset.metric_fns, known)
    return kept_task(facts, number, lengths, store=store, **shares)


def dataset_and_prompt(task: str) -> tuple[str, str]:
    """Returns a task's dataset with its subset, and its prompt; without a prompt, its name."""
    source = seqio.TaskRegistry.get(task).source if task in seqio.TaskRegistry.names() else None
    dataset = getattr(source, "dataset", None)
    if dataset is None:
        return task, ""
    subset = f"/{source.subset}" if source.subset else ""
    return dataset + subset, source.template.name


def _records(dataset: Any) -> Iterator[dict[str, Any]]:
    records = dataset.dataset_fn()
    if "is_correct" not in records.element_spec:
        raise not_ranked(dataset.name)
    kept = [name for name in FEATURES if name in records.element_spec]
    records = records.map(lambda record: {name: record[name] for name in kept})
    for batch in tfds.as_numpy(records.ragged_batch(_AT_ONCE)):
        columns = [_rows(batch[name]) for name in kept]
        for values in zip(*columns, strict=True):
            yield dict(zip(kept, values, strict=True))


def _rows(column: Any) -> Sequence[Any]:
    if not hasattr(column, "row_splits"):
        return column
    values, splits = np.asarray(column.values), np.asarray(column.row_splits)
    return [values[a:b] for a, b in zip(splits[:-1], splits[1:], strict=True)]
