"""The memory that is free on this machine.

available_bytes()                           # 14_500_000_000, or None where it is not known
"""

import re
from pathlib import Path


def available_bytes() -> int | None:
    """Returns the memory that is free on this machine, or in its container; None if not known."""
    free = re.search(r"MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"))
    sizes = [int(free.group(1)) * 1024] if free else []
    limit, used = (_read(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and used.isdigit():
        sizes.append(int(limit) - int(used))
    return min(sizes, default=None)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
