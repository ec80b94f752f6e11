"""Computes the last step of a run from a number of additional steps or a number of epochs.

    plan_steps("/models/t0", finetune_steps=12_200, epochs=None)[0]       # 1_112_200

Mesh TensorFlow's `train_steps` counts from the start of pretraining.
"""

import math

from t0.config.bindings import bound, is_configured
from t0.errors import UserError
from t0.feeding.data_spec import open_dataset_function
from t0.mesh.devices import check_batch
from t0.run.checkpoint_checks import initial_step
from t0.run.parsed_run import INITIAL_PARAMETERS
from t0.training.model_directory import find_first_step


def plan_steps(
    model_dir: str,
    *,
    finetune_steps: int | None,
    epochs: float | None,
    checkpoint: str | None = None,
) -> tuple[int, str]:
    """Returns the last step of the configured run, and a sentence that explains it.

    Args:
      model_dir: the run's model directory. A resumed run counts from its first step.
      finetune_steps: the number of steps after the initial checkpoint, or None.
      epochs: the number of passes over the mixture's examples, or None.
      checkpoint: the initial checkpoint, in any format; None for the one that gin binds.

    Raises:
      UserError: the examples cannot be counted, or the checkpoint cannot be read.
    """
    first = first_step(model_dir, checkpoint)
    if finetune_steps is not None:
        last = first + finetune_steps
        return last, f"--finetune_steps={finetune_steps:,}: from {first:,} to {last:,}"
    examples, each = _count_examples()
    steps = math.ceil(epochs * examples / each)
    return first + steps, (
        f"--epochs={epochs:g}: {examples:,} examples at {each:,.1f} a step are {steps:,} steps, "
        f"from {first:,} to {first + steps:,}"
    )


def first_step(model_dir: str, checkpoint: str | None = None) -> int:
    """Returns the first step of the run in `model_dir`, even if it has not started yet."""
    if is_configured("t0.adapter"):  # the steps of an adapter count from 0
        return 0
    began = find_first_step(model_dir)
    if began is not None:
        return began
    checkpoint = checkpoint or next(filter(None, map(bound, INITIAL_PARAMETERS)), None)
    return initial_step(checkpoint) if checkpoint else 0


def _count_examples() -> tuple[int, float]:
    """Returns the configured mixture's number of examples, and the number of examples per step."""
    lengths = bound("run.sequence_length")
    rows = check_batch(
        bound("run.batch_size", ("tokens_per_replica", 2048)),
        sequence_length=lengths,
        mesh_shape=bound("run.mesh_shape", "") or "",
        layout_rules=bound("run.layout_rules"),
    )
    data = open_dataset_function(
        bound("run.train_dataset_fn"), bound("train_loop.seed", 0), sequence_length=lengths
    )
    shares = data.shares()
    if not shares or not all(share.examples for share in shares):
        raise UserError(
            "--epochs needs the number of examples, which is unknown for this training data. "
            "Cache its tasks, or use --finetune_steps"
        )
    next(data.batches(rows))
    each = rows * data.filling.examples / data.filling.rows
    return sum(share.examples for share in shares), each
