"""Defines a prompted task: a template that is applied to a dataset.

    task = PromptedTask("super_glue", "rte", template, {"train": "train"}, {"train": 2490})
    task.name                                       # "super_glue_rte_GPT_3_style"
    rows = task.open("train")
    task.compiled.example(next(rows.rows()), 0)     # inputs, targets, choices as text

A template with answer choices becomes two SeqIO tasks: a plain task and a rank-evaluation task,
whose name ends in `SCORE_EVAL`.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Protocol

from t0.errors import UserError
from t0.prompts import CompiledTemplate, Template, compile_template
from t0.prompts.few_shot import FewShot
from t0.sources import SplitRows, SplitSource, open_split

# The suffix of the names of rank-evaluation tasks.
SCORE_EVAL = "_score_eval"


def task_name(dataset: str, subset: str | None, template: str, suffix: str = "") -> str:
    """Joins dataset, subset and template name into a task's name.

    Letters, digits, `_` and `.` are kept. Each sequence of other characters becomes one `_`, as in
    `task_clean` of the original code.
    """
    joined = "_".join(name for name in (dataset, subset, template) if name is not None)
    return re.sub(r"[^\w\d\._]+", "_", joined) + suffix


def few_shot_name(task: str, few_shot: FewShot) -> str:
    """Returns the name of a task's few-shot form.

    >>> few_shot_name("super_glue_rte_GPT_3_style_score_eval", FewShot(k=4))
    'super_glue_rte_GPT_3_style_4shot_score_eval'
    """
    form = f"{few_shot.k}shot" + (few_shot.suffix and f"_{few_shot.suffix}")
    ranked = SCORE_EVAL if task.endswith(SCORE_EVAL) else ""
    return f"{task.removesuffix(SCORE_EVAL)}_{form}{ranked}"


@dataclasses.dataclass(frozen=True)
class FewShotForm:
    """How a task of a mixture gets its exemplars.

    Attributes:
      settings: how exemplars are drawn and joined.
      templates: (template, name that seeds its random choices) of the prompts that exemplars may
        have; empty if they have the row's own prompt.
    """

    settings: FewShot
    templates: tuple[tuple[Template, str], ...] = ()


class PromptedRows(SplitSource, Protocol):
    """A template that is applied to a dataset: a `PromptedTask`, or a SeqIO task's data source."""

    template: Template

    @property
    def seed_name(self) -> str:
        """The text that seeds random choices, together with the row's index."""

    @property
    def compiled(self) -> CompiledTemplate:
        """The compiled template."""


def open_rows(source: PromptedRows, split: str) -> SplitRows:
    """Opens the rows of a task's split.

    Raises:
      UserError: the split is unknown, its data is missing, or a column that the template uses is
        missing in the data.
    """
    if split not in source.split_mapping:
        raise UserError(
            f"dataset {source.dataset} has no split '{split}' here, it has: "
            + ", ".join(source.split_mapping)
        )
    rows = open_split(source.dataset, source.subset, source.split_mapping[split])
    check_columns(source, rows)
    return rows


def check_columns(source: PromptedRows, rows: SplitRows) -> None:
    """Checks that the rows have the columns that the template uses.

    Raises:
      UserError: a column is missing, or the file is empty, so its columns are unknown.
    """
    missing = source.compiled.missing_columns(rows.columns)
    if missing and not rows.columns:
        raise UserError(f"{rows.where} has no rows. Write rows into it, or remove it")
    if missing:
        no_labels = source.compiled.input_columns.isdisjoint(missing)
        advice = "If this split has no labels, write null for each, or remove its file"
        raise UserError(
            f"template '{source.template.name}' uses the column "
            + ", ".join(f"'{name}'" for name in missing)
            + f", which {rows.where} does not have; its columns: {', '.join(rows.columns)}"
            + f". {advice}" * no_labels
        )


@dataclasses.dataclass(frozen=True)
class PromptedTask:
    """A template that is applied to a dataset.

    It becomes a plain SeqIO task and, if the template has answer choices, a rank-evaluation task.

    Attributes:
      dataset: the dataset's name.
      subset: the dataset's configuration, or None.
      template: the prompt.
      split_mapping: the task's name of a split -> the dataset's name of the split.
      num_rows: the task's name of a split -> number of raw rows. It is a mapping, or a function
        that takes the name and returns the number.
      suffix: the end of the task's name, such as "_r1" for the first round of ANLI.
      few_shot: how exemplars are put before the inputs; None for a zero-shot task.
    """

    dataset: str
    subset: str | None
    template: Template
    split_mapping: Mapping[str, str]
    num_rows: Mapping[str, int] | Callable[[str], int]
    suffix: str = ""
    few_shot: FewShotForm | None = None

    @property
    def name(self) -> str:
        """The name of the plain task."""
        name = self.seed_name
        return few_shot_name(name, self.few_shot.settings) if self.few_shot else name

    @property
    def seed_name(self) -> str:
        """The name of the plain zero-shot task, which seeds random choices."""
        return task_name(self.dataset, self.subset, self.template.name, self.suffix)

    @functools.cached_property
    def compiled(self) -> CompiledTemplate:
        """The compiled template. It makes the same random draws as the registered task."""
        return compile_template(self.template, self.seed_name)

    def size(self, split: str) -> int:
        """Returns the number of raw rows of a split.

        For T0's datasets, the recorded number is returned. In other data, the rows are counted.
        """
        return self.num_rows(split) if callable(self.num_rows) else self.num_rows[split]

    def open(self, split: str) -> SplitRows:
        """Opens the rows of the task's split. See `open_rows` for the errors."""
        return open_rows(self, split)
