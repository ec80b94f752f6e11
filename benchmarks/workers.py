"""Processes that measure in turns, requested by lines of JSON; not a program.

process = worker([sys.executable, "inference_tensorflow.py", "2"], threads=2)
ask(process, {"side": "ours"})     # the first question loads and warms up
ask(process, {})                   # {"tokens_per_second": 1128.0, ...}
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def types() -> tuple[str, ...]:
    """Returns the types in which systems are compared on this machine.

    bfloat16 is left out if the processor has no instructions for its products. With only AVX2,
    PyTorch takes twice to hundreds of times as long as in float32, depending on the product's
    layout.
    """
    sys.path.insert(0, str(ROOT))
    from t0.mesh.devices import multiplies_bfloat16

    return ("float32", "bfloat16") if multiplies_bfloat16() else ("float32",)


def environment(root: Path | None = None, *, gpus: bool = False) -> dict[str, str]:
    """Returns the environment of a process that measures this checkout or the one in `root`."""
    # Commands may write and read compiled bytecode, as they do for a user, whatever the settings of
    # this shell are.
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if not gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    # Each benchmark sets its own data folder.
    variables.pop("T0_DATA_DIR", None)
    paths = [str(root or ROOT), *filter(None, [variables.get("PYTHONPATH")])]
    return {**variables, "PYTHONPATH": os.pathsep.join(paths)}


def worker(
    command: list[str], threads: int, root: Path | None = None, *, gpus: bool = False
) -> subprocess.Popen:
    """Starts a worker, which answers each JSON line with the JSON line of a measurement.

    Args:
      command: the program and its arguments.
      threads: the maximum number of its threads.
      root: the checkout to measure, in which it starts; None for this one, started here.
      gpus: whether it sees this machine's GPUs.
    """
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    variables = {**environment(root, gpus=gpus), "OMP_NUM_THREADS": str(threads)}
    return subprocess.Popen(command, cwd=root, env=variables, **pipes)


def ask(process: subprocess.Popen, question: dict[str, Any]) -> Any:
    """Sends a question to a worker and returns its answer; ends the program if it died."""
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    sys.exit(f"{' '.join(process.args)} ended")


def token_rates(predict: Callable[[], Any], eos: int) -> dict[str, float]:
    """Predicts a batch once; returns tokens per second, by the clock and of the processor.

    Ends the program if a prediction has `eos`, because the systems would then do different work.
    """
    started, processor = time.perf_counter(), time.process_time()
    ids = predict()
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    if (ids == eos).any():
        sys.exit("a prediction ended")
    return {"tokens_per_second": ids.size / seconds, "per_processor_second": ids.size / processor}
