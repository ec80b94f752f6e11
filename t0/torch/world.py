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
import functools
import hashlib
import io
import os
import signal
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from t0.errors import UserError, say
from t0.machine import available_memory_bytes, multiplies_bfloat16
from t0.torch.memory import USABLE

DEVICES = ("auto", "cuda", "cpu")
TIMEOUT_MINUTES = 30.0  # how long a process waits for the others before it says which is missing
_HASH_BYTES = 8
FAILED = 2  # the exit status after a mistake of the user
# What gloo says where another process has ended, or does not answer.
_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Timed out waiting",
    "timed out connecting",
    "Socket",
)
_SETTLED_SECONDS = 3.0  # until all processes that wait for a lost one have noticed
_MISTAKE = "t0/mistake"  # in torchrun's store: a start again would end in the same message


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

    @contextlib.contextmanager
    def printing(self) -> Iterator[None]:
        """Keeps what the block prints from the screen, but for the first process."""
        with contextlib.ExitStack() as held:
            if not self.first:
                held.enter_context(contextlib.redirect_stdout(io.StringIO()))
                held.enter_context(contextlib.redirect_stderr(io.StringIO()))
            yield

    def free_bytes(self) -> int:
        """Returns the memory in bytes that this process can allocate."""
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            return int(USABLE * free)
        return available_memory_bytes() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

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
def joined(wanted: str, minutes: float = TIMEOUT_MINUTES) -> Iterator[World]:
    """Joins the processes of this run for the block.

    Of several processes that fail, one prints why. After a mistake of the user, which would come up
    again, the processes that `torchrun --max_restarts` starts anew end at once.

    Args:
      wanted: "cuda", "cpu", or "auto" for CUDA where there is a GPU.
      minutes: how long a process waits for the others.

    Raises:
      UserError: if there is no such device, or a process is lost.
    """
    if not minutes > 0:
        raise UserError(f"--timeout_minutes is {minutes:g}; wanted a number above 0")
    rank, size, local = (int(os.environ.get(n, d)) for n, d in _VARIABLES.items())
    device = _device(wanted, local)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(minutes=minutes),
            store=_store_of_this_start(),
        )
        if _ended_by_mistake():
            raise SystemExit(FAILED)
        yield World(rank, size, device)
    except UserError:
        _note_mistake()
        if not _first_to_fail(rank):
            raise SystemExit(FAILED) from None
        raise
    except SystemExit as error:
        if error.code == FAILED:  # another program has said why
            _note_mistake()
        raise
    except dist.DistBackendError as error:
        raise _lost(rank, size, error) from error
    except RuntimeError as error:  # which gloo raises
        if not any(words in str(error) for words in _LOST):
            raise
        raise _lost(rank, size, error) from error
    finally:
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()


def _lost(rank: int, size: int, error: Exception) -> BaseException:
    """Returns how a process ends that has lost another one; the first to notice says which."""
    # torchrun ends this process because that other one is lost; the message is to be printed.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not _first_to_fail(rank):
        return SystemExit(FAILED)
    reason = (str(error).strip().splitlines() or [""])[-1]
    silent = _silent(size)
    who = f"process {', '.join(map(str, silent))}" if silent else "one"
    return UserError(
        f"process {rank} waited for the others, and {who} does not answer ({reason:.200}). See "
        "what it printed last, and on its machine whether memory was full (dmesg), it hangs "
        "(py-spy dump), or the network is down; the same command goes on from the last checkpoint"
    )


def _silent(size: int) -> list[int]:
    """Returns the processes that have not noticed that one is lost, when no more notice it."""
    ended = time.monotonic() + _SETTLED_SECONDS
    silent = list(range(size))
    while len(silent) > 1 and time.monotonic() < ended:
        silent = [rank for rank in silent if not _is_set(f"t0/failed/{rank}")]
        time.sleep(0.05)
    return silent


def _is_set(name: str) -> bool:
    try:
        return dist.distributed_c10d._get_default_store().check([name])
    except (RuntimeError, ValueError):
        return False


def _first_to_fail(rank: int) -> bool:
    """Returns whether no other process has failed so far; that one prints its message."""
    try:
        store = dist.distributed_c10d._get_default_store()
        store.set(f"t0/failed/{rank}", "")
        return store.add("t0/failed", 1) == 1
    except (RuntimeError, ValueError):  # it was kept by the process that failed
        return False


def _store_of_starts() -> dist.Store | None:
    """Returns the store that torchrun keeps over its starts of the processes, None without one."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(*where, is_master=False, wait_for_workers=False)


def _store_of_this_start() -> dist.Store | None:
    """Returns the store by which the processes find each other; None for PyTorch's own choice."""
    if "RANK" not in os.environ:
        return dist.HashStore()
    store = _store_of_starts()
    # PyTorch has the same names at each start, and would find the addresses of ended processes.
    return store and dist.PrefixStore(f"t0/start/{_starts()}", store)


def _starts() -> int:
    """Returns how often torchrun has started the processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _ended_by_mistake() -> bool:
    """Returns whether an earlier start of the processes ended in a mistake of the user."""
    if not _starts():
        return False
    store = _store_of_starts()
    return store is not None and store.check([_MISTAKE])


def _note_mistake() -> None:
    with contextlib.suppress(RuntimeError):
        store = _store_of_starts()
        if store is not None:
            store.set(_MISTAKE, "")


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
    """Returns the type of activations; warns of bfloat16 on a processor that emulates it.

    Args:
      wanted: "float32", "bfloat16", or "auto": bfloat16 where the device computes it fast.
      device: the device.
    """
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = multiplies_bfloat16()
        if wanted == "bfloat16" and not fast:
            _warn_of_bfloat16()
    if wanted != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[wanted]
    return torch.bfloat16 if fast else torch.float32


@functools.cache  # once, however many tasks are predicted
def _warn_of_bfloat16() -> None:
    # With AVX2 alone products of large matrices took 2 to 7 times as long in a forward pass, and
    # over 100 times where no operand is transposed, as in a backward pass (2.13.0).
    say(
        "warning: activations in bfloat16 on a processor without instructions for it: PyTorch "
        "takes several times as long as in float32, and for training up to a hundred times. "
        "--activation_dtype=auto takes the faster type"
    )
