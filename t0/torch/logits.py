"""A decoder's last product: its logits, or the likeliest tokens of each row alone.

    whole = Logits(table, scale)(hidden)                         # [V, D], [N, D] -> float32 [N, V]
    nats, tokens = Logits(table, scale, count=2).likeliest(hidden)     # [N, D] -> [N, 2], [N, 2]

Letters of the shapes: N rows, V vocabulary, D `d_model`.

Logits are float32 products. On a processor that multiplies bfloat16 numbers a bfloat16 product
takes half the time, but rounds each logit by up to 1/256. So it only finds candidates, whose logits
are computed again in float32. A rounded logit that is not among them is too small by more than
rounding, or else the row is computed in float32 as a whole: the tokens are those of float32 logits.
"""

import torch
from torch.nn import functional

from t0.torch.products import packs, product

# Logits that are computed again for each row.
_CANDIDATES = 32
# Twice the relative error of rounding to bfloat16, which has 8 significant bits.
_ROUNDING = 2.0**-7
# A row's largest number is found among the largest of so many places each.
_PLACES = 128


class Logits:
    """The product of hidden states with the table of a vocabulary.

    Args:
      table: [V, D], in the type of hidden states.
      scale: a factor of hidden states.
      count: how many of the likeliest tokens are asked for; None if all logits are.
    """

    def __init__(self, table: torch.Tensor, scale: float = 1.0, count: int | None = None) -> None:
        self._table, self._scale, self._count = table, scale, count and min(count, len(table))
        rounds = (
            count is not None
            and count < _CANDIDATES < len(table)
            and table.dtype == torch.bfloat16
            and packs(table)
        )
        self._rounded = product(table) if rounds else None
        self._exact = None if rounds else product(table.float())

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits, float32 [N, V], of hidden states [N, D]."""
        hidden = self._scaled(hidden.float())
        if self._exact:
            return self._exact(hidden)
        return functional.linear(hidden, self._table.float())

    def _scaled(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers if self._scale == 1.0 else numbers * self._scale

    def likeliest(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the likeliest tokens of each row of hidden states [N, D].

        Returns:
          their log-probabilities, float32 [N, count], the largest first; and the tokens. In the
          sum of probabilities, logits of a bfloat16 table that are not candidates are rounded, on
          a processor.
        """
        if self._rounded is None:
            return _of_logits(self(hidden), self._count)
        # Without the scale, by which hidden states would be rounded once more.
        rounded = self._rounded(hidden)
        rough, candidates = _largest(rounded, _CANDIDATES)
        rough = rough.float()
        exact = (self._table[candidates].float() @ hidden.float()[..., None])[..., 0]
        few, places = exact.topk(self._count)
        unsure = few[:, -1] < rough[:, -1] + rough[:, -1].abs() * _ROUNDING
        # The sum of all exponentials, in units of the likeliest token's: of the rounded logits, and
        # of the candidates once more.
        top = few[:, :1]
        rough, exact, few = (self._scaled(x - top) for x in (rough, exact, few))
        share = _log_shares(self._scaled(rounded.float()), candidates[:, :1])
        whole = (rough[:, :1] - share).exp()
        again = (exact.exp() - rough.exp()).sum(-1, keepdim=True)
        nats, tokens = few - (whole + again).log(), candidates.gather(-1, places)
        if unsure.any():
            nats[unsure], tokens[unsure] = _of_logits(self(hidden[unsure]), self._count)
        return nats, tokens


def _of_logits(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns log-probabilities and tokens, [N, count], of float32 logits [N, V]."""
    _, tokens = _largest(logits, count)
    return _log_shares(logits, tokens), tokens


def _log_shares(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the log-probabilities [N, M] of tokens [N, M] under logits [N, V]."""
    # `logsumexp` takes many times as long where exponentials are 0, on some processors.
    return logits.log_softmax(-1).gather(-1, tokens)


def _largest(rows: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the largest numbers of rows [N, V], the largest first, and their places."""
    if rows.shape[-1] % _PLACES or count >= rows.shape[-1] // _PLACES:
        return rows.topk(count)
    # The largest of each part first: `topk` of a whole row takes ten times as long.
    parts = rows.unflatten(-1, (-1, _PLACES))
    within = parts.amax(-1).topk(count).indices  # no other part has one of the largest
    few, places = parts.gather(1, within[..., None].expand(-1, -1, _PLACES)).flatten(1).topk(count)
    return few, within.gather(-1, places // _PLACES) * _PLACES + places % _PLACES
