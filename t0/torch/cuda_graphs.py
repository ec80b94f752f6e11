"""Records the training step of one process on a GPU as CUDA graphs, and replays them.

    steps = ReplayedSteps(masters, local, optimizer, denominator=16384, clip_norm=None)
    sums, squares = steps.take(batches, seeds, step=0, rate=0.001)      # of losses; of all weights

Without graphs, Python starts thousands of kernels per step, one after the other. On an H100,
starting the kernels takes longer than the computation: T5 1.1 large took 410 ms per step, and the
GPU waited most of the time. A CUDA graph starts all kernels in one call. The shapes and memory
addresses in a graph are fixed, so logits are computed at all target positions, including padding.
Padding does not count in the loss.

A single process does not gather weights from other processes. Instead, it has two models: `masters`
has the float32 weights that checkpoints contain, and `local` is a copy in the type of activations,
which computes losses and gradients.
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from t0.torch.model import LOSS, SUM_NAMES, T5, as_tensor
from t0.torch.optimizers import Adafactor, Optimizer
from t0.torch.sharding import Weight, local_rows

DEVICES = ("cuda",)
_EAGER = 2  # the number of steps before the recording, in which kernels are compiled and loaded


class ReplayedSteps:
    """Takes the training steps of a run: the first few eagerly, and then by replaying CUDA graphs.

    Args:
      masters: the model with the float32 weights.
      local: the model that computes the losses and gradients, on the same device.
      optimizer: the optimizer, which updates the masters with the gradients of `local` (see
        `use_gradients_of`).
      denominator: the number by which the summed losses are divided.
      clip_norm: the norm to which all gradients together are clipped; None for no clipping.
    """

    def __init__(
        self,
        masters: T5,
        local: T5,
        optimizer: Optimizer,
        *,
        denominator: float,
        clip_norm: float | None,
    ) -> None:
        self._local, self._optimizer = local, optimizer
        self._denominator, self._clip_norm = denominator, clip_norm
        pairs = list(zip(local.parameters(), masters.parameters(), strict=True))
        copies = [(p.data, local_rows(master)) for p, master in pairs]
        copies = [(p, rows) for p, rows in copies if p.data_ptr() != rows.data_ptr()]
        self._narrow, self._wide = map(list, zip(*copies, strict=True))
        self._trained = [parameter for parameter, master in pairs if master.requires_grad]
        self._gradient_sums = [p.grad_sum for p in self._trained if p.grad_sum is not None]
        self._device = self._wide[0].device
        self._stream = torch.cuda.Stream() if self._device.type == "cuda" else None
        self._sums = torch.zeros(len(SUM_NAMES), device=self._device)
        self._squares = torch.zeros(2, device=self._device)
        self._decay, self._rate = torch.zeros(2, device=self._device).unbind()
        self._batch: dict[str, torch.Tensor] = {}
        self._steps_taken, self._graphs = 0, None

    def take(
        self,
        batches: Sequence[Mapping[str, np.ndarray]],
        seeds: Sequence[int],
        *,
        step: int,
        rate: float,
    ) -> tuple[torch.Tensor, list[float]]:
        """Takes a training step; returns the sums of losses, [7], and the sums of squares.

        Args:
          batches: the microbatches of the step.
          seeds: for each microbatch, PyTorch's seed for its dropout.
          step: the number of steps done.
          rate: the learning rate.
        """
        # CUDA cannot record on the default stream, because other streams wait for the default
        # stream.
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        stream = torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext()
        with stream:
            squares = self._take(batches, seeds, step, rate)
        if self._stream is not None:
            self._stream.synchronize()
        return self._sums, squares

    def _take(
        self,
        batches: Sequence[Mapping[str, np.ndarray]],
        seeds: Sequence[int],
        step: int,
        rate: float,
    ) -> list[float]:
        if not self._steps_taken:  # the masters have been filled since they were made
            _copy(self._narrow, self._wide)
        self._local.train()
        self._sums.zero_()
        if isinstance(self._optimizer, Adafactor):
            self._decay.fill_(self._optimizer.decay(step))
        self._rate.fill_(rate)
        for batch, seed in zip(batches, seeds, strict=True):
            self._fill_batch(batch)
            torch.manual_seed(seed)
            if self._steps_taken >= _EAGER and self._device.type == "cuda":
                self._record_graphs()[0].replay()
            else:
                self._clear_gradients()
                self._forward_and_backward()
        self._steps_taken += 1
        if isinstance(self._optimizer, Adafactor):
            if self._graphs:
                self._graphs[1].replay()
            else:
                self._update()
            squares = self._squares.tolist()
        else:
            squares = self._optimizer.step(step, rate, self._clip_norm)
            _copy(self._narrow, self._wide)
        for total in self._gradient_sums:
            total.zero_()
        return squares

    def _fill_batch(self, batch: Mapping[str, np.ndarray]) -> None:
        for name, values in batch.items():
            tensor = as_tensor(values, self._device)
            if name not in self._batch:
                self._batch[name] = torch.empty_like(tensor, device=self._device)
            self._batch[name].copy_(tensor, non_blocking=True)

    def _clear_gradients(self) -> None:
        for parameter in self._trained:
            parameter.grad = None

    def _record_graphs(self) -> tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph | None]:
        """Returns (graph of a microbatch, graph of Adafactor's update or, with AdamW, None)."""
        if self._graphs is None:
            self._clear_gradients()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # the graphs use their own memory
            microbatch_graph, update_graph = torch.cuda.CUDAGraph(), None
            # During the recording, CUDA must check only the calls of this thread, because NCCL's
            # thread queries its events at the same time.
            recording = {"stream": self._stream, "capture_error_mode": "thread_local"}
            with torch.cuda.graph(microbatch_graph, **recording):
                self._forward_and_backward()
            if isinstance(self._optimizer, Adafactor):
                update_graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(update_graph, pool=microbatch_graph.pool(), **recording):
                    self._update()
            self._graphs = microbatch_graph, update_graph
        return self._graphs

    def _forward_and_backward(self) -> None:
        sums = self._local(self._batch)
        (sums[LOSS] / self._denominator).backward()
        self._sums += sums.detach()

    def _update(self) -> None:
        squares = self._optimizer.update(self._decay, self._rate, self._clip_norm)
        self._squares.copy_(squares)
        _copy(self._narrow, self._wide)


def _add_to_sum(parameter: torch.nn.Parameter) -> None:
    """Adds the gradient of a microbatch to the sum of gradients as soon as it is computed."""
    parameter.grad_sum += parameter.grad
    parameter.grad = None


def use_gradients_of(
    local: T5, masters: T5, weights: Sequence[Weight], *, microbatches: int
) -> list[Weight]:
    """Returns the weights of `masters`, with the gradients that `local` computes.

    Args:
      local: the model that computes losses and gradients.
      masters: the model to which the weights belong.
      weights: the trained weights, in the order of the names in `masters`.
      microbatches: the number of microbatches per step. If there are several, their gradients are
        summed in float32.
    """
    copies = {}
    for parameter, master in zip(local.parameters(), masters.parameters(), strict=True):
        parameter.requires_grad_(master.requires_grad)
        parameter.grad_sum = None
        if not master.requires_grad and parameter.dtype == master.dtype:
            parameter.data = local_rows(master)  # a frozen weight needs no copy
        if microbatches > 1 and master.requires_grad:
            parameter.grad_sum = torch.zeros_like(parameter, dtype=torch.float32)
            parameter.register_post_accumulate_grad_hook(_add_to_sum)
        copies[master] = parameter
    return [dataclasses.replace(each, copy=copies[each.parameter]) for each in weights]


@torch.no_grad()
def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
