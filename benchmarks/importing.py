"""Compares the time of `import t0.seqio_tasks` and `import t5.data`, each in a fresh process.

    .venv/bin/python benchmarks/importing.py --rounds=9

`t0.seqio_tasks` imports TensorFlow, T5 and SeqIO like `t5.data`, and registers 971 tasks and 8
mixtures. The two modules take turns, so that other load on the machine affects both. A first round,
which warms the file cache, does not count. Ratios are of medians; the goal is at most 1.25. Prints
a Markdown table: seconds by the clock, and of the processor in the importing process.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PEER, OURS = "t5.data", "t0.seqio_tasks"
AIM = 1.25


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(module: str) -> tuple[float, float]:
    """Returns the seconds that importing `module` takes in a process: wall clock, processor."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("T0_DATA_DIR", None)
    wall, processor = time.perf_counter(), _processor_seconds()
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import {module}"],
        cwd=ROOT,
        env=environment,
        check=True,
    )
    return time.perf_counter() - wall, _processor_seconds() - processor


def run(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Returns the measurements of `rounds` rounds, in which the modules take turns."""
    measurements: dict[str, list[tuple[float, float]]] = {PEER: [], OURS: []}
    for turn in range(rounds + 1):
        for module in measurements:
            seconds = measure(module)
            if turn:
                measurements[module].append(seconds)
        print(f"round {turn} of {rounds}", file=sys.stderr)
    return measurements


def table(measurements: dict[str, list[tuple[float, float]]]) -> str:
    """Returns the measurements as a Markdown table."""
    lines = [
        "| import | wall, median s | fastest | ratio | processor, median s | ratio |",
        "|---|---|---|---|---|---|",
    ]
    medians = {
        module: [statistics.median(column) for column in zip(*seconds, strict=True)]
        for module, seconds in measurements.items()
    }
    for module, (wall, processor) in medians.items():
        fastest = min(seconds for seconds, _ in measurements[module])
        lines.append(
            f"| `{module}` | {wall:.2f} | {fastest:.2f} | {wall / medians[PEER][0]:.2f} "
            f"| {processor:.2f} | {processor / medians[PEER][1]:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="imports of each (default: 7)")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    print(table(run(arguments.rounds)))
    print(f"\nThe aim: at most {AIM} times `import {PEER}`.")


if __name__ == "__main__":
    main()
