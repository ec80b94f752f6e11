"""Chooses the engine for each split of the tasks, and divides its work into jobs.

    work = plan_work(plan.splits, RecordOptions(), parts_dir, OpenedSplits(), setup)
    work.row_ranges  # jobs of `prompted_rows`, the largest dataset first
    work.shard_runs  # jobs of `source_shards`
    work.specs       # split of a task -> its records and pieces

The engine `prompted_rows` makes the records of a task if the task's source and preprocessors are
those of `t0.tasks.prompted_tasks`. Tasks on the same split of a dataset share ranges of rows, so
that each row is read once. The two tasks of a template share its rendered text. The ranges depend
only on the split, not on the selected tasks. So a run can use the parts of a killed run, even if
some tasks were finished in between.

The engine `source_shards` makes the records of all other SeqIO tasks, one shard of their source at
a time. A source with one shard, such as a Python generator, is one job. The name of a part contains
a hash of the record of its inputs (`provenance`). If the files of the data are unknown, the name is
random, so that no other run uses the part.
"""

import dataclasses
import functools
import hashlib
import json
import math
import posixpath
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import t0
from t0 import sources
from t0.caching.cache_plan import RecordOptions, Setup, TaskSplit, rows_of_source
from t0.caching.prompted_rows import Prompt, RowRange
from t0.caching.provenance import (
    RECORD_FORMAT,
    bound_values,
    few_shot_fields,
    identify_data,
    provenance,
)
from t0.caching.record_rows import RowSource
from t0.caching.source_shards import ShardRun, runs_of
from t0.caching.split_state import ABSENT, FAILED, SplitOutcome, SplitSpec, exemptions
from t0.catalogue.exemplars import ExemplarTask, describe_lost_separators
from t0.catalogue.prompted_task import check_columns
from t0.compat import seqio
from t0.errors import AbsentData, UserError, original
from t0.files import paths, write_whole
from t0.files.publishing import make_folder
from t0.prompts import text_fields
from t0.sources.json_lines import skips_bad_rows
from t0.tasks import PromptedSource
from t0.tasks.prompted_tasks import expand_choices, form_of, is_prompted, is_prompted_source
from t0.tasks.seqio_order import seqio_order
from t0.tasks.vocabulary import SharedVocabulary, check_vocabularies

MIN_ROWS, MAX_ROWS, RANGES = 500, 50_000, 64

# The dataset's name, its subset, and the dataset's own name for the split.
Data = tuple[str, str | None, str]


@dataclasses.dataclass
class Work:
    """The jobs of a run, separately for each engine.

    Attributes:
      row_ranges: the jobs of `prompted_rows`.
      shard_runs: the jobs of `source_shards`.
      specs: split -> its specification: the form of its records, and its pieces.
      failed: the outcomes of the splits for which no job could be planned.
      model: the tokenizer's model and the id of EOS; None if there are no row ranges.
    """

    row_ranges: list[RowRange] = dataclasses.field(default_factory=list)
    shard_runs: list[ShardRun] = dataclasses.field(default_factory=list)
    specs: dict[TaskSplit, SplitSpec] = dataclasses.field(default_factory=dict)
    failed: list[SplitOutcome] = dataclasses.field(default_factory=list)
    model: tuple[bytes, int] | None = None

    def fail(self, split: TaskSplit, error: BaseException) -> None:
        """Adds the outcome of a split for which no job can be planned."""
        status = ABSENT if isinstance(error, AbsentData) else FAILED
        message = str(error) or type(error).__name__
        self.failed.append(SplitOutcome(split, status, message=message))


class OpenedSplits:
    """Opens each split of a dataset once, on first use, and keeps it open for the run."""

    def __init__(self) -> None:
        self._open = functools.cache(_open_split)

    def rows(self, data: Data) -> sources.SplitRows:
        """Opens and counts the rows of a split on first use, and returns them.

        Raises:
          UserError: if the rows are absent or cannot be read.
        """
        opened = self._open(data)
        if isinstance(opened, UserError):
            raise opened
        return opened

    def rows_of(self, task: seqio.Task, split: str) -> int | None:
        """Returns the number of input rows of a task's split; None if it is unknown.

        Raises:
          AbsentData: if the data cannot be found.
          UserError: if it cannot be read.
        """
        if not is_prompted_source(task.source):
            return rows_of_source(task, split)
        return self.rows(_data(task.source, split)).num_rows


def _open_split(data: Data) -> sources.SplitRows | UserError:
    try:
        split = sources.open_split(*data)
        _ = split.num_rows
        return split
    except UserError as error:
        return error


def _data(source: PromptedSource, split: str) -> Data:
    return source.dataset, source.subset, source.split_mapping[split]


def has_own_form(task: seqio.Task, options: RecordOptions) -> bool:
    """Returns whether `prompted_rows` makes the same records as the task's preprocessors."""
    features = task.output_features
    return (
        is_prompted(task)
        and not options.enable_char_counts
        and set(features) == {"inputs", "targets"}
        and all(
            isinstance(feature.vocabulary, SharedVocabulary)
            and (feature.dtype.name, feature.rank) == ("int32", 1)
            for feature in features.values()
        )
        and (expand_choices not in task.preprocessors or bool(task.source.template.answer_choices))
    )


def plan_work(
    splits: Sequence[TaskSplit],
    options: RecordOptions,
    parts_dir: str,
    opened: OpenedSplits,
    setup: Setup,
) -> Work:
    """Returns the jobs for the splits of tasks, separately for each engine.

    Args:
      splits: the splits to write.
      options: how records are made and written.
      parts_dir: the directory of the parts.
      opened: the opened splits of datasets.
      setup: how a process registers the tasks.

    Raises:
      UserError: if the vocabulary cannot be read.
    """
    tasks = {split.task: seqio.TaskRegistry.get(split.task) for split in splits}
    own = {name for name, task in tasks.items() if has_own_form(task, options)}
    work = Work()
    for split in splits:
        if split.task not in own:
            _add_shard_runs(work, split, options, parts_dir, setup)
    of_own = [split for split in splits if split.task in own]
    if of_own:
        _add_row_ranges(work, of_own, tasks, parts_dir, opened, options)
    return work


def _add_row_ranges(
    work: Work,
    splits: Sequence[TaskSplit],
    tasks: Mapping[str, seqio.Task],
    parts_dir: str,
    opened: OpenedSplits,
    options: RecordOptions,
) -> None:
    by_data: dict[Data, list[TaskSplit]] = {}
    for split in splits:
        by_data.setdefault(_data(tasks[split.task].source, split.name), []).append(split)
    vocabulary = tasks[splits[0].task].output_features["inputs"].vocabulary
    model = vocabulary.sp_model
    work.model = model, vocabulary.eos_id
    few_shot_of = functools.partial(_few_shot_task, opened=opened, parts_dir=parts_dir)
    ranges: list[list[RowRange]] = []
    for data, of_data in by_data.items():
        try:
            rows = opened.rows(data)
            # For data from the hub, there are no local files to identify.
            files = identify_data(tasks[of_data[0].task].source, of_data[0].name) or []
            stem = {
                "format": RECORD_FORMAT,
                "t0": t0.__version__,
                "data": [*data, rows.num_rows, rows.where, *files, *_skipping()],
                "model": hashlib.sha256(model).hexdigest(),
            }
        except UserError as error:
            for split in of_data:
                work.fail(split, error)
            continue
        pieces = _pieces(rows.num_rows)
        prompts = _add_prompts(work, of_data, tasks, rows, stem, data, pieces, options, few_shot_of)
        if prompts:
            ranges.append([RowRange(*data, a, b, prompts, parts_dir) for a, b in pieces])
    ranges.sort(key=lambda some: -some[-1].stop * len(some[-1].prompts))
    work.row_ranges += [job for some in ranges for job in some]


def _pieces(rows: int) -> tuple[tuple[int, int], ...]:
    """Divides the rows of a split into ranges.

    A large split has a few dozen ranges. So all cores have work, and a killed run loses little.

    Returns:
      for each range, the numbers of its first row and of the row after its last row.
    """
    size = min(max(MIN_ROWS, math.ceil(rows / RANGES)), MAX_ROWS)
    return tuple((start, min(start + size, rows)) for start in range(0, rows, size)) or ((0, 0),)


def _add_prompts(
    work: Work,
    splits: Sequence[TaskSplit],
    tasks: Mapping[str, seqio.Task],
    rows: sources.SplitRows,
    stem: Mapping[str, Any],
    data: Data,
    pieces: tuple[tuple[int, int], ...],
    options: RecordOptions,
    few_shot_of: Callable[[PromptedSource, str], tuple[ExemplarTask | None, dict[str, Any]]],
) -> tuple[Prompt, ...]:
    prompts: dict[Any, tuple[ExemplarTask | None, list[SplitSpec]]] = {}
    for split in splits:
        task = tasks[split.task]
        source: PromptedSource = task.source
        try:
            check_columns(source, rows)
            few_shot, few_shot_key = few_shot_of(source, split.name)
        except UserError as error:
            work.fail(split, error)
            continue
        template, choices = source.template, expand_choices in task.preprocessors
        document = source.document_column(rows.columns) if choices else None
        features = task.output_features
        eos = (features["inputs"].add_eos, features["targets"].add_eos)
        key = {
            **stem,
            "template": [template.name, *text_fields(template).values()],
            "seed": source.seed_name,
            "output": [choices, source.hide_labels, *eos, *([document] if document else [])],
            **_unlabelled_key(source, options),
            **few_shot_key,
        }
        spec = work.specs[split] = SplitSpec(
            split,
            key=json.dumps(key, sort_keys=True),
            pieces=pieces,
            choices=choices,
            hide_labels=source.hide_labels,
            keeps_unlabelled=_keeps_unlabelled(source, options),
            eos=eos,
            lengths=options.lengths,
            answer_choices=template.answer_choices is not None and not choices,
            document=document,
            template=template.name,
            row_source=RowSource(*data, template.name, choices),
            exemptions=exemptions(*data, template.name),
            notes=_separator_notes(task),
        )
        _, some = prompts.setdefault(
            (template, source.seed_name, split.name, form_of(source)), (few_shot, [])
        )
        some.append(spec)
    return tuple(
        Prompt(template, seed, tuple(some), few_shot)
        for (template, seed, *_), (few_shot, some) in prompts.items()
    )


def _few_shot_task(
    source: PromptedSource, split: str, *, opened: OpenedSplits, parts_dir: str
) -> tuple[ExemplarTask | None, dict[str, Any]]:
    """Returns the task for the jobs, and an entry for a part's key; None and {} if zero-shot.

    SeqIO's order of the exemplars is stored once, with the parts.

    Raises:
      UserError: if the rows of the exemplars cannot be read.
    """
    form = form_of(source)
    if form is None:
        return None, {}
    settings, order = form.settings, ""
    exemplars = opened.rows(_data(source, settings.split))
    if settings.order:
        counts = exemplars.num_rows, opened.rows(_data(source, split)).num_rows
        numbers = "-".join(map(str, (*counts, settings.k, settings.seed)))
        order = posixpath.join(parts_dir, f"seqio_order.{numbers}.int32")
        if not paths.exists(order):
            make_folder(parts_dir)
            write_whole(order, seqio_order(*counts, k=settings.k, seed=settings.seed).tobytes())
    task = ExemplarTask(
        split,
        form,
        source.dataset,
        source.subset,
        source.template,
        source.seed_name,
        source.split_mapping,
        order,
    )
    files = identify_data(source, settings.split) or []
    key = [*few_shot_fields(form), settings.split, exemplars.num_rows, exemplars.where, *files]
    return task, {"few_shot": key}


def _separator_notes(task: seqio.Task) -> tuple[str, ...]:
    form = form_of(task.source)
    if form is None:
        return ()
    vocabulary = task.output_features["inputs"].vocabulary
    return tuple(describe_lost_separators(form.settings, vocabulary.encode))


def _add_shard_runs(
    work: Work, split: TaskSplit, options: RecordOptions, parts_dir: str, setup: Setup
) -> None:
    try:
        spec = work.specs[split] = _spec_of_source(split, options, setup)
    except Exception as error:  # noqa: BLE001 - sources fail in many ways
        work.fail(split, original(error))
        return
    work.shard_runs += [
        ShardRun(spec, start, stop, spec.source_shards, parts_dir) for start, stop in spec.pieces
    ]


def _spec_of_source(split: TaskSplit, options: RecordOptions, setup: Setup) -> SplitSpec:
    task = seqio.TaskRegistry.get(split.task)
    check_vocabularies(task)
    shards = len(task.source.list_shards(split.name))
    if not shards:
        raise AbsentData(f"{task.name}: no file matches {task.source}")
    key = _key_of_source(task, split.name, options, setup)
    spec = SplitSpec(split, key, runs_of(shards), lengths=options.lengths, source_shards=shards)
    source = task.source
    if not isinstance(source, PromptedSource):
        return spec
    name = source.template.name
    return dataclasses.replace(
        spec,
        # Only tasks for rank evaluation hide labels.
        choices=source.hide_labels,
        hide_labels=source.hide_labels,
        keeps_unlabelled=_keeps_unlabelled(source, options),
        template=name,
        exemptions=exemptions(*_data(source, split.name), name),
        notes=_separator_notes(task),
    )


def _keeps_unlabelled(source: PromptedSource, options: RecordOptions) -> bool:
    return source.keeps_unlabelled or options.allow_hidden_labels


def _unlabelled_key(source: seqio.DataSource, options: RecordOptions) -> dict[str, Any]:
    """Returns an entry for a part's key, or {} if the source keeps rows without a target anyway."""
    if getattr(source, "keeps_unlabelled", True):
        return {}
    return {"keeps_unlabelled": options.allow_hidden_labels}


def _skipping() -> list[str]:
    """Returns an entry for a part's key if bad rows are skipped, otherwise an empty list.

    The key must differ, because skipping a row changes the numbers of all rows after it.
    """
    return ["skip_bad_rows"] if skips_bad_rows() else []


def _key_of_source(task: seqio.Task, split: str, options: RecordOptions, setup: Setup) -> str:
    data = identify_data(task.source, split)
    if data is None:
        return uuid.uuid4().hex
    key = {
        "t0": t0.__version__,
        "task": task.name,
        "split": split,
        "seed": options.base_seed,
        "characters": options.enable_char_counts,
        "data": [*data, *_skipping()],
        "gin": list(setup.gin_param),
        "bound": bound_values(task),
        **_unlabelled_key(task.source, options),
        "inputs": provenance(task, [split], setup.module_import),
    }
    # The key is a short hash, because the whole text would be sent with every job.
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
