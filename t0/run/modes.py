"""The function that runs each mode on this machine.

    carry_out(ConfiguredRun("train", arguments))

Our own code performs a run if it supports the run. If it does not, or on a TPU, Mesh TensorFlow's
`run` is called (`t0.run.mesh_modes`). Runs with --engine=torch have a specification, and their
modes are in `t0.cli.torch_run`.
"""

from collections.abc import Callable

from t0.config.bindings import bound
from t0.config.t5_layers import ENCODER_DECODER
from t0.errors import interruptible
from t0.inference import jobs, text_decoder
from t0.run import mesh_modes, models, row_prediction, task_evaluation
from t0.run.configured_run import ConfiguredRun
from t0.training import mesh_session
from t0.training.graph import TrainingSpec


def carry_out(run: ConfiguredRun) -> None:
    """Performs a configured run."""
    perform = mesh_modes.run_on_tpu if run.arguments["tpu"] else MODES[run.mode]
    saved = _SAVED_RESULTS.get(run.mode, _NOTHING_SAVED)
    with interruptible(saved), mesh_modes.reading(run.checkpoint):
        perform(run)


def train(run: ConfiguredRun) -> None:
    """Trains with our own loop, or with the training function that the user bound."""
    if "train_model_fn" not in run.arguments:
        run.call_mesh()
        return
    arguments = run.read()
    mesh_session.train(
        TrainingSpec.from_estimator_arguments(**arguments, eval_words=run.eval_words),
        mesh_session.LoopOptions(arguments["train_steps"]),
        arguments["train_dataset_fn"],
        dataset_split=arguments["dataset_split"],
    )


def predict(run: ConfiguredRun) -> None:
    """Predicts with our own code, or with Mesh TensorFlow's if ours does not support the run."""
    if row_prediction.RowPredictionSettings().rows:
        row_prediction.predict(run.read(), run.checkpoint)
    elif jobs.uses_own_inference(bound("run.model_type", ENCODER_DECODER)):
        arguments = run.read()
        open_model = models.opener(arguments, "tensorflow")
        text_decoder.predict(arguments, open_model, run.checkpoint)
    else:
        mesh_modes.infer(run)


# Mode -> the function that runs it on this machine.
MODES: dict[str, Callable[[ConfiguredRun], None]] = {
    "train": train,
    "eval": task_evaluation.evaluate,
    "score_eval": task_evaluation.score_eval,
    "perplexity_eval": mesh_modes.measure_perplexity,
    "infer": predict,
    "score_from_dataset": ConfiguredRun.call_mesh,
    "score_from_strings": ConfiguredRun.call_mesh,
    "export": ConfiguredRun.call_mesh,
    "export_infer": ConfiguredRun.call_mesh,
    "export_score": ConfiguredRun.call_mesh,
}

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
