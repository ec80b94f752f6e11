"""Computes attention, and chooses a PyTorch kernel that supports a bias with a gradient.

    kernel, lines = choose_kernel(torch.device("cuda"), torch.bfloat16)     # "efficient", []
    mixed = attend(queries, keys, values, bias, kernel)

The kernel "efficient" (memory-efficient attention) does not store the attention probabilities for
the backward pass; the kernel "plain" does. On CUDA, a run first tries both kernels in this order on
small tensors, forward and backward, and uses the first kernel that gives correct results. Flash
attention and cuDNN's attention accept no bias with a gradient. FlexAttention would not have to
store a bias for every sequence. But on an H100 with PyTorch 2.11, it made the model slower, and its
gradients of cross-attention were wrong.
"""

import functools
from collections.abc import Iterator

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

HIDDEN = -1e9  # this is added to the logits of masked keys, as in Mesh TensorFlow
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
    """Returns the attended values, [B, H, L, d_kv].

    Args:
      queries: the queries [B, H, L, d_kv] of B sequences, H heads and L tokens.
      keys: the keys [B, H, M, d_kv] of M tokens.
      values: the values [B, H, M, d_kv] of these M tokens.
      bias: the bias that is added to the logits, [B or 1, H or 1, L, M].
      kernel: the kernel to use if the bias has a gradient: one of `KERNELS`, or "auto" if PyTorch
        chooses.
    """
    options = {"attn_mask": bias, "scale": 1.0}
    if kernel == "auto" or not bias.requires_grad:
        return functional.scaled_dot_product_attention(queries, keys, values, **options)
    with sdpa_kernel(_BACKENDS[kernel]):
        return functional.scaled_dot_product_attention(queries, keys, values, **options)


def choose_kernel(
    device: torch.device, dtype: torch.dtype, candidates: tuple[str, ...] = KERNELS
) -> tuple[str, list[str]]:
    """Returns the first kernel that works on a device, and a line about each that fails.

    Args:
      device: the device that computes.
      dtype: the type of activations.
      candidates: the kernels to try, in this order.

    Returns:
      (kernel, lines). The kernel is "auto" on a CPU, or if no candidate works. A line names a
      candidate that was tried and failed, and the reason.
    """
    lines: list[str] = []
    for kernel in candidates if device.type == "cuda" else ():
        reason = _find_fault(kernel, device, dtype)
        if not reason:
            return kernel, lines
        lines.append(f"the attention kernel '{kernel}' is not used ({reason}): {_COST}")
    return "auto", lines


def supported_backends(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, str]]:
    """Tries PyTorch's kernels with a bias that has a gradient; yields (kernel, "runs" or error)."""
    _reference()  # computed here, because the loop selects other kernels
    backends = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        **_BACKENDS,
    }
    for name, backend in backends.items():
        with sdpa_kernel(backend):
            yield name, _find_fault("auto", device, dtype) or "runs"


def _find_fault(kernel: str, device: torch.device, dtype: torch.dtype) -> str:
    """Tries a kernel on small tensors, forward and backward; returns its error, or ""."""
    try:
        results = _run_trial(kernel, device, dtype)
    except RuntimeError as error:  # from PyTorch, CUDA or the allocator
        return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    names = ("its result", "a gradient", "the bias's gradient")
    for name, result, expected in zip(names, results, _reference(), strict=True):
        relative_error = float((result.cpu().float() - expected).norm() / expected.norm())
        if not relative_error < 0.05:
            return f"{name} is wrong by {relative_error:.0%}"
    return ""


@functools.cache
def _reference() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the results of `_run_trial` in float32 on the CPU, as a reference."""
    return _run_trial("auto", torch.device("cpu"), torch.float32)


def _run_trial(
    kernel: str, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the result of a small attention, and the gradients of its queries and its bias."""
    draw = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(2, 2, 128, 64, generator=draw).mul(0.3).to(device, dtype) for _ in range(3)
    )
    positions = torch.randn(1, 2, 128, 128, generator=draw).to(device)
    loss_weights = torch.randn(queries.shape, generator=draw).to(device)
    queries.requires_grad_()
    positions.requires_grad_()
    segments = torch.arange(128, device=device).div(50, rounding_mode="floor").expand(2, -1)
    different = segments[:, None, :, None] != segments[:, None, None, :]
    mask = torch.zeros(different.shape, dtype=dtype, device=device).masked_fill(different, HIDDEN)
    result = attend(queries, keys, values, positions.to(dtype) + mask, kernel)
    (result.float() * loss_weights).sum().backward()
    return result.detach(), queries.grad, positions.grad
