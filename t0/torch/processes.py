"""Joins the processes of a run, chooses their devices, and lets them communicate.

    with join_processes("auto") as world:
        world.rank, world.size, world.device
        world.all_reduce_sum(tensor)
        world.check_equal("the specification", text)    # UserError if the processes differ

`torchrun`, `accelerate launch` and the SLURM scripts in `bin/` set RANK, WORLD_SIZE and LOCAL_RANK.
Without these variables there is only one process. GPUs communicate with NCCL, CPUs with gloo.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import io
import itertools
import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
import torch.distributed as dist

from t0.errors import UserError, short_reason
from t0.machine import available_memory_bytes, multiplies_bfloat16
from t0.torch.memory import USABLE

_T = TypeVar("_T")

DEVICES = ("auto", "cuda", "cpu")
FAILED = 2  # the exit status after a UserError
# Words that gloo's error messages contain if a process has ended or does not answer.
_LOST = re.compile("Connection (closed|reset) by peer|[Tt]imed out (waiting|connecting)|Socket")
# How often this process has joined others. Torchrun's store keeps the addresses of an earlier group,
# which gloo would read again.
_JOINS = itertools.count()
# A key in torchrun's store. It is set if a UserError ended the run. Restarted processes then end.
_MISTAKE = "t0/mistake"


@dataclasses.dataclass(frozen=True)
class World:
    """The processes of a run.

    Attributes:
      rank: the number of this process, from 0.
      size: the number of processes.
      device: the device of this process.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def device_kind(self) -> str:
        """The kind of device of this process: "gpu" or "cpu"."""
        return "gpu" if self.device.type == "cuda" else "cpu"

    @property
    def first(self) -> bool:
        """Whether this is the first process, which prints and writes for all."""
        return self.rank == 0

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sums a tensor over all processes in place; returns the tensor."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def max_over_processes(self, number: int) -> int:
        """Returns the largest of the processes' numbers."""
        tensor = torch.tensor([number], device=self.device)
        if self.size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor.item())

    def gather(self, value: _T) -> list[_T]:
        """Returns a list of the values that all processes pass, in order of rank."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Waits until all processes have called this method."""
        self.max_over_processes(0)

    def broadcast_text(self, make_text: Callable[[], str]) -> str:
        """Returns, on every process, the text that the first process makes.

        Raises:
          SystemExit: on the other processes, if the first process could not make the text.
        """
        texts: list[str | None] = [None]
        try:
            if self.first:
                texts = [make_text()]
        finally:
            if self.size > 1:
                dist.broadcast_object_list(texts)
        if texts[0] is None:
            raise SystemExit(FAILED)  # the first process has printed the reason
        return texts[0]

    def check_equal(self, label: str, text: str) -> None:
        """Checks that all processes have the same text.

        Raises:
          UserError: if texts differ. The message names the processes whose text differs from that
            of the first process.
        """
        digests = self.gather(hashlib.sha256(text.encode()).hexdigest())
        others = [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]
        if others:
            raise UserError(
                f"{label} of process {', '.join(others)} differs from that of process 0: start all "
                "processes with the same command, and give every machine the same files"
            )

    @contextlib.contextmanager
    def only_first_prints(self) -> Iterator[None]:
        """Discards what is printed in a `with` block, except in the first process."""
        if self.first:
            yield
            return
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield

    def free_bytes(self) -> int:
        """Returns the memory in bytes that this process can allocate."""
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            return int(USABLE * free)
        return available_memory_bytes() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@contextlib.contextmanager
def join_processes(device: str, minutes: float = 30.0) -> Iterator[World]:
    """Joins the processes of this run for the duration of a `with` block.

    If several processes fail, only one of them prints the reason. If the reason is a UserError,
    restarted processes would fail with the same message. So processes that `torchrun
    --max_restarts` starts again end immediately.

    Args:
      device: "cuda", "cpu", or "auto" for CUDA if there is a GPU.
      minutes: the number of minutes for which a process waits for the others.

    Raises:
      UserError: if there is no such device, or a process is lost.
    """
    if not minutes > 0:
        raise UserError(f"--timeout_minutes is {minutes:g}; expected a number above 0")
    torch_device = find_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if torch_device.type == "cuda":
        torch.cuda.set_device(torch_device)
    timeout = datetime.timedelta(minutes=minutes)
    store = starts = dist.HashStore()
    rank, size = 0, 1
    try:
        if "RANK" in os.environ:
            starts, rank, size = next(dist.rendezvous("env://", timeout=timeout))
        # The store of a launcher may outlive the processes of an earlier start.
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"{restarts}/{next(_JOINS)}", starts)
        backend = "nccl" if torch_device.type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=rank, world_size=size, timeout=timeout, store=store)
        if starts.check([_MISTAKE]):
            raise SystemExit(FAILED)
        yield World(rank, size, torch_device)
    except (UserError, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code != FAILED:
            raise
        with contextlib.suppress(RuntimeError):
            starts.set(_MISTAKE, "")
        if isinstance(error, UserError) and not _is_first_to_fail(store):
            raise SystemExit(FAILED) from None
        raise
    except RuntimeError as error:
        # Gloo does not have its own error class.
        if not _LOST.search(str(error)) and not isinstance(error, dist.DistBackendError):
            raise
        # Torchrun sends SIGTERM to this process because another process is lost. The signal is
        # ignored, so that this process can still print the message.
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not _is_first_to_fail(store):
            raise SystemExit(FAILED) from error
        raise UserError(
            f"process {rank} waited for the others, and one does not answer "
            f"({short_reason(error):.200}). See its last lines, and check on its machine whether "
            "memory was full (dmesg), it hangs (py-spy dump), or the network is down; the same "
            "command resumes from the last checkpoint"
        ) from error
    finally:
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()


def _is_first_to_fail(store: dist.Store) -> bool:
    """Returns whether no other process has failed before. Only the first one prints its reason."""
    try:
        return store.add("t0/failed", 1) == 1
    except RuntimeError:  # the store is gone, because the process that failed first had it
        return False


def find_device(name: str, local_rank: int = 0) -> torch.device:
    """Returns the device of a process.

    Args:
      name: one of `DEVICES`; "auto" is CUDA if there is a GPU.
      local_rank: the number of the process on its machine.

    Raises:
      UserError: if there is no such device.
    """
    if name not in DEVICES:
        raise UserError(f"--device is {name!r}; expected one of {', '.join(DEVICES)}")
    count = torch.cuda.device_count() if name != "cpu" else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    if not count:
        raise UserError(
            f"--device=cuda: PyTorch {torch.__version__} finds no GPU (see nvidia-smi), "
            f"and was built for {torch.version.cuda or 'the CPU'}"
        )
    if local_rank >= count:
        raise UserError(
            f"process {local_rank} of this machine has no GPU: there are {count}; start at most as "
            f"many processes (torchrun --nproc_per_node={count})"
        )
    return torch.device("cuda", local_rank)


def check_local(path: str, parameter: str) -> None:
    """Raises a UserError if a folder to which a run writes, set by `parameter`, is remote."""
    if "://" in path:
        raise UserError(
            f"{path} is not on this machine; the PyTorch engine writes to folders that all its "
            f"processes see ({parameter})"
        )


def device_name(device: torch.device) -> str:
    """Returns the name of a GPU, or "the CPU"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"


def choose_activation_type(name: str, device: torch.device) -> torch.dtype:
    """Returns the type of activations.

    Args:
      name: "float32", "bfloat16" or "auto". "auto" is bfloat16 if the device has instructions for
        it, otherwise float32.
      device: the device that computes.
    """
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = multiplies_bfloat16()
    return torch.bfloat16 if fast else torch.float32
