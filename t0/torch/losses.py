"""Cross entropy with z-loss in float32, and the sums that are recorded with it.

The formulas are those of `t0.training.losses`, which computes them on Mesh TensorFlow.
"""

import torch

PARTS = ("nll", "z_loss", "correct", "tokens", "correct_before_eos", "tokens_before_eos")
_EOS = 1


def sums(
    logits: torch.Tensor, targets: torch.Tensor, z_loss: float, label_smoothing: float
) -> torch.Tensor:
    """Returns `PARTS`, float32 [6]: nats, z-loss, right tokens and tokens, the last two also
    without EOS.

    Args:
      logits: [N, V], of any type; they are computed with in float32.
      targets: the tokens that were right, [N]; where one is 0, no token is predicted.
      z_loss: the factor of the squared logarithm of the softmax's denominator.
      label_smoothing: the share of the target's probability that all V tokens share.
    """
    wide = logits.float()
    log_z = wide.logsumexp(-1)
    chosen = wide.gather(-1, targets[:, None]).squeeze(-1)
    nll = log_z - chosen
    if label_smoothing:
        # One-hot targets of 1 - label_smoothing, and label_smoothing / V everywhere.
        nll = (1.0 - label_smoothing) * nll + label_smoothing * (log_z - wide.mean(-1))
    there = targets > 0
    nll, log_z = (torch.where(there, x, 0.0) for x in (nll, log_z))
    right = ((chosen >= wide.amax(-1)) & there).float()
    words = (there & (targets != _EOS)).float()
    return torch.stack(
        [
            nll.sum(),
            z_loss * log_z.square().sum(),
            right.sum(),
            there.float().sum(),
            (right * words).sum(),
            words.sum(),
        ]
    )
