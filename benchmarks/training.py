"""Compares the speed of training steps with stock Mesh TensorFlow and Hugging Face Transformers.

    python -m venv /tmp/hf && /tmp/hf/bin/pip install torch transformers
    .venv/bin/python benchmarks/training.py --hf_python=/tmp/hf/bin/python --rounds=7

The model is t5.1.1.small from random weights, with 16 sequences of 128 + 32 random tokens
(--size=base: t5.1.1.base, 8 of 512 + 114), dropout 0.1, and Adafactor at a constant rate. Each
system runs in its own process, which waits while another one works. They take turns of several
steps, so that other load on the machine affects all of them. The table has the ratios of the
medians over the rounds, and the medians of each round's ratio. Prints a Markdown table. If the
processor has no bfloat16 instructions, Transformers' bfloat16 runs are left out, and also our run
that chooses its type, which would be float32. On a machine with a GPU all systems use it: add
--devices=gpu:0.
"""

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path

from training_shapes import SHAPES
from workers import environment, types

FOLDER = Path(__file__).resolve().parent
AIM_STOCK, AIM_HF = 2.2, 1.6

# name -> (worker, its arguments)
SYSTEMS = {
    "Mesh TensorFlow, stock": ("training_mesh.py", ["stock"]),
    "ours, float32": ("training_mesh.py", ["ours", "float32"]),
    "ours, as it starts by itself": ("training_mesh.py", ["ours", "auto"]),
    "Transformers, float32": ("training_hf.py", ["float32"]),
    "Transformers, float32, compiled": ("training_hf.py", ["float32", "compiled"]),
    "Transformers, bfloat16 autocast": ("training_hf.py", ["bfloat16"]),
    "Transformers, bfloat16 autocast, compiled": ("training_hf.py", ["bfloat16", "compiled"]),
}


class Worker:
    """A system in its own process."""

    def __init__(
        self, python: str, script: str, arguments: list[str], root: Path | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [python, "-W", "ignore", str(FOLDER / script), *arguments],
            env=environment(root, gpus=any("gpu" in word for word in arguments)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def steps(self, count: int) -> float | None:
        """Returns the seconds for `count` steps; None if the system does not run here."""
        try:
            self._process.stdin.write(f"{count}\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith("seconds "):
                    return float(line.split()[1])
        except OSError:
            pass
        return None

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


def chosen(only: str, device: str = "") -> dict[str, tuple[str, list[str]]]:
    """Returns the systems whose names match a regex, without unsupported bfloat16."""
    narrow = device or "bfloat16" in types()
    left_out = set() if narrow else {"bfloat16", "auto"}  # auto is float32 there
    return {
        name: (script, arguments)
        for name, (script, arguments) in SYSTEMS.items()
        if re.search(only, name) and not left_out & {*arguments}
    }


def measure(
    systems: dict[str, tuple[str, list[str]]], rounds: int, steps: int, hf_python: str | None
) -> dict[str, list[float]]:
    """Returns the seconds per step of each system in each round."""
    workers = {}
    for name, (script, arguments) in systems.items():
        python = hf_python if script == "training_hf.py" else sys.executable
        if python is None:
            continue
        worker = Worker(python, script, arguments)
        if worker.steps(3) is None:  # also warms it up
            print(f"{name}: does not run here", file=sys.stderr)
            worker.close()
        else:
            workers[name] = worker
    seconds_per_step: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(rounds):
        for name, worker in workers.items():
            seconds = worker.steps(steps)
            if seconds is None:
                sys.exit(f"{name} ended in round {turn + 1}: too little memory? Try --only=REGEX")
            seconds_per_step[name].append(seconds / steps)
        last = ", ".join(f"{name} {times[-1]:.2f}" for name, times in seconds_per_step.items())
        print(f"round {turn + 1} of {rounds}: {last}", file=sys.stderr, flush=True)
    for worker in workers.values():
        worker.close()
    return seconds_per_step


def table(seconds_per_step: dict[str, list[float]]) -> str:
    """Returns a Markdown table; the other systems are compared with the first."""
    first = next(iter(seconds_per_step.values()))
    lines = ["| system | s/step | fastest | steps/s | ratio | ratio, round by round |"]
    lines.append("|---|---|---|---|---|---|")
    for name, times in seconds_per_step.items():
        median = statistics.median(times)
        paired = statistics.median(a / b for a, b in zip(first, times, strict=True))
        lines.append(
            f"| {name} | {median:.2f} | {min(times):.2f} | {1 / median:.2f} "
            f"| {statistics.median(first) / median:.2f} | {paired:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="steps of a round (default: 3)")
    parser.add_argument("--hf_python", help="a Python with torch and transformers")
    parser.add_argument("--only", default="", help="regex of the systems to run")
    parser.add_argument("--devices", default="", help="device of all systems, such as gpu:0")
    parser.add_argument("--size", choices=SHAPES, default="small", help="of T5 1.1")
    args = parser.parse_args()
    systems = chosen(args.only, args.devices)
    more = [f"size={args.size}", *([f"device={args.devices}"] if args.devices else [])]
    systems = {name: (script, [*words, *more]) for name, (script, words) in systems.items()}
    print(table(measure(systems, args.rounds, args.steps, args.hf_python)))
    print(f"\nThe aim: {AIM_STOCK} times stock Mesh TensorFlow, {AIM_HF} times the best of HF.")


if __name__ == "__main__":
    main()
