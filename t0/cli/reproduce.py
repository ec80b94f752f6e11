"""`t0 eval --reproduce`: runs T0's held-out evaluation next to the published values.

t0 eval bigscience/T0_3B --reproduce --output=out            # rows and weights from the hub
t0 eval /models/t0_3b --reproduce --data_dir=DATA --skip_absent
t0 eval --downloads                                          # for a machine without network

It evaluates on `t0_eval` and prints the table of `t0.reports.held_out`.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from t0.errors import AbsentData, UserError, printable
from t0.sources import data_dirs, open_split, split_sizes
from t0.sources.hub import HUB, PARQUET_REVISION
from t0.text_tables import terminal_width

if TYPE_CHECKING:
    from t0.reports import EvaluatedRun

TASKS = "t0_eval"
_CAUTION = (
    "Within: the published value is in the confidence interval of this run's mean, which covers "
    "other examples of these prompts. The same checkpoint on the same rows differs by much less."
)


def check_flags(args: argparse.Namespace) -> None:
    """Checks the flags of `t0 eval --reproduce`, and that the datasets are available.

    Raises:
      UserError: other tasks or few-shot prompts are requested, or a dataset is missing and
        --skip_absent is not set.
    """
    if args.tasks != TASKS:
        raise UserError(
            f"--reproduce evaluates {TASKS}, but --tasks={args.tasks} is set: leave one out"
        )
    if args.num_fewshot is not None:
        raise UserError("--reproduce compares zero-shot results: leave out --num_fewshot")
    if not args.cache_dirs:
        _check_data(skip=args.skip_absent)


def held_out_splits() -> Iterator[tuple[str, str | None, str]]:
    """Yields (dataset, subset, split) for each of T0's held-out datasets."""
    from t0.reports.published import held_out_titles

    for key in held_out_titles():
        name, _, subset = key.partition("/")
        if name == "anli":  # each round of ANLI has its own splits
            yield name, None, f"dev_{subset}"
        else:
            yield name, subset or None, "validation"


def _check_data(*, skip: bool) -> None:
    absent = []
    for dataset, subset, split in held_out_splits():
        try:
            open_split(dataset, subset, split)
        except AbsentData:
            absent.append((dataset, subset, split))
    if not absent:
        return
    lines = "\n".join(download_lines(absent))
    if not skip:
        raise UserError(
            f"{len(absent)} of {len([*held_out_splits()])} splits are missing:\n{lines}\n"
            "Or skip them: --skip_absent"
        )
    print(f"skipped, with --skip_absent:\n{lines}", file=sys.stderr)


def download_lines(splits: Sequence[tuple[str, str | None, str]]) -> list[str]:
    """Returns, for each split, a line with its number of rows, folder and download command."""
    folder = next(map(str, data_dirs()), "DATA")
    lines = [
        "With a network they are read from the Hugging Face hub. Without, use another machine:"
    ]
    for dataset, subset, split in splits:
        target = Path(folder) / dataset / (subset or "default")
        rows = (split_sizes(dataset, subset) or {}).get(split)
        size = f", {rows:,} rows" if rows else ""
        row = HUB[dataset]
        lines += ["", f"# {'/'.join(filter(None, (dataset, subset)))}, {split}{size}: {target}"]
        if row.by_hand:
            lines.append(f"# {row.by_hand} docs/licensed.md has the command.")
            continue
        files = {split: f"{subset or '*'}/{split}/*.parquet"}
        file = json.dumps(str(target / f"{split}.parquet"))
        code = (
            f'import datasets; datasets.load_dataset("hf://datasets/{row.repos[0]}", '
            f'revision="{PARQUET_REVISION}", data_files={json.dumps(files)}, split="{split}")'
            f".to_parquet({file})"
        )
        lines.append(f"mkdir -p {shlex.quote(str(target))} && python -c {shlex.quote(code)}")
    return lines


def print_table(run: "EvaluatedRun", output: Path) -> None:
    """Prints a run's means next to the published values; writes reproduction_<step>.json."""
    from t0.files.publishing import write_whole
    from t0.reports.held_out import reproduction, reproduction_table
    from t0.reports.published import published_accuracies

    rows = reproduction(run)
    print(f"\n{printable(run.label)}, next to the published values:")
    for line in [*reproduction_table(rows).lines(terminal_width()), _CAUTION]:
        print(printable(line))
    path = output / f"reproduction_{run.step}.json"
    sources = sorted({row["source"] for row in published_accuracies()})
    write_whole(str(path), json.dumps({"schema": 1, "rows": rows, "sources": sources}, indent=1))
    print(f"table: {printable(str(path))}")
