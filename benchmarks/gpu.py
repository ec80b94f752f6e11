"""Compares training on GPUs: our PyTorch engine and Transformers' T5; does not start TensorFlow.

    python benchmarks/gpu.py                              # a Python with torch and transformers
    python benchmarks/gpu.py --device=cpu --sizes tiny --rounds=1 --steps=1     # does it work?

The models are T5.1.1 small, base and large from random weights, with 512 + 114 and 1024 + 256
random tokens, dropout 0.1, Adafactor and bfloat16 activations. Transformers runs in a plain loop
with autocast, with both of its kinds of attention, plain and compiled. The systems start and
compile together, then take turns in each round while the others wait. Prints tokens per second, MFU
(6 FLOPs per parameter and token, without recomputation, as a share of the data sheet's FLOP/s), and
the peak memory. With several GPUs, our engine also runs on all of them, with the same number of
rows on each. T5.1.1 base at nanoT5's two shapes comes last, with nanoT5's published seconds. Prints
Markdown; --json=FILE writes the numbers.
"""

import argparse
import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch_runs
from workers import worker

from t0.config.model_spec import require_t5
from t0.torch import gpus, memory

SHAPES = {"512+114": {"inputs": 512, "targets": 114}, "1024+256": {"inputs": 1024, "targets": 256}}
OTHER_SHAPES = {"1024+128": {"inputs": 1024, "targets": 128}}
FOLDER = Path(__file__).resolve().parent
# The number of sequences of 512 tokens on each GPU. There are half as many sequences of 1024
# tokens.
ROWS = {"tiny": 4, "small": 64, "base": 32, "large": 16, "xl": 8}
TOGETHER = 3  # systems that warm up at the same time
OURS, OURS_COMPILED = "ours", "ours, compiled"
# The published seconds per step of nanoT5 (github.com/PiotrNawrot/nanoT5), by shape, rows and
# microbatches, for T5.1.1 base, compiled, on an A100 with 80 GB.
NANOT5 = {
    ("512+114", 144, 2): ("nanoT5's pretraining, published", 1.05),
    ("1024+128", 8, 1): ("nanoT5's fine-tuning, published", 0.175),
}
_ASK = "import torch as t; c = t.cuda; print(c.device_count(), c.get_device_name(0))"


@dataclasses.dataclass(frozen=True)
class Case:
    """A measured case: a model and the batch of each GPU."""

    size: str
    shape: str
    rows: int
    microbatches: int = 1

    @property
    def lengths(self) -> dict[str, int]:
        """Feature -> tokens per sequence."""
        return (SHAPES | OTHER_SHAPES)[self.shape]

    def flops(self) -> int:
        """Returns the FLOPs of a step on each GPU."""
        spec = torch_runs.run(self.size, rows=self.rows, lengths=self.lengths)
        return memory.model_flops(require_t5(spec.model).sizes, rows=self.rows, **self.lengths)


@dataclasses.dataclass(frozen=True)
class Place:
    """The devices on which a case is measured.

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
    """Returns the number of GPUs that PyTorch sees, and the name of the first."""
    done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=False)
    count, _, name = done.stdout.strip().partition(" ")
    return int(count or 0), name


def systems(case: Case, place: Place) -> Iterator[tuple[str, int, bool, dict[str, Any]]]:
    """Yields each system's name, number of processes, whether it is ours, and its settings."""
    settings = {
        "size": case.size,
        "rows": case.rows,
        "lengths": case.lengths,
        "type": "bfloat16",
        "device": place.device,
    }
    own = settings | {"microbatches": case.microbatches, "recompute": "auto"}
    theirs = settings | {"loop": "plain", "config": torch_runs.config(case.size)}
    yield OURS, 1, True, own
    if place.device == "cuda":
        yield OURS_COMPILED, 1, True, own | {"compiled": True}
    if place.count > 1:
        wide = own | {"rows": case.rows * place.count, "compiled": True}
        yield f"ours, compiled, {place.count} GPUs", place.count, True, wide
    if case.microbatches == 1:
        yield "Transformers", 1, False, theirs
        yield "Transformers, SDPA", 1, False, theirs | {"attention": "sdpa"}
        if place.device == "cuda":
            yield "Transformers, compiled", 1, False, theirs | {"compiled": "blocks"}
            both = theirs | {"compiled": "blocks", "attention": "sdpa"}
            yield "Transformers, SDPA, compiled", 1, False, both


def measured(
    case: Case, place: Place, rounds: int, steps: int, only: Sequence[str] = ()
) -> tuple[dict[str, list[dict[str, float]]], dict[str, int]]:
    """Returns each system's answers per round (none if it failed), and the number of processes."""
    answers: dict[str, list[dict[str, float]]] = {}
    counts, started = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, count, ours, settings in systems(case, place):
            if only and name not in only:
                continue
            answers[name], counts[name] = [], count
            launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
            program = "training_torch_ours.py" if ours else "training_torch_peer.py"
            words = [*(launch if count > 1 else []), str(FOLDER / program)]
            command = [
                place.python,
                "-W",
                "ignore",
                *words,
                json.dumps(settings | {"folder": folder}),
            ]
            started[name] = worker(command, 2, gpus=place.device == "cuda")
        running = set(_warmed_up(started))
        for turn in range(rounds):
            for name in [each for each in started if each in running]:
                _ask(started[name], steps)
                answer = _answer(started[name])
                print(f"round {turn + 1}: {name}: {answer}", file=sys.stderr, flush=True)
                answers[name] += [answer] if answer else []
                running -= set() if answer else {name}
        for process in started.values():
            process.kill()
            process.wait()
    return answers, counts


def _warmed_up(started: Mapping[str, subprocess.Popen]) -> Iterator[str]:
    """Yields the systems that work. Only a few of them warm up at the same time."""
    names = list(started)
    for first in range(0, len(names), TOGETHER):
        wave = names[first : first + TOGETHER]
        for name in wave:
            _ask(started[name], 2)
        yield from (name for name in wave if _answer(started[name]))


def _ask(process: subprocess.Popen, steps: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps({"steps": steps}) + "\n")
        process.stdin.flush()


def _answer(process: subprocess.Popen) -> dict[str, float] | None:
    """Returns the answer of a worker; None if it has ended."""
    return next((json.loads(line) for line in process.stdout if line.startswith("{")), None)


def records(
    case: Case,
    place: Place,
    answers_of: Mapping[str, list[dict[str, float]]],
    processes: Mapping[str, int],
    steps: int,
) -> Iterator[dict[str, Any]]:
    """Yields the record of each system."""
    card = gpus.find_gpu_by_device_name(place.name)
    peak = card.teraflops * 1e12 if card and card.teraflops else None
    for name, answers in answers_of.items():
        record = {
            "size": case.size,
            "tokens": case.shape,
            "rows": case.rows * processes[name],
            "system": name,
        }
        if answers:
            seconds = statistics.median(answer["seconds"] for answer in answers) / steps
            rates = [answer["tokens"] / answer["seconds"] for answer in answers]
            record |= {
                "seconds": seconds,
                "rate": statistics.median(rates),
                "mfu": case.flops() / seconds / peak if peak else None,
                "gib": max(answer["peak"] for answer in answers) / 2**30,
                "kernel": answers[0].get("kernel"),
            }
        yield record


HEAD = (
    "| T5.1.1 | tokens | rows | system | s/step | tokens/s | MFU | GiB |",
    "|---|---|---|---|---|---|---|---|",
)


def row(record: Mapping[str, Any]) -> str:
    """Returns a row of the table."""
    cells = [str(record[name]) for name in ("size", "tokens", "rows", "system")]
    if "seconds" not in record:
        return f"| {' | '.join(cells)} | does not run, or fit | | | |"
    share = "not known" if record["mfu"] is None else f"{record['mfu']:.1%}"
    cells += [f"{record['seconds']:.4f}", f"{record['rate']:,.0f}", share, f"{record['gib']:.1f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=ROWS, default=["small", "base", "large"])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=[*SHAPES])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--systems", nargs="+", default=[], help="names; default: all")
    parser.add_argument("--rows", type=int, help="of a batch; default: by size")
    parser.add_argument(
        "--nanot5",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also nanoT5's two shapes",
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--steps", type=int, default=20, help="of a round (default: 20)")
    args = parser.parse_args()
    count, name = found_gpus(sys.executable) if args.device == "cuda" else (1, "this processor")
    if not count:
        sys.exit("gpu.py: PyTorch finds no GPU here; --device=cpu --sizes tiny tries the program")
    place = Place(sys.executable, args.device, count, name)
    print(f"{count} x {name}\n")
    print("\n".join(HEAD), flush=True)
    cases = [
        Case(size, shape, args.rows or max(ROWS[size] * 512 // SHAPES[shape]["inputs"], 1))
        for size in args.sizes
        for shape in args.shapes
    ]
    saved: list[dict[str, Any]] = []
    published = NANOT5 if args.nanot5 and "base" in args.sizes and args.device == "cuda" else {}
    cases += [Case("base", *case) for case in published]
    for case in cases:
        answers, processes = measured(case, place, args.rounds, args.steps, args.systems)
        for record in records(case, place, answers, processes, args.steps):
            print(row(record), flush=True)
            saved.append(record)
        if args.json:
            args.json.write_text(json.dumps(saved, indent=1))
    for (shape, rows, _), (name, seconds) in published.items():
        print(f"| base | {shape} | {rows} | {name} | {seconds} | | | |")


if __name__ == "__main__":
    main()
