"""Linear layers whose weights are frozen, in the type of activations, or quantized by bitsandbytes.

    layer = FrozenLinear(512, 1024, "nf4")      # 4 bits of each weight; "int8" for 8
    layer.fill(weight)                          # float32 [1024, 512]
    layer.forward(x)                            # [..., 1024], for x [..., 512]

A quantized weight is a buffer, not a parameter. FSDP does not shard buffers, so each process has
the whole weight. Each product converts the weight to the type of activations, and so does the
backward pass, instead of storing the converted weight. On a CPU, PEFT computes the same products.
On a GPU, its products with int8 weights also round the activations to 8 bits, in float16, whose
range is too small for the activations of T5.
"""

import importlib.util
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from t0.config.specification import NF4_BLOCK
from t0.errors import UserError, install_command


def check_installed(base: str) -> None:
    """Raises a UserError if a base is quantized, but bitsandbytes is not installed."""
    if base != "full" and not importlib.util.find_spec("bitsandbytes"):
        raise UserError(
            f"--base={base} needs bitsandbytes, which is not installed: "
            f"{install_command('quantized')}; or leave out --base"
        )


class FrozenLinear(nn.Linear):
    """A linear layer without a bias, whose weight may be quantized.

    Args:
      rows: the size of the layer's inputs.
      columns: the size of its outputs.
      base: the type of the weight: "full", "nf4" or "int8" (`AdapterSpec.base`).
    """

    def __init__(self, rows: int, columns: int, base: str) -> None:
        super().__init__(rows, columns, bias=False)
        self._base = base
        if base == "full":
            return
        del self.weight
        shape, dtype, scales = (columns, rows), torch.int8, columns
        if base == "nf4":  # two weights in a byte, and whole blocks
            scales = math.ceil(rows * columns / NF4_BLOCK)
            shape, dtype = (scales * NF4_BLOCK // 2, 1), torch.uint8
        self.register_buffer("weight", torch.empty(shape, dtype=dtype))
        self.register_buffer("scales", torch.empty(scales))

    def fill(self, weight: torch.Tensor) -> None:
        """Quantizes a float32 weight [columns, rows], and stores the result."""
        from bitsandbytes import functional as bnb

        weight = weight.to(self.weight.device)
        if self._base == "nf4":
            blocks = functional.pad(weight.flatten(), (0, -weight.numel() % NF4_BLOCK))
            values, state = bnb.quantize_4bit(blocks, blocksize=NF4_BLOCK, quant_type="nf4")
            scales = state.absmax
        else:
            values, scales, _ = bnb.int8_vectorwise_quant(weight.half())
        self.weight.copy_(values)
        self.scales.copy_(scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Projects x [..., rows] to [..., columns]."""
        if self._base == "full":
            return super().forward(x)
        return _Product.apply(x, self.weight, self.scales, (self.out_features, self.in_features))


class _Product(torch.autograd.Function):
    """The product of inputs and a quantized weight, which has no gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, shape: torch.Size
    ) -> torch.Tensor:
        ctx.save_for_backward(weight, scales)
        ctx.shape = shape
        return functional.linear(x, _dequantize(weight, scales, shape, x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        weight = _dequantize(*ctx.saved_tensors, ctx.shape, gradient.dtype)
        return gradient @ weight, None, None, None


def _dequantize(
    weight: torch.Tensor, scales: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    """Returns a quantized weight [columns, rows] in a floating type."""
    if weight.dtype == torch.int8:
        return weight.to(dtype).mul_(scales[:, None] * (1 / 127))
    from bitsandbytes import functional as bnb

    # Rows are blocks: with other rows, the kernel for CPUs takes the scales of wrong blocks.
    blocks = (len(scales), NF4_BLOCK)
    state = bnb.QuantState(scales, blocks, blocksize=NF4_BLOCK, quant_type="nf4", dtype=dtype)
    return bnb.dequantize_4bit(weight, state).flatten()[: math.prod(shape)].view(shape)
