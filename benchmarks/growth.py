"""Measures the cost of a row as data grows: caching, feeding, overlap, scoring and reports.

    .venv/bin/python benchmarks/growth.py --data_dir=DATA --recipes_dir=RECIPES \
      --vocab=spiece.model --plot=growth.png

RTE's rows are multiplied by 1, 10 and 100: each premise is combined with the hypotheses of other
rows. These steps are measured:

- the rows are cached with two prompts, as plain and as rank-evaluation tasks, once with our own
  worker processes and once with Beam's on the same cores;
- one epoch of the cache is fed, packed;
- the cache is searched for CB's rows;
- a tiny model with random weights ranks the validation rows with one prompt;
- its results become a report;
- the documents of RECIPES/text, in as many files as there are cores, are copied the same number of
  times, and cached for a language model.

Each command runs as for a user, with its default number of processes.

The runs of a command follow each other, because the machine's speed may change within minutes. Each
number of rows runs several times, forwards and backwards, and the median time counts. The largest
number of rows, which takes minutes, runs once, between the others. The cost of a row is the
additional time per additional row, from 1x to 10x and from 10x to 100x, so it excludes the start of
programs. "Flat" means that the second cost is at most a tenth higher than the first. If the first
difference is below a second, it is not judged, because start times vary as much. Memory is the peak
of the process tree; shared pages count once. Prints a Markdown table and plots it. Below it are
projections to 10^8 records and 10^8 documents, on one such machine and on 100 with Beam.
"""

import argparse
import gzip
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from caching_scale import peak_bytes

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ("GPT_3_style", "must_be_true")
FED = tuple(f"super_glue_rte_{name}" for name in PROMPTS)
RANKED = f"super_glue_rte_{PROMPTS[0]}_score_eval"
BEAM = "--runner=DirectRunner,--direct_num_workers=2,--direct_running_mode=multi_processing"
FLAT = 1.1
SHORT = 1.0  # seconds, by which the starts of programs differ
PROJECTED = 10**8
MACHINES = 100


class Measured(NamedTuple):
    """The result of a command: seconds by the clock, rows, and peak memory in bytes."""

    seconds: float
    rows: int
    memory: int


def lay_out(args: argparse.Namespace, folder: Path, times: int) -> Path:
    """Writes `times` times RTE's rows and the documents, and links CB; returns the folder."""
    data = args.data_dir
    data_dir = folder / "data"
    rte = data_dir / "super_glue" / "rte"
    rte.mkdir(parents=True)
    (data_dir / "super_glue" / "cb").symlink_to((data / "super_glue" / "cb").resolve())
    for split in ("train", "validation"):
        name = f"{split}.jsonl.gz"
        with gzip.open(data / "super_glue" / "rte" / name, "rt") as file:
            rows = [json.loads(line) for line in file]
        with gzip.open(rte / name, "wt", compresslevel=1) as file:
            for shift in range(times):
                for number, row in enumerate(rows):
                    hypothesis = rows[(number + shift) % len(rows)]["hypothesis"]
                    file.write(json.dumps({**row, "hypothesis": hypothesis}) + "\n")
    text = data_dir / "text"
    text.mkdir()
    with gzip.open(args.recipes_dir / "text" / "train.jsonl.gz", "rt") as file:
        lines = list(itertools.islice(file, args.documents))
    # As many files as cores, so that every core has work also at 1x the rows.
    for index in range(os.cpu_count()):
        shard = folder / f"documents-{index}.jsonl.gz"
        with gzip.open(shard, "wt") as file:
            file.writelines(lines[index :: os.cpu_count()])
        for copy in range(times):
            (text / f"train-{copy:05d}-{index}.jsonl.gz").symlink_to(shard.resolve())
    features = data / "super_glue" / "rte" / "features.json"
    if features.exists():
        (rte / features.name).write_bytes(features.read_bytes())
    return data_dir


def run(*words: str | Path) -> tuple[float, int, str]:
    """Runs a Python command; returns its seconds, its peak memory, and its output."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(
            [sys.executable, "-W", "ignore", *map(str, words)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        peak = peak_bytes(child, every=0.1)
        seconds = time.monotonic() - began
        out.seek(0)
        text = out.read()
    if child.returncode:
        sys.exit(f"{' '.join(map(str, words))} ended with {child.returncode}:\n{text[-3000:]}")
    return seconds, peak, text


def feed(cache: str) -> None:
    """Feeds one epoch of the cached tasks, packed, and prints the number of examples."""
    from t0.config.specification import DataSpec, FeatureSpec, TaskSpec
    from t0.feeding import open_training_data

    lengths = {"inputs": 1024, "targets": 256}
    tasks = []
    for name in FED:
        files = tuple(str(path) for path in sorted(Path(cache, name).glob("train.tfrecord-*")))
        examples = json.loads(Path(cache, name, "stats.train.json").read_text())["examples"]
        features = dict.fromkeys(lengths, FeatureSpec(add_eos=True))
        tasks.append(TaskSpec(name, 1.0, features, examples, files))
    data = open_training_data(DataSpec("rte", "train", tuple(tasks), lengths))
    every = sum(task.examples or 0 for task in tasks)
    for _, position in data.batches(16):
        if position["examples"] >= every:
            break
    print(every)


def stages(folder: Path, data: Path, args: argparse.Namespace) -> dict[str, Callable[[], Measured]]:
    """Returns name -> function that runs it; each needs the output of the one before."""
    cache, beam, documents, results = (
        folder / name for name in ("cache", "beam", "documents", "results")
    )
    common = ["--module_import=t0.seqio_tasks", f"--data_dir={data}", f"--vocab={args.vocab}"]

    def examples(pattern: str, cache: Path = cache) -> int:
        stats = (json.loads(path.read_text()) for path in cache.glob(pattern))
        return sum(task_stats["examples"] for task_stats in stats)

    def measured(
        output: Path, rows: Callable[[], int], *words: str | Path
    ) -> Callable[[], Measured]:
        def once() -> Measured:
            # Otherwise the command would resume from the files of an earlier run.
            shutil.rmtree(output, ignore_errors=True)
            seconds, memory, _ = run(*words)
            return Measured(seconds, rows(), memory)

        return once

    prompts = "|".join(PROMPTS)
    caching = ["-m", "t0.cli.cache_tasks", f"--tasks=super_glue_rte_({prompts})(_score_eval)?"]
    caching += [*common, "--splits=train,validation"]
    return {
        "caching, records": measured(
            cache, lambda: examples("*/stats.*.json"), *(*caching, f"--output_cache_dir={cache}")
        ),
        "caching by Beam, records": measured(
            beam,
            lambda: examples("*/stats.*.json", beam),
            *(*caching, f"--output_cache_dir={beam}", f"--pipeline_options={BEAM}"),
        ),
        "caching, documents": measured(
            documents,
            lambda: examples("text_lm/stats.*.json", documents),
            *("-m", "t0.cli.cache_tasks", "--tasks=text_lm", "--module_import=t0.recipes"),
            *(f"--data_dir={data}", f"--vocab={args.vocab}", "--splits=train"),
            f"--output_cache_dir={documents}",
        ),
        "feeding, examples": measured(
            folder / "nothing",
            lambda: sum(examples(f"{name}/stats.train.json") for name in FED),
            *(__file__, f"--feed={cache}"),
        ),
        "overlap, texts": measured(
            folder / "overlap",
            lambda: examples("*/stats.train.json"),
            *("-m", "t0.cli.main", "overlap", "--train", cache, "--eval", "super_glue_cb_.*"),
            *("--data_dir", data, "--vocab", args.vocab, "--output", folder / "overlap"),
        ),
        "scoring, choices": measured(
            results,
            lambda: examples(f"{RANKED}/stats.validation.json"),
            *("-m", "t0.cli.mesh_transformer", *common, *_model(args.model)),
            *(f"--additional_task_cache_dirs={cache}", "--gin_file=runs/eval.gin"),
            *(f"--gin.MIXTURE_OR_TASK_NAME='{RANKED}'", "--gin.USE_CACHED_TASKS=True"),
            "--gin.TASK_FEATURE_LENGTHS={'inputs': 256, 'targets': 16}",
            *(f"--gin.CHECKPOINT_PATH='{args.model}'", f"--gin.EVAL_OUTPUT_DIR='{results}'"),
        ),
        "report, choices": measured(
            folder / "report",
            lambda: examples(f"{RANKED}/stats.validation.json"),
            *("-m", "t0.cli.main", "report", results, "--output", folder / "report"),
        ),
    }


def _model(folder: Path) -> list[str]:
    return [
        "--gin_file=models/t5.1.1.tiny.gin",
        "--gin_param=num_layers = 1",
        "--gin_param=d_model = 32",
        f"--model_dir={folder}",
    ]


def make_model(args: argparse.Namespace, folder: Path) -> None:
    """Writes a checkpoint of the tiny model by training one step."""
    data = lay_out(args, folder, 1)
    run(
        *("-m", "t0.cli.mesh_transformer", "--module_import=t0.seqio_tasks"),
        *(f"--data_dir={data}", f"--vocab={args.vocab}", *_model(args.model)),
        *("--gin_file=dataset.gin", "--gin_file=learning_rate_schedules/constant_0_001.gin"),
        f"--gin_param=MIXTURE_NAME = '{FED[0]}'",
        *("--gin_param=run.train_steps = 1", "--gin_param=run.batch_size = 1"),
        "--gin_param=run.sequence_length = {'inputs': 64, 'targets': 16}",
    )


def further(measurements: dict[int, Measured]) -> list[float]:
    """Returns the seconds per additional row, from each number of rows to the next."""
    runs = [measurements[times] for times in sorted(measurements)]
    return [
        (more.seconds - less.seconds) / (more.rows - less.rows)
        for less, more in zip(runs, runs[1:], strict=False)
    ]


def table(measurements: dict[str, dict[int, Measured]]) -> str:
    """Returns the measurements as a Markdown table."""
    times = sorted(next(iter(measurements.values())))
    lines = [
        "| what | " + " | ".join(f"rows, seconds, memory at {n}x" for n in times) + " | "
        "ms for each further row | last beside first |",
        "|---" * (len(times) + 3) + "|",
    ]
    for name, runs in measurements.items():
        cells = [
            f"{run.rows:,}, {run.seconds:.1f}, {run.memory / 1e9:.2f} GB" for run in runs.values()
        ]
        costs = further(runs)
        ratio = costs[-1] / costs[0]
        flat = "" if ratio <= FLAT else ", not flat"
        if runs[times[1]].seconds - runs[times[0]].seconds < SHORT:
            flat = ", not judged"
        shown = ", ".join(f"{1000 * cost:.3f}" for cost in costs)
        lines.append(f"| {name} | {' | '.join(cells)} | {shown} | {ratio:.2f}{flat} |")
    return "\n".join(lines)


def projection(measurements: dict[str, dict[int, Measured]]) -> str:
    """Returns projections of the costs per row to P3 and C4."""
    records, beam, documents = (
        further(measurements[name])[-1]
        for name in ("caching, records", "caching by Beam, records", "caching, documents")
    )
    times = max(measurements["caching, records"])
    start = measurements["caching by Beam, records"][times].seconds
    start -= beam * measurements["caching by Beam, records"][times].rows
    lines = []
    for kind, cost in (("records as P3's", records), ("documents as C4's", documents)):
        many = start + cost * max(1.0, beam / records) * PROJECTED / MACHINES
        lines.append(
            f"{PROJECTED:,} {kind}: {cost * PROJECTED / 3600:.1f} hours on one machine, "
            f"{many / 60:.1f} minutes on {MACHINES} by Beam."
        )
    slower = f"a further record {beam / records:.2f} times as long as without it"
    return "\n".join([*lines, f"Beam takes {start:.0f} s to start, and {slower}."])


def draw(measurements: dict[str, dict[int, Measured]], path: Path) -> None:
    """Plots seconds and memory over rows, both on logarithmic scales."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (seconds, memory) = pyplot.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    for name, runs in measurements.items():
        rows = [run.rows for run in runs.values()]
        seconds.plot(rows, [run.seconds for run in runs.values()], marker="o", label=name)
        memory.plot(rows, [run.memory / 1e9 for run in runs.values()], marker="o", label=name)
    for axes, label in ((seconds, "seconds"), (memory, "peak memory, GB")):
        axes.set(xscale="log", xlabel="rows", ylabel=label)
        axes.grid(alpha=0.3)
    seconds.set_yscale("log")
    memory.set_ylim(0)
    figure.legend(*seconds.get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=110)


def order(times: list[int], repeats: int) -> list[int]:
    """Returns the factor of rows for each run of a command: [1, 10, 100, 10, 1, 1, 10]."""
    *few, most = times
    again = (few[:: -1 if number % 2 else 1] for number in range(1, repeats))
    return [*few, most, *itertools.chain.from_iterable(again)]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", type=Path, help="folder with super_glue/rte and /cb")
    parser.add_argument("--recipes_dir", type=Path, help="folder with text/train.jsonl.gz")
    parser.add_argument("--vocab", help="T5's SentencePiece model")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--repeats", type=int, default=3, help="of each command (default: 3)")
    parser.add_argument("--documents", type=int, help="how many at 1x (default: all)")
    parser.add_argument("--plot", type=Path, help="where to draw the table")
    parser.add_argument("--feed", help=argparse.SUPPRESS)  # a process of this program's own
    args = parser.parse_args()
    if args.feed:
        feed(args.feed)
        return
    measurements: dict[str, dict[int, list[Measured]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        args.model = Path(scratch, "model")
        make_model(args, Path(scratch, "first"))
        runs = {}
        for times in args.times:
            folder = Path(scratch, str(times))
            data = lay_out(args, folder, times)
            runs[times] = stages(folder, data, args)
        for name, times in itertools.product(runs[args.times[0]], order(args.times, args.repeats)):
            measurements.setdefault(name, {}).setdefault(times, []).append(runs[times][name]())
            print(name, times, measurements[name][times][-1], file=sys.stderr)
    middle = {
        name: {times: statistics.median_high(many) for times, many in by_times.items()}
        for name, by_times in measurements.items()
    }
    print(table(middle))
    print(f"\n{projection(middle)}")
    if args.plot:
        draw(middle, args.plot)


if __name__ == "__main__":
    main()
