"""Runs the benchmarks of benchmarks/README.md one after the other and records their figures.

    .venv/bin/python benchmarks/run.py --data_dir=DATA --recipes_dir=RECIPES --vocab=spiece.model \
      --hf_python=/venvs/hf/bin/python --output=/tmp/benchmarks
    .venv/bin/python benchmarks/run.py ... --only training scoring

DATA and RECIPES are data folders, as for `--data_dir`; RECIPES has `text/`. Run nothing else on the
machine during that time. A claim is one program with its arguments. All claims together take about
40 minutes on two cores, because they use fewer rounds, rows and steps than the programs' defaults,
which are in benchmarks/README.md.

OUT/<claim>.md is the output of a program. OUT/table.md has all of them below a line about the
machine (processor, cores, instruction sets, the rate of one large product) and the commit. Each
claim appends one line to benchmarks/history.jsonl: date, commit, machine, seconds, exit status, and
the cells of the program's Markdown tables as text. `--history` prints one claim's cells over time,
to find the commit that made something slower.
"""

import argparse
import dataclasses
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks"
HISTORY = FOLDER / "history.jsonl"
INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
LOOP = "for number in range(10**6): number & 3"

# A regular expression of the prompts that the feeding benchmark packs, without their
# rank-evaluation tasks.
PROMPTED = "(super_glue_rte|hellaswag|social_i_qa)_(?!.*score_eval).*"
FED = "(super_glue_rte|hellaswag|social_i_qa|rotten_tomatoes)_(?!.*score_eval).*"


# The flags that arguments may name in braces. {scratch} is an empty folder for each claim.
PATHS = ("data_dir", "recipes_dir", "vocab", "hf_python", "output")


@dataclasses.dataclass(frozen=True)
class Claim:
    """A program and its arguments, in which {names} of paths are replaced."""

    program: str
    arguments: tuple[str, ...] = ()
    before: tuple[str, ...] = ()  # one of our commands, whose output the program reads


CLAIMS = {
    "importing": Claim("importing.py", ("--rounds=3",)),
    "training": Claim("training.py", ("--rounds=2", "--steps=2", "--hf_python={hf_python}")),
    "training_torch": Claim(
        "training_torch.py",
        ("--rounds=2", "--steps=1", "--hf_python={hf_python}", "--cache={scratch}/cache"),
        before=(
            "-m",
            "t0.cli.cache_tasks",
            f"--tasks={PROMPTED}",
            "--module_import=t0.seqio_tasks",
            "--splits=validation",
            "--output_cache_dir={scratch}/cache",
            "--data_dir={data_dir}",
            "--vocab={vocab}",
        ),
    ),
    "inference": Claim("inference.py", ("--rounds=2", "--hf_python={hf_python}")),
    "scoring": Claim(
        "scoring.py",
        (
            "--data={data_dir}",
            "--vocab={vocab}",
            "--hf_python={hf_python}",
            "--rounds=1",
            "--examples=20",
            "--mesh_batches=1",
            "--datasets",
            "rte",
            "cb",
            "hellaswag",
        ),
    ),
    "caching": Claim(
        "caching.py",
        ("--data_dir={data_dir}", "--vocab={vocab}", "--rounds=3")
        + ("--stock_tasks=super_glue_rte_GPT.*",),
    ),
    "caching_everything": Claim(
        "caching.py",
        ("--data_dir={data_dir}", "--vocab={vocab}", "--tasks=.*")
        + ("--rounds=1", "--stock_rounds=0"),
    ),
    "few_shot_caching": Claim(
        "few_shot_caching.py", ("--data_dir={data_dir}", "--vocab={vocab}", "--rounds=3")
    ),
    "caching_scale": Claim(
        "caching_scale.py",
        ("--data_dir={data_dir}", "--recipes_dir={recipes_dir}", "--vocab={vocab}")
        + ("--workloads=prompts",),
    ),
    "growth": Claim(
        "growth.py",
        ("--data_dir={data_dir}", "--recipes_dir={recipes_dir}", "--vocab={vocab}", "--repeats=3")
        + ("--documents=900", "--plot={output}/growth.png"),
    ),
    "feeding": Claim(
        "feeding.py",
        ("--cache={scratch}/cache", f"--tasks={FED}", "--split=validation", "--rounds=1")
        + ("--rows=8192",),
        before=(
            "-m",
            "t0.cli.cache_tasks",
            f"--tasks={FED}",
            "--module_import=t0.seqio_tasks",
            "--splits=validation",
            "--output_cache_dir={scratch}/cache",
            "--data_dir={data_dir}",
            "--vocab={vocab}",
        ),
    ),
    "pretraining_feed": Claim(
        "pretraining_feed.py", ("--text={recipes_dir}/text", "--vocab={vocab}", "--rounds=3")
    ),
    "live_feeding": Claim("live_feeding.py", ("--text={recipes_dir}/text", "--vocab={vocab}")),
    "converting": Claim("converting.py", ("--folder={scratch}", "--blocks=2", "--repeats=2")),
    "planning": Claim("planning.py"),
    "buckets": Claim("buckets.py", ("--rounds=1",)),
    "overlap": Claim("overlap.py", ("--data_dir={data_dir}", "--rounds=3")),
    "starting": Claim("starting.py", ("--data_dir={data_dir}", "--vocab={vocab}", "--rounds=1")),
    "training_bands": Claim(
        "training_bands.py", ("--data_dir={recipes_dir}", "--out={scratch}/bands", "--steps=150")
    ),
}


def machine() -> dict[str, Any]:
    """Returns the properties of this machine that determine speed.

    These include the GFLOP/s of a product of 2,048 by 2,048 by 2,048, and the nanoseconds per
    iteration of a loop in Python, which determine the speed of starting, planning and importing.
    """
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    values: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        values.setdefault(name.strip(), value.strip())
    flags = values.get("flags", "").split()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": values.get("model name", platform.processor()),
        # The name is not enough, because clouds use one name for processors of several generations.
        "family": [values.get("cpu family", ""), values.get("model", "")],
        "cores": os.cpu_count(),
        "instruction_sets": [name for name in INSTRUCTION_SETS if name in flags],
        "memory_gb": round(memory / 1e9),
        "python_loop_ns": round(min(timeit.repeat(LOOP, number=1, repeat=7)) * 1e9 / 10**6, 1),
        "product_gflops": {dtype: _product(dtype) for dtype in ("float32", "bfloat16")},
    }


def _product(dtype: str) -> int:
    """Returns the rate, measured in a separate process, because TensorFlow keeps its threads."""
    command = [sys.executable, str(FOLDER / "product_rate.py"), dtype]
    run = subprocess.run(command, env=_environment(), capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"the rate of a product could not be measured: {run.stderr[-500:]}")
    return int(run.stdout.split()[-1])


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    # Commands may write and read compiled bytecode, as they do for a user, whatever the settings of
    # this shell are.
    set_here = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return {**os.environ, **set_here}


def commit() -> str:
    """Returns the commit's short hash, with "+" if the working tree differs from it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"]).returncode
    return head.stdout.strip() + ("+" if changed else "")


def cells(text: str) -> Iterator[tuple[str, str, str]]:
    """Yields (row, column, cell) of the Markdown tables in a text.

    A row is named by its first cells up to the first that begins with a digit.
    """
    header: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            header = []
            continue
        row_cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not header:
            header = row_cells
        elif not set("".join(row_cells)) <= set("-: "):
            first_number = next(
                (n for n, cell in enumerate(row_cells) if cell[:1].isdigit()), len(row_cells)
            )
            row = ", ".join(row_cells[: max(first_number, 1)])
            for column, cell in list(zip(header, row_cells, strict=False))[max(first_number, 1) :]:
                yield row, column, cell


def measure(name: str, paths: Mapping[str, str], output: Path) -> dict[str, Any]:
    """Runs a claim's program, writes its output to OUT/<name>.md, and returns its record."""
    claim = CLAIMS[name]
    prepare = [argument.format(**paths) for argument in claim.before]
    command = [
        str(FOLDER / claim.program),
        *(argument.format(**paths) for argument in claim.arguments),
    ]
    with (output / f"{name}.log").open("w") as log:
        environment = _environment() | {"T0_VOCAB": paths["vocab"]}
        settings = {"env": environment, "stdout": subprocess.PIPE, "stderr": log, "text": True}
        run = subprocess.run([sys.executable, *prepare], **settings) if prepare else None
        began = time.monotonic()
        if run is None or not run.returncode:
            run = subprocess.run([sys.executable, *command], **settings)
    (output / f"{name}.md").write_text(run.stdout)
    return {
        "claim": name,
        "seconds": round(time.monotonic() - began),
        "status": run.returncode,
        "cells": list(cells(run.stdout)),
    }


def show_history(name: str) -> None:
    """Prints the cells of a claim in every run of the history."""
    for line in HISTORY.read_text().splitlines():
        record = json.loads(line)
        if record["claim"] == name:
            host = record["machine"]
            print(f"{record['date']} {record['commit']} {host['processor']} {host['cores']} cores")
            for row, column, cell in record["cells"]:
                print(f"  {row}: {column} {cell}")


def main() -> None:
    """Runs the selected claims."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", help="folder of dataset folders")
    parser.add_argument("--recipes_dir", help="folder that has text/")
    parser.add_argument("--vocab", help="T5's SentencePiece model")
    parser.add_argument("--hf_python", help="a Python that has torch and transformers")
    parser.add_argument("--output", type=Path, default=Path(tempfile.gettempdir()) / "benchmarks")
    parser.add_argument("--only", nargs="+", choices=CLAIMS, default=[*CLAIMS])
    parser.add_argument("--history", choices=CLAIMS, metavar="CLAIM", help="print and do nothing")
    args = parser.parse_args()
    if args.history:
        show_history(args.history)
        return
    if missing := [f"--{flag}" for flag in PATHS if not getattr(args, flag)]:
        parser.error(f"needs {', '.join(missing)}")
    args.output.mkdir(parents=True, exist_ok=True)
    header = {"date": datetime.date.today().isoformat(), "commit": commit(), "machine": machine()}
    print(json.dumps(header), flush=True)
    sections = [f"{header['date']}, commit {header['commit']}, {json.dumps(header['machine'])}"]
    failed = []
    for name in args.only:
        with tempfile.TemporaryDirectory(prefix="t0_benchmark_") as scratch:
            paths = {flag: getattr(args, flag) for flag in PATHS} | {"scratch": scratch}
            record = header | measure(name, paths, args.output)
        with HISTORY.open("a") as history:
            history.write(json.dumps(record) + "\n")
        sections.append(f"## {name}\n\n" + (args.output / f"{name}.md").read_text())
        (args.output / "table.md").write_text("\n\n".join(sections))
        failed += [name] if record["status"] else []
        print(f"{name}: {record['seconds']} s, exit status {record['status']}", flush=True)
    if failed:
        sys.exit(
            f"failed, or missed an aim: {', '.join(failed)}; see {args.output}/<claim>.md and .log"
        )


if __name__ == "__main__":
    main()
