"""Compares our speed at two commits, to find out whether a change made something slower.

    .venv/bin/python benchmarks/commits.py --before=v0.3 --data_dir=DATA --vocab=spiece.model
    .venv/bin/python benchmarks/commits.py --before=HEAD~20 ... --only training caching

The other commit is checked out into a temporary folder. Both run with this environment's packages.
Each round measures every figure at both commits, in separate processes. A process sleeps while
another one is measured. Other projects are not measured here (see `run.py`). Prints a Markdown
table. A ratio above 1 means that this commit is faster.
"""

import argparse
import functools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pandas
from converting import generate, xl_shape
from training import Worker
from workers import ask, environment, worker

ROOT = Path(__file__).resolve().parents[1]
STEPS = 3  # of training, in a round
RANKED = "super_glue_(rte|cb)_.*_score_eval"
CACHED = "super_glue_(rte|cb)_.*|hellaswag_.*"
FED = "super_glue_(rte|cb)_(?!.*score_eval).*"
FEEDING = """
import re, sys
sys.path.insert(0, sys.argv[1])
import feeding as f
f.tf.disable_v2_behavior()
f.seqio.set_global_cache_dirs([sys.argv[2]])
names = [n for n in f.seqio.TaskRegistry.names() if re.fullmatch(sys.argv[3], n)]
f.seqio.MixtureRegistry.add(f.NAME, names, default_rate=1.0)
f.ours(64, 0, "validation")
for line in sys.stdin:
    examples, seconds, _ = f.ours(1024, 1, "validation")
    print('{"rate": %f}' % (examples / seconds), flush=True)
"""
PRETRAINING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import pretraining_feed as f
f.set_vocabulary(sys.argv[3])
f.tf.disable_v2_behavior()
f.gin.bind_parameter("pack_dataset.use_custom_ops", False)
f.register(Path(sys.argv[2]))
for line in sys.stdin:
    tokens, seconds = f.ours(400, 1)
    print('{"rate": %f}' % (tokens / seconds), flush=True)
"""
CONVERTED_BLOCKS = 2  # of T5 1.1 XL's shape in each stack, 1.3 GB


class Tree:
    """A checkout, and its processes that wait for their turn."""

    def __init__(self, root: Path, args: argparse.Namespace, scratch: Path) -> None:
        self.root, self.args, self.scratch = root, args, scratch

    def seconds(self, *words: str) -> float:
        """Runs a command; returns its seconds."""
        began = time.monotonic()
        command = [sys.executable, *words]
        options: dict[str, Any] = {"cwd": self.root, "env": environment(self.root)}
        run = subprocess.run(command, capture_output=True, **options)
        if run.returncode:
            sys.exit(f"{' '.join(command)}: {run.stderr.decode()[-2000:]}")
        return time.monotonic() - began

    def asked(self, *words: str) -> subprocess.Popen:
        """Starts a process that answers questions from `workers.ask`."""
        return worker([sys.executable, *words], os.cpu_count() or 1, self.root)

    def script(self, name: str) -> str:
        """Returns the path of a benchmark of this checkout."""
        return str(self.root / "benchmarks" / name)


@contextmanager
def training(tree: Tree) -> Iterator[Callable[[], float]]:
    """Measures steps per second of t5.1.1.small with a run's default activation type."""
    words = ["ours", "auto"]
    trainer = Worker(sys.executable, tree.script("training_mesh.py"), words, tree.root)
    trainer.steps(STEPS)
    yield lambda: STEPS / trainer.steps(STEPS)
    trainer.close()


def _answers(process: subprocess.Popen, question: dict[str, Any], name: str) -> Callable[[], float]:
    if question:
        ask(process, question)
    return lambda: ask(process, {})[name]


@contextmanager
def scoring(tree: Tree) -> Iterator[Callable[[], float]]:
    """Measures choices per second of t5.1.1.small: 20 examples per RTE and CB prompt, float32."""
    words = [str(os.cpu_count()), str(tree.scratch), tree.args.data_dir, tree.args.vocab]
    process = tree.asked(tree.script("scoring_tensorflow.py"), *words)
    question = {"scorer": "ours", "dataset": "ranked", "tasks": RANKED, "dtype": "float32"}
    yield _answers(process, {**question, "examples": 20, "mesh_batches": 1}, "choices_per_second")
    process.kill()


@contextmanager
def inference(tree: Tree, dtype: str = "float32") -> Iterator[Callable[[], float]]:
    """Measures tokens per second of t5.1.1.small: greedy, 64 tokens for 32 inputs of 128 tokens."""
    process = tree.asked(tree.script("inference_tensorflow.py"), str(os.cpu_count()))
    sizes = {"batch": 32, "inputs": 128, "targets": 64, "beams": 1}
    yield _answers(process, {"side": "ours", "dtype": dtype, **sizes}, "tokens_per_second")
    process.kill()


def _cache_words(tree: Tree, tasks: str, output: Path) -> list[str]:
    words = ["-m", "t0.cli.cache_tasks", f"--tasks={tasks}", "--module_import=t0.seqio_tasks"]
    words += [f"--output_cache_dir={output}", "--splits=validation"]
    return [*words, f"--data_dir={tree.args.data_dir}", f"--vocab={tree.args.vocab}"]


@contextmanager
def caching(tree: Tree) -> Iterator[Callable[[], float]]:
    """Measures runs per hour of caching all prompts on validation rows of RTE, CB and HellaSwag."""

    def rate() -> float:
        with tempfile.TemporaryDirectory(dir=tree.scratch) as output:
            return 3600 / tree.seconds(*_cache_words(tree, CACHED, Path(output)))

    yield rate


@contextmanager
def feeding(tree: Tree) -> Iterator[Callable[[], float]]:
    """Measures examples per second, packed to 1024 + 256 tokens, from a cache of RTE and CB."""
    cache = tree.scratch / "fed"
    tree.seconds(*_cache_words(tree, FED, cache))
    process = tree.asked("-c", FEEDING, str(tree.root / "benchmarks"), str(cache), FED)
    yield _answers(process, {}, "rate")
    process.kill()


@contextmanager
def pretraining(tree: Tree) -> Iterator[Callable[[], float]]:
    """Measures tokens per second of packed span corruption (512 + 114) from 12 MB of text."""
    text = tree.scratch / "text"
    text.mkdir()
    rows = sorted(Path(tree.args.data_dir, "hellaswag").rglob("*.jsonl*"))
    lines = [line for path in rows for line in pandas.read_json(path, lines=True)["ctx"]]
    while sum(map(len, lines)) < 12e6:
        lines += lines
    for number in range(64):
        (text / f"train-{number:02d}.txt").write_text("\n".join(lines[number::64]) + "\n")
    words = [str(tree.root / "benchmarks"), str(text), tree.args.vocab]
    process = tree.asked("-c", PRETRAINING, *words)
    yield _answers(process, {}, "rate")
    process.kill()


@contextmanager
def converting(tree: Tree) -> Iterator[Callable[[], float]]:
    """Measures conversions per hour of a Mesh TensorFlow checkpoint to Hugging Face's format."""
    checkpoint, converted = tree.scratch / "mesh", tree.scratch / "converted"
    generate(checkpoint, xl_shape(CONVERTED_BLOCKS))

    def rate() -> float:
        shutil.rmtree(converted, ignore_errors=True)
        words = ["-m", "t0.cli.main", "convert", str(checkpoint), str(converted), "--to=hf"]
        return 3600 / tree.seconds(*words)

    yield rate


def _hourly(*words: str) -> Callable[[Tree], Any]:
    @contextmanager
    def figure(tree: Tree) -> Iterator[Callable[[], float]]:
        yield lambda: 3600 / tree.seconds(*words)

    return figure


_PLAN = ["-m", "t0.cli.main", "plan", "--gin_file=runs/t0pp_train.gin"]
_PLAN += ["--gin_file=mesh/v3-512.gin"]
# Name -> a context manager that takes a checkout and yields a function that returns a rate.
FIGURES: dict[str, Callable[[Tree], Any]] = {
    "importing": _hourly("-c", "import t0.seqio_tasks"),
    "training": training,
    "scoring": scoring,
    "inference": inference,
    "inference_bfloat16": functools.partial(inference, dtype="bfloat16"),
    "caching": caching,
    "feeding": feeding,
    "pretraining": pretraining,
    "converting": converting,
    "planning": _hourly(*_PLAN),
    "lowering": _hourly(*_PLAN),
}


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Yields a folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        files = subprocess.run(
            ["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=files, check=True)
        yield Path(folder)


def main() -> None:
    """Runs the measurements, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True, help="the other commit")
    parser.add_argument("--data_dir", required=True, help="folder of dataset folders")
    parser.add_argument("--vocab", required=True, help="T5's SentencePiece model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=[*FIGURES])
    args = parser.parse_args()
    args.data_dir, args.vocab = (os.path.abspath(p) for p in (args.data_dir, args.vocab))  # noqa: PTH100
    print("| figure | before | now | ratio | ratio, round by round |\n|---|---|---|---|---|")
    with checked_out(args.before) as before:
        for name in args.only:
            row = measure(FIGURES[name], (before, ROOT), args)
            print(f"| {name} | {row} |", flush=True)


def measure(
    figure: Callable[[Tree], Any], roots: tuple[Path, Path], args: argparse.Namespace
) -> str:
    """Returns the cells of a figure: medians of the rounds, and ratios."""
    results: tuple[list[float], list[float]] = ([], [])
    with ExitStack() as open_, tempfile.TemporaryDirectory() as scratch:
        rates = []
        for number, root in enumerate(roots):
            folder = Path(scratch, str(number))
            folder.mkdir()
            rates.append(open_.enter_context(figure(Tree(root, args, folder))))
        for turn in range(args.rounds):
            for side in ((0, 1), (1, 0))[turn % 2]:
                results[side].append(rates[side]())
    before, now = map(statistics.median, results)
    paired = [b / a for a, b in zip(*results, strict=True)]
    rounds = ", ".join(f"{ratio:.2f}" for ratio in paired)
    return f"{before:.4g} | {now:.4g} | {statistics.median(paired):.2f} | {rounds}"


if __name__ == "__main__":
    main()
