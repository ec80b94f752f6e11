"""Finds the function that runs a mode, and calls it.

    carry_out(ConfiguredRun("train", arguments))

On a TPU, this function is Mesh TensorFlow's `run`, which uses TensorFlow's estimator. Without a
TPU, our own code performs the run if it supports the run. If it does not, Mesh TensorFlow's `run`
is called here as well. During this call, functions that do not work on this machine are replaced.
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
from t0.evaluation import decoded, perplexity
from t0.feeding.opening import ChoiceLosses, open_dataset_function
from t0.files import paths
from t0.inference import jobs, text_decoder
from t0.mesh import devices
from t0.run import arguments as run_arguments
from t0.run import evaluation_dispatch, row_prediction, tpu_checks
from t0.training import checkpointing, estimator, loop, model_directory
from t0.training.checkpointing import is_finished
from t0.training.graph import TrainingSpec
from t0.training.loop import LoopOptions
from t0.training.stepping import PREEMPTED

ENCODER_DECODER = "bitransformer"


@dataclasses.dataclass(frozen=True)
class ConfiguredRun:
    """A run that has been configured and checked.

    Attributes:
      mode: one of `MODES`.
      arguments: the arguments that the command passes to Mesh TensorFlow's `run`. gin has all
        others.
      checkpoint: the checkpoint that the mode reads; None for the checkpoints in the model
        directory.
    """

    mode: str
    arguments: Mapping[str, Any]
    checkpoint: str | None = None

    def read(self) -> dict[str, Any]:
        """Returns all arguments of `run`; see `arguments.read`."""
        return run_arguments.read(self.arguments)


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
    if run.mode == "train" and ChoiceLosses():
        raise UserError(
            "choice_losses is set, and only the PyTorch engine computes T-Few's losses. Add "
            "--engine=torch, or unset choice_losses"
        )
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


def _mesh_run(run: ConfiguredRun) -> None:
    """Runs Mesh TensorFlow's `run`."""
    mesh_utils.run(**run.arguments)


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
    if run.mode in ("eval", "score_eval", "perplexity_eval"):
        evaluation_dispatch.refuse_settings("Mesh TensorFlow evaluates on a TPU")
    try:
        _mesh_run(run)
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
        _mesh_run(run)
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


def _rank(run: ConfiguredRun) -> None:
    """Scores every answer choice, with Mesh TensorFlow's code for language models, else our own."""
    own_scores = bound("run.predict_fn") is not None
    if own_scores or bound("run.model_type", ENCODER_DECODER) != ENCODER_DECODER:
        if bound("score_eval.num_shards", 1) != 1:
            raise UserError(
                "--num_shards is for encoder-decoders without run.predict_fn; Mesh TensorFlow "
                "scores other models"
            )
        scored = "with run.predict_fn" if own_scores else "a language model"
        evaluation_dispatch.refuse_settings(f"Mesh TensorFlow scores {scored}")
        _mesh_run(run)
        return
    if evaluation_dispatch.EvaluationSettings().decoded:
        raise UserError("t0.evaluation.decoded is for mode 'eval'; the mode is 'score_eval'")
    arguments = run.read()
    arguments["eval_dataset_fn"] = evaluation_dispatch.select_examples(arguments["eval_dataset_fn"])
    evaluation_dispatch.rank(arguments, run.checkpoint)


def _evaluate(run: ConfiguredRun) -> None:
    """Ranks, decodes or measures each task of the mixture, depending on its metrics."""
    tasks = evaluation_dispatch.configured_tasks()
    if tasks is None:
        evaluation_dispatch.refuse_settings("your own dataset function reads the examples")
        _decode(run, _decoder(run))
        return
    kinds = evaluation_dispatch.kinds_of(tasks)
    evaluation_dispatch.check_shards(kinds, bound("score_eval.num_shards", 1))
    folder = evaluation_dispatch.EvaluationSettings().decoded
    if folder:
        evaluation_dispatch.refuse_shuffling("the texts have the numbers of unshuffled examples")
        names = [task.name for task in kinds.get(evaluation_dispatch.DECODE, ())]
        with decoded.read_from(folder) as texts:
            _decode(_select_tasks(run, names), texts)
        return
    names_by_kind = {kind: {task.name for task in members} for kind, members in kinds.items()}
    if evaluation_dispatch.RANK in kinds and bound("run.predict_fn") is not None:
        raise UserError(
            f"task {kinds[evaluation_dispatch.RANK][0].name} ranks answer choices, and mode 'eval' "
            "does not call run.predict_fn for them: use --gin_file=score_eval.gin, or unset it"
        )
    arguments = run.read()
    select = functools.partial(evaluation_dispatch.select_examples, arguments["eval_dataset_fn"])
    for kind, evaluate in (
        (evaluation_dispatch.RANK, evaluation_dispatch.rank),
        (evaluation_dispatch.PERPLEXITY, evaluation_dispatch.measure),
    ):
        if kind in names_by_kind:
            evaluate({**arguments, "eval_dataset_fn": select(names_by_kind[kind])}, run.checkpoint)
    if evaluation_dispatch.DECODE in names_by_kind:
        _decode(_select_tasks(run, names_by_kind[evaluation_dispatch.DECODE]), _decoder(run))


def _select_tasks(run: ConfiguredRun, names: Collection[str]) -> ConfiguredRun:
    """Returns the run, limited to some of the mixture's tasks."""
    dataset_fn = run.read()["eval_dataset_fn"]
    selected = {"eval_dataset_fn": evaluation_dispatch.select_examples(dataset_fn, names)}
    return dataclasses.replace(run, arguments={**run.arguments, **selected})


def _decoder(run: ConfiguredRun) -> decoded.Decode | None:
    """Returns a function that decodes with our generator; None if it does not support the model."""
    arguments = run.read()
    torch_engine = evaluation_dispatch.torch_evaluation(arguments)
    if not jobs.has_generator(bound("run.model_type", ENCODER_DECODER)):
        if torch_engine:  # the error names the setting
            jobs.read_decoding_settings(arguments)
        return None
    return text_decoder.evaluation_decoder(arguments, torch_engine and torch_engine.make_generator)


def _decode(run: ConfiguredRun, decode: decoded.Decode | None) -> None:
    """Decodes texts, computes their metrics, and writes the metrics to a results file."""
    facts = evaluation_dispatch.given_facts()
    written = evaluation_dispatch.EvaluationSettings().written_predictions
    eval_model = decoded.with_results(
        decode,
        facts,
        written=written,
        rows_of=lambda name: evaluation_dispatch.describe_rows(
            evaluation_dispatch.configured_rows(name), facts.get("examples")
        ),
    )
    with compat.replaced("mesh_utils.eval_model", eval_model):
        _mesh_run(run)


def _perplexity(run: ConfiguredRun) -> None:
    """Evaluates perplexity with Mesh TensorFlow's estimator, and prints the results."""
    evaluation_dispatch.refuse_settings(
        "Mesh TensorFlow measures perplexity in mode 'perplexity_eval'"
    )
    get_estimator = perplexity.with_printed_perplexity(mesh_utils.get_estimator)
    with compat.replaced("mesh_utils.get_estimator", get_estimator):
        _mesh_run(run)


def _infer(run: ConfiguredRun) -> None:
    """Predicts with our own code, or with Mesh TensorFlow's if ours does not support the run."""
    if row_prediction.RowPredictionSettings().rows:
        row_prediction.predict(run.read(), run.checkpoint)
        return
    model_type = bound("run.model_type", ENCODER_DECODER)
    if not jobs.uses_own_inference(model_type):
        decode = bound("infer_model.decode_fn")
        if decode is mesh_utils.decode_from_dataset and model_type == ENCODER_DECODER:
            raise UserError(
                "infer_from_task.gin continues the text of a task, which only a language model "
                "can; this model is an encoder-decoder. To predict a task's targets, use "
                "--gin_file=runs/infer.gin instead"
            )
        with compat.replaced("mesh_utils.infer_model", _with_latest_step(mesh_utils.infer_model)):
            _mesh_run(run)
        return
    text_decoder.predict(run.read(), run.checkpoint)


def _with_latest_step(infer_model: Callable[..., None]) -> Callable[..., None]:
    """Changes Mesh's `infer_model`: it reads the latest checkpoint, and does not wait for more."""

    def infer(*args: Any) -> None:
        *others, step = args
        infer_model(*others, -1 if step is None else step)

    return infer


# Mode -> the function that runs it on this machine.
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
