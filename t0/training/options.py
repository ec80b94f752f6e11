"""What a run trains, and what its training loop does besides: both as dataclasses.

    spec = TrainingSpec.from_estimator_arguments(**run.arguments.estimator_keywords(arguments))
    options = LoopOptions(train_steps=12_200)      # gin gives the rest, as train_loop.NAME

`TrainingSpec` holds the arguments that would build Mesh TensorFlow's estimator.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t0.compat import gin, mtf
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.mesh import devices

# What can be bound to Mesh TensorFlow's model function, of which this loop takes the place.
_OF_MODEL_FN = ("outer_batch_size", "init_variable_filter", "model_info_file")


@gin.configurable("train_loop", module="t0")
@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """What a run does besides its model and data; gin sets it as `train_loop.NAME`.

    Attributes:
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
      max_hours: wall-clock limit of training, over all starts of the run: it then saves and ends
        as if it were done. Schedules keep counting to `train_steps`.
      unfilled_variables: expressions of variables that `run.init_checkpoint` may lack.
      allow_config_change: go on in a model directory that another configuration was trained in.
      activations: the type that `activation_dtype` is here.
    """

    train_steps: int
    log_every_steps: int | None = None
    seed: int = 0
    activation_dtype: str = "auto"
    validate_every_steps: int | None = None
    validation_batches: int = 8
    evaluate_every_steps: int | None = None
    stop_after_evaluations: int | None = None
    max_hours: float | None = None
    unfilled_variables: Sequence[str] = ()
    allow_config_change: bool = False
    activations: tf.DType = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        activations = devices.activation_dtype(self.activation_dtype)
        object.__setattr__(self, "activations", activations)


@dataclasses.dataclass(frozen=True)
class TrainingSpec:
    """What a run trains, and how: the model, the batch and the optimizer.

    Attributes:
      model_type: "bitransformer", "lm", "delimited_lm", "aligned" or "bi_student_teacher".
      vocabulary: one, or (inputs, targets).
      mesh_shape: the mesh; layout_rules: which dimension splits over which of the mesh.
      mesh_devices: a device for each mesh position.
      model_dir: where checkpoints and metrics go.
      batch_size: sequences of a global batch.
      sequence_length: tokens of each feature.
      learning_rate_schedule: a number, or a function of `step`.
      optimizer: takes `learning_rate`, gives a Mesh TensorFlow optimizer.
      save_checkpoints_steps: steps between checkpoints; keep_checkpoint_max: how many stay.
      variable_filter: which variables are trained (a regular expression, a function, or None).
      init_checkpoint: to start from, or None; init_variable_filter: which variables it gives.
      ensemble_inputs: models of an ensemble with inputs of their own, or None.
      outer_batch_size: size of the outer batch dimension.
      model_info_file: where variables and operations are listed, or None.
    """

    model_type: str
    vocabulary: Any
    mesh_shape: mtf.Shape
    layout_rules: mtf.LayoutRules
    mesh_devices: Sequence[str]
    model_dir: str
    batch_size: int
    sequence_length: Mapping[str, int]
    learning_rate_schedule: Any
    optimizer: Callable[..., Any]
    save_checkpoints_steps: int = 5000
    keep_checkpoint_max: int | None = None
    variable_filter: Any = None
    init_checkpoint: str | None = None
    init_variable_filter: str = ""
    ensemble_inputs: int | None = None
    outer_batch_size: int = 1
    model_info_file: str | None = None

    @classmethod
    def from_estimator_arguments(
        cls, *, mesh_devices: Sequence[str] | None, **arguments: Any
    ) -> "TrainingSpec":
        """Returns what the arguments of `mesh_utils.get_estimator` say.

        What gin binds to `tpu_estimator_model_fn` counts, too.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in arguments.items() if name in known}
        for name in _OF_MODEL_FN:
            value = bound(f"tpu_estimator_model_fn.{name}")
            if value is not None:
                values[name] = value
        for name in ("init_checkpoint", "variable_filter"):
            values[name] = values.get(name) or bound(f"tpu_estimator_model_fn.{name}")
        values["outer_batch_size"] = values.get("outer_batch_size") or 1
        size = values["mesh_shape"].size
        return cls(mesh_devices=list(mesh_devices or [""] * size), **values)
