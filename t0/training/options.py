"""The settings of a training run as two dataclasses: what it trains, and what its loop does.

    spec = TrainingSpec.from_estimator_arguments(**run.arguments.estimator_keywords(arguments))
    options = LoopOptions(train_steps=12_200)      # gin sets the other fields, as train_loop.NAME

`TrainingSpec` holds the arguments from which Mesh TensorFlow would build its estimator.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t0.compat import gin, mtf
from t0.config.bindings import bound
from t0.training import stepping

# Parameters of Mesh TensorFlow's model function that gin can bind, and that our own loop obeys.
_OF_MODEL_FN = ("outer_batch_size", "init_variable_filter", "model_info_file")


# On a TPU the estimator trains; it obeys `train_steps`, `log_every_steps` and `max_hours` alone.
LoopOptions = gin.external_configurable(
    stepping.Options, "train_loop", module="t0", denylist=["train_steps"]
)


@dataclasses.dataclass(frozen=True)
class TrainingSpec:
    """What a run trains, and how: the model, the batch and the optimizer.

    Attributes:
      model_type: "bitransformer", "lm", "delimited_lm", "aligned" or "bi_student_teacher".
      vocabulary: one vocabulary, or (inputs, targets).
      mesh_shape: the shape of the mesh.
      layout_rules: which tensor dimension is split over which mesh dimension.
      mesh_devices: the device of each mesh position.
      model_dir: the folder of checkpoints and metrics.
      batch_size: sequences of a global batch.
      sequence_length: name of a feature -> its length in tokens.
      learning_rate_schedule: a number, or a function of `step`.
      optimizer: a function that takes `learning_rate` and returns a Mesh TensorFlow optimizer.
      save_checkpoints_steps: steps between two checkpoints.
      keep_checkpoint_max: the number of checkpoints that stay; None for all.
      variable_filter: the variables to train: a regular expression, a function, or None for all.
      init_checkpoint: the checkpoint to start from, or None.
      init_variable_filter: regular expression of the variables to read from it; "" for all.
      ensemble_inputs: the number of models of an ensemble with inputs of their own, or None.
      outer_batch_size: the size of the outer batch dimension.
      model_info_file: the file in which to list variables and operations, or None.
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
        """Returns the spec that the arguments of `mesh_utils.get_estimator` describe.

        Parameters that gin binds to `tpu_estimator_model_fn` are read, too.
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
