"""Reads a task's rank-evaluation records once: onto the spool, and into a few facts.

What stays in memory is how many units there are of each size, and counts; not the examples.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import gin, tfds
from t0.compat import tf1 as tf
from t0.errors import UserError, original, unknown_name
from t0.scoring.batches import units
from t0.scoring.examples import NO_CORRECT_CHOICE, Example, Truncation, truncate
from t0.scoring.plan import Size
from t0.scoring.spool import Spool

_FEATURES = (
    "idx",
    "inputs",
    "targets",
    "is_correct",
    "inputs_pretokenized",
    "targets_pretokenized",
)
# Records that leave TensorFlow at once; one at a time, Python's share is most of the reading.
_AT_ONCE = 512
# Excluded examples whose numbers are kept, for each reason.
_LISTED = 20


@gin.configurable("score_eval", module="t0")
@dataclasses.dataclass(frozen=True)
class Settings:
    """What gin can set of a rank evaluation (`score_eval.max_shapes = 32`).

    Attributes:
      max_excluded_share: of a task's examples that may lack exactly one correct choice.
      max_truncated_targets_share: of a task's choices that may be longer than the limit.
      max_shapes: batch shapes of a run; each costs a lowering, few cost padding.
      dtype: the type that is computed in, "float32" or "bfloat16"; logits and their softmax are
        float32 in both.
    """

    max_excluded_share: float = 0.5
    max_truncated_targets_share: float = 0.5
    max_shapes: int = 24
    dtype: str = "float32"


def checked(settings: Settings) -> Settings:
    """Returns the settings.

    Raises:
      UserError: if one of them has a value that means nothing.
    """
    types = ("float32", "bfloat16")
    if settings.dtype not in types:
        raise unknown_name("type", settings.dtype, types, "(gin: score_eval.dtype)")
    for name in ("max_excluded_share", "max_truncated_targets_share"):
        share = getattr(settings, name)
        if not 0 <= share <= 1:
            raise UserError(f"score_eval.{name} is {share!r}; wanted a share from 0 to 1")
    if settings.max_shapes < 1:
        raise UserError(f"score_eval.max_shapes is {settings.max_shapes!r}; wanted 1 or more")
    return settings


@dataclasses.dataclass(frozen=True)
class TaskData:
    """A task that was read.

    Attributes:
      number: of the task on the spool.
      choices: how many there are of each example, in the order of their `idx`.
      sizes: how many units there are of each (C, L, T), within the limits.
      cut: what the limits cut.
      excluded: why examples are left out of the accuracy -> their idx.
    """

    name: str
    number: int
    choices: np.ndarray
    sizes: Mapping[Size, int]
    cut: Truncation
    excluded: Mapping[str, "Excluded"]
    metric_fns: Sequence[Callable[..., Mapping[str, float]]]


@dataclasses.dataclass
class Excluded:
    """Examples left out for one reason: how many, and the `idx` of the first of them."""

    count: int = 0
    first: list[int] = dataclasses.field(default_factory=list)


def read_task(
    dataset: Any, limits: Mapping[str, int] | None, *, spool: Spool, settings: Settings
) -> TaskData:
    """Reads one task's records.

    Args:
      dataset: a Mesh TensorFlow `EvalDataset` whose `dataset_fn` gives unpadded records.
      limits: tokens of inputs and targets the model takes, or None.
      spool: keeps the records.
      settings: what is refused.

    Raises:
      UserError: if the split is empty, its labels are hidden, the records are not rank-evaluation
        records, or too many examples lack exactly one correct choice or lose part of it.
    """
    with tf.Graph().as_default():
        try:
            number = spool.add(_records(dataset))
        except tf.errors.OpError as error:
            raise original(error) from error
    choices: list[int] = []
    sizes: collections.Counter[Size] = collections.Counter()
    cut, excluded = Truncation(), collections.defaultdict(Excluded)
    for example, cut_here in limited(spool.examples(number), limits):
        choices.append(len(example.choices))
        sizes.update(unit.size for unit in units(0, 0, example))
        cut.inputs += cut_here.inputs
        cut.targets += cut_here.targets
        if example.excluded:
            excluded[example.excluded].count += 1
            if excluded[example.excluded].count <= _LISTED:
                excluded[example.excluded].first.append(example.idx)
    if not choices:
        raise UserError(f"task {dataset.name} has no examples in this split")
    data = TaskData(
        dataset.name,
        number,
        np.array(choices, np.int32),
        dict(sizes),
        cut,
        dict(excluded),
        dataset.metric_fns,
    )
    _check_excluded(data, settings.max_excluded_share)
    _check_truncated(data, limits, settings.max_truncated_targets_share)
    return data


def limited(
    examples: Iterable[Example], limits: Mapping[str, int] | None
) -> Iterator[tuple[Example, Truncation]]:
    """Yields the examples cut to the limits, and what was cut."""
    return (truncate(example, limits) for example in examples)


def _records(dataset: Any) -> Iterator[dict[str, Any]]:
    records = dataset.dataset_fn()
    if "is_correct" not in records.element_spec:
        raise UserError(
            f"task {dataset.name} is not a rank-evaluation task (its records have no answer "
            f"choices); its rank-evaluation form, if it has one, is {dataset.name}_score_eval"
        )
    kept = [name for name in _FEATURES if name in records.element_spec]
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


def _check_excluded(data: TaskData, allowed: float) -> None:
    examples, task = len(data.choices), data.name
    if _count(data, NO_CORRECT_CHOICE) == examples:
        raise UserError(
            f"task {task}: none of its {examples} examples has a correct choice. The labels "
            "of this split are hidden, or its template never renders the target among the choices; "
            "score another split (run.dataset_split = 'validation')"
        )
    excluded = sum(found.count for found in data.excluded.values())
    if excluded > allowed * examples or excluded == examples:
        first, reason = min((found.first[0], reason) for reason, found in data.excluded.items())
        raise UserError(
            f"task {task}: {excluded} of {examples} examples do not have exactly one "
            f"correct choice (the first: example {first}, {reason}), more than the "
            f"share of {allowed:g} allowed (gin: score_eval.max_excluded_share)"
        )


def _count(data: TaskData, reason: str) -> int:
    return data.excluded[reason].count if reason in data.excluded else 0


def _check_truncated(data: TaskData, limits: Mapping[str, int] | None, allowed: float) -> None:
    choices = int(data.choices.sum())
    if limits and data.cut.targets > allowed * choices:
        raise UserError(
            f"task {data.name}: {data.cut.targets:,} of {choices:,} choices are longer than "
            f"{limits['targets']} tokens and would be scored without their ends, more than the "
            f"share of {allowed:g} allowed. Raise run.sequence_length's 'targets', or allow it "
            "(gin: score_eval.max_truncated_targets_share)"
        )
