"""Mode `score_eval` on Mesh TensorFlow: scores every task of a mixture at each checkpoint.

    rank_evaluate(arguments)    # as `t0.run.arguments.read` returns them
    # /models/tiny/validation_eval/results_1000.json, scores/<task>_1000.jsonl

All engines share the evaluation itself, `t0.evaluation.ranking`. This module has the parts for Mesh
TensorFlow: the scorer, the gin settings `score_eval`, and the choice of a reader. If a task's cache
contains final examples, the cache files are read directly. If a prompted task is not read from a
cache, its rows are rendered. Both ways work without TensorFlow. All other tasks are read with
SeqIO.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.checkpoints import checkpoint_files
from t0.compat import gin, seqio, t5_mesh, tfds
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.errors import UserError, original
from t0.evaluation import ranking, records
from t0.evaluation.batching import BatchPlan, SortedPlan, model_costs, plan_packed, plan_padded
from t0.evaluation.examples import RankTaskFacts, ScoringTask
from t0.evaluation.mesh_model import (
    both_vocabularies,
    build_model,
    chosen_checkpoints,
    vocabulary_hash,
)
from t0.evaluation.rank_metrics import Decoder
from t0.evaluation.scorer import MeshScorer
from t0.feeding import opening
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


def rank_evaluate(
    arguments: Mapping[str, Any],
    checkpoint: str | None = None,
    *,
    facts: Mapping[str, Any] | None = None,
    make_decoder: Callable[..., Decoder] | None = None,
    make_scorer: Callable[[str], ranking.ChoiceScorer] | None = None,
) -> None:
    """Scores tasks at each checkpoint and writes the results.

    Args:
      arguments: the arguments of the run, as `t0.run.arguments.read` returns them.
      checkpoint: a checkpoint to score instead of those in the model directory, or None.
      facts: additional facts about the run for the results file.
      make_decoder: a function that builds the decoder of answers from the arguments and `dtype`;
        None if answers are not decoded.
      make_scorer: a function that builds another engine's scorer for a type of activations; None to
        use Mesh TensorFlow's scorer.

    Raises:
      UserError: if there is no checkpoint or no task, or a task cannot be scored.
    """
    split, lengths = arguments["dataset_split"], arguments["sequence_length"]
    checkpoints = chosen_checkpoints(arguments, checkpoint)
    _, vocabulary = both_vocabularies(arguments["vocabulary"])
    # Records are not truncated here, so that truncation can be counted.
    datasets = arguments["eval_dataset_fn"](
        sequence_length=None, vocabulary=arguments["vocabulary"], dataset_split=split
    )
    if not datasets:
        raise UserError(f"no task of the mixture has a split '{split}'")
    settings = RankEvaluationSettings()
    more_facts = dict(facts or {})
    runs = [
        {"model_dir": arguments["model_dir"], "step": step}
        | ranking.run_facts(
            path,
            checkpoint_files.fingerprint(path),
            settings,
            split=split,
            lengths=lengths,
            vocabulary=vocabulary_facts(vocabulary),
            reading=reading_facts(),
        )
        | more_facts
        for step, path in checkpoints.items()
    ]
    scorers: list[Any] = []

    def build_scorer() -> ranking.ChoiceScorer:
        build = make_scorer or functools.partial(build_mesh_scorer, arguments)
        scorers.append(build(settings.dtype))
        return scorers[0]

    def decoder() -> Decoder:
        for scorer in scorers:
            scorer.close()  # because two models at the same time would need twice the memory
        return make_decoder(arguments, dtype=settings.dtype)

    ranking.rank(
        runs,
        ranking.results_folder(arguments),
        {
            data.name: (
                rank_task_facts(data.name, split, data.metric_fns),
                functools.partial(_read_records, data, split, more_facts.get("examples")),
            )
            for data in datasets
        },
        lengths=lengths,
        make_scorer=build_scorer,
        make_plan=functools.partial(
            plan_batches, arguments=arguments, checkpoint=runs[0]["checkpoint"]
        ),
        settings=settings,
        make_decoder=decoder if make_decoder else None,
    )


def plan_batches(
    tasks: Sequence[ScoringTask], scorer: Any, arguments: Mapping[str, Any], checkpoint: str
) -> BatchPlan:
    """Plans the batches of all tasks, in the form that the scorer's engine needs.

    Args:
      tasks: all tasks.
      scorer: the scorer of any engine.
      arguments: the arguments of the run.
      checkpoint: a checkpoint, from which the model's costs are computed.
    """
    _, vocabulary = both_vocabularies(arguments["vocabulary"])
    limits = ranking.batch_limits(
        arguments["batch_size"], arguments["sequence_length"], vocabulary.vocab_size, scorer
    )
    if not isinstance(scorer, MeshScorer):
        return SortedPlan(limits)
    most = RankEvaluationSettings().max_shapes
    if not scorer.packs:
        return plan_padded(tasks, limits, most_shapes=most)
    variables = checkpoint_files.read(checkpoint).items()
    costs = model_costs({n: shape for n, (shape, _) in variables if "_slot_" not in n})
    return plan_packed(tasks, costs, limits, most_shapes=most)


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


def _read_records(data: Any, split: str, examples: int | None, by_row: bool) -> records.TaskRecords:
    """Returns a task's records: from its cache files, from rendered rows, or with SeqIO."""
    name, use_cached = data.name, bool(bound("mesh_eval_dataset_fn.use_cached", False))
    registered = (
        name in seqio.TaskRegistry.names()
        and bound("run.eval_dataset_fn") is t5_mesh.mesh_eval_dataset_fn
    )
    task = seqio.TaskRegistry.get(name) if registered else None
    options = {"examples": examples, "by_row": by_row}
    if task and first_records() is None:
        if use_cached and opening.is_all_cached(task):
            return records.cached_records(name, opening.cache_files(task, split)[0], **options)
        if not use_cached and is_prompted(task):
            features = task.output_features
            return records.prompted_records(task.source, split, features, **options)
    find = opening.find_rows(task, split, use_cached=use_cached) if task and by_row else None
    rows, read = find and find(), _choices_of(data)
    if rows and examples is not None and first_records() is not None:  # a sample of the first
        first = [*read]
        rows, read = rows.first(first[-1].example + 1 if first else 0), iter(first)
    return records.number_records(read, rows, **options)


def _choices_of(data: Any) -> Iterator[records.ChoiceRecord]:
    with tf.Graph().as_default():
        try:
            yield from map(records.record_of, _seqio_records(data))
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


def first_records() -> int | None:
    """Returns the number of records of each task that are evaluated; None for all of them.

    Raises:
      UserError: `mesh_eval_dataset_fn.num_eval_examples` is not a number of records.
    """
    count = bound("mesh_eval_dataset_fn.num_eval_examples")
    if count is not None and (type(count) is not int or not count):
        raise UserError(
            f"mesh_eval_dataset_fn.num_eval_examples is {count!r}; expected a whole number from 1, "
            "or -1 for all examples"
        )
    return count if count and count > 0 else None


def vocabulary_facts(vocabulary: Any) -> dict[str, Any]:
    """Returns the facts about the vocabulary of targets for a results file."""
    return {
        "vocabulary": getattr(vocabulary, "sentencepiece_model_file", str(vocabulary)),
        "vocabulary_sha256": vocabulary_hash(vocabulary),
        "vocabulary_size": vocabulary.vocab_size,
    }


def build_mesh_scorer(arguments: Mapping[str, Any], dtype: str) -> MeshScorer:
    """Builds the configured model with activations of type `dtype`, and returns its scorer."""
    return MeshScorer(*build_model(arguments, tf.as_dtype(dtype)))
