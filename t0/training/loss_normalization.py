"""Computes a weight for the loss of each target token, so that the loss is a mean over sequences.

    batch = add_loss_weights(batch, "sequences")
    batch["targets_loss_weights"]       # float32 [B, L]; the loss is the weighted sum over tokens

The numbers are those of T5X's loss normalizing factors AVERAGE_PER_SEQUENCE ("sequences") and
NUM_REAL_TARGET_TOKENS ("tokens"). Both engines use the same weights. The weights are computed from
the whole batch, so microbatches and processes do not change the loss.

Legend: B rows, L target tokens.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from t0.errors import UserError

LossAverage = Literal["positions", "tokens", "sequences"]
LOSS_WEIGHTS = "targets_loss_weights"


def add_loss_weights(
    batch: Mapping[str, np.ndarray], average: LossAverage
) -> Mapping[str, np.ndarray]:
    """Returns the batch with the feature `LOSS_WEIGHTS`, float32 [B, L].

    Args:
      batch: the global batch. If its rows are packed, it has "targets_segmentation", and each
        segment is a sequence.
      average: "positions" to return the batch unchanged, because the engine then divides by a
        constant; "tokens" for the mean over all target tokens; "sequences" for the mean over
        sequences, in which the loss of a sequence is the mean over its target tokens.
    """
    if average == "positions":
        return batch
    predicted = batch["targets"] > 0
    sequences = np.zeros_like(batch["targets"])
    if average == "sequences":
        segments = batch.get("targets_segmentation", sequences)
        rows = np.arange(len(segments))[:, None]
        sequences = rows * (segments.max(initial=0) + 1) + segments
    tokens = np.bincount(sequences[predicted])
    weights = np.zeros(predicted.shape, np.float32)
    weights[predicted] = 1.0 / (tokens[sequences[predicted]] * np.count_nonzero(tokens))
    return {**batch, LOSS_WEIGHTS: weights}


def check_no_other_normalization(
    *, loss_fn: Any = None, loss_denominator: Any = None, choice_losses: Any = None
) -> None:
    """Checks that gin does not also set another loss or denominator.

    Args:
      loss_fn: the value of `Unitransformer.loss_fn`.
      loss_denominator: the value of `Unitransformer.loss_denominator`.
      choice_losses: the factors of the losses over answer choices, or None.

    Raises:
      UserError: if one of them is set.
    """
    others = {
        "Unitransformer.loss_fn": loss_fn,
        "Unitransformer.loss_denominator": loss_denominator,
        "choice_losses": choice_losses,
    }
    for name, value in others.items():
        if value is not None:
            raise UserError(
                f"train_loop.loss_average and {name} = {value} are both set; both normalize the "
                f"loss. Unset {name}, or set train_loop.loss_average = 'positions'"
            )
