"""Compares training with PyTorch on this machine's processor: our engine and Transformers' T5.

    .venv/bin/python benchmarks/training_torch.py --hf_python=/venvs/hf/bin/python --cache=CACHE

CACHE is a folder of `seqio_cache_tasks` with prompted tasks, such as those of RTE, HellaSwag and
social_i_qa. HF is a Python with torch, transformers and accelerate; our worker uses it also. There
are three tables. The systems of a table take turns of several steps, in processes that wait while
another one works:

- equal shapes: T5.1.1 small, 16 sequences of 128 + 32 random tokens, dropout 0.1, Adafactor. Our
  engine, plain and compiled, is compared with a plain loop and with `Trainer`, in float32 and, if
  the processor multiplies bfloat16, with bfloat16 activations (theirs: autocast);
- prompted data: useful tokens per second, without padding. Our engine packs examples into 4 rows of
  512 + 128. The peer's batches have 16 of the same examples, padded to the longest;
- processes: our engine as one process with both cores' threads, and as two with one thread each,
  which send gradients and gathered weights through the machine's network stack. This is repeated
  with twice as many sequences, so that a step computes more but sends the same amount.

`--only` selects tables. Run nothing else during that time: threads that share a core with other
programs wait for each other, and a step takes several times as long.

A ratio is the median of the rounds' ratios. The ratio of processor seconds is useful on a shared
machine, with --threads=1, but not for several processes. Prints Markdown; starts no TensorFlow.
"""

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch_runs
from workers import ask, types, worker

from t0.feeding.training_data import open_training_data

FOLDER = Path(__file__).resolve().parent
EQUAL = {"rows": 16, "lengths": {"inputs": 128, "targets": 32}}
PACKED = {"rows": 4, "lengths": {"inputs": 512, "targets": 128}}
PADDED_ROWS = 16
WINDOW_ROWS = 512  # of packed rows, whose examples the peer reads
TABLES = ("equal shapes", "prompted data", "processes")
TYPES = types()
AIM_EQUAL, AIM_PROMPTED = 1.3, 2.0


def write_examples(path: Path, cache: Path, split: str) -> None:
    """Writes the separate examples of our first batches in shuffled order."""
    data = open_training_data(torch_runs.cached(cache, split, PACKED["lengths"]))
    batch, _ = next(data.batches(WINDOW_ROWS))
    examples: dict[str, list[np.ndarray]] = {"inputs": [], "targets": []}
    for row in range(WINDOW_ROWS):
        for number in range(1, int(batch["inputs_segmentation"][row].max()) + 1):
            for name, into in examples.items():
                into.append(batch[name][row][batch[f"{name}_segmentation"][row] == number])
    order = np.random.default_rng(0).permutation(len(examples["inputs"]))
    arrays = {}
    for name, rows in examples.items():
        arrays[name] = np.concatenate([rows[index] for index in order])
        arrays[f"{name}_lengths"] = np.array([len(rows[index]) for index in order])
    np.savez(path, **arrays)


class Systems:
    """The workers of one table, by name.

    Args:
      python: a Python with torch, transformers and accelerate.
      folder: a folder for the workers' files.
      threads: the threads of a system with one process.
      gpus: whether they see this machine's GPUs.
    """

    def __init__(self, python: str, folder: Path, *, threads: int = 2, gpus: bool = False) -> None:
        self._python, self._folder, self._gpus = python, folder, gpus
        self._threads = threads
        self._workers: dict[str, subprocess.Popen] = {}

    def ours(self, name: str, *, processes: int = 1, **settings: Any) -> None:
        """Starts our engine with one process, or with several that have one thread each."""
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
        words = [*(launch if processes > 1 else []), str(FOLDER / "training_torch_ours.py")]
        self._start(name, words, self._threads if processes == 1 else 1, settings)

    def peer(self, name: str, **settings: Any) -> None:
        """Starts Transformers."""
        defaults = {"config": torch_runs.config(settings["size"]), "folder": str(self._folder)}
        self._start(
            name, [str(FOLDER / "training_torch_peer.py")], self._threads, defaults | settings
        )

    def _start(
        self, name: str, words: Sequence[str], threads: int, settings: Mapping[str, Any]
    ) -> None:
        command = [self._python, "-W", "ignore", *words, json.dumps(settings)]
        self._workers[name] = worker(command, threads, gpus=self._gpus)
        ask(self._workers[name], {"steps": 1})  # so that only one starts at a time

    def measured(self, rounds: int, steps: int) -> dict[str, list[dict[str, float]]]:
        """Returns the answers of each system in each round, and ends the processes."""
        answers: dict[str, list[dict[str, float]]] = {name: [] for name in self._workers}
        for turn in range(rounds):
            for name, process in self._workers.items():
                answers[name].append(ask(process, {"steps": steps}))
                print(f"round {turn + 1}: {name}: {answers[name][-1]}", file=sys.stderr, flush=True)
        for process in self._workers.values():
            process.stdin.close()
            process.wait()
        return answers


def table(answers: Mapping[str, list[dict[str, float]]], steps: int, first: str) -> list[str]:
    """Returns the rows of a Markdown table; the other systems are compared with `first`."""
    lines = [
        "| system | s/step | useful tokens/s | ratio | rounds | for each second of the processor |",
        "|---|---|---|---|---|---|",
    ]
    rates = {kind: _rates(answers, kind) for kind in ("seconds", "processor")}
    for name, rounds in answers.items():
        seconds = statistics.median(answer["seconds"] / steps for answer in rounds)
        ratios, by_processor = (
            [a / b for a, b in zip(rate[name], rate[first], strict=True)] for rate in rates.values()
        )
        lines.append(
            f"| {name} | {seconds:.2f} | {statistics.median(rates['seconds'][name]):,.0f} "
            f"| {statistics.median(ratios):.2f} | {', '.join(f'{x:.2f}' for x in ratios)} "
            f"| {statistics.median(by_processor):.2f} |"
        )
    return lines


def _rates(answers: Mapping[str, list[dict[str, float]]], kind: str) -> dict[str, list[float]]:
    """Returns system -> tokens per second of each round, by clock or processor time."""
    return {name: [x["tokens"] / x[kind] for x in rounds] for name, rounds in answers.items()}


def equal_shapes(systems: Systems, size: str) -> str:
    """Starts the systems at equal shapes; returns the name of the first."""
    for kind in TYPES:
        settings = {**EQUAL, "size": size, "type": kind}
        systems.peer(f"Transformers, plain loop, {kind}", loop="plain", **settings)
        systems.ours(f"ours, {kind}", **settings)
        systems.ours(f"ours, compiled, {kind}", compiled=True, **settings)
    systems.peer(f"Transformers, Trainer, {kind}", loop="trainer", **settings)
    return f"Transformers, plain loop, {kind}"


def prompted(cache: Path, split: str, folder: Path, systems: Systems, size: str) -> str:
    """Starts the systems on prompted data; returns the name of the first."""
    examples = folder / "examples.npz"
    write_examples(examples, cache, split)
    padded = {"size": size, "rows": PADDED_ROWS, "loop": "plain", "examples": str(examples)}
    for kind in TYPES:
        settings = {**PACKED, "size": size, "type": kind, "cache": str(cache), "split": split}
        systems.peer(f"Transformers, padded, {kind}", type=kind, **padded)
        systems.ours(f"ours, packed, {kind}", **settings)
    return f"Transformers, padded, {kind}"


def processes(systems: Systems, size: str) -> str:
    """Starts our engine as one process and as two; returns the name of the first."""
    settings = {**EQUAL, "size": size, "type": "float32"}
    for rows in (EQUAL["rows"], 2 * EQUAL["rows"]):
        settings["rows"] = rows
        systems.ours(f"{rows} sequences, one process, two threads", **settings)
        both = f"{rows} sequences, two processes, one thread each"
        systems.ours(both, processes=2, **settings)
    return f"{EQUAL['rows']} sequences, one process, two threads"


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hf_python", required=True, help="has torch, transformers, accelerate")
    parser.add_argument("--cache", type=Path, required=True, help="folder of seqio_cache_tasks")
    parser.add_argument("--split", default="validation", help="of the cached tasks")
    parser.add_argument("--size", default="small", choices=torch_runs.SIZES)
    parser.add_argument("--only", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--threads", type=int, default=2, help="of one process (default: 2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="of a round (default: 2)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        start = {
            "equal shapes": equal_shapes,
            "prompted data": functools.partial(prompted, args.cache, args.split, folder),
            "processes": processes,
        }
        for title in args.only:
            systems = Systems(args.hf_python, folder, threads=args.threads)
            first = start[title](systems, args.size)
            answers = systems.measured(args.rounds, args.steps)
            rows = table(answers, args.steps, first)
            print(f"{title}\n\n" + "\n".join(rows) + "\n", flush=True)
    print(f"The aims: {AIM_EQUAL} and {AIM_PROMPTED} times in {TYPES[-1]}.")


if __name__ == "__main__":
    main()
