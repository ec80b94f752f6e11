"""A decoder's last product: its logits, or the likeliest tokens of each row alone.

    logits = Logits(table, scale)                       # table: [V, D]
    few, tokens, norms = logits.likeliest(hidden, 2)    # hidden: [N, D] -> [N, 2], [N, 2], [N]
    whole = logits(hidden)                              # float32 [N, V]

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
      whole: whether all logits are asked for, and not only the likeliest tokens.

    Attributes:
      size: V.
    """

    def __init__(self, table: torch.Tensor, scale: float = 1.0, *, whole: bool = True) -> None:
        self._table, self._scale = table, scale
        self.size = len(table)
        # What rounds finds the candidates; it has nothing to find if it computes as many logits.
        rounds = not whole and table.dtype == torch.bfloat16 and packs(table)
        self._rounded = product(table) if rounds and len(table) > _CANDIDATES else None
        self._exact = None if self._rounded else product(table.float())

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits, float32 [N, V], of hidden states [N, D]."""
        hidden = self._scaled(hidden.float())
        if self._exact:
            return self._exact(hidden)
        return functional.linear(hidden, self._table.float())

    def _scaled(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers if self._scale == 1.0 else numbers * self._scale

    def likeliest(
        self, hidden: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the `count` likeliest tokens of each row.

        Args:
          hidden: [N, D].
          count: how many, at most V.

        Returns:
          their logits, float32 [N, count], the largest first; the tokens, [N, count]; and the
          logarithm of the sum of the exponentials of all logits, [N]. In that sum logits of a
          bfloat16 table that are not candidates are rounded, on a processor.
        """
        if self._rounded is None or count >= _CANDIDATES:
            logits = self(hidden)
            few, tokens = _largest(logits, count)
            return few, tokens, norms(logits, tokens)
        # Without the scale, by which hidden states would be rounded once more.
        rounded = self._rounded(hidden)
        rough, tokens = _largest(rounded, _CANDIDATES)
        rough = rough.float()
        exact = (self._table[tokens].float() @ hidden.float()[..., None])[..., 0]
        few, places = exact.topk(count)
        unsure = few[:, -1] < rough[:, -1] + rough[:, -1].abs() * _ROUNDING
        few, chosen = few * self._scale, tokens.gather(-1, places)
        # The candidates' part of the sum is exact.
        top = few[:, :1]
        again = (exact * self._scale - top).exp() - (rough * self._scale - top).exp()
        whole = norms(self._scaled(rounded.float()), tokens)
        whole = ((whole - top[:, 0]).exp() + again.sum(-1)).log() + top[:, 0]
        if unsure.any():
            logits = self(hidden[unsure])
            few[unsure], chosen[unsure] = _largest(logits, count)
            whole[unsure] = norms(logits, chosen[unsure])
        return few, chosen, whole


def norms(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the logarithm of the sum of the exponentials of logits, [N].

    Args:
      logits: float32 [N, V].
      tokens: of each row the likeliest token is the first, [N, ...].
    """
    # `logsumexp` takes many times as long where exponentials are 0, on some processors.
    first = tokens[:, :1]
    return (logits.gather(-1, first) - logits.log_softmax(-1).gather(-1, first))[:, 0]


def _largest(rows: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the largest numbers of rows [N, V], the largest first, and their places."""
    if rows.shape[-1] % _PLACES or count >= rows.shape[-1] // _PLACES:
        return rows.topk(count)
    # The largest of each part first: `topk` of a whole row takes ten times as long.
    parts = rows.unflatten(-1, (-1, _PLACES))
    within = parts.amax(-1).topk(count).indices  # no other part has one of the largest
    few, places = parts.gather(1, within[..., None].expand(-1, -1, _PLACES)).flatten(1).topk(count)
    return few, within.gather(-1, places // _PLACES) * _PLACES + places % _PLACES
