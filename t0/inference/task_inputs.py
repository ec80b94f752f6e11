"""Reads a task's inference inputs with SeqIO, from a cache or from the task's source.

source = open_task(seqio.TaskRegistry.get("qa"), "test", use_cached=False)
next(source.read(0, 1))                 # InferenceExample(0, "Who wrote it?", None, [363, ...])

If the label of a row is withheld (-1), the template of a prompted task still renders a target,
often the last choice. Examples from such rows get no target here.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t0.caching.row_numbers import ROW
from t0.caching.split_state import HIDES, exemptions
from t0.compat import seqio
from t0.compat import tf1 as tf
from t0.errors import AbsentData, UserError
from t0.feeding.data_spec import count_examples, find_rows
from t0.feeding.objectives import instructions_of
from t0.feeding.uncached import elements
from t0.inference.inputs import FIELDS, InferenceExample, InputSource, answer_choices_error
from t0.prompts import NO_LABEL, is_missing
from t0.sources import hidden_label
from t0.tasks import PromptedSource

_READ = (*FIELDS, *(f"{name}_pretokenized" for name in FIELDS), "is_correct")


def open_task(
    task: seqio.Task, split: str, *, use_cached: bool, lengths: Mapping[str, int] | None = None
) -> InputSource:
    """Returns the source of the examples in a task's split.

    Args:
      task: SeqIO's task.
      split: the split's name.
      use_cached: whether to read the task's cache.
      lengths: feature -> maximum number of tokens. These limits determine how many demonstrations
        an instruction has, but nothing is truncated.

    Raises:
      UserError: if the task does not have this split, or is for rank evaluation.
    """
    if split not in task.splits:
        raise UserError(
            f"task {task.name} has no split '{split}'; there are: {', '.join(task.splits)} "
            "(infer.split)"
        )

    hidden = use_cached and _hides_labels(task, split)
    if not use_cached and isinstance(task.source, PromptedSource):
        source = copy.copy(task.source)
        source.hide_labels = source.keeps_unlabelled = True
        task = task.replace(source=source)

    def records() -> tf.data.Dataset:
        dataset = _untruncated_dataset(task, lengths or {})(
            split, use_cached=use_cached, shuffle=False
        )
        names = [name for name in _READ if name in dataset.element_spec]
        if "is_correct" in dataset.element_spec:
            raise answer_choices_error(task.name)
        return dataset.map(lambda record: {name: record[name] for name in names})

    def read(shard: int, shards: int) -> Iterator[InferenceExample]:
        # Number the records before sharding, so that an example's random numbers do not depend on
        # its shard.
        for number, record in elements(lambda: records().enumerate().shard(shards, shard)):
            example = _build_example(int(number), record, task.output_features)
            unknown = hidden or example.targets == NO_LABEL
            yield dataclasses.replace(example, targets=None) if unknown else example

    rows = find_rows(task, split, use_cached=use_cached)
    name_and_split = {"task": task.name, "split": split}
    facts = name_and_split | ({"numbered_by": ROW} if rows else {})
    total = count_examples(task, split, use_cached=use_cached)
    origin = {**name_and_split, "use_cached": use_cached, "hides_targets": hidden}
    return InputSource(task.name, total, facts, read, origin, rows=rows)


def _hides_labels(task: seqio.Task, split: str) -> bool:
    """Returns whether a cached split has rows without a label.

    A record does not say whether its label is missing.
    """
    source = task.source
    if not isinstance(source, PromptedSource):
        return False
    try:
        rows = source.open(split).rows()
        # Caching leaves out rows of a user's template that have no label at all.
        return any(
            hidden_label(source.dataset, row)
            and (source.keeps_unlabelled or not is_missing(row.get("label")))
            for row in rows
        )
    except AbsentData:  # T0's tables record which splits of its datasets have no labels
        dataset_split = (source.dataset, source.subset, source.split_mapping[split])
        known_exemptions = exemptions(*dataset_split, source.template.name)
        return any(exemption.kind == HIDES for exemption in known_exemptions)


def _untruncated_dataset(
    task: seqio.Task, lengths: Mapping[str, int]
) -> Callable[..., tf.data.Dataset]:
    """Returns a function that makes a task's dataset without truncating inputs or targets."""
    if instructions_of(task, lengths) is None:
        return functools.partial(task.get_dataset, None)
    steps = [*task.preprocessors[:-1], seqio.preprocessors.append_eos]
    untruncated = task.replace(preprocessors=steps)
    return functools.partial(untruncated.get_dataset, lengths, trim_output_features=False)


def _build_example(
    number: int, record: dict[str, Any], features: dict[str, Any]
) -> InferenceExample:
    texts = [_text(record, name, features) for name in FIELDS]
    return InferenceExample(number, texts[0] or "", texts[1], record["inputs"].tolist())


def _text(record: dict[str, Any], name: str, features: dict[str, Any]) -> str | None:
    text = record.get(f"{name}_pretokenized")
    if isinstance(text, bytes):
        return text.decode("utf-8", "replace")
    if name not in record:
        return None
    return features[name].vocabulary.decode(record[name].tolist())
