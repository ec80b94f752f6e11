"""Computes the loss of a batch and other sums that a step records, in float32.

    sums(logits, targets, z_loss=1e-4, label_smoothing=0.0)       # cross entropy
    choice_sums(logits, choices, predicted, ChoiceLosses(1.0, 1.0, 1.0))      # T-Few's losses

The formulas of the cross entropy and the z-loss are those of `t0.training.losses`, which computes
them with Mesh TensorFlow.
"""

import torch
from torch.nn import functional

from t0.config.specification import ChoiceLosses

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


def choice_sums(
    logits: torch.Tensor, choices: torch.Tensor, predicted: torch.Tensor, factors: ChoiceLosses
) -> torch.Tensor:
    """Returns the sums that `SUM_NAMES` names for examples with answer choices, float32 [7].

    The loss is the sum of T-Few's losses over the examples. The other sums count the tokens of the
    right choices. The z-loss is 0.

    Args:
      logits: the logits [P, V] of P positions and V tokens, in any floating type.
      choices: the choices [B, C, L] of B examples. Choice 0 is the right one. A choice that
        contains only zeros is padding and does not count.
      predicted: the P positions in the flattened choices that are not padding, in ascending order.
      factors: the factors of the losses.
    """
    expected = choices.flatten()[predicted]
    wide = logits.float()
    tokens = (choices > 0).sum(-1)
    scores = log_likelihoods(wide, choices, predicted) / tokens.clamp(min=1)
    # If the probability p is near 1, 1 - p loses its digits in float32. So log(1 - p) is computed
    # from the logits of all other tokens.
    others = wide.scatter(-1, expected[:, None], -torch.inf)
    log_not_p = others.logsumexp(-1) - wide.logsumexp(-1)
    wrong = _sum_of_choices(log_not_p, choices, predicted)[:, 1:].sum(1)
    rivals = scores.masked_fill(tokens == 0, -torch.inf)
    loss = (
        -factors.likelihood * scores[:, 0]
        - factors.unlikelihood * wrong / tokens[:, 1:].sum(1).clamp(min=1)
        + factors.length_normalized * (rivals.logsumexp(1) - rivals[:, 0])
    ).sum()
    is_right = predicted // choices.shape[2] % choices.shape[1] == 0
    right = sums(wide, torch.where(is_right, expected, 0), z_loss=0.0, label_smoothing=0.0)
    return torch.cat([right[:-1], loss[None]])


def log_likelihoods(
    logits: torch.Tensor, choices: torch.Tensor, predicted: torch.Tensor
) -> torch.Tensor:
    """Returns the log-likelihoods of choices in nats, [B, C]; see `choice_sums`."""
    expected = choices.flatten()[predicted]
    nats = -functional.cross_entropy(logits, expected, reduction="none")
    return _sum_of_choices(nats, choices, predicted)


def _sum_of_choices(
    values: torch.Tensor, choices: torch.Tensor, predicted: torch.Tensor
) -> torch.Tensor:
    """Returns the sums [B, C] of the values [P] of each choice's tokens."""
    at_tokens = torch.zeros(choices.numel(), device=values.device)
    return at_tokens.index_copy(0, predicted, values).view(choices.shape).sum(-1)
