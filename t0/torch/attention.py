"""Which of PyTorch's kernels computes attention with a bias that has a gradient.

    kernel, lines = chosen_kernel(torch.device("cuda"), torch.bfloat16)     # "efficient", []
    mixed = attend(queries, keys, values, bias, kernel)

"efficient" (memory-efficient attention) keeps no probabilities; "plain" keeps them. A start on CUDA
runs them forward and backward on small tensors, in this order, and takes the first that is right.
Flash attention and cuDNN's take no bias with a gradient. FlexAttention needs no bias for every
sequence; on an H100 with PyTorch 2.11 it was slower in the model, and its gradients of attention to
the encoder were wrong.
"""

import functools
from collections.abc import Iterator

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

HIDDEN = -1e9  # added to the attention logits of what is not attended to, as in Mesh TensorFlow
_BACKENDS = {"efficient": SDPBackend.EFFICIENT_ATTENTION, "plain": SDPBackend.MATH}
KERNELS = tuple(_BACKENDS)
_COST = "each layer keeps its attention probabilities, which takes about 1.4 times the memory"


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor,
    kernel: str = "auto",
) -> torch.Tensor:
    """Returns attention [B, H, L, d_kv] of queries to keys and values [B, H, M, d_kv].

    Args:
      queries: [B, H, L, d_kv].
      keys: [B, H, M, d_kv].
      values: as keys.
      bias: [B or 1, H or 1, L, M].
      kernel: one of `KERNELS`, for a bias with a gradient; "auto" leaves it to PyTorch.
    """
    given = {"attn_mask": bias, "scale": 1.0}
    if kernel == "auto" or not bias.requires_grad:
        return functional.scaled_dot_product_attention(queries, keys, values, **given)
    with sdpa_kernel(_BACKENDS[kernel]):
        return functional.scaled_dot_product_attention(queries, keys, values, **given)


def chosen_kernel(
    device: torch.device, dtype: torch.dtype, wanted: tuple[str, ...] = KERNELS
) -> tuple[str, list[str]]:
    """Returns the first kernel that works here, "auto" on a CPU, and lines about the others.

    Args:
      device: where it computes.
      dtype: the type of activations.
      wanted: the kernels to choose from, in this order.
    """
    lines: list[str] = []
    for kernel in wanted if device.type == "cuda" else ():
        reason = _fault(kernel, device, dtype)
        if not reason:
            return kernel, lines
        lines.append(f"attention is not computed by the kernel '{kernel}' ({reason}): {_COST}")
    return "auto", lines


def supported_backends(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, str]]:
    """Yields each of PyTorch's kernels, and "runs" or why it takes no bias with a gradient."""
    _reference()  # which PyTorch must not compute by one of them
    backends = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        **_BACKENDS,
    }
    for name, backend in backends.items():
        with sdpa_kernel(backend):
            yield name, _fault("auto", device, dtype) or "runs"


def _fault(kernel: str, device: torch.device, dtype: torch.dtype) -> str:
    """Returns what is wrong with a kernel, forward and backward on small tensors; "" if nothing."""
    try:
        found = _trial(kernel, device, dtype)
    except RuntimeError as error:  # what PyTorch, CUDA and its allocator raise
        return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    names = ("its result", "a gradient", "the bias's gradient")
    for name, one, other in zip(names, found, _reference(), strict=True):
        apart = float((one.cpu().float() - other).norm() / other.norm())
        if not apart < 0.05:
            return f"{name} is wrong by {apart:.0%}"
    return ""


@functools.cache
def _reference() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns what `_trial` returns, exactly."""
    return _trial("auto", torch.device("cpu"), torch.float32)


def _trial(
    kernel: str, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns a small result, the gradients of its queries, and those of its bias."""
    draw = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(2, 2, 128, 64, generator=draw).mul(0.3).to(device, dtype) for _ in range(3)
    )
    positions = torch.randn(1, 2, 128, 128, generator=draw).to(device)
    weigh = torch.randn(queries.shape, generator=draw).to(device)
    queries.requires_grad_()
    positions.requires_grad_()
    segments = torch.arange(128, device=device).div(50, rounding_mode="floor").expand(2, -1)
    apart = segments[:, None, :, None] != segments[:, None, None, :]
    mask = torch.zeros(apart.shape, dtype=dtype, device=device).masked_fill(apart, HIDDEN)
    result = attend(queries, keys, values, positions.to(dtype) + mask, kernel)
    (result.float() * weigh).sum().backward()
    return result.detach(), queries.grad, positions.grad
