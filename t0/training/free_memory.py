"""The memory that is free on this machine, and what becomes of memory that is freed.

available_bytes()                           # 14_500_000_000, or None where it is not known
keep_freed()                                # this process allocates it again, and returns none
"""

import ctypes
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

# Parameters of glibc's mallopt (malloc.h).
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = -1


def available_bytes() -> int | None:
    """Returns the memory that is free on this machine, or in its container; None if not known."""
    free = re.search(r"MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"))
    sizes = [int(free.group(1)) * 1024] if free else []
    limit, used = (_read(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and used.isdigit():
        sizes.append(int(limit) - int(used))
    return min(sizes, default=None)


def keep_freed(environment: Mapping[str, str] = os.environ) -> bool:
    """Has the C library keep freed memory for what is allocated next; returns whether it does.

    By itself glibc maps each large tensor anew and unmaps it when it is freed, and the kernel
    clears the pages each time. What a process keeps is what it needed at most.

    Nothing is changed where there is another C library, nor where the environment sets how memory
    is allocated: MALLOC_*, GLIBC_TUNABLES or LD_PRELOAD.
    """
    if platform.libc_ver()[0] != "glibc" or any(
        name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")
        for name in environment
    ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, _NEVER))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
