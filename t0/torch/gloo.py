"""FSDP's all-gather and reduce-scatter for gloo: each process sends to each other one directly.

    module.set_custom_all_gather(AllGather())            # an FSDPModule
    module.set_custom_reduce_scatter(ReduceScatter())

PyTorch's gloo has no reduce-scatter: it copies the whole tensor, sums all of it on every process
and keeps a part. Both take several times as long as sending what the others need.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist


class _Collective:
    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Returns an empty tensor, for FSDP."""
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(_Collective):
    """Gathers the parts of all processes, in the order of their ranks."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        """Fills the output, n parts, with the inputs; waits for them, also if `async_op` is set."""
        parts = output_tensor.view(group.size(), -1)
        own = parts[group.rank()]
        if own.data_ptr() != input_tensor.data_ptr():  # FSDP gives that part of the output
            own.copy_(input_tensor.view(-1))
        _exchange([own] * group.size(), parts.unbind(), group)


class ReduceScatter(_Collective):
    """Sums over the processes; each keeps the part of its rank."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> None:
        """Fills the output with the sum of the inputs' parts, in the order of the ranks.

        Raises:
          ValueError: if `op` is not a sum.
        """
        if op != dist.ReduceOp.SUM:
            raise ValueError(f"op is {op}; wanted a sum")
        parts = input_tensor.view(group.size(), -1).unbind()
        received = [
            part if rank == group.rank() else torch.empty_like(part)
            for rank, part in enumerate(parts)
        ]
        _exchange(parts, received, group)
        total = output_tensor.view(-1)
        torch.add(received[0], received[1], out=total)
        for part in received[2:]:
            total.add_(part)


def _exchange(
    sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor], group: dist.ProcessGroup
) -> None:
    """Sends a part to each other process of a group, and fills the parts that come from there."""
    works = []
    # Each begins with the process after it, so that not all send to the same one first.
    for distance in range(1, group.size()):
        to, source = ((group.rank() + sign * distance) % group.size() for sign in (1, -1))
        works.append(dist.isend(sent[to], group=group, group_dst=to))
        works.append(dist.irecv(received[source], group=group, group_src=source))
    for work in works:
        work.wait()
