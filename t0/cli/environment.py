"""Facts about this machine, without TensorFlow: processors, memory, GPUs, commands, network.

    >>> sorted(cpu())
    ['cores', 'flags', 'memory_bytes']

Linux is assumed for the details (flags, memory limits, GPUs); elsewhere they are empty or None.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Console command -> the module that it must run; SeqIO and T5 install two of the same names.
COMMANDS = {
    "seqio_cache_tasks": "t0.cli.cache_tasks",
    "t5_mesh_transformer": "t0.cli.mesh_transformer",
    "t0": "t0.cli.main",
}
# Processor flags, as Linux spells them, with which bfloat16 or float32 is fast.
CPU_FLAGS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
GPU_FILES = "/proc/driver/nvidia/gpus"
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")

_IMPORT = re.compile(r"^from ([\w.]+) import ", re.MULTILINE)


def cpu() -> dict[str, Any]:
    """Returns `cores` usable by this process, `memory_bytes` and the `flags` of `CPU_FLAGS`."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    present = set(re.findall(r"\w+", _read("/proc/cpuinfo").partition("flags")[2].split("\n")[0]))
    return {
        "cores": cores,
        "memory_bytes": _memory_bytes(),
        "flags": [flag for flag in CPU_FLAGS if flag in present],
    }


def gpus() -> list[str]:
    """Returns one line for each NVIDIA GPU, from nvidia-smi or from the driver's own files."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        return [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError):
        files = sorted(Path(GPU_FILES).glob("*/information"))
        models = [re.search(r"Model:\s*(.+)", _read(str(path))) for path in files]
        return [model.group(1).strip() for model in models if model]


def command(name: str, path: str | None = None) -> dict[str, Any]:
    """Returns the script of a console command, and the module that the script runs.

    Args:
      name: the command's name.
      path: folders to search, as in PATH; by default PATH, then the interpreter's folder.

    Returns:
      `name`, `script` (None if there is none), `module` (None if the script imports none), and
      `on_path`.
    """
    script = shutil.which(name, path=path)
    on_path = script is not None
    if script is None:
        script = shutil.which(name, path=str(Path(sys.executable).parent))
    found = _IMPORT.search(_read(script)) if script else None
    module = found.group(1) if found else None
    return {"name": name, "script": script, "module": module, "on_path": on_path}


def network(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Returns the `offline` variables that are set, and whether a `proxy` is set."""
    lower = {key.lower() for key, value in environment.items() if value}
    return {
        "offline": [name for name in OFFLINE_VARIABLES if _is_on(environment.get(name))],
        "proxy": any(name in lower for name in PROXY_VARIABLES),
    }


def free_disk_bytes(folder: str) -> int:
    """Returns the bytes that are free for this user on the disk of `folder`."""
    return shutil.disk_usage(folder).free


def _is_on(value: str | None) -> bool:
    return (value or "").lower() in {"1", "true", "yes", "on"}


def _memory_bytes() -> int | None:
    total = re.search(r"MemTotal:\s+(\d+) kB", _read("/proc/meminfo"))
    # In a container, the container's limit counts.
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    sizes = [int(total.group(1)) * 1024] if total else []
    sizes += [int(limit)] if limit.isdigit() else []
    return min(sizes, default=None)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
