"""Processes that measure in turns, asked by lines of JSON. No program of its own.

process = worker([sys.executable, "inference_tensorflow.py", "2"], threads=2)
ask(process, {"side": "ours"})     # the first question loads and warms up
ask(process, {})                   # {"tokens_per_second": 1128.0, ...}
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def worker(command: list[str], threads: int) -> subprocess.Popen:
    """Starts a worker: a JSON line in asks for a measurement, a JSON line out answers."""
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": str(ROOT),
    }
    # What data there is, each benchmark says itself.
    environment.pop("T0_DATA_DIR", None)
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def ask(process: subprocess.Popen, question: dict[str, Any]) -> Any:
    """Sends a question to a worker and returns its answer; ends the program if it died."""
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    sys.exit(f"{' '.join(process.args)} ended")
