"""The processes of a run: their number, their devices, and what they agree on.

    with joined("auto") as world:
        world.rank, world.size, world.device
        world.total(tensor)                        # the sum over all processes
        world.agree("the specification", text)     # UserError where they differ

`torchrun`, `accelerate launch` and SLURM's scripts of `bin/` set RANK, WORLD_SIZE and LOCAL_RANK;
without them there is one process. CUDA uses NCCL, the CPU gloo.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import os
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from t0.errors import UserError
from t0.torch.memory import USABLE
from t0.training import free_memory

DEVICES = ("auto", "cuda", "cpu")
_MINUTES = 30  # how long a process waits for the others before it says which is missing
_HASH_BYTES = 8
FAILED = 2  # the exit status after a mistake of the user
# What gloo says where another process has ended.
_LOST = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Socket")


@dataclasses.dataclass(frozen=True)
class World:
    """The processes of a run.

    Attributes:
      rank: the number of this process, from 0 on.
      size: the number of processes.
      device: the device of this process.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process prints, and writes what one process writes."""
        return self.rank == 0

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sums a tensor over all processes, in place; returns it."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: int) -> int:
        """Returns the largest of the processes' numbers."""
        tensor = torch.tensor([flag], device=self.device)
        if self.size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor.item())

    def free_bytes(self) -> int | None:
        """Returns the memory that this process can have, None where it is not known."""
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            return int(USABLE * free)
        free = free_memory.available_bytes()
        return None if free is None else free // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def wait(self) -> None:
        """Waits until all processes are here."""
        self.any(0)

    def shared(self, made: Callable[[], str]) -> str:
        """Returns on every process the text that the first one makes.

        Raises:
          SystemExit: on the others, where the first one could not make it.
        """
        text = b""
        if self.first:
            try:
                text = made().encode()
            except (SystemExit, UserError):
                self._from_first(b"")
                raise
        text = self._from_first(text)
        if not text:
            raise SystemExit(2)  # the first process says why
        return text.decode()

    def _from_first(self, content: bytes) -> bytes:
        if self.size == 1:
            return content
        length = torch.tensor([len(content)], device=self.device)
        dist.broadcast(length, 0)
        buffer = torch.zeros(int(length.item()), dtype=torch.uint8, device=self.device)
        if self.first:
            buffer.copy_(
                torch.frombuffer(bytearray(content or b" "), dtype=torch.uint8)[: len(content)]
            )
        dist.broadcast(buffer, 0)
        return bytes(buffer.cpu().numpy())

    def agree(self, what: str, text: str) -> None:
        """Checks that all processes have the same text.

        Raises:
          UserError: naming the processes that differ from the first.
        """
        digest = hashlib.sha256(text.encode()).digest()[:_HASH_BYTES]
        own = torch.tensor(list(digest), dtype=torch.uint8, device=self.device)
        if self.size == 1:
            return
        all_ = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(all_, own)
        others = [str(rank) for rank, other in enumerate(all_) if not torch.equal(other, all_[0])]
        if others:
            raise UserError(
                f"{what} of process {', '.join(others)} differs from that of process 0: start all "
                "processes with the same command, and give every machine the same files"
            )


@contextlib.contextmanager
def joined(wanted: str) -> Iterator[World]:
    """Joins the processes of this run for the block.

    Args:
      wanted: "cuda", "cpu", or "auto" for CUDA where there is a GPU.

    Raises:
      UserError: if there is no such device.
    """
    rank, size, local = (int(os.environ.get(n, d)) for n, d in _VARIABLES.items())
    device = _device(wanted, local)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    options = {} if "RANK" in os.environ else {"store": dist.HashStore()}
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(minutes=_MINUTES),
        **options,
    )
    try:
        yield World(rank, size, device)
    except UserError:
        if not _first_to_fail():
            raise SystemExit(FAILED) from None
        raise
    except dist.DistBackendError as error:
        raise _lost(rank, error) from error
    except RuntimeError as error:  # which gloo raises
        if not any(words in str(error) for words in _LOST):
            raise
        raise _lost(rank, error) from error
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def _lost(rank: int, error: Exception) -> BaseException:
    """Returns how a process ends that has lost another one; the one that failed first says why."""
    if not _first_to_fail():
        return SystemExit(FAILED)
    reason = (str(error).strip().splitlines() or [""])[-1]
    return UserError(
        f"process {rank} waited for the others, and one is lost ({reason:.200}). Look for what it "
        "printed last, and on its machine for a full memory (dmesg) or network; the same command "
        "goes on from the last checkpoint"
    )


def _first_to_fail() -> bool:
    """Returns whether no other process has failed so far; that one prints its message."""
    try:
        return dist.distributed_c10d._get_default_store().add("t0/failed", 1) == 1
    except (RuntimeError, ValueError):  # it was kept by the process that failed
        return False


_VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


def _device(wanted: str, local: int) -> torch.device:
    if wanted not in DEVICES:
        raise UserError(f"--device is {wanted!r}; wanted one of {', '.join(DEVICES)}")
    there = torch.cuda.device_count() if wanted != "cpu" else 0
    if wanted == "cpu" or (wanted == "auto" and not there):
        return torch.device("cpu")
    if not there:
        raise UserError(f"--device=cuda: PyTorch {torch.__version__} finds no GPU{_why()}")
    if local >= there:
        raise UserError(
            f"process {local} of this machine has no GPU: there are {there}; start at most as many "
            f"processes (torchrun --nproc_per_node={there})"
        )
    return torch.device("cuda", local)


def _why() -> str:
    if torch.version.cuda is None:
        return ": this build of PyTorch is for the CPU; install one for CUDA"
    try:
        torch.cuda.init()
    except RuntimeError as error:
        return f" ({str(error).splitlines()[0]}): nvidia-smi shows the driver"
    return ""


def activations(wanted: str, device: torch.device) -> torch.dtype:
    """Returns the type of activations.

    Args:
      wanted: "float32", "bfloat16", or "auto": bfloat16 where the device computes it fast.
      device: the device.
    """
    if wanted != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[wanted]
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32
