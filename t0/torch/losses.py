"""Computes cross entropy with z-loss in float32, and the other sums that a step records.

The formulas are those of `t0.training.losses`, which computes them on Mesh TensorFlow.
"""

import torch

SUM_NAMES = ("nll", "z_loss", "correct", "tokens", "correct_before_eos", "tokens_before_eos")
_EOS = 1


def sums(
    logits: torch.Tensor, targets: torch.Tensor, z_loss: float, label_smoothing: float
) -> torch.Tensor:
    """Returns the sums of `SUM_NAMES`, float32 [6].

    They are nats, z-loss, correct tokens and tokens, and the last two again without EOS.

    Args:
      logits: [N, V], of any type; the computation is in float32.
      targets: the correct tokens, [N]; at a 0 no token is predicted.
      z_loss: the factor of the squared logarithm of the softmax's denominator.
      label_smoothing: the share of the target's probability that all V tokens share.
    """
    wide = logits.float()
    log_z = wide.logsumexp(-1)
    target_logits = wide.gather(-1, targets[:, None]).squeeze(-1)
    nll = log_z - target_logits
    if label_smoothing:
        # One-hot targets of 1 - label_smoothing, and label_smoothing / V everywhere.
        nll = (1.0 - label_smoothing) * nll + label_smoothing * (log_z - wide.mean(-1))
    predicted = targets > 0
    nll, log_z = (torch.where(predicted, x, 0.0) for x in (nll, log_z))
    correct = ((target_logits >= wide.amax(-1)) & predicted).float()
    before_eos = (predicted & (targets != _EOS)).float()
    return torch.stack(
        [
            nll.sum(),
            z_loss * log_z.square().sum(),
            correct.sum(),
            predicted.float().sum(),
            (correct * before_eos).sum(),
            before_eos.sum(),
        ]
    )
