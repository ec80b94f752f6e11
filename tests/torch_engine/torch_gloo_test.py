"""Three processes gather their parts, and sum them in the order of their ranks."""

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import multiprocessing  # noqa: E402

from t0.torch import gloo  # noqa: E402

PROCESSES, ELEMENTS = 3, 5


def values(rank):
    return torch.randn(PROCESSES * ELEMENTS, generator=torch.Generator().manual_seed(rank))


def compared(rank, folder):
    store = dist.FileStore(f"{folder}/store", PROCESSES)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES)
    group, own = dist.group.WORLD, values(rank)
    part = own[:ELEMENTS].clone()
    expected = torch.cat([values(other)[:ELEMENTS] for other in range(PROCESSES)])

    gathered = torch.zeros(PROCESSES * ELEMENTS)
    gloo.AllGather()(gathered, part, group)
    assert torch.equal(gathered, expected)

    gathered = torch.zeros(PROCESSES * ELEMENTS)  # as FSDP calls it, with a part of the output
    place = gathered[rank * ELEMENTS :][:ELEMENTS].copy_(part)
    gloo.AllGather()(gathered, place, group, async_op=True)
    assert torch.equal(gathered, expected)

    total = torch.zeros(ELEMENTS)
    gloo.ReduceScatter()(total, own, group, dist.ReduceOp.SUM)
    parts = [values(other).view(PROCESSES, ELEMENTS)[rank] for other in range(PROCESSES)]
    assert torch.equal(total, parts[0] + parts[1] + parts[2])
    assert torch.equal(own, values(rank))
    dist.destroy_process_group()


def test_parts_are_gathered_and_summed_in_the_order_of_ranks(tmp_path):
    multiprocessing.spawn(compared, args=(str(tmp_path),), nprocs=PROCESSES)


def test_nothing_but_a_sum_is_computed():
    with pytest.raises(ValueError, match="wanted a sum"):
        gloo.ReduceScatter()(None, None, None, dist.ReduceOp.MAX)
