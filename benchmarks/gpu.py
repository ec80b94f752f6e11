"""Training on GPUs: our PyTorch engine beside Transformers' T5; starts no TensorFlow.

    python benchmarks/gpu.py                              # a Python with torch and transformers
    python benchmarks/gpu.py --device=cpu --sizes tiny --rounds=1 --steps=1     # does it work?

T5.1.1 small, base and large from random weights, at 512 + 114 and 1024 + 256 random tokens, dropout
0.1, Adafactor, bfloat16 activations; theirs is a plain loop with autocast, also compiled. Each
system has the GPU to itself, and they take turns, round by round. It prints tokens a second, the
share of the data sheet's FLOP/s (6 for each parameter and token that meet, recomputation not
counted), and the most memory in use. With several GPUs ours runs on all of
them, too, as many rows on each. T5.1.1 base at the two shapes of
nanoT5 comes last, with its published seconds. Prints Markdown.
"""

import argparse
import contextlib
import dataclasses
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch_runs
from training_torch import Systems

from t0.torch import gpus, memory
from t0.torch.shape import t5

SHAPES = {"512+114": {"inputs": 512, "targets": 114}, "1024+256": {"inputs": 1024, "targets": 256}}
OTHER_SHAPES = {"1024+128": {"inputs": 1024, "targets": 128}}
# Sequences of 512 tokens on each GPU; of 1024, half as many.
ROWS = {"tiny": 4, "small": 64, "base": 32, "large": 16}
# github.com/PiotrNawrot/nanoT5, on an A100 with 80 GB, compiled: what a step of T5.1.1 base
# takes, by shape, rows and microbatches.
NANOT5 = {
    ("512+114", 144, 2): ("nanoT5's pretraining, published", 1.05),
    ("1024+128", 8, 1): ("nanoT5's fine-tuning, published", 0.175),
}
_ASK = "import torch as t; c = t.cuda; print(c.device_count(), c.get_device_name(0))"


@dataclasses.dataclass(frozen=True)
class Case:
    """What is measured: a model and the batch of each GPU."""

    size: str
    shape: str
    rows: int
    microbatches: int = 1

    @property
    def lengths(self) -> dict[str, int]:
        """Feature -> tokens of a sequence."""
        return (SHAPES | OTHER_SHAPES)[self.shape]

    def flops(self) -> int:
        """The FLOPs of a step on each GPU."""
        spec = torch_runs.run(self.size, rows=self.rows, lengths=self.lengths)
        return memory.model_flops(t5(spec.model).sizes, rows=self.rows, **self.lengths)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where it is measured.

    Attributes:
      python: the Python of the workers.
      device: "cuda" or "cpu".
      count: the number of devices.
      name: PyTorch's name of the GPU.
    """

    python: str
    device: str
    count: int
    name: str


def found_gpus(python: str) -> tuple[int, str]:
    """Returns the number of GPUs that PyTorch finds, and the name of the first."""
    done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=False)
    count, _, name = done.stdout.strip().partition(" ")
    return int(count or 0), name


def systems(case: Case, place: Place) -> Iterator[tuple[str, int, str, dict[str, Any]]]:
    """Yields name, number of processes, kind and settings of each system."""
    settings = {
        "size": case.size,
        "rows": case.rows,
        "lengths": case.lengths,
        "type": "bfloat16",
        "device": place.device,
    }
    own = settings | {"microbatches": case.microbatches, "recompute": "auto"}
    yield "ours", 1, "ours", own
    if place.count > 1:
        wide = own | {"rows": case.rows * place.count, "microbatches": case.microbatches}
        yield f"ours, {place.count} GPUs", place.count, "ours", wide
    if case.microbatches == 1:
        yield "Transformers", 1, "peer", settings | {"loop": "plain"}
        if place.device == "cuda":
            compiled = settings | {"loop": "plain", "compiled": True}
            yield "Transformers, compiled", 1, "peer", compiled


def measured(
    case: Case, place: Place, rounds: int, steps: int
) -> tuple[dict[str, list[dict[str, float]]], dict[str, int]]:
    """Returns the answers of each system in each round, none where it failed; and processes."""
    found: dict[str, list[dict[str, float]]] = {}
    processes = {}
    for turn in range(rounds):
        for name, count, kind, settings in systems(case, place):
            processes[name] = count
            answers = found.setdefault(name, [])
            if turn and not answers:
                continue
            with tempfile.TemporaryDirectory() as folder, contextlib.suppress(SystemExit):
                alone = Systems(place.python, Path(folder), gpus=place.device == "cuda")
                if kind == "ours":
                    alone.ours(name, processes=count, **settings)
                else:
                    alone.peer(name, **settings)
                answers += alone.measured(1, steps)[name]
    return found, processes


def rows_of(
    case: Case,
    place: Place,
    found: Mapping[str, list[dict[str, float]]],
    processes: Any,
    steps: int,
) -> Iterator[str]:
    """Yields the rows of the table."""
    card = gpus.named(place.name)
    peak = card.teraflops * 1e12 if card and card.teraflops else None
    base = None
    for name, answers in found.items():
        cells = [case.size, case.shape, str(case.rows * processes[name]), name]
        if not answers:
            yield f"| {' | '.join(cells)} | does not run, or fit | | | | |"
            continue
        seconds = statistics.median(answer["seconds"] for answer in answers) / steps
        rate = statistics.median(answer["tokens"] / answer["seconds"] for answer in answers)
        base = base or rate
        share = f"{case.flops() / seconds / peak:.1%}" if peak else "not known"
        memory_gib = max(answer["peak"] for answer in answers) / 2**30
        cells += [f"{seconds:.3f}", f"{rate:,.0f}", f"{rate / base:.2f}", share]
        yield f"| {' | '.join(cells)} | {memory_gib:.1f} |"


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=ROWS, default=["small", "base", "large"])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=[*SHAPES])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="of a round (default: 20)")
    given = parser.parse_args()
    count, name = found_gpus(sys.executable) if given.device == "cuda" else (1, "this processor")
    if not count:
        sys.exit("gpu.py: PyTorch finds no GPU here; --device=cpu --sizes tiny tries the program")
    place = Place(sys.executable, given.device, count, name)
    print(f"{count} x {name}; a ratio is to ours on one\n")
    print("| T5.1.1 | tokens | rows | system | s/step | tokens/s | ratio | MFU | GiB |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    cases = [
        Case(size, shape, max(ROWS[size] * 512 // SHAPES[shape]["inputs"], 1))
        for size in given.sizes
        for shape in given.shapes
    ]
    published = NANOT5 if "base" in given.sizes and given.device == "cuda" else {}
    cases += [Case("base", *case) for case in published]
    for case in cases:
        found, processes = measured(case, place, given.rounds, given.steps)
        for line in rows_of(case, place, found, processes, given.steps):
            print(line, flush=True)
    for (shape, rows, _), (name, seconds) in published.items():
        print(f"| base | {shape} | {rows} | {name} | {seconds} | | | | |")


if __name__ == "__main__":
    main()
