"""Rounds weights to the values that quantization with bitsandbytes keeps, without bitsandbytes.

    round_weight(array, "nf4")      # float32, the same shape

An adapter that was trained on a quantized base is merged into these values.
"""

import numpy as np

from t0.checkpoints import names
from t0.config.specification import NF4_BLOCK

# The values of NF4 (Dettmers et al. 2023, appendix E), as fractions of the largest in a block.
_NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)


def is_quantized(name: str) -> bool:
    """Returns whether a quantized base quantizes a tensor: the projections of all blocks."""
    row = names.row_of(name)
    return "/block_" in name and row.transposed and row.dims != "HB"


def round_weight(array: np.ndarray, base: str) -> np.ndarray:
    """Returns the values of a quantized projection, in float32.

    Args:
      array: the projection, [inputs, outputs].
      base: the type of the quantized projection, "nf4" or "int8".
    """
    weight = np.ascontiguousarray(array.T, np.float32)  # quantized in PyTorch's orientation
    if base == "int8":
        half = weight.astype(np.float16)
        largest = np.abs(half).max(1, keepdims=True).astype(np.float32)
        factors = np.divide(127, largest, out=np.zeros_like(largest), where=largest > 0)
        return (np.rint(half * factors) * (largest * np.float32(1 / 127))).T
    padding = -weight.size % NF4_BLOCK
    blocks = np.pad(weight.ravel(), (0, padding)).reshape(-1, NF4_BLOCK)
    largest = np.abs(blocks).max(1, keepdims=True)
    fractions = blocks * (1 / np.maximum(largest, np.float32(1e-38)))
    nearest = np.searchsorted((_NF4[:-1] + _NF4[1:]) / 2, fractions)
    values = _NF4[nearest] * largest
    return values.ravel()[: weight.size].reshape(weight.shape).T
