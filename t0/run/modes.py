"""The table from a mode to the function that carries it out.

    carry_out(ConfiguredRun("train", arguments))

On a TPU that function is Mesh TensorFlow's `run` with TensorFlow's estimator. On this machine it is
ours; for a mode that our own code does not cover, it is Mesh TensorFlow's `run` as well, and the
functions in it that do not work here are replaced for that call.
"""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from t0 import compat
from t0.checkpoints import checkpoint_files
from t0.compat import gin, mesh_utils
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.errors import UserError, interruptible
from t0.feeding.opening import open_dataset_function
from t0.inference import jobs, predict, text_decoder
from t0.mesh import devices
from t0.run import arguments as run_arguments
from t0.run import evaluation_dispatch, tpu_checks
from t0.scoring import decoded, perplexity
from t0.scoring.mesh_model import MeshModel, both_vocabularies
from t0.training import checkpointing, estimator, loop, model_directory
from t0.training.checkpointing import is_finished
from t0.training.graph import TrainingSpec
from t0.training.loop import LoopOptions
from t0.training.stopping import PREEMPTED

ENCODER_DECODER = "bitransformer"


@dataclasses.dataclass(frozen=True)
class ConfiguredRun:
    """A run that was configured and checked.

    Attributes:
      mode: one of `MODES`.
      arguments: the arguments that the command passes to Mesh TensorFlow's `run`; gin has the rest.
      checkpoint: the checkpoint that the mode reads, or None for those in the model directory.
    """

    mode: str
    arguments: Mapping[str, Any]
    checkpoint: str | None = None

    def read(self) -> dict[str, Any]:
        """Returns all arguments of `run`, prepared, as `arguments.read` does."""
        return run_arguments.read(self.arguments)


def engine_arguments(*, tpu: str | None) -> dict[str, Any]:
    """Returns the arguments of `run` that depend on the engine, and prints a note about it.

    Without a TPU they are this machine's mesh, unless the configuration has a mesh shape of its
    own; and the types of variables are bound.
    """
    ours = bound("run.train_model_fn") in (None, estimator.train_model)
    arguments = {"train_model_fn": estimator.train_model} if ours else {}
    if tpu:
        return arguments
    for name, value in devices.LOCAL_TYPES.items():
        gin.bind_parameter(name, value)
    mesh, note = devices.local_arguments()
    print(note, file=sys.stderr)
    return arguments | mesh


def local_parameters() -> dict[str, tuple[Any, str]]:
    """Returns the gin parameters that a run without a TPU sets: name -> value and the reason."""
    mesh, _ = devices.local_arguments()
    values = devices.LOCAL_TYPES | {f"run.{name}": value for name, value in mesh.items()}
    return {name: (value, "this machine, without --tpu") for name, value in values.items()}


def carry_out(run: ConfiguredRun) -> None:
    """Carries out a run."""
    with contextlib.ExitStack() as replaced, interruptible(_KEPT.get(run.mode, _NOTHING)):
        if run.checkpoint:
            for name, function in reading_only(run.checkpoint).items():
                replaced.enter_context(compat.replaced(name, function))
        carry = _tpu_run if run.arguments["tpu"] else MODES[run.mode]
        carry(run)


# Mode -> what Ctrl-C keeps, and how to resume; training saves, and prints that itself.
_RANKED = "the tasks that were ranked are kept, and the same command resumes with the next one"
_KEPT = {
    "train": "the last checkpoint, if any, is kept, and the same command resumes from it",
    "score_eval": _RANKED,
    "eval": f"{_RANKED}; tasks that are decoded or measured start again",
    "infer": "the predictions of whole batches are kept, and the same command resumes after them",
}
_NOTHING = "nothing is kept, and the same command starts again"


def reading_only(checkpoint: str) -> dict[str, Callable[..., Any]]:
    """Returns replacements by which Mesh TensorFlow's modes read `checkpoint` for every step.

    Returns:
      name in `compat.REPLACEABLE` -> function.
    """
    return {
        "mesh_utils.get_checkpoint_iterator": lambda *args, **kwargs: [checkpoint],
        "mesh_utils.get_step_from_checkpoint_path": checkpoint_files.global_step,
    }


def _mesh_run(run: ConfiguredRun) -> None:
    """Runs Mesh TensorFlow's `run`."""
    mesh_utils.run(**run.arguments)


# What TensorFlow says of a TPU that it cannot use -> what a user can do.
_TPU_FAULTS = {
    "Cannot find any TPU": "TensorFlow found no TPU cores. Does another process on the TPU VM use "
    "them (sudo lsof -w /dev/accel*)? Is the image a -se one?",
    "Could not lookup TPU metadata": "TensorFlow's client could not look the TPU up",
    "Application Default Credentials are not available": "no credentials for the TPU API: "
    "gcloud auth application-default login",
    "is not yet ready": "the TPU is not ready; it may have been preempted",
    "Failed to connect to": "the TPU's TensorFlow server does not answer",
    "Missing runtime dependency on the Google API client": "packages are missing: "
    f"{tpu_checks.INSTALL}",
}


def _tpu_run(run: ConfiguredRun) -> None:
    """Runs Mesh TensorFlow's `run` on a TPU; TensorFlow's error about the TPU becomes one line."""
    if run.mode in ("eval", "score_eval", "perplexity_eval"):
        evaluation_dispatch.refuse_settings("Mesh TensorFlow evaluates on a TPU")
    try:
        _mesh_run(run)
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        # The status of a run that can be resumed; a loop starts it again (bin/tpu_train).
        said = (str(error).strip().splitlines() or [""])[0][:300]
        print(f"the TPU was lost; the last checkpoint is kept ({said})", file=sys.stderr)
        raise SystemExit(PREEMPTED) from None
    except Exception as error:
        text = str(error)
        remedy = next((remedy for said, remedy in _TPU_FAULTS.items() if said in text), None)
        if remedy is None:
            raise
        said = text.strip().splitlines()[0][:300]
        raise UserError(f"--tpu={run.arguments['tpu']}: {remedy} ({said})") from error


def _train(run: ConfiguredRun) -> None:
    """Trains by our own loop, or by the training function that the user bound."""
    if "train_model_fn" not in run.arguments:
        _mesh_run(run)
        return
    arguments = run.read()
    loop.check_input_options(
        skip_seen_data=arguments["skip_seen_data"],
        checkpoint_input_pipeline=arguments["checkpoint_input_pipeline"],
    )
    train_here(
        TrainingSpec.from_estimator_arguments(**arguments),
        arguments["train_dataset_fn"],
        train_steps=arguments["train_steps"],
        dataset_split=arguments["dataset_split"],
    )


def train_here(
    spec: TrainingSpec,
    train_dataset_fn: Callable[..., Any],
    *,
    train_steps: int,
    dataset_split: str = "train",
) -> None:
    """Opens the data and trains on this machine, unless the model directory is at its last step.

    Args:
      spec: the model, batch and optimizer.
      train_dataset_fn: T5's dataset function, or one of the user's own, as gin binds it.
      train_steps: the step to stop at, counted from the start of pretraining.
      dataset_split: which split is read.
    """
    with model_directory.lock(spec.model_dir):
        _train_in_directory(spec, train_dataset_fn, train_steps, dataset_split)


def _train_in_directory(
    spec: TrainingSpec, train_dataset_fn: Callable[..., Any], train_steps: int, dataset_split: str
) -> None:
    for line in checkpointing.repair_latest_checkpoint_file(spec.model_dir):
        print(line, flush=True)
    if is_finished(spec.model_dir, train_steps):
        return
    options = LoopOptions(train_steps)
    data = open_dataset_function(
        train_dataset_fn,
        options.seed,
        sequence_length=spec.sequence_length,
        vocabulary=spec.vocabulary,
        dataset_split=dataset_split,
    )
    loop.train(spec, data, options)


def _rank(run: ConfiguredRun) -> None:
    """Scores every answer choice by our rank evaluation; a language model by Mesh TensorFlow's."""
    if bound("run.model_type", ENCODER_DECODER) != ENCODER_DECODER:
        if bound("score_eval.num_shards", 1) != 1:
            raise UserError("--num_shards is for encoder-decoders; Mesh TensorFlow scores the rest")
        evaluation_dispatch.refuse_settings("Mesh TensorFlow scores a language model")
        _mesh_run(run)
        return
    if evaluation_dispatch.EvaluationSettings().decoded:
        raise UserError("t0.evaluation.decoded is read in mode 'eval'; the mode is 'score_eval'")
    arguments = run.read()
    arguments["eval_dataset_fn"] = evaluation_dispatch.select_examples(arguments["eval_dataset_fn"])
    evaluation_dispatch.rank(arguments, run.checkpoint)


def _evaluate(run: ConfiguredRun) -> None:
    """Ranks, decodes or measures each task of the mixture, by its metrics."""
    tasks = evaluation_dispatch.configured_tasks()
    if tasks is None:
        evaluation_dispatch.refuse_settings("a dataset function of your own reads the examples")
        _decode(run, _decoder(run))
        return
    kinds = evaluation_dispatch.kinds_of(tasks)
    evaluation_dispatch.check_shards(kinds)
    folder = evaluation_dispatch.EvaluationSettings().decoded
    if folder:
        names = [task.name for task in kinds.get(evaluation_dispatch.DECODE, ())]
        with decoded.read_from(folder) as texts:
            _decode(_of_tasks(run, names), texts)
        return
    names_by_kind = {kind: {task.name for task in members} for kind, members in kinds.items()}
    arguments = run.read()
    select = functools.partial(evaluation_dispatch.select_examples, arguments["eval_dataset_fn"])
    for kind, judge in (
        (evaluation_dispatch.RANK, evaluation_dispatch.rank),
        (evaluation_dispatch.PERPLEXITY, evaluation_dispatch.measure),
    ):
        if kind in names_by_kind:
            judge({**arguments, "eval_dataset_fn": select(names_by_kind[kind])}, run.checkpoint)
    if evaluation_dispatch.DECODE in names_by_kind:
        _decode(_of_tasks(run, names_by_kind[evaluation_dispatch.DECODE]), _decoder(run))


def _of_tasks(run: ConfiguredRun, names: Collection[str]) -> ConfiguredRun:
    """Returns the evaluation of some of the mixture's tasks."""
    dataset_fn = run.read()["eval_dataset_fn"]
    selected = {"eval_dataset_fn": evaluation_dispatch.select_examples(dataset_fn, names)}
    return dataclasses.replace(run, arguments={**run.arguments, **selected})


def _decoder(run: ConfiguredRun) -> decoded.Decode | None:
    """Returns the function that decodes with our generator; None if only Mesh TensorFlow can."""
    if not jobs.has_generator(bound("run.model_type", ENCODER_DECODER)):
        return None
    arguments = run.read()
    model = MeshModel.from_estimator_arguments(arguments)
    vocabularies = both_vocabularies(arguments["vocabulary"])
    return text_decoder.evaluation_decoder(
        model,
        jobs.RunArguments(vocabularies, arguments["sequence_length"], arguments["batch_size"]),
    )


def _decode(run: ConfiguredRun, decode: decoded.Decode | None) -> None:
    """Evaluates decoded texts, and writes the metrics to a results file."""
    eval_model = decoded.with_results(mesh_utils.eval_model, decode)
    with compat.replaced("mesh_utils.eval_model", eval_model):
        _mesh_run(run)


def _perplexity(run: ConfiguredRun) -> None:
    """Evaluates perplexity by Mesh TensorFlow's estimator, which prints the results."""
    evaluation_dispatch.refuse_settings(
        "Mesh TensorFlow measures perplexity in mode 'perplexity_eval'"
    )
    get_estimator = perplexity.with_printed_perplexity(mesh_utils.get_estimator)
    with compat.replaced("mesh_utils.get_estimator", get_estimator):
        _mesh_run(run)


def _infer(run: ConfiguredRun) -> None:
    """Predicts by our inference, or by Mesh TensorFlow's where ours does not cover the run."""
    model_type = bound("run.model_type", ENCODER_DECODER)
    if not jobs.uses_own_inference(model_type):
        decode = bound("infer_model.decode_fn")
        if decode is mesh_utils.decode_from_dataset and model_type == ENCODER_DECODER:
            raise UserError(
                "infer_from_task.gin continues the text of a task, which only a language model "
                "can; this model is an encoder-decoder. To predict a task's targets: "
                "--gin_file=runs/infer.gin in its place"
            )
        with compat.replaced("mesh_utils.infer_model", _with_latest_step(mesh_utils.infer_model)):
            _mesh_run(run)
        return
    arguments = run.read()
    predict.predict(
        MeshModel.from_estimator_arguments(arguments),
        vocabulary=arguments["vocabulary"],
        lengths=arguments["sequence_length"],
        batch_size=arguments["batch_size"],
        model_dir=arguments["model_dir"],
        steps=arguments["eval_checkpoint_step"],
        checkpoint=run.checkpoint,
    )


def _with_latest_step(infer_model: Callable[..., None]) -> Callable[..., None]:
    """Returns Mesh's `infer_model`, reading the latest checkpoint where it would wait for more."""

    def infer(*args: Any) -> None:
        *others, step = args
        infer_model(*others, -1 if step is None else step)

    return infer


# Mode -> the function that carries it out on this machine.
MODES: dict[str, Callable[[ConfiguredRun], None]] = {
    "train": _train,
    "eval": _evaluate,
    "score_eval": _rank,
    "perplexity_eval": _perplexity,
    "infer": _infer,
    "score_from_dataset": _mesh_run,
    "score_from_strings": _mesh_run,
    "export": _mesh_run,
    "export_infer": _mesh_run,
    "export_score": _mesh_run,
}
