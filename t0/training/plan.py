"""What a run does besides its model and data, as `train_loop` in gin says it.

Plan(train_steps=12_200, seed=0, validate_every_steps=500, max_hours=4.0)
"""

import dataclasses
from collections.abc import Sequence

from t0.compat import tf1 as tf


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run does besides its model and data.

    Attributes:
      train_steps: the step to stop at.
      seed: of initial values and dropout.
      activations: the type of activations.
      log_every_steps: None for a hundredth of the run, at most 100.
      validate_every_steps: None for no validation; validation_batches: batches of one.
      evaluate_every_steps: steps between two evaluations by task metrics, None for none.
      stop_after_evaluations: evaluations without a better one that end the run, None for no end.
      max_hours: of training, over all starts of the run; None for no end.
      unfilled_variables: expressions of those that an initial checkpoint may lack.
      allow_config_change: whether a directory of another configuration is gone on with.
    """

    train_steps: int
    seed: int = 0
    activations: tf.DType = tf.float32
    log_every_steps: int | None = None
    validate_every_steps: int | None = None
    validation_batches: int = 8
    evaluate_every_steps: int | None = None
    stop_after_evaluations: int | None = None
    max_hours: float | None = None
    unfilled_variables: Sequence[str] = ()
    allow_config_change: bool = False
