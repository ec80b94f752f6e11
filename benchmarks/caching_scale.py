"""Measures how caching scales: records/s and memory by the number of workers and of rows.

    .venv/bin/python benchmarks/caching_scale.py --data_dir=D --recipes_dir=R --vocab=spiece.model

There are two workloads: prompts (the ten RTE prompts as plain and rank-evaluation tasks, training
split) and a general SeqIO task (`text_lm` of t0.recipes, training split). Each is cached from its
original data, and from `--times` as many rows in a temporary folder: RTE's file repeats its rows,
and the text file is copied, so that there are several source shards. Each runs with every number of
`--workers`.

The command runs as for a user. The clock starts with the first progress line, after imports and
planning. It includes starting workers, joining and publishing. Memory is the highest proportional
set size of the process tree, in which shared pages count once (Linux's `smaps_rollup`). The limit
is 1.0 GB plus 0.4 GB per worker. The configurations take turns in each round. Times are medians,
memory is the maximum. Prints a Markdown table.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
BASE_BYTES, WORKER_BYTES = 1.0e9, 0.4e9
# Name -> (regular expression of its tasks, their module, the file of its rows in the data folder).
WORKLOADS = {
    "prompts": ("super_glue_rte_.*", "t0.seqio_tasks", "super_glue/rte/train.jsonl.gz"),
    "text": ("text_lm", "t0.recipes", "text/train.jsonl.gz"),
}


def repeated(source, target, times):
    """Writes a compressed file whose lines are repeated `times` times."""
    content = source.read_bytes()
    with target.open("wb") as file:
        for _ in range(times):
            file.write(content)


def lay_out(folder, name, source, times):
    """Creates a data folder with `times` times the rows of a workload."""
    target = folder / f"{name}-{times}" / WORKLOADS[name][2]
    target.parent.mkdir(parents=True)
    if name == "prompts":
        repeated(source, target, times)
        features = source.parent / "features.json"
        if features.exists():
            (target.parent / features.name).write_bytes(features.read_bytes())
    else:
        for number in range(times):
            (target.parent / f"train-{number:05d}.jsonl.gz").write_bytes(source.read_bytes())
    return folder / f"{name}-{times}"


def tree_bytes(process):
    """Returns the memory of a process and its descendants; shared pages count once."""
    total = 0
    try:
        members = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for member in members:
        try:
            rollup = Path(f"/proc/{member.pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(
            int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")
        )
    return total


def peak_bytes(child, every=0.2):
    """Waits for a process to end; returns the peak memory of it and its descendants."""
    peak, process = 0, psutil.Process(child.pid)
    while child.poll() is None:
        peak = max(peak, tree_bytes(process))
        time.sleep(every)
    return peak


def measured(name, data, workers, vocabulary):
    """Runs the command once; returns its seconds, records and peak memory."""
    tasks, module, _ = WORKLOADS[name]
    with tempfile.TemporaryDirectory() as out:
        child = subprocess.Popen(
            [
                *(sys.executable, "-W", "ignore", "-m", "t0.cli.cache_tasks"),
                *(f"--output_cache_dir={out}", f"--tasks={tasks}", f"--module_import={module}"),
                *(f"--num_workers={workers}", "--splits=train", f"--vocab={vocabulary}"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "T0_DATA_DIR": str(data),
                "T0_VOCAB": str(vocabulary),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "PYTHONUNBUFFERED": "1",
            },
        )
        times, told = [], []

        def read():
            for line in child.stdout:
                times.extend([time.monotonic()] if line.startswith("caching: ") else [])

        readers = [
            threading.Thread(target=read),
            threading.Thread(target=lambda: told.extend(child.stderr)),
        ]
        for reader in readers:
            reader.start()
        peak = peak_bytes(child)
        ended = time.monotonic()
        for reader in readers:
            reader.join()
        if child.returncode:
            raise SystemExit("".join(told))
        records = sum(
            json.loads(path.read_text())["examples"] for path in Path(out).glob("*/stats.*.json")
        )
    return {"seconds": ended - times[0], "records": records, "memory": peak}


def table(results):
    """Returns a Markdown table of the measurements: (workload, times, workers) -> runs."""
    lines = [
        "| workload | rows | records | workers | seconds | records/s | speed-up | memory | limit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    base = {}
    for (name, times, workers), runs in results.items():
        seconds = statistics.median(run["seconds"] for run in runs)
        records, memory = runs[0]["records"], max(run["memory"] for run in runs)
        # The speedup is relative to the first number of workers in the list, which is usually one.
        ratio = base.setdefault((name, times), seconds) / seconds
        limit = BASE_BYTES + WORKER_BYTES * workers
        lines.append(
            f"| {name} | {times}x | {records:,} | {workers} | {seconds:.1f} | "
            f"{records / seconds:,.0f} | {ratio:.2f} | {memory / 1e9:.2f} GB | {limit / 1e9:.1f} GB"
            f"{'' if memory <= limit else ', exceeded'} |"
        )
    return "\n".join(lines)


def check_packed(path):
    """Ends the program if a workload's file is missing."""
    if not path.is_file():
        raise SystemExit(f"{path} is not there; see the header of {Path(__file__).name}")
    with gzip.open(path) as file:
        file.readline()


def main():
    """Runs all workloads with all numbers of workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--recipes_dir", type=Path, required=True)
    parser.add_argument("--vocab", type=Path, required=True)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10], help="multiples of rows")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=[*WORKLOADS])
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    folders = {"prompts": args.data_dir, "text": args.recipes_dir}
    sources = {name: folders[name] / WORKLOADS[name][2] for name in args.workloads}
    for path in sources.values():
        check_packed(path)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        data = {
            (name, times): lay_out(Path(folder), name, sources[name], times)
            for name in args.workloads
            for times in args.times
        }
        for turn in range(args.rounds):
            for (name, times), data_dir in data.items():
                for workers in args.workers:
                    run = measured(name, data_dir, workers, args.vocab)
                    results.setdefault((name, times, workers), []).append(run)
                    print(f"round {turn + 1}: {name}, {times}x, {workers} workers", file=sys.stderr)
        print(table(results))


if __name__ == "__main__":
    main()
