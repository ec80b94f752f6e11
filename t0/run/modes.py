"""Finds the function that runs a mode, and calls it.

    carry_out(ConfiguredRun("train", arguments))

On a TPU, this function is Mesh TensorFlow's `run`, which uses TensorFlow's estimator. Without a
TPU, our own code performs the run if it supports the run. If it does not, Mesh TensorFlow's `run`
is called here as well. During this call, functions that do not work on this machine are replaced.
"""

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from t0 import compat
from t0.checkpoints import checkpoint_files
from t0.compat import gin, mesh_utils
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.config.t5_layers import ENCODER_DECODER
from t0.errors import UserError, interruptible
from t0.evaluation import perplexity
from t0.feeding.opening import open_dataset_function
from t0.files import paths
from t0.inference import jobs, text_decoder
from t0.mesh import devices
from t0.run import models, row_prediction, task_evaluation, tpu_checks
from t0.run.configured_run import ConfiguredRun
from t0.training import checkpointing, estimator, loop, model_directory
from t0.training.checkpointing import is_finished
from t0.training.graph import TrainingSpec
from t0.training.loop import LoopOptions
from t0.training.stepping import PREEMPTED


def engine_arguments(*, tpu: str | None) -> dict[str, Any]:
    """Returns the arguments of `run` that depend on the engine, and prints a note about the engine.

    Without a TPU, these arguments describe this machine's mesh, unless the configuration sets a
    mesh shape. Without a TPU, this function also binds the types of variables.
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
    """Returns name -> (value, reason), for the gin parameters that a run without a TPU sets."""
    mesh, _ = devices.local_arguments()
    values = devices.LOCAL_TYPES | {f"run.{name}": value for name, value in mesh.items()}
    return {name: (value, "this machine, without --tpu") for name, value in values.items()}


def carry_out(run: ConfiguredRun) -> None:
    """Performs a configured run."""
    with (
        contextlib.ExitStack() as replaced,
        interruptible(_SAVED_RESULTS.get(run.mode, _NOTHING_SAVED)),
    ):
        if run.checkpoint:
            for name, function in reading_only(run.checkpoint).items():
                replaced.enter_context(compat.replaced(name, function))
        else:
            name = "mesh_utils.get_checkpoint_iterator"
            latest = _with_latest_path(mesh_utils.get_checkpoint_iterator)
            replaced.enter_context(compat.replaced(name, latest))
        carry = _tpu_run if run.arguments["tpu"] else MODES[run.mode]
        carry(run)


# Mode -> the message after Ctrl-C, which reports the saved results and explains how to resume.
# Training prints its own message.
_SAVED_RANKS = "ranked tasks are saved, and the same command resumes with the next one"
_SAVED_RESULTS = {
    "train": "the last checkpoint, if any, is saved, and the same command resumes from it",
    "score_eval": _SAVED_RANKS,
    "eval": f"{_SAVED_RANKS}; tasks that are decoded or measured start again",
    "infer": "predictions of whole batches are saved, and the same command resumes after them",
}
_NOTHING_SAVED = "nothing is saved, and the same command starts again"


def reading_only(checkpoint: str) -> dict[str, Callable[..., Any]]:
    """Returns functions with which Mesh TensorFlow's modes read `checkpoint` and no other one.

    Returns:
      key of `compat.REPLACEABLE` -> the function that replaces it.
    """
    return {
        "mesh_utils.get_checkpoint_iterator": lambda *args, **kwargs: [checkpoint],
        "mesh_utils.get_step_from_checkpoint_path": checkpoint_files.global_step,
    }


def _with_latest_path(published: Callable[..., Any]) -> Callable[..., Any]:
    """Changes Mesh's `get_checkpoint_iterator`, which finds no latest checkpoint without a file."""

    def get_checkpoint_iterator(checkpoint_step: Any, model_dir: str, **options: Any) -> Any:
        if checkpoint_step != -1:
            return published(checkpoint_step, model_dir, **options)
        steps = checkpoint_files.select_steps(model_dir, checkpoint_step)
        return [checkpoint_files.checkpoint_path(model_dir, step) for step in steps]

    return get_checkpoint_iterator


# Substring of a TensorFlow error about a TPU -> the explanation for the user.
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
    """Runs Mesh TensorFlow's `run` on a TPU, and turns errors about the TPU into one line."""
    try:
        run.call_mesh()
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        # The exit status tells bin/tpu_train that the run can be resumed. bin/tpu_train then starts
        # it again.
        message = (str(error).strip().splitlines() or [""])[0][:300]
        print(f"the TPU was lost; the last checkpoint is saved ({message})", file=sys.stderr)
        raise SystemExit(PREEMPTED) from None
    except Exception as error:
        text = str(error)
        remedy = next((remedy for message, remedy in _TPU_FAULTS.items() if message in text), None)
        if remedy is None:
            raise
        message = text.strip().splitlines()[0][:300]
        raise UserError(f"--tpu={run.arguments['tpu']}: {remedy} ({message})") from error


def _train(run: ConfiguredRun) -> None:
    """Trains with our own loop, or with the training function that the user bound."""
    if "train_model_fn" not in run.arguments:
        run.call_mesh()
        return
    arguments = run.read()
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
    """Opens the data and trains on this machine. If training is already finished, does nothing.

    Args:
      spec: the model, batch and optimizer.
      train_dataset_fn: the dataset function that gin binds: T5's function or a user's own function.
      train_steps: the step to stop at, counted from the start of pretraining.
      dataset_split: the split to read.
    """
    with model_directory.lock(spec.model_dir):
        _train_in_directory(spec, train_dataset_fn, train_steps, dataset_split)


def _train_in_directory(
    spec: TrainingSpec, train_dataset_fn: Callable[..., Any], train_steps: int, dataset_split: str
) -> None:
    if is_finished(spec.model_dir, train_steps):
        if not paths.exists(f"{spec.model_dir}/{model_directory.PROMPTS_FILE}"):
            # The model was trained by a version that did not record prompts.
            mixture = bound("mesh_train_dataset_fn.mixture_or_task_name")
            checkpointing.save_prompts(spec.model_dir, mixture, spec.sequence_length)
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


def _perplexity(run: ConfiguredRun) -> None:
    """Evaluates perplexity with Mesh TensorFlow's estimator, and prints the results."""
    get_estimator = perplexity.with_printed_perplexity(mesh_utils.get_estimator)
    with compat.replaced("mesh_utils.get_estimator", get_estimator):
        run.call_mesh()


def _infer(run: ConfiguredRun) -> None:
    """Predicts with our own code, or with Mesh TensorFlow's if ours does not support the run."""
    if row_prediction.RowPredictionSettings().rows:
        row_prediction.predict(run.read(), run.checkpoint)
        return
    model_type = bound("run.model_type", ENCODER_DECODER)
    if not jobs.uses_own_inference(model_type):
        with compat.replaced("mesh_utils.infer_model", _with_latest_step(mesh_utils.infer_model)):
            run.call_mesh()
        return
    arguments = run.read()
    open_model = models.opener(arguments, "tensorflow")
    text_decoder.predict(arguments, open_model, run.checkpoint)


def _with_latest_step(infer_model: Callable[..., None]) -> Callable[..., None]:
    """Changes Mesh's `infer_model`: it reads the latest checkpoint, and does not wait for more."""

    def infer(*args: Any) -> None:
        *others, step = args
        infer_model(*others, -1 if step is None else step)

    return infer


# Mode -> the function that runs it on this machine.
MODES: dict[str, Callable[[ConfiguredRun], None]] = {
    "train": _train,
    "eval": task_evaluation.evaluate,
    "score_eval": task_evaluation.score_eval,
    "perplexity_eval": _perplexity,
    "infer": _infer,
    "score_from_dataset": ConfiguredRun.call_mesh,
    "score_from_strings": ConfiguredRun.call_mesh,
    "export": ConfiguredRun.call_mesh,
    "export_infer": ConfiguredRun.call_mesh,
    "export_score": ConfiguredRun.call_mesh,
}
