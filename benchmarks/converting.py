"""Measures the speed and memory of `t0 convert` on a 3B-shaped checkpoint, compared with `cp`.

    .venv/bin/python benchmarks/converting.py --folder /big/disk          # about 12 GB x 3
    .venv/bin/python benchmarks/converting.py --folder /tmp --blocks 2    # a small one

The generated weights have the shape of T5 1.1 XL. Before each measurement the input files are
evicted from the page cache. Every time includes the wait until the output is on disk. Copies and
conversions take turns, and the fastest of each counts, because the disk and memory of a virtual
machine may at times be several times slower. Peak memory is the resident set of a process that only
runs the conversion. The goals are half of the copy's speed, and 1.2 times the largest tensor plus
1 GB.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from t0.checkpoints import convert
from t0.checkpoints.bundle import BundleWriter
from t0.checkpoints.shape import expected_shapes
from t0.config.model_spec import ModelShape

COPY_SHARE_GOAL = 0.5


def xl_shape(blocks: int) -> ModelShape:
    """Returns T5 1.1 XL's shape (2.85 billion parameters at 24 blocks)."""
    return ModelShape(
        vocabulary=32_128,
        d_model=2048,
        d_ff=5120,
        inner=2048,
        heads=32,
        buckets=32,
        encoder_layers=blocks,
        decoder_layers=blocks,
        gated=True,
        tied=False,
        shared_bias=True,
    )


def generate(folder: Path, model: ModelShape) -> int:
    """Writes a Mesh TensorFlow checkpoint and returns the bytes of its largest tensor."""
    folder.mkdir()
    noise = np.random.default_rng(0).standard_normal(1 << 24, np.float32)
    writer, largest = BundleWriter(folder / "model.ckpt-1000000"), 0
    for number, (name, shape) in enumerate(expected_shapes(model).items()):
        array = np.resize(np.roll(noise, number), shape)
        largest = max(largest, array.nbytes)
        writer.add(name, array)
    writer.add("global_step", np.asarray(1_000_000, np.int64))
    writer.finish()
    return largest


def files(folder: Path) -> list[Path]:
    """Returns all files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def evict(folder: Path) -> int:
    """Drops a folder's files from the page cache; returns their bytes."""
    for path in files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return sum(path.stat().st_size for path in files(folder))


def copy_rate(source: Path, target: Path) -> float:
    """Returns the MB/s of `cp` to the disk."""
    size, began = evict(source), time.monotonic()
    subprocess.run(["cp", "-r", source, target], check=True)
    evict(target)
    seconds = time.monotonic() - began
    shutil.rmtree(target)
    return size / seconds / 1e6


def one_conversion(source: str, target: str, to: str) -> None:
    """Converts in this process, and prints the seconds and peak memory."""
    began = time.monotonic()
    report = convert(source, target, to=to)
    seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "bytes": report.nbytes, "peak_bytes": peak}))


def measured(source: Path, target: Path, to: str) -> dict:
    """Runs a conversion in its own process; returns its seconds, bytes and peak memory."""
    evict(source)
    words = [sys.executable, __file__, "--one", str(source), str(target), to]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def run(folder: Path, *, blocks: int, repeats: int) -> bool:
    """Prints a line for each conversion; returns whether all met their goals."""
    model = xl_shape(blocks)
    largest = generate(folder / "mtf", model)
    limit = 1.2 * largest + 1e9
    steps = [("mtf", "hf"), ("hf", "t5x"), ("t5x", "hf"), ("hf", "mtf")]
    print(f"largest tensor {largest / 1e6:,.0f} MB, memory limit {limit / 1e6:,.0f} MB")
    print("\n| conversion | MB/s | copy MB/s | share | peak MB | goals |")
    print("|---|---|---|---|---|---|", flush=True)
    met = True
    for source, to in steps:
        target, copied, rate, peak = folder / f"{to}-new", 0.0, 0.0, 0
        for _ in range(repeats):
            shutil.rmtree(target, ignore_errors=True)
            copied = max(copied, copy_rate(folder / source, folder / "copy"))
            result = measured(folder / source, target, to)
            rate = max(rate, result["bytes"] / result["seconds"] / 1e6)
            peak = max(peak, result["peak_bytes"])
        good = rate >= COPY_SHARE_GOAL * copied and peak <= limit
        met = met and good
        rates = f"{rate:,.0f} | {copied:,.0f} | {rate / copied:.0%} | {peak / 1e6:,.0f}"
        print(f"| {source} -> {to} | {rates} | {'met' if good else 'missed'} |", flush=True)
        for old in {folder / source, folder / to} - {target}:
            shutil.rmtree(old, ignore_errors=True)
        target.rename(folder / to)
    return met


def main() -> int:
    """Runs the benchmark; 0 if all goals are met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--blocks", type=int, default=24, help="of each stack; 24 make 3B")
    parser.add_argument("--repeats", type=int, default=3, help="of every measurement")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one_conversion(*args.one)
        return 0
    with tempfile.TemporaryDirectory(prefix="converting-", dir=args.folder) as folder:
        met = run(Path(folder), blocks=args.blocks, repeats=args.repeats)
        return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
