"""The arguments of a training run, in place of those that would build Mesh TensorFlow's estimator.

settings = Settings.of_run(**run.arguments.estimator_keywords(arguments))
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t0.compat import mtf
from t0.config.bindings import bound

# What can be bound to Mesh TensorFlow's model function, of which this loop takes the place.
_OF_MODEL_FN = ("outer_batch_size", "init_variable_filter", "model_info_file")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of one training run.

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
    def of_run(cls, *, mesh_devices: Sequence[str] | None, **arguments: Any) -> "Settings":
        """Returns the settings in the arguments of `mesh_utils.get_estimator`.

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
