"""Runs `t5_mesh_transformer` for a benchmark and reads its metrics; not a program.

    records = train(folder, ["--gin_file=runs/pretrain.gin", ...], threads=1)
    series(records, "loss")                 # {1: 10.2, 2: 9.8, ...}

If a folder has the finished run, it is not trained again: the command itself reports that.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def train(folder: Path, words: Sequence[str], *, threads: int | None = None) -> list[dict]:
    """Trains in `folder` with the installed command's module; returns the records of its metrics.

    Args:
      folder: the model directory.
      words: the command's flags.
      threads: the number of TensorFlow's threads; None for one per core.

    Raises:
      SystemExit: if the command fails, with its output.
    """
    variables = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if threads:
        variables |= dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"), str(threads))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "t0.cli.mesh_transformer"]
        + [f"--model_dir={folder}", *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{folder}: the training failed.\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def series(records: Iterable[Mapping[str, Any]], name: str) -> dict[int, float]:
    """Returns step -> value of a field."""
    return {record["step"]: record[name] for record in records if name in record}


def gin(**values: Any) -> list[str]:
    """Returns flags that bind macros, such as BATCH_SIZE=16."""
    return [f"--gin.{name}={value!r}" for name, value in values.items()]
