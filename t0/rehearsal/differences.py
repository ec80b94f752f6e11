"""How far variables and gradients of two programs differ, relative to what moved them.

    variable_pairs(begun, theirs, ours, no_sign)      # VariablePair("w", greatest=1e-9, ...)
    sign_is_rounding(theirs, ours, share=1e-4)        # bool, as the gradient: where it is zero

Adafactor and Adam divide a gradient by its size. A number whose gradient is zero but for rounding
has a gradient of arbitrary sign, and moves one whole step: up in one program, down in the other.
Only such numbers are left out, so both programs' gradients have to be as small as rounding there.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

# The part of a weight that float32 rounds away, some steps long.
_ROUNDING = 2.0**-21


@dataclasses.dataclass(frozen=True)
class VariablePair:
    """One variable after the steps on both sides; slots of the optimizer are variables, too.

    Attributes:
      name: its name in checkpoints.
      greatest: the greatest difference of one of its numbers.
      relative: the difference relative to how far the steps moved the variable.
    """

    name: str
    greatest: float
    relative: float


def variable_pairs(
    begun: Mapping[str, np.ndarray],
    theirs: Mapping[str, np.ndarray],
    ours: Mapping[str, np.ndarray],
    no_sign: Mapping[str, np.ndarray],
) -> tuple[VariablePair, ...]:
    """Returns the variables that both sides have, as they were before and are after the steps.

    A difference that is not a number counts as infinite.

    Args:
      begun: the variables before the steps, by name.
      theirs: one side's after the steps.
      ours: the other's.
      no_sign: for some of them bool, as the variable: the numbers that the relative difference
        leaves out; see `sign_is_rounding`.
    """
    pairs = []
    for name in sorted(theirs.keys() & ours.keys()):
        before, a, b = (x[name].astype(np.float64) for x in (begun, theirs, ours))
        difference = np.nan_to_num(np.abs(a - b), nan=np.inf)
        greatest, moved = float(np.max(difference)), np.linalg.norm(a - before)
        left_out = no_sign.get(name, np.zeros((), bool)) & np.isfinite(difference)
        apart = np.linalg.norm(np.where(left_out, 0.0, difference))
        room = moved + _ROUNDING * np.linalg.norm(a)
        relative = np.nan_to_num(apart / room, nan=np.inf) if apart else 0.0
        pairs.append(VariablePair(name, greatest, float(relative)))
    return tuple(pairs)


def sign_is_rounding(theirs: np.ndarray, ours: np.ndarray, share: float) -> np.ndarray:
    """Returns where both gradients of a variable are so small that rounding decides their signs.

    Args:
      theirs: one side's gradient of the variable.
      ours: the other's.
      share: the most that rounding changes one number of a gradient, as a share of the gradient's
        root mean square.
    """
    a, b = (np.abs(x.astype(np.float64)) for x in (theirs, ours))
    larger = np.maximum(a, b)
    return (larger > 0) & (larger <= share * np.sqrt(np.mean(b**2)))


def relative_difference(theirs: np.ndarray, ours: np.ndarray) -> float:
    """Returns the root of the squared difference, relative to that of `ours`; inf for nan."""
    a, b = theirs.astype(np.float64), ours.astype(np.float64)
    apart = np.linalg.norm(a - b)
    if apart == 0:
        return 0.0
    size = np.linalg.norm(b)
    return float(np.nan_to_num(apart / size, nan=np.inf)) if size else np.inf
