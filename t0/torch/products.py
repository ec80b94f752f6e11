"""Products with weights that oneDNN keeps in its own order, on processors.

    to_logits = product(table)       # table: float32 [V, D]
    logits = to_logits(hidden)       # [..., D] -> [..., V]
    pack_products(model.encoder)     # of each layer, whose weights change no more

PyTorch rearranges bfloat16 weights at each product, and computes float32 ones by a library that is
slow on some processors. A step of decoding has few rows, so that takes as long as the product. The
packing is what `torch.compile` does to frozen weights. The sums are in another order.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

Product = Callable[[torch.Tensor], torch.Tensor]

# How many rows oneDNN chooses its order for.
_ROWS = 32


def product(weight: torch.Tensor) -> Product:
    """Returns the function [..., D] -> [..., V] of weights [V, D], packed where it can be."""
    if not packs(weight):
        return lambda x: functional.linear(x, weight)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def pack_products(module: nn.Module) -> None:
    """Replaces the linear layers of a module, whose weights change no more, by packed ones."""
    for name, layer in list(module.named_children()):
        if isinstance(layer, nn.Linear) and layer.bias is None and packs(layer.weight):
            setattr(module, name, _Packed(layer.weight.detach()))
        else:
            pack_products(layer)


class _Packed(nn.Module):
    """A linear layer without bias, with packed weights that are no parameter."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.forward = product(weight)


def packs(weight: torch.Tensor) -> bool:
    """Returns whether weights are packed: on this processor, numbers of their type."""
    return (
        weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (
            weight.dtype == torch.float32
            or (weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )
    )
