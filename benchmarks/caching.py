"""Compares the speed of `seqio_cache_tasks` with stock SeqIO and with its tokenizer.

    .venv/bin/python benchmarks/caching.py --data_dir=DIR --vocab=spiece.model --rounds=3
    .venv/bin/python benchmarks/caching.py ... --tasks=".*" --stock_rounds=0

The workload has 133,220 records: the train and validation splits of the ten RTE prompts, and the
validation split of HellaSwag's prompt how_ends, each as a plain task and as a rank-evaluation task.
The data folder needs `super_glue/rte` and `hellaswag/default` as jsonl.gz (see README). Other
`--tasks` are cached if the data folder has their data.

Each program runs in its own process and starts its clock after its imports. Our time also includes
planning, starting workers, joining, hashing and publishing. The programs take turns. Our command
and the tokenizer run in each round, stock SeqIO only in the first `--stock_rounds` rounds. The
tokenizer alone is the lower bound of the time: SentencePiece encodes each input and each distinct
target once, in as many processes as our command has workers. Memory is the highest sum of resident
memory over a program's process tree (shared pages count in each process). At the end all records of
the last outputs are compared, in any order. Prints a Markdown table.
"""

import argparse
import collections
import io
import json
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
TASKS = ("super_glue_rte_.*", "hellaswag_how_ends(_score_eval)?")
SPLITS = ("train", "validation")
AIM = 30.0


def tree_bytes(process):
    """Returns the resident memory of a process and its descendants."""
    total = 0
    try:
        for member in [process, *process.children(recursive=True)]:
            try:
                total += member.memory_info().rss
            except psutil.NoSuchProcess:
                continue
    except psutil.NoSuchProcess:
        return 0
    return total


def run(program, *words):
    """Runs a program to its end; returns the figures of its last line, and its peak memory."""
    # Hugging Face's libraries run offline, because requests for absent datasets take seconds.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", *map(str, program), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    peak, process = 0, psutil.Process(child.pid)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(child.stdout))
    reader.start()
    while child.poll() is None:
        peak = max(peak, tree_bytes(process))
        time.sleep(0.2)  # looking through all processes takes milliseconds
    reader.join()
    if child.returncode:
        raise SystemExit(f"{program} failed with status {child.returncode}")
    return {**json.loads(lines[-1]), "memory": peak}


def processor_seconds():
    """Returns the CPU seconds of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


def ours(args):
    """Caches the workload with this project's command; the time excludes imports."""
    from t0.caching import CacheSelection, RecordOptions, Setup, cache, workers

    workers.quiet()
    setup = Setup(module_import=["t0.seqio_tasks"], data_dir=[args.data_dir], vocab=args.vocab)
    workers.prepare(setup)
    request = CacheSelection(args.out, tasks=args.tasks, splits=SPLITS, skip_absent_splits=True)
    file = io.StringIO()
    began, used = time.monotonic(), processor_seconds()
    outcomes = cache(request, RecordOptions(), setup, num_workers=args.workers, file=file)
    seconds, used = time.monotonic() - began, processor_seconds() - used
    records = sum(outcome.stats["examples"] for outcome in outcomes)
    print(json.dumps({"seconds": seconds, "processor": used, "records": records}))


def texts(args):
    """Returns each input of the workload, and each distinct target and choice."""
    from t0.caching import Setup, workers
    from t0.catalogue import SCORE_EVAL
    from t0.compat import seqio
    from t0.errors import UserError
    from t0.tasks.prompted_tasks import PromptedSource

    workers.prepare(Setup(module_import=["t0.seqio_tasks"], data_dir=[args.data_dir]))
    inputs, targets = [], {}
    for name in seqio.TaskRegistry.names():
        source = seqio.TaskRegistry.get(name).source
        # A task for rank evaluation has the inputs and choices of the plain task.
        if name.endswith(SCORE_EVAL) or not isinstance(source, PromptedSource):
            continue
        if not any(re.fullmatch(pattern, name) for pattern in args.tasks):
            continue
        for split in set(SPLITS) & source.split_mapping.keys():
            try:
                rows = source.open(split)
            except UserError:  # no such data here
                continue
            for index, row in enumerate(rows.rows()):
                if example := source.compiled.example(row, index):
                    inputs.append(example.inputs)
                    targets.update(dict.fromkeys([example.targets, *(example.choices or ())]))
    return inputs + list(targets)


def encode(vocabulary, batch_texts, ready, go):
    """Encodes texts in batches after the start signal."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=vocabulary)
    ready.release()
    go.wait()
    for start in range(0, len(batch_texts), 512):
        processor.encode(batch_texts[start : start + 512], out_type=int, num_threads=1)


def tokenizer(args):
    """Measures SentencePiece without anything else."""
    every = texts(args)
    context = multiprocessing.get_context("fork")
    ready, go = context.Semaphore(0), context.Event()
    workers = [
        context.Process(target=encode, args=(args.vocab, every[i :: args.workers], ready, go))
        for i in range(args.workers)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.acquire()
    began = time.monotonic()
    go.set()
    for worker in workers:
        worker.join()
    seconds = time.monotonic() - began
    # The workers are forked from this process, so their CPU time contains nothing else.
    used = sum(os.times()[2:4])
    print(json.dumps({"seconds": seconds, "processor": used, "records": len(every)}))


def differences(first, second):
    """Returns the number of records of two caches that have no equal in the other cache.

    The feature `document`, which stock SeqIO does not write, is left out.
    """
    from t0.files import tfrecord as frames

    tensorflow_example = __import__("tensorflow").train.Example
    different = 0
    for folder in sorted(path for path in Path(first).iterdir() if path.is_dir()):
        for split in SPLITS:
            counts = []
            for cache in (first, second):
                counted = collections.Counter()
                for path in sorted(Path(cache, folder.name).glob(f"{split}.tfrecord-*")):
                    with path.open("rb") as file:
                        for record in frames.unframed(file):
                            message = tensorflow_example.FromString(record)
                            message.features.feature.pop("document", None)
                            counted[message.SerializeToString(deterministic=True)] += 1
                counts.append(counted)
            different += sum(((counts[0] - counts[1]) + (counts[1] - counts[0])).values())
            stats = [Path(cache, folder.name, f"stats.{split}.json") for cache in (first, second)]
            if stats[0].exists() and json.loads(stats[0].read_text()) != json.loads(
                stats[1].read_text()
            ):
                different += 1
    return different


def median(runs, quantity="seconds"):
    """Returns the median of a quantity."""
    return statistics.median(run[quantity] for run in runs)


def table(results, workers):
    """Returns the measurements as a Markdown table."""
    lines = [
        "| program | seconds | records/s | ratio | processor s | ratio | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    base = None
    for name, runs in results.items():
        if not runs:
            continue
        seconds, used, records = median(runs), median(runs, "processor"), runs[0]["records"]
        # Rates are compared instead of seconds, because stock SeqIO may have cached fewer records.
        base = base or (records / seconds, records / used)
        memory = max(run["memory"] for run in runs) / 1e9
        ratios = [f"{records / seconds / base[0]:.1f}", f"{records / used / base[1]:.1f}"]
        if name.startswith("tokenizer"):
            ratios = ["", ""]
        lines.append(
            f"| {name} | {seconds:.2f} | {records / seconds:,.0f} | {ratios[0]} | {used:.2f} | "
            f"{ratios[1]} | {memory:.2f} GB |"
        )
    alone, own = results["tokenizer alone"], results[f"ours, {workers} workers"]
    wall = median(alone) / median(own)
    processor = median(alone, "processor") / median(own, "processor")
    lines.append(
        f"\nshare of the tokenizer's bound reached: {wall:.0%} by the clock, {processor:.0%} by "
        "the processor"
    )
    return "\n".join(lines)


def add_data_flags(parser):
    """Adds the flags `--data_dir` and `--vocab`."""
    shared = ROOT.parent / "shared"
    parser.add_argument("--data_dir", default=os.environ.get("T0_DATA_DIR", shared / "data"))
    parser.add_argument(
        "--vocab", default=os.environ.get("T0_VOCAB", shared / "vocab" / "t5.spiece.model")
    )


def main():
    """Runs all programs, or the one that `--role` names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data_flags(parser)
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="regexes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stock_rounds", type=int, default=1, help="minutes each; 0 leaves it out")
    parser.add_argument(
        "--stock_tasks", default=".*", help="regex: cache less with stock SeqIO, for its rate"
    )
    parser.add_argument("--role", choices=["ours", "tokenizer"], help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.data_dir, args.vocab = str(args.data_dir), str(args.vocab)
    if args.role:
        {"ours": ours, "tokenizer": tokenizer}[args.role](args)
        return
    if args.stock_rounds and tuple(args.tasks) != TASKS:
        parser.error("stock SeqIO runs the default --tasks alone: add --stock_rounds=0")
    data_flags = ["--data_dir", args.data_dir, "--vocab", args.vocab, "--tasks", *args.tasks]
    this_program = [Path(__file__).relative_to(ROOT), "--workers", args.workers, "--role"]
    name = f"ours, {args.workers} workers"
    results = {"stock SeqIO": [], name: [], "tokenizer alone": []}
    with tempfile.TemporaryDirectory() as folder:
        stock, own = Path(folder, "stock"), Path(folder, "own")
        for turn in range(args.rounds):
            shutil.rmtree(own, ignore_errors=True)
            own = Path(folder, f"own{turn}")
            results[name].append(run([*this_program, "ours"], *data_flags, "--out", own))
            results["tokenizer alone"].append(run([*this_program, "tokenizer"], *data_flags))
            if turn < args.stock_rounds:
                stock = Path(folder, f"stock{turn}")
                program = ["benchmarks/caching_stock.py", "--tasks", args.stock_tasks]
                stock_flags = ["--data_dir", args.data_dir, "--vocab", args.vocab, "--out", stock]
                results["stock SeqIO"].append(run(program, *stock_flags))
            print(f"round {turn + 1} of {args.rounds}", file=sys.stderr)
        print(table(results, args.workers))
        if results["stock SeqIO"]:
            print(f"records and statistics that differ: {differences(stock, own)}")


if __name__ == "__main__":
    main()
