"""The checkpoints that a run keeps.

    kept([10, 20, 30, 40], Keep(last=1, every_steps=20))     # [20, 40]

`t0.training.checkpointing` registers `Keep` with gin, as `keep_checkpoints`.
"""

import dataclasses
from collections.abc import Sequence

from t0.config.specification import Count


@dataclasses.dataclass(frozen=True)
class Keep:
    """The checkpoints that a run keeps; gin sets the fields as `keep_checkpoints.NAME`.

    Attributes:
      last: the number of latest checkpoints to keep (`run.keep_checkpoint_max`); None keeps all.
      every_steps: keep each checkpoint whose step is a multiple of this; None keeps none of them.
      best_by: keep the best checkpoint by this metric of evaluation, such as "validation_loss" or
        "eval/accuracy"; a checkpoint is then written whenever an evaluation is the best so far.
      smaller_is_better: whether a smaller value of that metric is better; None to decide by its
        name: smaller is better for a loss, a perplexity or an error.
    """

    last: Count | None = None
    every_steps: Count | None = None
    best_by: str | None = None
    smaller_is_better: bool | None = None


def kept(steps: Sequence[int], keep: Keep, best: int | None = None) -> list[int]:
    """Returns the steps whose checkpoints stay.

    >>> kept([10, 20, 30, 40], Keep(last=1, every_steps=20))
    [20, 40]
    """
    if keep.last is None:
        return sorted(steps)
    stay = set(sorted(steps)[-max(1, keep.last) :])
    if keep.every_steps:
        stay |= {step for step in steps if step % keep.every_steps == 0}
    if best is not None:
        stay |= {best} & set(steps)
    return sorted(stay)
