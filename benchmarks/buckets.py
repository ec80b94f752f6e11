"""Counts the requests to a bucket, and compares a bucket at 30 ms per request with a disk.

    .venv/bin/python benchmarks/buckets.py --rows=40000 --delay=0.03

The bucket is simulated on this machine. The requests per task are counted while caching. The
requests per step and per checkpoint are differences between runs that train a tiny model on the
cache, with more steps or with more checkpoints. `BOUNDS` has the limits. If a figure exceeds its
limit, the program ends with status 1.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from t0 import testing
from tests.helpers.buckets.faults import no_faults
from tests.helpers.buckets.object_store import Bucket
from tests.helpers.buckets.served_buckets import ServedBuckets, served_buckets

WORDS = ("rain", "snow", "wind", "heat")
PROMPTS = {
    f"prompt {number}": (f"{{{{text}}}} {words} ||| {{{{answer_choices[label]}}}}", "no ||| yes")
    for number, words in enumerate(("Which?", "True?", "Is it so?", "Right or wrong?"))
}
# Figure -> its limit.
BOUNDS = {
    "requests for a task cached": 80,
    "caching: times the disk's seconds": 1.5,
    "requests for a checkpoint saved": 20,
    "requests for a step trained": 0.05,
    "training: times the disk's seconds a step": 1.1,
}
LENGTHS = "{'inputs': 64, 'targets': 8}"
TRAIN = [
    "--gin_file=dataset.gin",
    "--gin_file=models/t5.1.1.tiny.gin",
    "--gin_file=learning_rate_schedules/constant_0_001.gin",
    "--gin_param=num_layers = 1",
    "--gin_param=MIXTURE_NAME = 'mine_prompt_1'",
    "--gin_param=mesh_train_dataset_fn.use_cached = True",
    "--gin_param=run.batch_size = 16",
    f"--gin_param=run.sequence_length = {LENGTHS}",
]


def lay_out(folder: Path, rows: int) -> list[str]:
    """Writes a dataset with four prompts and a vocabulary; returns the flags that set them."""
    data = folder / "data" / "mine"
    testing.write_templates(data, PROMPTS)
    lines = ({"text": f"row {n} " + "word " * (n % 40), "label": n % 2} for n in range(rows))
    testing.write_rows(data / "train.jsonl", lines)
    text = [
        json.dumps({"text": "row word no yes Which True Is it so Right", "n": n}) for n in WORDS
    ]
    testing.train_vocabulary(folder / "words.model", text * 30)
    return named(folder)


def named(folder: Path) -> list[str]:
    """Returns the flags for the files that `lay_out` has written."""
    paths = [f"--data_dir={folder / 'data'}", f"--vocab={folder / 'words.model'}"]
    return ["--module_import=t0.seqio_tasks", *paths]


def run(module: str, words: list[str], environment: dict[str, str]) -> float:
    """Runs one of our commands; returns its seconds."""
    began = time.monotonic()
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.decode()[-3000:]}")
    return time.monotonic() - began


def caching(server: ServedBuckets, args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Caches to the disk and to the bucket in turn; returns the requests and the ratio."""
    words = [*lay_out(folder, args.rows), "--tasks=mine_prompt_.*", "--num_workers=2"]
    environment = server.environment()
    seconds: dict[str, list[float]] = {"disk": [], "bucket": []}
    for number in range(args.rounds):
        out = f"--output_cache_dir={folder / f'cache{number}'}"
        seconds["disk"].append(run("t0.cli.cache_tasks", [*words, out], {}))
        server.reset({"b": Bucket()})
        server.set_faults(no_faults, args.delay)
        out = "--output_cache_dir=gs://b/cache"
        seconds["bucket"].append(run("t0.cli.cache_tasks", [*words, out], environment))
    print(f"seconds of caching: {seconds}; {dict(server.counts())}", file=sys.stderr)
    return {
        "requests for a task cached": server.counts().total() / (2 * len(PROMPTS)),
        "caching: times the disk's seconds": times_the_disks(seconds),
    }


def training(server: ServedBuckets, folder: Path) -> dict[str, float]:
    """Trains on the cache, on disk and in the bucket; returns the requests and the ratio."""
    paces: dict[str, list[float]] = {"disk": [], "bucket": []}
    requests = {}
    environment = server.environment()
    for number, (steps, saved_every) in enumerate(((50, 50), (100, 100), (100, 25))):
        words = [*named(folder), *TRAIN, f"--gin_param=run.train_steps = {steps}"]
        words.append(f"--gin_param=run.save_checkpoints_steps = {saved_every}")
        model = folder / f"model{number}"
        places = [f"--model_dir={model}", f"--additional_task_cache_dirs={folder / 'cache0'}"]
        run("t0.cli.mesh_transformer", [*words, *places], {})
        before = server.counts().total()
        name = f"model{number}"
        places = [f"--model_dir=gs://b/{name}", "--additional_task_cache_dirs=gs://b/cache"]
        run("t0.cli.mesh_transformer", [*words, *places], environment)
        requests[steps, saved_every] = server.counts().total() - before
        paces["disk"].append(pace((model / "metrics.jsonl").read_text()))
        paces["bucket"].append(pace(server.files("b")[f"{name}/metrics.jsonl"].decode()))
    print(f"requests of (steps, saved every): {requests}; seconds a step: {paces}", file=sys.stderr)
    return {
        "requests for a checkpoint saved": (requests[100, 25] - requests[100, 100]) / 3,
        "requests for a step trained": (requests[100, 100] - requests[50, 50]) / 50,
        "training: times the disk's seconds a step": times_the_disks(paces),
    }


def times_the_disks(seconds: dict[str, list[float]]) -> float:
    """Returns the median of the rounds' ratios; the machine's speed changes between rounds."""
    pairs = zip(seconds["bucket"], seconds["disk"], strict=True)
    return statistics.median(bucket / disk for bucket, disk in pairs)


def pace(metrics: str) -> float:
    """Returns the median seconds per step from the text of a run's metrics.jsonl."""
    lines = [json.loads(line) for line in metrics.splitlines()]
    return statistics.median(
        line["seconds_per_step"] for line in lines if line.get("seconds_per_step")
    )


def main() -> None:
    """Runs the measurements, prints the table, and compares it with the bounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=40_000, help="of the dataset that is cached")
    parser.add_argument("--delay", type=float, default=0.03, help="seconds of a request")
    parser.add_argument("--rounds", type=int, default=1, help="of caching")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, served_buckets({"b": Bucket()}) as server:
        folder = Path(scratch)
        figures = caching(server, args, folder)
        figures |= training(server, folder)
    print("| figure | measured | bound |\n|---|---|---|")
    for name, bound in BOUNDS.items():
        print(f"| {name} | {figures[name]:.2f} | {bound} |", flush=True)
    sys.exit(int(any(figures[name] > bound for name, bound in BOUNDS.items())))


if __name__ == "__main__":
    main()
