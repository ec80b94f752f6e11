"""Updates the weights of each block within the backward pass, so that few gradients exist together.

    updates = BlockUpdates(model, optimizer, weights, clip_norm=None, host=None)
    updates.begin(step=0, rate=0.001)
    updates.backward(loss, first=True, last=True)       # once for each microbatch
    squares = updates.finish()                          # as `Optimizer.step` returns them

This is `--gradients=fused` and `--gradients=offload`. As soon as FSDP has the gradients of a block,
they are added to those of earlier microbatches, which are in host memory, and the sums are copied
back. In the last microbatch, the optimizer updates the block instead, and the gradients are freed.
The embeddings and everything else outside blocks come last. Position biases belong to the first
block of a stack. Steps of one microbatch need no host memory, except to clip the gradients by their
common norm: then the first update needs the gradients of all weights.

FSDP calls the hooks on its own stream. So copies and updates run while the next block computes. And
the gradients of at most two blocks exist at the same time, because the computation of a block waits
until FSDP has freed the gradients of the block before the last one.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence

import torch

from t0.errors import UserError
from t0.machine import available_memory_bytes
from t0.torch.model import T5, Block
from t0.torch.optimizers import Optimizer
from t0.torch.sharding import Weight


def check_host_memory(needed: int) -> None:
    """Raises a UserError if the gradients do not fit into the host's free memory, in bytes."""
    free = available_memory_bytes()
    if needed > free:
        raise UserError(
            f"--gradients=offload needs {needed / 2**30:.2f} GiB of host memory, and "
            f"{free / 2**30:.2f} GiB are free; free some, or set --gradients=keep"
        )


class HostSums:
    """The float32 sums of gradients in host memory, pinned if the device is a GPU.

    Args:
      weights: the trained weights.
      device: the device that computes.

    Attributes:
      pinned: whether the memory is pinned; copies to and from other memory are slower.
    """

    def __init__(self, weights: Sequence[Weight], device: torch.device) -> None:
        sizes = [each.local().numel() for each in weights]
        whole = torch.empty(sum(sizes), dtype=torch.float32)
        self.pinned = device.type == "cuda" and _pin(whole, device)
        views = zip(weights, whole.split(sizes), strict=True)
        self._sums = {each.name: view.view_as(each.local()) for each, view in views}

    def add(self, name: str, gradient: torch.Tensor) -> None:
        """Adds the sum of a weight to a gradient of a later microbatch, in place."""
        gradient += self.load(name, gradient.device)

    def load(self, name: str, device: torch.device) -> torch.Tensor:
        """Returns the sum of a weight as a new tensor on a device."""
        return self._sums[name].to(device, non_blocking=True, copy=True)

    def store(self, name: str, total: torch.Tensor) -> None:
        """Replaces the sum of a weight."""
        self._sums[name].copy_(total, non_blocking=True)


def _pin(tensor: torch.Tensor, device: torch.device) -> bool:
    """Pins ordinary memory; returns False if the system refuses.

    `Tensor.pin_memory` would copy the tensor, and round its size up to a power of two.
    """
    error = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)
    if int(error):
        _clear_error(device)
    return not int(error)


def _clear_error(device: torch.device) -> None:
    """Clears the last error of CUDA, which PyTorch would raise after the next kernel."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device)


class BlockUpdates:
    """Takes the optimizer's step block by block, within the backward pass.

    Args:
      model: the sharded model.
      optimizer: the optimizer of the model.
      weights: the trained weights, in the optimizer's order.
      clip_norm: the norm to which all gradients together are clipped; None for no clipping.
      host: the sums of several microbatches, or of one if gradients are clipped; otherwise None.
    """

    def __init__(
        self,
        model: T5,
        optimizer: Optimizer,
        weights: Sequence[Weight],
        *,
        clip_norm: float | None,
        host: HostSums | None,
    ) -> None:
        self._optimizer, self._weights = optimizer, weights
        self._clip_norm, self._host = clip_norm, host
        self._units = _group_by_unit(model, weights)
        self._arrivals = [0] * len(self._units)
        self._squares: dict[str, torch.Tensor] = {}
        self._step, self._rate = 0, 0.0
        self._first = self._last = True
        for number, unit in enumerate(self._units):
            hook = functools.partial(self._receive, number)
            for weight in unit:
                weight.parameter.register_post_accumulate_grad_hook(hook)

    def begin(self, step: int, rate: float) -> None:
        """Begins a step; the arguments are those of `Optimizer.step`."""
        self._step, self._rate = step, rate
        self._squares.clear()

    def backward(self, loss: torch.Tensor, *, first: bool, last: bool) -> None:
        """Computes the gradients of a microbatch; adds them to the sums, or updates the weights.

        Args:
          loss: the loss of the microbatch.
          first: whether this is the first microbatch of the step.
          last: whether this is the last microbatch of the step.
        """
        self._first, self._last = first, last
        loss.backward()
        for number, count in enumerate(self._arrivals):
            if count:  # the loss does not depend on the other weights of this unit
                self._take_gradients(number)

    def finish(self) -> list[float]:
        """Ends the step; returns the sums of squares that `Optimizer.step` returns."""
        if self._clip_norm is not None:
            square = self._sum_squares()[0]
            for unit in self._units:
                with self._sums_on_device(unit) as weights:
                    self._update(weights, square)
        return self._sum_squares().tolist()

    def _receive(self, number: int, parameter: torch.nn.Parameter) -> None:
        """Counts the gradients of a unit; FSDP calls this for each of its weights in turn."""
        del parameter
        self._arrivals[number] += 1
        if self._arrivals[number] == len(self._units[number]):
            self._take_gradients(number)

    def _take_gradients(self, number: int) -> None:
        """Uses the gradients of a unit, and frees them."""
        self._arrivals[number] = 0
        trained = [each for each in self._units[number] if each.gradient() is not None]
        if not self._first:
            for weight in trained:
                self._host.add(weight.name, weight.gradient())
        if self._last and self._clip_norm is None:
            self._update(trained, None)
        else:
            for weight in trained:
                self._host.store(weight.name, weight.gradient())
        if self._last and self._clip_norm is not None:
            self._note(trained, self._optimizer.square_sums(trained))
        for weight in trained:
            weight.parameter.grad = None

    def _update(self, weights: Sequence[Weight], square: torch.Tensor | None) -> None:
        squares = self._optimizer.update_weights(
            weights, self._step, self._rate, self._clip_norm, square
        )
        self._note(weights, squares)

    def _note(self, weights: Sequence[Weight], squares: torch.Tensor) -> None:
        names = [each.name for each in weights]
        self._squares |= zip(names, squares.unbind(), strict=True)

    def _sum_squares(self) -> torch.Tensor:
        """Sums the squares of all weights in the order of `Optimizer.step`."""
        names = (each.name for each in self._weights)
        return torch.stack([self._squares[n] for n in names if n in self._squares]).sum(0)

    @contextlib.contextmanager
    def _sums_on_device(self, unit: Sequence[Weight]) -> Iterator[list[Weight]]:
        """Copies the sums of a unit to the device for a `with` block; yields its weights."""
        weights = [each for each in unit if each.name in self._squares]
        for weight in weights:
            weight.parameter.grad_sum = self._host.load(weight.name, weight.local().device)
        yield weights
        for weight in weights:
            weight.parameter.grad_sum = None


def _group_by_unit(model: T5, weights: Sequence[Weight]) -> list[list[Weight]]:
    """Returns the weights of each block, and those outside blocks, whose gradients come together."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    number_of = {p: number for number, block in enumerate(blocks, 1) for p in block.parameters()}
    units: dict[int, list[Weight]] = {}
    for weight in weights:
        units.setdefault(number_of.get(weight.parameter, 0), []).append(weight)
    return list(units.values())
