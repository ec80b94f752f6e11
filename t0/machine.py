"""The memory of this machine, or of the container that the process runs in.

available_memory_bytes()      # 14_500_000_000
"""

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_memory_bytes() -> int:
    """Returns the bytes that a new process can allocate without swapping."""
    available = psutil.virtual_memory().available
    try:
        limit, used = ((_CGROUP / f"memory.{name}").read_text() for name in ("max", "current"))
        return min(available, int(limit) - int(used))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return available
