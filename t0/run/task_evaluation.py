"""Modes `score_eval` and `eval` without a TPU: ranks, decodes or measures the tasks of a run.

    score_eval(run)         # ranks the answer choices of all tasks
    evaluate(run)           # finds out from its metrics what to do with each task

`t0.evaluation` does the work for every engine. This module reads the configuration, and passes the
tasks, the checkpoints and the function that opens the model.
"""

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from t0 import compat
from t0.checkpoints import checkpoint_files
from t0.compat import mesh_utils
from t0.config.bindings import bound
from t0.config.t5_layers import ENCODER_DECODER
from t0.errors import UserError
from t0.evaluation import decoding, perplexity, ranking
from t0.evaluation.eval_datasets import (
    configured_rows,
    configured_tasks,
    describe_rows,
    select_examples,
)
from t0.evaluation.kinds import DECODE, PERPLEXITY, RANK, kinds_of
from t0.evaluation.mesh_model import both_vocabularies, chosen_checkpoints, vocabulary_hash
from t0.evaluation.model import Ability, OpenModel
from t0.evaluation.settings import EvaluationSettings, given_facts
from t0.evaluation.task_records import rank_task_facts, read_records
from t0.inference import jobs, text_decoder
from t0.run import models, spec_from_gin
from t0.run.configured_run import ConfiguredRun
from t0.run.evaluation_checks import scored_by_mesh


def score_eval(run: ConfiguredRun) -> None:
    """Scores every answer choice, with Mesh TensorFlow's code for language models, else our own."""
    if scored_by_mesh():
        run.call_mesh()
        return
    arguments = run.read()
    rank_tasks(arguments, run.checkpoint, _opener(arguments))


def evaluate(run: ConfiguredRun) -> None:
    """Ranks, decodes or measures each task of the mixture, depending on its metrics."""
    arguments, tasks = run.read(), configured_tasks()
    if tasks is None:
        decode_tasks(run, arguments, _opener(arguments))
        return
    kinds = kinds_of(tasks)
    names = {kind: {task.name for task in members} for kind, members in kinds.items()}
    folder = EvaluationSettings().decoded
    if folder:
        checkpoints, decode = decoding.read_from(folder)
        datasets = _read_datasets(arguments, names.get(DECODE, ()))
        decoding.evaluate(datasets, checkpoints.items(), decode, _text_evaluation(arguments))
        return
    open_model = _opener(arguments)
    if RANK in kinds:
        rank_tasks(arguments, run.checkpoint, open_model, names[RANK])
    if PERPLEXITY in kinds:
        measure_tasks(arguments, run.checkpoint, open_model, names[PERPLEXITY])
    if DECODE in kinds:
        decode_tasks(run, arguments, open_model, names[DECODE])


def _opener(arguments: Mapping[str, Any]) -> OpenModel:
    settings = EvaluationSettings()
    return models.opener(arguments, settings.engine, settings.device)


def _read_datasets(arguments: Mapping[str, Any], names: Collection[str] | None) -> list[Any]:
    """Returns the selected datasets, whose examples have the lengths of the run."""
    return select_examples(arguments["eval_dataset_fn"], names)(
        sequence_length=arguments["sequence_length"],
        vocabulary=arguments["vocabulary"],
        dataset_split=arguments["dataset_split"],
    )


def rank_tasks(
    arguments: Mapping[str, Any],
    checkpoint: str | None,
    open_model: OpenModel,
    names: Collection[str] | None = None,
) -> None:
    """Ranks the answer choices of tasks; None for all tasks."""
    split, lengths = arguments["dataset_split"], arguments["sequence_length"]
    checkpoints = chosen_checkpoints(arguments, checkpoint)
    _, vocabulary = both_vocabularies(arguments["vocabulary"])
    # Records are not truncated here, so that truncation can be counted.
    datasets = _read_datasets({**arguments, "sequence_length": None}, names)
    if not datasets:
        raise UserError(f"no task of the mixture has a split '{split}'")
    spec = spec_from_gin.rank_spec(arguments, checkpoint, vocabulary)
    runs = ranking.describe_runs(
        spec,
        checkpoints,
        checkpoint_files.fingerprint,
        model_dir=arguments["model_dir"],
        split=split,
        lengths=lengths,
    )
    settings = ranking.RankEvaluationSettings(**spec.settings)
    ranking.rank(
        runs,
        spec.folder,
        {
            data.name: (
                rank_task_facts(data.name, split, data.metric_fns),
                functools.partial(read_records, data, split, spec.given.get("examples")),
            )
            for data in datasets
        },
        lengths=lengths,
        open_model=open_model,
        limits=functools.partial(
            ranking.batch_limits, arguments["batch_size"], lengths, vocabulary.vocab_size
        ),
        settings=settings,
        make_decoder=lambda: text_decoder.TextDecoder(arguments, open_model, dtype=settings.dtype),
    )


def measure_tasks(
    arguments: Mapping[str, Any],
    checkpoint: str | None,
    open_model: OpenModel,
    names: Collection[str],
) -> None:
    """Measures the nats per target token of tasks."""
    datasets = _read_datasets(arguments, names)
    features = perplexity.feature_names(datasets)
    dtype = bound("get_variable_dtype.activation_dtype", "float32")
    _, vocabulary = both_vocabularies(arguments["vocabulary"])
    rows = arguments["batch_size"]
    with contextlib.closing(open_model(Ability.MEASURE, dtype=dtype, features=features)) as model:
        perplexity.measure(
            {
                data.name: functools.partial(perplexity.batches_of, data, features, rows)
                for data in datasets
            },
            model,
            checkpoints=chosen_checkpoints(arguments, checkpoint),
            folder=ranking.results_folder(arguments),
            facts={
                "model_dir": arguments["model_dir"],
                "split": arguments["dataset_split"],
                "vocabulary_sha256": vocabulary_hash(vocabulary),
                **given_facts(),
                "sequence_length": dict(arguments["sequence_length"]),
            },
        )


def decode_tasks(
    run: ConfiguredRun,
    arguments: Mapping[str, Any],
    open_model: OpenModel,
    names: Collection[str] | None = None,
) -> None:
    """Decodes tasks, and computes the metrics of the texts; None for all tasks."""

    def evaluate_texts(decode: decoding.Decode) -> None:
        datasets, texts = _read_datasets(arguments, names), _text_evaluation(arguments)
        decoding.evaluate(datasets, _find_checkpoints(arguments), decode, texts)

    on_torch = EvaluationSettings().engine == "torch"  # which refuses what it does not support
    if on_torch or jobs.has_generator(bound("run.model_type", ENCODER_DECODER)):
        evaluate_texts(text_decoder.evaluation_decoder(arguments, open_model))
        return

    def eval_model(make_estimator: Any, *others: Any, **keywords: Any) -> None:
        del others, keywords  # `arguments` has the same values
        evaluate_texts(text_decoder.published_decoder(make_estimator, arguments))

    with compat.replaced("mesh_utils.eval_model", eval_model):
        run.call_mesh()


def _find_checkpoints(arguments: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Yields (step, path) for the configured checkpoints.

    Mesh TensorFlow's function waits for new checkpoints if `run.eval_checkpoint_step` is None.
    """
    for path in mesh_utils.get_checkpoint_iterator(
        arguments["eval_checkpoint_step"], arguments["model_dir"]
    ):
        yield int(mesh_utils.get_step_from_checkpoint_path(path)), path


def _text_evaluation(arguments: Mapping[str, Any]) -> decoding.TextEvaluation:
    stated = given_facts()
    return decoding.TextEvaluation(
        ranking.results_folder(arguments),
        {"model_dir": arguments["model_dir"], "split": arguments["dataset_split"], **stated},
        arguments["sequence_length"],
        written=EvaluationSettings().written_predictions,
        rows_of=lambda name: describe_rows(configured_rows(name), stated.get("examples")),
        writes_texts=arguments["output_eval_examples"],
    )
