"""Mode `score_eval` on Mesh TensorFlow: scores every task of a mixture at each checkpoint.

    rank_evaluate(
        MeshModel("bitransformer", mesh_shape="", layout_rules=""),
        vocabulary=vocabulary, lengths={"inputs": 1024, "targets": 256}, batch_size=64,
        split="validation", model_dir="/models/tiny", datasets=eval_datasets, steps="all",
    )   # /models/tiny/validation_eval/results_1000.json, scores/<task>_1000.jsonl

All engines share the evaluation itself, `t0.scoring.ranking`. This module has the parts for Mesh
TensorFlow: the scorer, the gin settings `score_eval`, and the choice of a reader. If a task's cache
contains final examples, the cache files are read directly. If a prompted task is not read from a
cache, its rows are rendered. Both ways work without TensorFlow. All other tasks are read with
SeqIO.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.checkpoints import checkpoint_files
from t0.compat import gin, mesh_utils, mtf, seqio, t5_mesh, tfds
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.errors import UserError, original
from t0.feeding import opening
from t0.scoring import answers, ranking, records
from t0.scoring.batching import (
    BatchLimits,
    BatchPlan,
    Costs,
    SortedPlan,
    model_costs,
    plan_packed,
    plan_padded,
)
from t0.scoring.examples import RankTaskFacts, ScoringTask
from t0.scoring.mesh_model import (
    MeshModel,
    both_vocabularies,
    build_model,
    chosen_checkpoints,
    vocabulary_hash,
)
from t0.scoring.records import RecordSorter
from t0.scoring.scorer import MeshScorer
from t0.tasks import PromptedSource
from t0.tasks.prompted_tasks import expand_choices

# The parameters of `mesh_eval_dataset_fn` that select a task's records.
_READING = ("num_eval_examples", "shuffle_eval_examples", "seed", "use_cached")

# The number of records that are fetched from TensorFlow together. If they were fetched one at a
# time, most of the time would be Python's overhead.
_RECORDS_AT_ONCE = 512

# The class is registered with gin here and not in its own module, because the PyTorch engine uses
# the class without gin.
RankEvaluationSettings = gin.external_configurable(
    ranking.RankEvaluationSettings, "score_eval", module="t0"
)


def rank_evaluate(  # noqa: PLR0913 (a run's arguments, by name)
    model: MeshModel,
    *,
    vocabulary: Any,
    lengths: Mapping[str, int] | None,
    batch_size: int,
    split: str,
    model_dir: str,
    datasets: Sequence[Any],
    summary_dir: str | None = None,
    steps: Any = None,
    dir_suffix: str | None = None,
    checkpoint: str | None = None,
    facts: Mapping[str, Any] | None = None,
    make_decoder: Callable[..., answers.Decoder] | None = None,
    make_scorer: Callable[[str], ranking.ChoiceScorer] | None = None,
) -> None:
    """Scores tasks at each checkpoint and writes the results.

    Args:
      model: the model's type and mesh.
      vocabulary: one vocabulary, or (inputs, targets).
      lengths: the limits {"inputs": tokens, "targets": tokens}; None for no limits.
      batch_size: the maximum number of full-length sequences in a batch.
      split: the split to score.
      model_dir: the folder of the checkpoints.
      datasets: Mesh TensorFlow's `EvalDataset` of each task, with records that are not truncated.
      summary_dir: the folder for results; by default `<model_dir>/<split>_eval`.
      steps: a step, a list of steps, "all" or None (the latest).
      dir_suffix: a text that is appended to the name of the results folder.
      checkpoint: a checkpoint to score instead of those in `model_dir`, or None.
      facts: additional facts about the run for the results file.
      make_decoder: a function that builds the decoder of answers from the model, the vocabularies,
        `dtype`, `lengths` and `batch_size`; None if answers are not decoded.
      make_scorer: a function that builds another engine's scorer for a type of activations; None to
        use Mesh TensorFlow's scorer.

    Raises:
      UserError: if there is no checkpoint or no task, or a task cannot be scored.
    """
    checkpoints = chosen_checkpoints(model_dir, steps, checkpoint)
    vocabularies = both_vocabularies(vocabulary)
    if not datasets:
        raise UserError(f"no task of the mixture has a split '{split}'")
    settings = ranking.check_settings(RankEvaluationSettings())
    _warn_of_cut_examples()
    runs = [
        {"model_dir": model_dir, "step": step}
        | ranking.run_facts(
            path,
            checkpoint_files.fingerprint(path),
            settings,
            split=split,
            lengths=lengths,
            vocabulary=vocabulary_facts(vocabularies[1]),
            reading=reading_facts(),
        )
        | dict(facts or {})
        for step, path in checkpoints.items()
    ]
    scorers: list[Any] = []
    build_own_scorer = functools.partial(build_mesh_scorer, model, vocabularies)

    def build_scorer() -> ranking.ChoiceScorer:
        scorers.append((make_scorer or build_own_scorer)(settings.dtype))
        return scorers[0]

    def make_plan(tasks: Sequence[ScoringTask], scorer: Any) -> BatchPlan:
        limits = ranking.batch_limits(batch_size, lengths, vocabularies[1].vocab_size, scorer)
        return plan_batches(tasks, scorer, limits, runs[0]["checkpoint"], settings.max_shapes)

    def decoder() -> answers.Decoder:
        for scorer in scorers:
            scorer.close()  # because two models at the same time would need twice the memory
        options = {"dtype": settings.dtype, "lengths": lengths, "batch_size": batch_size}
        return make_decoder(model, vocabularies, **options)

    ranking.rank(
        runs,
        ranking.results_folder(model_dir, split, summary_dir, dir_suffix),
        _ranked_tasks(datasets, split, (facts or {}).get("examples")),
        lengths=lengths,
        make_scorer=build_scorer,
        make_plan=make_plan,
        settings=settings,
        make_decoder=decoder if make_decoder else None,
    )


def _ranked_tasks(
    datasets: Sequence[Any], split: str, examples: int | None
) -> dict[str, ranking.RankedTask]:
    return {
        data.name: (
            rank_task_facts(data.name, split, data.metric_fns),
            functools.partial(_open_records, data, split, examples),
        )
        for data in datasets
    }


def plan_batches(
    tasks: Sequence[ScoringTask], scorer: Any, limits: BatchLimits, checkpoint: str, max_shapes: int
) -> BatchPlan:
    """Plans the batches of all tasks, in the form that the scorer's engine needs.

    Args:
      tasks: all tasks.
      scorer: the scorer of any engine.
      limits: the limits of a batch.
      checkpoint: a checkpoint, from which the model's costs are computed.
      max_shapes: the maximum number of batch shapes in Mesh TensorFlow.
    """
    if not isinstance(scorer, MeshScorer):
        return SortedPlan(limits)
    if not scorer.packs:
        return plan_padded(tasks, limits, most_shapes=max_shapes)
    return plan_packed(tasks, _costs(checkpoint), limits, most_shapes=max_shapes)


def rank_task_facts(
    name: str, split: str, metric_fns: Sequence[Callable[..., Any]] = ()
) -> RankTaskFacts:
    """Returns the facts about a task that are known before its records are read.

    Args:
      name: the task's name. If the task has no prompt, this is also its dataset's name in the
        results.
      split: the split.
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


def _open_records(
    data: Any, split: str, examples: int | None, sorter: RecordSorter
) -> records.ReadRecords:
    """Opens a task's records: from its cache files, from rendered rows, or with SeqIO."""
    name, use_cached = data.name, bool(bound("mesh_eval_dataset_fn.use_cached", False))
    as_registered = (
        name in seqio.TaskRegistry.names()
        and bound("run.eval_dataset_fn") is t5_mesh.mesh_eval_dataset_fn
        and not bound("mesh_eval_dataset_fn.num_eval_examples")
    )
    task = seqio.TaskRegistry.get(name) if as_registered else None
    if task and use_cached and opening.is_all_cached(task):
        files, _ = opening.cache_files(task, split)
        return records.cached_records(name, files, sorter, examples=examples)
    if task and not use_cached and is_prompted(task):
        rendered = records.prompted_records(task.source, split, task.output_features, examples)
        return sorter.sort(map(records.record_of, rendered))
    with tf.Graph().as_default():
        try:
            read = map(records.record_of, _seqio_records(data))
            return sorter.sort(records.sample_records(read, examples))
        except tf.errors.OpError as error:
            raise original(error) from error


def is_prompted(task: seqio.Task) -> bool:
    """Returns whether `records.rendered_rows` can render a task's rows."""
    *steps, last = task.preprocessors
    tokenized = [seqio.preprocessors.tokenize, seqio.preprocessors.append_eos]
    return (
        type(task.source) is PromptedSource
        and steps == [expand_choices, *tokenized]
        and isinstance(last, seqio.CacheDatasetPlaceholder)
    )


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


def reading_facts() -> dict[str, Any]:
    """Returns the parameters of `mesh_eval_dataset_fn` that gin binds and that select records."""
    return {name: bound(f"mesh_eval_dataset_fn.{name}") for name in _READING}


def vocabulary_facts(vocabulary: Any) -> dict[str, Any]:
    """Returns the facts about the vocabulary of targets for a results file."""
    return {
        "vocabulary": getattr(vocabulary, "sentencepiece_model_file", str(vocabulary)),
        "vocabulary_sha256": vocabulary_hash(vocabulary),
        "vocabulary_size": vocabulary.vocab_size,
    }


def _warn_of_cut_examples() -> None:
    records = bound("mesh_eval_dataset_fn.num_eval_examples")
    if records:
        print(
            f"num_eval_examples = {records:,} selects as many choices of each task, not examples: "
            "some choices of the last example may be missing",
            file=sys.stderr,
        )


def build_mesh_scorer(spec: MeshModel, vocabularies: tuple[Any, Any], dtype: str) -> MeshScorer:
    """Builds the configured model with activations of type `dtype`, and returns its scorer."""
    model, placement = build_model(spec, vocabularies)
    types = mesh_utils.get_variable_dtype()
    if dtype == "bfloat16":
        types = mtf.VariableDType(types.master_dtype, tf.bfloat16, tf.bfloat16)
    return MeshScorer(model, types, placement)


def _costs(checkpoint: str) -> Costs:
    checkpoint_variables = checkpoint_files.read(checkpoint)
    return model_costs(
        {n: shape for n, (shape, _) in checkpoint_variables.items() if "_slot_" not in n}
    )
