"""The SeqIO tasks of a prompt, the plain one and the one of rank evaluation.

    task = PromptedTask("super_glue", "rte", template, {"train": "train"}, {"train": 2490})
    task.name                                       # "super_glue_rte_GPT_3_style"
    for name, arguments in task_definitions(task).items():
        seqio.TaskRegistry.add(name, **arguments)   # ... and super_glue_rte_GPT_3_style_score_eval

The source renders each row to a record of strings:

    {"inputs": "... Does this imply ...?", "targets": "Yes", "answer_choices": ["Yes", "No"]}

(`answer_choices` only where the template has them). Rules of the original that are kept: inputs get
no EOS and targets do; the caching point is after tokenisation; a choice is correct where it equals
the stripped target, letter for letter. The source's `reports` count the rows that a template drops,
and those without a label, so that a cache can say what it left out.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from t0.compat import seqio, t5_metrics, t5_postprocessors, t5_preprocessors, tf
from t0.errors import UserError, remembered
from t0.prompts import CompiledTemplate, RowReport, Template
from t0.sources import SplitRows, hidden_label, open_split
from t0.tasks.metrics import plain_metrics, reads_text
from t0.tasks.vocabulary import default_vocabulary

# A rank-evaluation task is its plain task's name with this behind it.
SCORE_EVAL = "_score_eval"


def task_name(dataset: str, subset: str | None, template: str, suffix: str = "") -> str:
    """Joins dataset, subset and template name into a task's name.

    Every run of characters other than letters, digits, `_` and `.` becomes one `_` (the rule of
    the original's `task_clean`).
    """
    joined = "_".join(part for part in (dataset, subset, template) if part is not None)
    return re.sub(r"[^\w\d\._]+", "_", joined) + suffix


class PromptedSource(seqio.DataSource):
    """Rows of a dataset rendered by a template, in the dataset's order.

    Args:
      dataset: the dataset's name, as on the Hugging Face hub.
      subset: its configuration, or None.
      template: the prompt.
      split_mapping: the task's split name -> the dataset's.
      num_rows: the task's split name -> raw rows, or a function that counts them when asked.
      seed_name: what, with the row's index, seeds a template's `choice` filter.
      hide_labels: give a row whose label is withheld the target `<NO LABEL>`, so that no answer
        choice is marked correct (for rank evaluation; most templates would pick the last choice).
    """

    def __init__(
        self,
        *,
        dataset: str,
        subset: str | None,
        template: Template,
        split_mapping: Mapping[str, str],
        num_rows: Mapping[str, int] | Callable[[str], int],
        seed_name: str,
        hide_labels: bool = False,
    ) -> None:
        self.dataset = dataset
        self.subset = subset
        self.template = template
        self.split_mapping = dict(split_mapping)
        self.hide_labels = hide_labels
        self.reports: dict[str, RowReport] = {}
        self._num_rows = num_rows
        self.seed_name = seed_name
        super().__init__(splits=tuple(split_mapping))

    @cached_property
    def compiled(self) -> CompiledTemplate:
        """The template, compiled on first use: registering all of T0 compiles none."""
        return CompiledTemplate(self.template, seed_name=self.seed_name)

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """False: a split is one shard to SeqIO; `t0.caching` plans its own row ranges."""
        return False

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the split's name: one shard, which keeps `idx` unique in rank evaluation."""
        return [split]

    def num_input_examples(self, split: str) -> int:
        """Returns the number of raw rows of `split`: recorded for T0's datasets, else counted."""
        if callable(self._num_rows):
            return self._num_rows(split)
        return self._num_rows[split]

    def open(self, split: str) -> SplitRows:
        """Opens the rows of the task's split.

        Raises:
          UserError: if the split is unknown, its data absent, or the template refers to a column
            that the data lacks.
        """
        if split not in self.split_mapping:
            raise UserError(
                f"dataset {self.dataset} has no split '{split}' here, it has: "
                + ", ".join(self.split_mapping)
            )
        rows = open_split(self.dataset, self.subset, self.split_mapping[split])
        self.check_columns(rows)
        return rows

    def check_columns(self, rows: SplitRows) -> None:
        """Checks that the rows have the columns that the template refers to.

        Raises:
          UserError: if they lack one.
        """
        missing = self.compiled.missing_columns(rows.columns)
        if missing:
            raise UserError(
                f"template '{self.template.name}' uses the column "
                + ", ".join(f"'{name}'" for name in missing)
                + f", which {rows.where} does not have; its columns: {', '.join(rows.columns)}"
            )

    def records(self, split: str) -> Iterator[dict[str, Any]]:
        """Yields the rendered records of `split` as strings, counting what is dropped."""
        rows = self.open(split)
        report = self.reports[split] = RowReport(hide_labels=self.hide_labels)
        with_choices = self.template.answer_choices is not None
        for index, row in enumerate(rows.rows()):
            example = self.compiled.example(row, index)
            withheld = self.hide_labels and hidden_label(self.dataset, row)
            target = report.target(example, withheld, index)
            if target is None:
                continue
            record = {"inputs": example.inputs, "targets": target}
            if with_choices:
                record["answer_choices"] = example.choices
            yield record

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        """Returns the records of `split` as a dataset of strings, in order.

        `shuffle` and `seed` are for sources that shuffle files: there are none here. SeqIO
        shuffles what it reads from a cache, and within a buffer what it reads live.
        """
        del shuffle, seed, unused
        if shard_info and shard_info.num_shards > 1:
            raise UserError(
                f"a split of {self.dataset} is one shard, {shard_info.num_shards} were asked for"
            )
        signature = {
            "inputs": tf.TensorSpec((), tf.string),
            "targets": tf.TensorSpec((), tf.string),
        }
        if self.template.answer_choices is not None:
            signature["answer_choices"] = tf.TensorSpec((None,), tf.string)
        with remembered():
            self.open(split)  # so that absent data is an error now, not in a TensorFlow thread

        def generate() -> Iterator[dict[str, Any]]:
            with remembered():
                yield from self.records(split)

        return tf.data.Dataset.from_generator(generate, output_signature=signature)


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
