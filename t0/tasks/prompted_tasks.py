"""Builds the SeqIO tasks of a prompt: the plain task and the task for rank evaluation.

    task = PromptedTask("super_glue", "rte", template, {"train": "train"}, {"train": 2490})
    task.name                                       # "super_glue_rte_GPT_3_style"
    for name, arguments in task_definitions(task).items():
        seqio.TaskRegistry.add(name, **arguments)   # ... and super_glue_rte_GPT_3_style_score_eval

The source renders each row to a record of strings:

    {"inputs": "... Does this imply ...?", "targets": "Yes", "answer_choices": ["Yes", "No"]}

`answer_choices` exists only if the template has answer choices. If several rows of the dataset
share a text, such as a passage (`t0.sources.documents`), records for rank evaluation also have a
field `document`. Three rules are those of the original code: targets get EOS, but inputs do not;
the caching point is after tokenization; and a choice is correct if it equals the stripped target
exactly. The source's `reports` count the rows that the template drops and the rows without a label.
Caching stores these counts with the cache.
"""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from t0.catalogue import SCORE_EVAL, PromptedTask
from t0.catalogue.exemplars import FewShotPrompts
from t0.catalogue.prompted_task import FewShotForm, few_shot_name, open_rows
from t0.compat import seqio, t5_metrics, t5_postprocessors, t5_preprocessors, tf
from t0.errors import AbsentData, UserError
from t0.prompts import CompiledTemplate, Example, RowReport, Template, compile_template
from t0.prompts.few_shot import Exemplar, describe_exemplars
from t0.prompts.model_prompts import ModelPrompts, RecordedPrompt, count_stored
from t0.prompts.row_report import NOTED
from t0.sources import (
    SplitRows,
    data_dirs,
    document_column,
    document_key,
    hidden_label,
    local_files,
    open_split,
)
from t0.sources.column_kinds import source_kinds
from t0.tasks.metrics import plain_metrics, reads_text
from t0.tasks.ordered_source import TEXT, TEXTS, OrderedSource
from t0.tasks.seqio_order import order_of_split
from t0.tasks.vocabulary import t5_features, tokenized, vocabulary_measure


class PromptedSource(OrderedSource):
    """Rows of a dataset rendered by a template, in the dataset's order.

    Args:
      dataset: the dataset's name, as on the Hugging Face hub.
      subset: the dataset's configuration, or None.
      template: the prompt.
      split_mapping: the task's split name -> the dataset's split name.
      num_rows: the task's split name -> number of raw rows, or a function that counts them.
      seed_name: a text that seeds the template's random draws, together with the row's index.
      hide_labels: whether a row with a withheld label gets the target `<NO LABEL>`, so that no
        answer choice is marked as correct. Rank evaluation needs this, because most templates would
        otherwise make the last choice correct.

    Attributes:
      keeps_unlabelled: whether rows without a target are kept with the target `<NO LABEL>`, for
        predictions. The default is True only for T0's own templates.
      few_shot: puts exemplars before the inputs (`t0.tasks.few_shot_tasks`); None for zero-shot
        prompts.
    """

    few_shot: FewShotPrompts | None = None

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
        self.keeps_unlabelled = template.published
        self.reports: dict[str, RowReport] = {}
        self._num_rows = num_rows
        self.seed_name = seed_name
        self.signature = {"inputs": TEXT, "targets": TEXT}
        if template.answer_choices is not None:
            self.signature["answer_choices"] = TEXTS
        super().__init__(splits=tuple(split_mapping))

    @cached_property
    def compiled(self) -> CompiledTemplate:
        """The compiled template. Jinja compiles it on first use, so that registration is fast."""
        return compile_template(self.template, self.seed_name)

    def num_input_examples(self, split: str) -> int:
        """Returns the number of raw rows of `split`.

        For T0's datasets, the number is recorded in this project. For other datasets, the rows are
        counted.
        """
        if callable(self._num_rows):
            return self._num_rows(split)
        return self._num_rows[split]

    def open(self, split: str) -> SplitRows:
        """Opens the rows of the task's split. See `open_rows` for the errors."""
        return open_rows(self, split)

    def data_files(self, split: str) -> Sequence[Path]:
        """Returns the split's files in the data folders; an empty list for data from the hub."""
        return local_files(self.dataset, self.subset, self.split_mapping[split])

    def document_column(self, columns: Sequence[str]) -> str | None:
        """Returns the column that identifies a row's document; None if there is no such column."""
        return document_column(self.dataset, self.subset, columns) if self.hide_labels else None

    def records(self, split: str) -> Iterator[dict[str, Any]]:
        """Yields the rendered records of `split` as strings, and counts rows in `reports`."""
        return (record for _, record in self.numbered_records(split))

    def numbered_records(
        self, split: str, indices: Iterable[int] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields (row index, record) of each kept row, and counts all rows in `reports`.

        Args:
          indices: the indices of the rows to render, ascending; None for all rows.
        """
        rows = self.open(split)
        document = self.document_column(rows.columns)
        report = self.reports[split] = RowReport(
            hide_labels=self.hide_labels, drops_unlabelled=not self.keeps_unlabelled
        )
        report.count_answers(self.compiled.fixed_choices)
        with_choices = self.template.answer_choices is not None
        chosen = ((index, row) for index in indices or () for row in rows.rows(index, index + 1))
        for index, row in enumerate(rows.rows()) if indices is None else chosen:
            example = self.compiled.example(row, index)
            withheld = self.hide_labels and hidden_label(self.dataset, row)
            target = report.target(example, withheld, index)
            if target is None:
                continue
            inputs = self._inputs(split, index, row, example, report)
            if inputs is None:
                continue
            record = {"inputs": inputs, "targets": target}
            if with_choices:
                record["answer_choices"] = example.choices
            if document:
                record["document"] = document_key(row[document])
            yield index, record
        if self.few_shot is not None:
            self._note_exemplars(split, report.exemplars)
        if indices is None:
            noted = {name: report.counts[name] for name in NOTED if report.counts[name]}
            listed = ", ".join(
                f"{count:,} row{'s' * (count != 1)} {name}" for name, count in noted.items()
            )
            if listed:
                _print_once(f"note: {self.seed_name}, split '{split}': {listed}")

    def _inputs(
        self, split: str, index: int, row: Mapping[str, Any], example: Example, report: RowReport
    ) -> str | None:
        """Returns a row's inputs with their exemplars; None for a row without room for any."""
        if self.few_shot is None:
            return example.inputs
        prompt = self.few_shot.prompt(split, index, row, example)
        return prompt.inputs if report.count_exemplars(prompt, index) else None

    def _note_exemplars(self, split: str, exemplars: Mapping[int, int]) -> None:
        """Prints how many exemplars the rows have, if some rows have fewer than K.

        Raises:
          UserError: no row has an exemplar.
        """
        if exemplars.keys() <= {self.few_shot.few_shot.k}:
            return
        where = f"{self.seed_name}, split '{split}'"
        if exemplars.keys() == {0}:
            raise UserError(
                f"{where}: no exemplar fits before any row: allow longer inputs (--lengths), or "
                "leave the task out"
            )
        _print_once(f"note: {where}: not all exemplars fit. {describe_exemplars(exemplars)}")

    def check(self, split: str) -> None:
        """Checks that the data exists, and completes `signature`, the types of a record's fields.

        If records have the field `document`, this method adds its type.
        """
        rows = self.open(split)
        if self.document_column(rows.columns):
            self.signature["document"] = TEXT


@functools.lru_cache(maxsize=1024)  # the rows are read in every epoch, and for both tasks
def _print_once(note: str) -> None:
    print(note, file=sys.stderr)


@functools.cache
def _overridden(source_type: type[PromptedSource]) -> str:
    """Returns the names of the methods of `PromptedSource` that a subclass overrides."""
    find = inspect.getattr_static
    names = [name for name in dir(PromptedSource) if not name.startswith("_")]
    return ", ".join(n for n in names if find(source_type, n) is not find(PromptedSource, n))


def is_prompted_source(source: seqio.DataSource) -> bool:
    """Returns whether a source's records can be rendered without its methods and without SeqIO.

    Caching and ranking render them from the source's template and dataset, which is faster. That is
    correct for `PromptedSource` and for subclasses that override none of its methods. For other
    subclasses, a note is printed.
    """
    if not isinstance(source, PromptedSource):
        return False
    if names := _overridden(type(source)):
        _print_once(
            f"note: {type(source).__name__} overrides {names} of PromptedSource, so its records "
            "are made with SeqIO, which is slower"
        )
    return not names


def is_prompted(task: seqio.Task) -> bool:
    """Returns whether a task has a prompted source and the steps of `task_definitions`."""
    *steps, last = task.preprocessors
    *tokenizing, _ = tokenized()
    return (
        steps in (tokenizing, [expand_choices, *tokenizing])
        and isinstance(last, seqio.CacheDatasetPlaceholder)
        and is_prompted_source(task.source)
    )


def expand_choices(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Replaces each record {inputs, targets, answer_choices} with one record for each choice.

    Each record has the fields that T5's `rank_classification` preprocessor defines: `idx` [2] (the
    index of the row and of the choice), `inputs`, `targets` (the choice), `is_correct` and `weight`
    (1.0). If the row has a `document`, each of its records has this field also.
    """
    return t5_preprocessors.rank_classification(
        dataset,
        inputs_fn=lambda ex: tf.fill([tf.size(ex["answer_choices"])], ex["inputs"]),
        targets_fn=lambda ex: ex["answer_choices"],
        is_correct_fn=lambda ex: tf.equal(ex["answer_choices"], tf.strings.strip(ex["targets"])),
        weight_fn=lambda ex: 1.0,
        passthrough_feature_keys=[name for name in dataset.element_spec if name == "document"],
    )


def _strip(output_or_target: str, example: Any = None, is_target: bool = False) -> str:
    del example, is_target
    return output_or_target.strip()


class _ClassIdPostprocessor:
    """Maps an output to its index in a template's fixed choices; -1 if no choice equals the output.

    If the choices depend on the row, the output remains text and is stripped.
    """

    def __init__(self, template: Template) -> None:
        self._template = template

    @functools.cached_property
    def _classes(self) -> list[str] | None:
        return compile_template(self._template).fixed_choices

    def __call__(self, output_or_target: str, example: Any = None, is_target: bool = False) -> Any:
        stripped = _strip(output_or_target)
        if not self._classes:
            return stripped
        return t5_postprocessors.string_label_to_class_id(stripped, label_classes=self._classes)


class _RankMetric:
    """T5's `rank_classification` metric, which counts the answer choices only when it is called.

    Counting needs the compiled template. Compiling hundreds of templates would take seconds, so
    templates are not compiled when the tasks are registered.
    """

    def __init__(self, template: Template) -> None:
        self._template = template
        self.__name__ = "rank_classification"

    def rank_classes(self) -> int | None:
        """Returns the number of answer choices if all rows have the same number, otherwise None."""
        fixed = compile_template(self._template).fixed_choices
        return len(fixed) if fixed else None

    def __call__(self, targets: Sequence[Any], scores: Sequence[float]) -> dict[str, float]:
        return t5_metrics.rank_classification(targets, scores, num_classes=self.rank_classes())


def prompts_of_mixture(name: str | None, lengths: Mapping[str, int]) -> ModelPrompts | None:
    """Returns the prompts of a mixture or task, which a run records with the trained model.

    Args:
      name: the name in SeqIO's registry, or None.
      lengths: the limits {"inputs": tokens, "targets": tokens} of the run.

    Returns:
      the prompts; None if no task is made from a prompt.
    """
    registered = {*seqio.MixtureRegistry.names(), *seqio.TaskRegistry.names()}
    tasks = seqio.get_subtasks(seqio.get_mixture_or_task(name)) if name in registered else ()
    recorded, vocabulary = {}, ""
    find_kinds = functools.cache(source_kinds)
    for task in tasks:
        source = task.source
        if isinstance(source, PromptedSource):
            feature = task.output_features["inputs"]
            vocabulary = feature.vocabulary.sentencepiece_model_file
            few_shot = source.few_shot and source.few_shot.few_shot
            name = few_shot_name(source.seed_name, few_shot) if few_shot else source.seed_name
            recorded[name] = RecordedPrompt(
                name,
                "/".join(filter(None, (source.dataset, source.subset))),
                feature.add_eos,
                dataclasses.replace(source.template, where=""),
                find_kinds(source.dataset, source.subset, _training_split(source)),
                few_shot,
                _stored_exemplars(source),
            )
    if not recorded:
        return None
    return ModelPrompts(dict(lengths), vocabulary, tuple(recorded.values()))


def form_of(source: seqio.DataSource) -> FewShotForm | None:
    """Returns how a task's source puts exemplars before inputs; None if its prompts are zero-shot."""
    prompts = getattr(source, "few_shot", None)
    return prompts and prompts.form


def few_shot_prompts(source: PromptedSource, form: FewShotForm) -> FewShotPrompts:
    """Returns what puts exemplars before a task's inputs. It reads them with the first prompt."""

    def read_rows() -> Sequence[Mapping[str, Any]]:
        source.open(form.settings.split)  # checks the columns, which may differ between prompts
        split = source.split_mapping[form.settings.split]
        return _exemplar_rows(source.dataset, source.subset, split, tuple(data_dirs()))

    measure = vocabulary_measure(form.settings.length)
    order = functools.partial(order_of_split, source, form.settings)
    return FewShotPrompts(source, form, read_rows, measure, order)


@functools.lru_cache(maxsize=1)  # the prompts of a dataset have the same rows
def _exemplar_rows(
    dataset: str, subset: str | None, split: str, dirs: tuple[Path, ...]
) -> Sequence[Mapping[str, Any]]:
    del dirs
    return list(open_split(dataset, subset, split).rows())


def _stored_exemplars(source: PromptedSource) -> tuple[Exemplar, ...]:
    form = form_of(source)
    if form is None:
        return ()
    try:
        # A new object, so that a training run does not keep the rows of all datasets in memory.
        exemplars = few_shot_prompts(source, form).stored_exemplars()
        return exemplars[: count_stored(form.settings, exemplars)]
    except AbsentData as error:  # a run may have only the cache
        _print_once(f"note: no exemplars are stored for predictions: {error}")
        return ()


def _training_split(source: PromptedSource) -> str:
    splits = source.split_mapping
    return splits.get("train") or next(iter(splits.values()), "train")


def task_definitions(task: PromptedTask) -> dict[str, dict[str, Any]]:
    """Returns name -> keyword arguments of `seqio.TaskRegistry.add` for a template's tasks.

    The tasks are the plain task and, if the template has answer choices, the `_score_eval` task.
    """

    def source(*, hide_labels: bool = False) -> PromptedSource:
        made = PromptedSource(
            dataset=task.dataset,
            subset=task.subset,
            template=task.template,
            split_mapping=task.split_mapping,
            num_rows=task.num_rows,
            seed_name=task.seed_name,
            hide_labels=hide_labels,
        )
        if task.few_shot is not None:
            made.few_shot = few_shot_prompts(made, task.few_shot)
        return made

    metrics = plain_metrics(task.dataset, task.subset, task.template)
    definitions = {
        task.name: {
            "source": source(),
            "preprocessors": tokenized(),
            "output_features": t5_features(inputs_eos=False),
            "metric_fns": metrics,
            "postprocess_fn": _strip
            if reads_text(metrics)
            else _ClassIdPostprocessor(task.template),
        }
    }
    if task.template.answer_choices:  # None or "": open-ended
        definitions[task.name + SCORE_EVAL] = {
            "source": source(hide_labels=True),
            "preprocessors": [expand_choices, *tokenized()],
            "output_features": t5_features(inputs_eos=False),
            "metric_fns": [_RankMetric(task.template)],
            "postprocess_fn": t5_postprocessors.rank_classification,
        }
    return definitions
