"""A SeqIO data source of prompted rows: the rows of one dataset through one template.

Each row becomes a record of strings:

    {"inputs": "... Does this imply ...?", "targets": "Yes", "answer_choices": ["Yes", "No"]}

(`answer_choices` only where the template has them). The rows that a template drops are counted in
`report`, and the first of each kind in `first`, so that a cache can say what it left out; `labels`
counts the rows without a label, and those whose target is none of their answer choices.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from t0.compat import seqio, tf
from t0.errors import UserError, remembered
from t0.prompts import NO_LABEL, CompiledTemplate, Example, Template
from t0.sources import SplitRows, hidden_label, open_split


def _label_faults(example: Example) -> Iterator[str]:
    if example.targets == NO_LABEL:
        yield "no label"
    if example.choices is not None and example.targets not in example.choices:
        yield "target is no choice"


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
        self.report: dict[str, collections.Counter] = {}
        self.labels: dict[str, collections.Counter] = {}
        self.first: dict[str, dict[str, int]] = {}
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
        counts = self.report[split] = collections.Counter(rows=0)
        labels = self.labels[split] = collections.Counter()
        first = self.first[split] = {}
        with_choices = self.template.answer_choices is not None
        for index, row in enumerate(rows.rows()):
            counts["rows"] += 1
            example = self.compiled.example(row, index)
            if example is None:
                counts["rendered nothing"] += 1
                first.setdefault("rendered nothing", index)
                continue
            hidden = self.hide_labels and hidden_label(self.dataset, row)
            counts["hidden label"] += hidden
            if hidden:
                first.setdefault("hidden label", index)
            else:
                for what in _label_faults(example):
                    labels[what] += 1
                    first.setdefault(what, index)
            record = {
                "inputs": example.inputs,
                "targets": NO_LABEL if hidden else example.targets,
            }
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
