"""Reads the memory, the processor features and the packages of this machine or container.

available_memory_bytes()      # 14_500_000_000
multiplies_bfloat16()         # True
installed_version("seqio", "seqio-nightly")   # "0.0.20"
"""

import functools
import importlib.metadata
import itertools
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_CPUINFO = Path("/proc/cpuinfo")


def available_memory_bytes() -> int:
    """Returns the number of bytes that a new process can allocate without swapping."""
    available = psutil.virtual_memory().available
    try:
        limit, used = ((_CGROUP / f"memory.{name}").read_text() for name in ("max", "current"))
        return min(available, int(limit) - int(used))
    except (OSError, ValueError):  # no container, or a container without a limit ("max")
        return available


def multiplies_bfloat16() -> bool:
    """Returns whether this machine's processor has instructions to multiply bfloat16 numbers."""
    try:
        return bool({"avx512_bf16", "amx_bf16"} & set(_CPUINFO.read_text().split()))
    except OSError:  # not Linux
        return False


@functools.cache
def installed_version(*names: str) -> str | None:
    """Returns the version of the first of some distributions that is installed; None if none is."""
    distributions = (importlib.metadata.distributions(name=name) for name in names)
    return next((each.version for each in itertools.chain(*distributions)), None)
