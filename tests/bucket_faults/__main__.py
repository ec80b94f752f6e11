"""Injects faults into requests to a bucket, and kills between any two of them.

    python -m tests.bucket_faults --faults=2000 --commands=100 --seed=4

`--faults` go into publishing a folder by `t0.files`, `--commands` into `seqio_cache_tasks` with the
bucket as its output. Between faults of all kinds, runs are killed after a number of requests, each
number in turn. What fails is run again, as users do; then the objects must be those of a run
without faults. At every moment, whoever saw COMPLETED must have seen all that it lists.
"""

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.helpers.buckets.faults import Call, KilledAfter, Seeded, no_faults
from tests.helpers.buckets.object_store import Bucket
from tests.helpers.buckets.served_buckets import FAST, ServedBuckets, served_buckets

# Those that pass, and a permission that is lost in the middle.
FAULTS = (503, 429, "reset", "lost", "cut", "truncated", "slow", "stale", 403)
FILES = {f"train.tfrecord-0000{n}-of-00003": b"%d" % n * 400 for n in range(3)}
MOST_RUNS = 50


def publish() -> None:
    """Publishes a folder of three files and its marker."""
    from t0.caching import cache_files

    staging = "gs://b/out/toy.incomplete-host-1-2"
    files = {}
    for name, content in FILES.items():
        entry = cache_files.write_file(f"{staging}/{name}", [content])
        files[name] = {**entry, "examples": 1}
    manifest = {"schema": 1, "task": "toy", "splits": {"train": {"examples": 3, "files": files}}}
    cache_files.publish(staging, "gs://b/out/toy", manifest, replace=True)


def cached(folder: Path, out: str) -> Callable[[], None]:
    """Returns a call of `seqio_cache_tasks` over a small dataset."""
    from t0 import testing
    from t0.cli import cache_tasks

    prompts = {"which": ("{{text}} Which? ||| {{answer_choices[label]}}", "no ||| yes")}
    testing.write_templates(folder / "data" / "mine", prompts)
    rows = [{"text": f"row {n} " + "word " * (n % 7), "label": n % 2} for n in range(40)]
    testing.write_rows(folder / "data" / "mine" / "train.jsonl", rows)
    text = ["row word no yes Which", *(row["text"] for row in rows)]
    vocabulary = testing.train_vocabulary(folder / "words.model", text)
    words = ["--tasks=mine_.*", "--module_import=t0.seqio_tasks", f"--vocab={vocabulary}"]
    words += [f"--data_dir={folder / 'data'}", f"--output_cache_dir={out}", "--num_workers=2"]

    def run() -> None:
        sys.argv = ["seqio_cache_tasks", *words]
        cache_tasks.console_entry_point()

    return run


def forked(call: Callable[[], None], log: Path) -> Callable[[], None]:
    """Returns a call that does the same in a process of its own; a failure is an OSError."""

    def run() -> None:
        child = os.fork()
        if not child:
            status = 1
            try:
                output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(output, 1)
                os.dup2(output, 2)
                call()
                status = 0
            except SystemExit as error:
                status = int(error.code or 0)
            finally:
                os._exit(status)
        if os.waitpid(child, 0)[1]:
            raise OSError("the command failed")

    return run


def broken_moments(server: ServedBuckets) -> list[str]:
    """Returns what was not as a COMPLETED said that was to be seen at the same time."""
    from t0.caching import cache_files

    there: dict[str, bytes | None] = {}
    found = []
    for change in server.changes():
        there[change.name] = change.content
        for marker in [n for n in there if n.endswith("/COMPLETED") and there[n] is not None]:
            folder = marker.removesuffix("/COMPLETED")
            if ".incomplete-" in folder or not change.name.startswith(folder):
                continue
            splits = (cache_files.checked_manifest(there[marker]) or {}).get("splits", {})
            for name, entry in itertools.chain(*(s["files"].items() for s in splits.values())):
                content = there.get(f"{folder}/{name}")
                if content is None or len(content) != entry["bytes"]:
                    found.append(f"{name} when {change.name} changed")
    return found


def rounds(server: ServedBuckets, run: Callable[[], None], seed: int) -> Iterator[list[Call]]:
    """Yields the calls of runs that met faults, and were started again until they ended."""
    requests = _ended(server, run, no_faults)
    whole = _whole(server)
    yield []
    for number in itertools.count():
        kill = number % 2 == 1
        server.reset({"b": Bucket()})
        faults = KilledAfter(number // 2 % requests) if kill else Seeded(seed + number, FAULTS, 12)
        server.set_faults(faults)
        for _ in range(1 if kill else MOST_RUNS):
            with contextlib.suppress(Exception):
                run()
                break
        injected = [call for call in server.calls() if call.fault is not None]
        server.set_faults(no_faults)
        run()
        if _whole(server) != whole or broken_moments(server):
            differing = sorted(set(_whole(server)) ^ set(whole))
            raise SystemExit(f"WRONG after {faults}: {differing or broken_moments(server)}")
        yield injected[:1] if kill else injected


def _ended(server: ServedBuckets, run: Callable[[], None], faults: object) -> int:
    server.reset({"b": Bucket()})
    server.set_faults(faults)
    run()
    return len(server.calls())


def _whole(server: ServedBuckets) -> dict[str, bytes]:
    """Returns the objects, without what a killed run left under a temporary name."""
    found = server.files("b")
    return {name: content for name, content in found.items() if ".incomplete-" not in name}


def tried(server: ServedBuckets, run: Callable[[], None], faults: int, seed: int) -> str:
    """Runs until so many faults were injected; returns the count of each."""
    counts: dict[str, int] = {}
    for injected in rounds(server, run, seed):
        for call in injected:
            counts[str(call.fault)] = counts.get(str(call.fault), 0) + 1
        print(f"{sum(counts.values())} of {faults}", file=sys.stderr, flush=True)
        if sum(counts.values()) >= faults:
            break
    return f"{sum(counts.values())} faults, none wrong: {counts}"


def main(argv: list[str]) -> int:
    """Injects; ends with an error at the first result that is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.bucket_faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=100, help="into t0.files")
    parser.add_argument("--commands", type=int, default=10, help="into seqio_cache_tasks")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    os.environ.update(FAST)
    with served_buckets({"b": Bucket()}) as server, tempfile.TemporaryDirectory() as scratch:
        os.environ.update(server.environment())
        from google.cloud.storage.retry import DEFAULT_RETRY

        import t0.caching  # noqa: F401 - before processes are forked

        DEFAULT_RETRY._initial = 0.001

        if args.commands:
            folder = Path(scratch)
            command = forked(cached(folder, "gs://b/out"), folder / "log")
            print(f"commands: {tried(server, command, args.commands, args.seed)}", flush=True)
        if args.faults:
            print(f"files: {tried(server, publish, args.faults, args.seed)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
