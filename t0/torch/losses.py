"""Computes the cross entropy, the z-loss and other sums that a step records, in float32.

The formulas are those of `t0.training.losses`, which computes them with Mesh TensorFlow.
"""

import torch

SUM_NAMES = (
    "nll",
    "z_loss",
    "correct",
    "tokens",
    "correct_before_eos",
    "tokens_before_eos",
    "loss",
)
LOSS = SUM_NAMES.index("loss")
_EOS = 1


def sums(
    logits: torch.Tensor,
    targets: torch.Tensor,
    z_loss: float,
    label_smoothing: float,
    loss_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the sums that `SUM_NAMES` names, float32 [7].

    The sums are: cross entropy in nats, z-loss, number of correctly predicted tokens, number of
    tokens, number of correctly predicted tokens without EOS, number of tokens without EOS, and the
    sum of cross entropy and z-loss with a weight for each token.

    Args:
      logits: the logits [N, V] of N positions and V tokens, in any floating type. They are
        converted to float32.
      targets: the correct tokens, [N]. Positions with 0 are padding and do not count.
      z_loss: the factor of the z-loss. The z-loss is the square of the logarithm of the softmax's
        denominator.
      label_smoothing: the part of the target's probability that is taken from the target and spread
        evenly over all V tokens.
      loss_weights: the weights of the last sum, [N]; None for a weight of 1 for each token.
    """
    wide = logits.float()
    log_z = wide.logsumexp(-1)
    target_logits = wide.gather(-1, targets[:, None]).squeeze(-1)
    nll = log_z - target_logits
    if label_smoothing:
        # The label distribution is label_smoothing / V for every token, plus 1 - label_smoothing
        # for the target.
        nll = (1.0 - label_smoothing) * nll + label_smoothing * (log_z - wide.mean(-1))
    predicted = targets > 0
    nll, log_z = (torch.where(predicted, x, 0.0) for x in (nll, log_z))
    squares = z_loss * log_z.square()
    weighted = nll + squares if loss_weights is None else (nll + squares) * loss_weights
    correct = ((target_logits >= wide.amax(-1)) & predicted).float()
    before_eos = (predicted & (targets != _EOS)).float()
    return torch.stack(
        [
            nll.sum(),
            squares.sum(),
            correct.sum(),
            predicted.float().sum(),
            (correct * before_eos).sum(),
            before_eos.sum(),
            weighted.sum(),
        ]
    )
