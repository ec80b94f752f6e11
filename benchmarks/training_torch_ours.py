"""A worker of `training_torch.py` and `gpu.py`: our PyTorch engine takes steps on request.

    python benchmarks/training_torch_ours.py '{"size": "small", "rows": 16, "type": "float32", ...}'

The line {"steps": 3} requests three steps. The answer {"seconds": 4.1, "processor": 8.0,
"tokens": 7680, "peak": 0} has the seconds by the clock and of the processor, the tokens without
padding, and the peak bytes of a GPU. The settings come from `training_torch.py` and `gpu.py`: size,
rows, lengths, type, and optionally cache, split, device, microbatches, recompute, compiled,
gradients, attention and replays. With `torchrun`, the first process reads and answers.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch_runs

from t0.feeding.training_data import open_training_data
from t0.torch import processes, sharding, torch_session
from t0.torch.model import KERNELS
from t0.training.loop import LoopOptions

VOCABULARY = 32000


def random_batches(rows: int, lengths: Mapping[str, int]) -> Iterator[dict[str, np.ndarray]]:
    """Yields one batch of random tokens without padding, repeatedly."""
    draw = np.random.default_rng(0)
    batch = {
        n: draw.integers(2, VOCABULARY, (rows, x)).astype(np.int32) for n, x in lengths.items()
    }
    while True:
        yield batch


def tokens(batch: Mapping[str, np.ndarray]) -> int:
    """Returns the number of tokens of inputs and targets without padding."""
    return sum(int(np.count_nonzero(batch[name])) for name in ("inputs", "targets"))


def opened(
    settings: Mapping[str, Any], joined: processes.World
) -> tuple[torch_session.TorchEngine, Iterator[Any]]:
    """Returns the engine of the settings, with random weights, and its batches."""
    rows, lengths, cache = settings["rows"], settings["lengths"], settings.get("cache")
    data = torch_runs.cached(Path(cache), settings["split"], lengths) if cache else None
    microbatches = settings.get("microbatches", 1)
    spec = torch_runs.run(
        settings["size"], rows=rows, lengths=lengths, data=data, microbatches=microbatches
    )
    packed = open_training_data(data) if data else None
    options = torch_session.ComputeOptions(
        getattr(torch, settings["type"]),
        recompute=settings.get("recompute", "off"),
        compiled=settings.get("compiled", False),
        replays=settings.get("replays", True),
        gradients=settings.get("gradients", "auto"),
        attention=tuple(settings.get("attention", KERNELS)),
    )
    engine = torch_session.TorchEngine(
        spec, LoopOptions(train_steps=10**6), packed, joined, options
    )
    if joined.device.type == "cuda":
        fill(engine.model)
    else:
        engine.fill_at_random()
    if packed:
        return engine, (batch for batch, _ in packed.batches(rows))
    return engine, random_batches(rows, lengths)


def fill(model: torch.nn.Module) -> None:
    """Fills a model with random values on its device; filling it on the host takes minutes."""
    for parameter in model.parameters():
        sharding.local_rows(parameter).normal_(std=0.02)


def measured(
    engine: torch_session.TorchEngine, batches: Iterator[Any], steps: int
) -> dict[str, float]:
    """Takes steps; returns their seconds (with reading), processor seconds, and tokens."""
    began, processor, token_count = time.perf_counter(), time.process_time(), 0
    for _ in range(steps):
        batch = next(batches)
        token_count += tokens(batch)
        engine.take(batch)  # reads the loss, and so waits for the device
    return {
        "seconds": time.perf_counter() - began,
        "processor": time.process_time() - processor,
        "tokens": token_count,
    }


def main() -> None:
    """Builds the engine, then serves."""
    settings = json.loads(sys.argv[1])
    with processes.join_processes(settings.get("device", "cpu")) as joined:
        if joined.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        engine, batches = opened(settings, joined)
        while True:
            asked = sys.stdin.readline() if joined.first else ""
            steps = joined.max_over_processes(json.loads(asked)["steps"] if asked else 0)
            if not steps:
                return
            answer = measured(engine, batches, steps) | {"peak": 0, "kernel": engine.kernel}
            if joined.device.type == "cuda":
                answer["peak"] = torch.cuda.max_memory_allocated()
                torch.cuda.empty_cache()  # for the other systems
            if joined.first:
                print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
