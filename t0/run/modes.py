"""The table from a mode and an engine to the function that carries it out.

    carry_out(Request(mode="train", engine="local", ...))

Engine "local" computes on this machine; "tpu" is Mesh TensorFlow's `run` with TensorFlow's
estimator. For a mode that our own code does not cover, the local engine is Mesh TensorFlow's `run`
as well, and the functions in it that do not work here are replaced for that call.
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
from t0.run import by_kind, tpu_checks
from t0.scoring import decoded, perplexity
from t0.scoring.mesh_model import MeshModel, both_vocabularies
from t0.training import checkpointing, estimator, loop, model_directory
from t0.training.checkpointing import is_finished
from t0.training.graph import TrainingSpec
from t0.training.loop import LoopOptions
from t0.training.stopping import PREEMPTED

ENCODER_DECODER = "bitransformer"


@dataclasses.dataclass(frozen=True)
class Request:
    """A run that was configured and checked.

    Attributes:
      mode: one of `MODES`.
      engine: "local" or "tpu".
      arguments: the arguments that the command passes to Mesh TensorFlow's `run`; gin has the rest.
      checkpoint: the checkpoint that the mode reads, or None for those in the model directory.
    """

    mode: str
    engine: str
    arguments: Mapping[str, Any]
    checkpoint: str | None = None


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


def carry_out(request: Request) -> None:
    """Carries out a run."""
    with contextlib.ExitStack() as replaced, interruptible(_KEPT.get(request.mode, _NOTHING)):
        if request.checkpoint:
            for name, function in reading_only(request.checkpoint).items():
                replaced.enter_context(compat.replaced(name, function))
        MODES[request.mode][request.engine](request)


# Mode -> what Ctrl-C leaves, and how to go on; training saves, and says that itself.
_RANKED = "the tasks that were ranked are kept, and the same command goes on with the next one"
_KEPT = {
    "train": "the last checkpoint, if any, is kept, and the same command goes on from there",
    "score_eval": _RANKED,
    "eval": f"{_RANKED}; tasks that are decoded or measured begin again",
    "infer": "the predictions of whole batches are kept, and the same command goes on after them",
}
_NOTHING = "nothing is kept, and the same command begins again"


def reading_only(checkpoint: str) -> dict[str, Callable[..., Any]]:
    """Returns replacements by which Mesh TensorFlow's modes read `checkpoint` for every step.

    Returns:
      name in `compat.REPLACEABLE` -> function.
    """
    return {
        "mesh_utils.get_checkpoint_iterator": lambda *args, **kwargs: [checkpoint],
        "mesh_utils.get_step_from_checkpoint_path": checkpoint_files.global_step,
    }


def _mesh_run(request: Request) -> None:
    """Runs Mesh TensorFlow's `run`."""
    mesh_utils.run(**request.arguments)


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


def _tpu_run(request: Request) -> None:
    """Runs Mesh TensorFlow's `run` on a TPU; what TensorFlow says of the TPU becomes one line."""
    if request.mode in ("eval", "score_eval", "perplexity_eval"):
        by_kind.refuse_settings("Mesh TensorFlow evaluates on a TPU")
    try:
        _mesh_run(request)
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
        raise UserError(f"--tpu={request.arguments['tpu']}: {remedy} ({said})") from error


def _train(request: Request) -> None:
    """Trains by our own loop, or by the training function that the user bound."""
    if "train_model_fn" not in request.arguments:
        _mesh_run(request)
        return
    arguments = run_arguments.read(request.arguments)
    loop.check_input_options(
        skip_seen_data=arguments["skip_seen_data"],
        checkpoint_input_pipeline=arguments["checkpoint_input_pipeline"],
    )
    train_here(
        TrainingSpec.from_estimator_arguments(**run_arguments.estimator_keywords(arguments)),
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
    for line in checkpointing.name_again(spec.model_dir):
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


def _rank(request: Request) -> None:
    """Scores every answer choice by our rank evaluation; a language model by Mesh TensorFlow's."""
    if bound("run.model_type", ENCODER_DECODER) != ENCODER_DECODER:
        if bound("score_eval.num_shards", 1) != 1:
            raise UserError("--num_shards is for encoder-decoders; Mesh TensorFlow scores the rest")
        by_kind.refuse_settings("Mesh TensorFlow scores a language model")
        _mesh_run(request)
        return
    if by_kind.EvaluationSettings().decoded:
        raise UserError("t0.evaluation.decoded is read in mode 'eval'; the mode is 'score_eval'")
    arguments = run_arguments.read(request.arguments)
    arguments["eval_dataset_fn"] = by_kind.selected(arguments["eval_dataset_fn"])
    by_kind.rank(arguments, request.checkpoint)


def _evaluate(request: Request) -> None:
    """Ranks, decodes or measures each task of the mixture, by what the task is for."""
    tasks = by_kind.configured_tasks()
    if tasks is None:
        by_kind.refuse_settings("a dataset function of your own reads the examples")
        _decode(request, _decoder(request))
        return
    kinds = by_kind.kinds_of(tasks)
    by_kind.check_shards(kinds)
    folder = by_kind.EvaluationSettings().decoded
    if folder:
        names = [task.name for task in kinds.get(by_kind.DECODE, ())]
        with decoded.read_from(folder) as texts:
            _decode(_of_tasks(request, names), texts)
        return
    wanted = {kind: {task.name for task in found} for kind, found in kinds.items()}
    arguments = run_arguments.read(request.arguments)
    select = functools.partial(by_kind.selected, arguments["eval_dataset_fn"])
    for kind, judge in ((by_kind.RANK, by_kind.rank), (by_kind.PERPLEXITY, by_kind.measure)):
        if kind in wanted:
            judge({**arguments, "eval_dataset_fn": select(wanted[kind])}, request.checkpoint)
    if by_kind.DECODE in wanted:
        _decode(_of_tasks(request, wanted[by_kind.DECODE]), _decoder(request))


def _of_tasks(request: Request, names: Collection[str]) -> Request:
    """Returns the evaluation of some of the mixture's tasks."""
    dataset_fn = run_arguments.read(request.arguments)["eval_dataset_fn"]
    selected = {"eval_dataset_fn": by_kind.selected(dataset_fn, names)}
    return dataclasses.replace(request, arguments={**request.arguments, **selected})


def _decoder(request: Request) -> decoded.Decode | None:
    """Returns the function that decodes with our generator; None if only Mesh TensorFlow can."""
    if not jobs.has_generator(bound("run.model_type", ENCODER_DECODER)):
        return None
    arguments = run_arguments.read(request.arguments)
    run = jobs.RunArguments(
        both_vocabularies(arguments["vocabulary"]),
        arguments["sequence_length"],
        arguments["batch_size"],
    )
    model = MeshModel.from_estimator_arguments(run_arguments.estimator_keywords(arguments))
    return text_decoder.evaluation_decoder(model, run)


def _decode(request: Request, decode: decoded.Decode | None) -> None:
    """Evaluates decoded texts, and writes the metrics to a results file."""
    eval_model = decoded.with_results(mesh_utils.eval_model, decode)
    with compat.replaced("mesh_utils.eval_model", eval_model):
        _mesh_run(request)


def _perplexity(request: Request) -> None:
    """Evaluates perplexity by Mesh TensorFlow's estimator, which prints the results."""
    by_kind.refuse_settings("Mesh TensorFlow measures perplexity in mode 'perplexity_eval'")
    get_estimator = perplexity.with_printed_perplexity(mesh_utils.get_estimator)
    with compat.replaced("mesh_utils.get_estimator", get_estimator):
        _mesh_run(request)


def _infer(request: Request) -> None:
    """Predicts by our inference, or by Mesh TensorFlow's where ours does not cover the run."""
    model_type = bound("run.model_type", ENCODER_DECODER)
    if not jobs.uses_own_inference(model_type):
        decode = bound("infer_model.decode_fn")
        if decode is mesh_utils.decode_from_dataset and model_type == ENCODER_DECODER:
            raise UserError(
                "infer_from_task.gin goes on with the text of a task, which only a language model "
                "can; this model is an encoder-decoder. To predict a task's targets: "
                "--gin_file=runs/infer.gin in its place"
            )
        with compat.replaced("mesh_utils.infer_model", _with_latest_step(mesh_utils.infer_model)):
            _mesh_run(request)
        return
    arguments = run_arguments.read(request.arguments)
    predict.predict(
        MeshModel.from_estimator_arguments(run_arguments.estimator_keywords(arguments)),
        vocabulary=arguments["vocabulary"],
        lengths=arguments["sequence_length"],
        batch_size=arguments["batch_size"],
        model_dir=arguments["model_dir"],
        steps=arguments["eval_checkpoint_step"],
        checkpoint=request.checkpoint,
    )


def _with_latest_step(infer_model: Callable[..., None]) -> Callable[..., None]:
    """Returns Mesh's `infer_model`, reading the latest checkpoint where it would wait for more."""

    def infer(*args: Any) -> None:
        *others, step = args
        infer_model(*others, -1 if step is None else step)

    return infer


MESH = {"local": _mesh_run, "tpu": _tpu_run}
# Mode -> engine -> the function that carries it out.
MODES: dict[str, dict[str, Callable[[Request], None]]] = {
    "train": {"local": _train, "tpu": _tpu_run},
    "eval": {"local": _evaluate, "tpu": _tpu_run},
    "score_eval": {"local": _rank, "tpu": _tpu_run},
    "perplexity_eval": {"local": _perplexity, "tpu": _tpu_run},
    "infer": {"local": _infer, "tpu": _tpu_run},
    "score_from_dataset": MESH,
    "score_from_strings": MESH,
    "export": MESH,
    "export_infer": MESH,
    "export_score": MESH,
}
