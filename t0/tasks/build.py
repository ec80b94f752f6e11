"""Builds the definitions of a template's tasks, the plain one and the rank-evaluation one.

    task = PromptedTask("super_glue", "rte", template, {"train": "train"}, {"train": 2490})
    for name, arguments in task_definitions(task).items():
        seqio.TaskRegistry.add(name, **arguments)

Rules of the original that are kept: inputs get no EOS and targets do; the caching point stands
after tokenisation; a choice is correct where it equals the stripped target, letter for letter.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t0.compat import seqio, t5_metrics, t5_postprocessors, t5_preprocessors, tf
from t0.prompts import CompiledTemplate, Template
from t0.tasks.metrics import plain_metrics, reads_text
from t0.tasks.naming import SCORE_EVAL, task_name
from t0.tasks.source import PromptedSource
from t0.tasks.vocabulary import default_vocabulary


@dataclasses.dataclass(frozen=True)
class PromptedTask:
    """One template over one dataset: what a pair of tasks is built from.

    Attributes:
      dataset: the dataset's name; subset: its configuration or None.
      template: the prompt.
      split_mapping: the task's split name -> the dataset's.
      num_rows: the task's split name -> raw rows, or a function that counts them.
      suffix: what the task's name ends in (ANLI's rounds).
    """

    dataset: str
    subset: str | None
    template: Template
    split_mapping: Mapping[str, str]
    num_rows: Mapping[str, int] | Callable[[str], int]
    suffix: str = ""

    @property
    def name(self) -> str:
        """The plain task's name."""
        return task_name(self.dataset, self.subset, self.template.name, self.suffix)


def expand_choices(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turns {inputs, targets, answer_choices} into one record for each choice.

    Each record has `idx` [2] (the row's number, the choice's), `inputs`, `targets` (the choice),
    `is_correct` and `weight` 1.0, as T5's `rank_classification` preprocessor defines them.
    """
    return t5_preprocessors.rank_classification(
        dataset,
        inputs_fn=lambda ex: tf.fill([tf.size(ex["answer_choices"])], ex["inputs"]),
        targets_fn=lambda ex: ex["answer_choices"],
        is_correct_fn=lambda ex: tf.equal(ex["answer_choices"], tf.strings.strip(ex["targets"])),
        weight_fn=lambda ex: 1.0,
    )


def _strip(output_or_target: str, example: Any = None, is_target: bool = False) -> str:
    del example, is_target
    return output_or_target.strip()


class _ClassIdPostprocessor:
    """Maps an output to its index among a template's fixed choices, -1 when it is none.

    Where the choices depend on the row, an output stays text, stripped.
    """

    def __init__(self, template: Template) -> None:
        self._template = template

    @functools.cached_property
    def _classes(self) -> list[str] | None:
        return CompiledTemplate(self._template).fixed_choices

    def __call__(self, output_or_target: str, example: Any = None, is_target: bool = False) -> Any:
        stripped = _strip(output_or_target)
        if not self._classes:
            return stripped
        return t5_postprocessors.string_label_to_class_id(stripped, label_classes=self._classes)


class _RankMetric:
    """T5's `rank_classification` metric, which learns the number of classes when it is used.

    Compiling the choices of hundreds of templates while they register would take seconds.
    """

    def __init__(self, template: Template) -> None:
        self._template = template
        self.__name__ = "rank_classification"

    def rank_classes(self) -> int | None:
        """Returns how many answer choices every row has, None where rows differ."""
        fixed = CompiledTemplate(self._template).fixed_choices
        return len(fixed) if fixed else None

    def __call__(self, targets: Sequence[Any], scores: Sequence[float]) -> dict[str, float]:
        return t5_metrics.rank_classification(targets, scores, num_classes=self.rank_classes())


def _output_features() -> dict[str, seqio.Feature]:
    vocabulary = default_vocabulary()
    return {
        "inputs": seqio.Feature(vocabulary, add_eos=False, dtype=tf.int32),
        "targets": seqio.Feature(vocabulary, add_eos=True, dtype=tf.int32),
    }


def task_definitions(task: PromptedTask) -> dict[str, dict[str, Any]]:
    """Returns name -> keyword arguments of `seqio.TaskRegistry.add` for a template's tasks.

    The plain task, and the `_score_eval` task if the template has answer choices.
    """
    source = functools.partial(
        PromptedSource,
        dataset=task.dataset,
        subset=task.subset,
        template=task.template,
        split_mapping=task.split_mapping,
        num_rows=task.num_rows,
        seed_name=task.name,
    )
    tokenised = [
        seqio.preprocessors.tokenize,
        seqio.preprocessors.append_eos,
        seqio.CacheDatasetPlaceholder(required=False),
    ]
    metrics = plain_metrics(task.dataset, task.subset, task.template)
    definitions = {
        task.name: {
            "source": source(),
            "preprocessors": tokenised,
            "output_features": _output_features(),
            "metric_fns": metrics,
            "postprocess_fn": _strip
            if reads_text(metrics)
            else _ClassIdPostprocessor(task.template),
        }
    }
    if task.template.answer_choices:  # None or "": open-ended
        definitions[task.name + SCORE_EVAL] = {
            "source": source(hide_labels=True),
            "preprocessors": [expand_choices, *tokenised],
            "output_features": _output_features(),
            "metric_fns": [_RankMetric(task.template)],
            "postprocess_fn": t5_postprocessors.rank_classification,
        }
    return definitions
