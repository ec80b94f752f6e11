"""Measures memory and seconds per step of full tuning, (IA)3 and LoRA, with the PyTorch engine.

    python benchmarks/adapters.py                       # t5.1.1.base with random weights, on a CPU
    python benchmarks/adapters.py --size=small --rows=2 --inputs=128 --targets=32

Each method trains in a process of its own. "Planned" is the formula of `t0 plan` without
activations and logits. "Measured" is the growth of the process's peak memory from before the model
is built. With the default lengths, activations are small. Activations are bfloat16.
"""

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

METHODS = {
    "full": None,
    "ia3": {"method": "ia3"},
    "lora": {"method": "lora", "rank": 8, "projections": ["q", "v"]},
}


def measure(method: str, args: argparse.Namespace) -> dict[str, float]:
    """Trains a few steps in this process; returns bytes and seconds."""
    import torch
    import torch_runs
    from training_torch_ours import random_batches

    from t0.config.specification import AdapterSpec
    from t0.torch import checkpointing, processes, torch_session
    from t0.training.loop import LoopOptions

    lengths = {"inputs": args.inputs, "targets": args.targets}
    spec = torch_runs.run(args.size, rows=args.rows, lengths=lengths)
    adapter = AdapterSpec(**METHODS[method]) if METHODS[method] else None
    spec = dataclasses.replace(spec, adapter=adapter)
    options = torch_session.ComputeOptions(torch.bfloat16, recompute="off", keep_gathered="off")
    with processes.join_processes("cpu") as joined:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        engine = torch_session.TorchEngine(
            spec, LoopOptions(train_steps=10**6), None, joined, options
        )
        engine.fill_at_random()
        checkpointing.fill_adapter(engine.model, 0, joined)
        batches, seconds = random_batches(args.rows, lengths), []
        for _ in range(args.steps):
            began = time.monotonic()
            engine.take(next(batches))
            seconds.append(time.monotonic() - began)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    planned = dataclasses.replace(engine.needed, activations=0, logits=0).total
    return {"planned": planned, "measured": 1024 * (after - before), "seconds": min(seconds)}


def main() -> None:
    """Measures every method, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="base")
    for name, default in (("rows", 1), ("inputs", 16), ("targets", 8), ("steps", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--worker", choices=METHODS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure(args.worker, args)))
        return
    print("| method | planned, GB | measured, GB | s/step |\n|---|---|---|---|")
    for method in METHODS:
        command = [sys.executable, *sys.argv, f"--worker={method}"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        gb = [f"{found[name] / 1e9:.2f}" for name in ("planned", "measured")]
        print(f"| {method} | {gb[0]} | {gb[1]} | {found['seconds']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
