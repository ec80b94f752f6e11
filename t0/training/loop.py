"""Training: by our own loop on this machine (`train`), by TensorFlow's estimator on a TPU.

The model, its gradients and its checkpoints are Mesh TensorFlow's. `train_model` is what its `run`
calls on a TPU (`run.train_model_fn`): it adds checks before the first step, a line of progress now
and then, `metrics.jsonl` in the model directory, and a stop at a loss that is no number.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t0.checkpoints import checkpoint_files
from t0.compat import gin
from t0.compat import tf1 as tf
from t0.errors import UserError, original
from t0.feeding.opening import from_dataset_function
from t0.feeding.training_data import TrainingData
from t0.mesh import devices
from t0.training import session
from t0.training.batches import AnyDataset
from t0.training.progress import ProgressHook
from t0.training.settings import Settings


@gin.configurable("train_loop", module="t0")
def plan_run(
    train_steps: int,
    *,
    log_every_steps: int | None = None,
    seed: int = 0,
    activation_dtype: str = "auto",
    validate_every_steps: int | None = None,
    validation_batches: int = 8,
    evaluate_every_steps: int | None = None,
    stop_after_evaluations: int | None = None,
    max_hours: float | None = None,
    unfilled_variables: Sequence[str] = (),
    allow_config_change: bool = False,
) -> session.Plan:
    """Returns what a run does besides its model and data; gin sets it as `train_loop.NAME`.

    Args:
      train_steps: the step to stop at.
      log_every_steps: steps between two lines of progress; default a hundredth of the run, at
        most 100.
      seed: of the data's order, dropout and initial weights; this and what follows is for our own
        loop.
      activation_dtype: "float32", "bfloat16", or "auto": bfloat16 where the machine computes it.
      validate_every_steps: steps between two validations on the mixture's validation split.
      validation_batches: batches of each.
      evaluate_every_steps: steps between two evaluations by the tasks' metrics; what they read is
        `task_metrics`.
      stop_after_evaluations: early stopping: evaluations in a row without a better
        `keep_checkpoints.best_by` (default: "validation_loss") that end the run.
      max_hours: wall-clock budget of training, over all starts of the run: it then saves and ends
        as if it were done. Schedules keep counting to `train_steps`.
      unfilled_variables: expressions of variables that `run.init_checkpoint` may lack.
      allow_config_change: go on in a model directory that another configuration was trained in.
    """
    return session.Plan(
        train_steps=train_steps,
        seed=seed,
        activations=devices.activation_dtype(activation_dtype),
        log_every_steps=log_every_steps,
        validate_every_steps=validate_every_steps,
        validation_batches=validation_batches,
        evaluate_every_steps=evaluate_every_steps,
        stop_after_evaluations=stop_after_evaluations,
        max_hours=max_hours,
        unfilled_variables=tuple(unfilled_variables),
        allow_config_change=allow_config_change,
    )


def train(
    settings: Settings,
    *,
    train_dataset_fn: Callable[..., tf.data.Dataset],
    train_steps: int,
    dataset_split: str = "train",
) -> None:
    """Trains on this machine to `train_steps`, counted from the start of pretraining.

    Args:
      settings: the model, batch and optimizer.
      train_dataset_fn: gives packed or padded examples, without end.
      train_steps: the step to stop at.
      dataset_split: handed to `train_dataset_fn`.

    Raises:
      UserError: if the mixture gives no example, or the loss is not a number.
    """
    if not _is_to_train(settings.model_dir, train_steps):
        return
    plan = plan_run(train_steps)
    data = open_data(
        train_dataset_fn,
        plan.seed,
        sequence_length=settings.sequence_length,
        vocabulary=settings.vocabulary,
        dataset_split=dataset_split,
    )
    session.train(settings, data, plan)


def _is_to_train(model_dir: str, train_steps: int) -> bool:
    done = _steps_done(model_dir)
    if done >= train_steps:
        print(f"nothing to train: {model_dir} is at step {done:,} of {train_steps:,}")
    return done < train_steps


def check_input_options(*, skip_seen_data: bool, checkpoint_input_pipeline: bool) -> None:
    """Checks that at most one way to go on in the data is set, which our own loop does anyway.

    Raises:
      UserError: if both are.
    """
    if skip_seen_data and checkpoint_input_pipeline:
        raise UserError("set only one of run.skip_seen_data and run.checkpoint_input_pipeline")


def train_model(  # noqa: PLR0913 (the signature that mesh_utils.run calls)
    estimator: Any,
    vocabulary: Any,
    sequence_length: Mapping[str, int],
    batch_size: int,
    train_dataset_fn: Callable[..., tf.data.Dataset],
    train_steps: int,
    ensemble_inputs: int | None,
    dataset_split: str = "train",
    skip_seen_data: bool = False,
    seen_data_init_step: int = 0,
    checkpoint_input_pipeline: bool = False,
) -> None:
    """Trains by TensorFlow's estimator; takes what Mesh TensorFlow's `run` calls it with.

    Args:
      estimator: Mesh TensorFlow's TPUEstimator.
      vocabulary, dataset_split: handed to `train_dataset_fn`.
      sequence_length: tokens of each feature, packed.
      batch_size: sequences of the global batch.
      train_dataset_fn: gives packed or padded examples, without end.
      train_steps: the step to stop at, counted from the start of pretraining.
      ensemble_inputs: models of an ensemble that get inputs of their own, or None.
      skip_seen_data, seen_data_init_step: on a restart, skip the batches since that step.
      checkpoint_input_pipeline: keep TensorFlow's iterator in the checkpoint.

    Raises:
      UserError: if the mixture gives no example, or the loss is not a number.
    """
    check_input_options(
        skip_seen_data=skip_seen_data, checkpoint_input_pipeline=checkpoint_input_pipeline
    )
    if not _is_to_train(estimator.model_dir, train_steps):
        return
    plan = plan_run(train_steps)
    _check_estimator_can(plan)
    done = _steps_done(estimator.model_dir)
    skipped = max(0, done - seen_data_init_step) if skip_seen_data else 0
    reading = {"sequence_length": sequence_length, "vocabulary": vocabulary}
    reading["dataset_split"] = dataset_split

    def input_fn(params: Any) -> tf.data.Dataset:
        del params
        dataset = train_dataset_fn(**reading).repeat()
        dataset = dataset.batch(batch_size * (ensemble_inputs or 1), drop_remainder=True)
        return dataset.skip(skipped).prefetch(tf.data.AUTOTUNE)

    progress = ProgressHook(
        estimator.model_dir,
        total_steps=train_steps,
        sequences=batch_size,
        sequence_length=sequence_length,
        interval=plan.log_every_steps,
    )
    _train_with_estimator(estimator, input_fn, progress, keep_iterator=checkpoint_input_pipeline)


def open_data(train_dataset_fn: Callable[..., Any], seed: int, **arguments: Any) -> Any:
    """Returns the batches of a dataset function: our own feeding for T5's, its dataset for others.

    Args:
      train_dataset_fn: as gin binds it.
      seed: of the order of the data, unless gin binds another.
      **arguments: what Mesh TensorFlow calls it with.
    """

    def make() -> Any:
        return from_dataset_function(train_dataset_fn, seed, **arguments)

    with tf.Graph().as_default():
        found = make()
    return found if isinstance(found, TrainingData) else AnyDataset(make)


# What a `Plan` can ask of our own loop alone.
_NOT_BY_ESTIMATOR = (
    "validate_every_steps",
    "evaluate_every_steps",
    "stop_after_evaluations",
    "max_hours",
)


def _check_estimator_can(plan: session.Plan) -> None:
    asked = [name for name in _NOT_BY_ESTIMATOR if getattr(plan, name) is not None]
    if asked:
        raise UserError(
            f"train_loop.{asked[0]} is of the loop that trains without a TPU; on one, evaluate "
            "checkpoints by run.mode = 'eval' or 'score_eval'"
        )


def _steps_done(model_dir: str) -> int:
    latest = checkpoint_files.latest(model_dir)
    return checkpoint_files.global_step(latest) if latest else 0


def _train_with_estimator(
    estimator: Any, input_fn: Callable[..., Any], progress: ProgressHook, *, keep_iterator: bool
) -> None:
    hooks = [progress]
    if keep_iterator:
        hooks.append(tf.data.experimental.CheckpointInputPipelineHook(estimator))
    try:
        estimator.train(input_fn=input_fn, max_steps=progress.total_steps, hooks=hooks)
    except tf.errors.OpError as error:
        raise original(error) from error
    if progress.last_step < progress.total_steps:
        raise UserError(
            f"the training data ended at step {progress.last_step:,} of "
            f"{progress.total_steps:,}: the mixture gives too few examples to fill a batch. "
            "Is its cache empty?"
        )
