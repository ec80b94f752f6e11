"""`t0 tasks [REGEX]`: lists tasks and mixtures, their sizes, and whether they are cached.

t0 tasks                         # the mixtures
t0 tasks t0++_train              # a mixture's tasks with their rates
t0 tasks 'super_glue_rte_.*'     # tasks by regular expression (matched at the name's start)
t0 tasks --cache_dirs=/data/cache --json sciq_.*
"""

import argparse
import importlib
import json
import re
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from t0.errors import UserError, unknown_name
from t0.sources import set_data_dirs

_COLUMNS = {
    "mixture": ("mixture", "tasks", "rate", "cached"),
    "task": ("task", "splits", "rate", "cached"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument(
        "regex", nargs="?", help="a mixture's name, or a regular expression of tasks"
    )
    parser.add_argument("--data_dir", action="append", help="a folder with datasets of your own")
    parser.add_argument(
        "--cache_dirs", default="", help="folders with cached tasks, comma-separated"
    )
    parser.add_argument(
        "--module_import", action="append", help="module to import (default t0.seqio_tasks)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def main(args: argparse.Namespace) -> int:
    """Lists the selected tasks or mixtures; an unknown name is a UserError with the nearest."""
    if args.data_dir:
        set_data_dirs(args.data_dir)
    for module in args.module_import or ["t0.seqio_tasks"]:
        importlib.import_module(module)
    from t0.compat import seqio

    seqio.add_global_cache_dirs([d for d in args.cache_dirs.split(",") if d])
    kind, rows = _rows(seqio, args.regex)
    if args.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
        return 0
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS[kind]:
        table.add_column(column, overflow="fold", justify="right" if column == "rate" else "left")
    for row in rows:
        table.add_row(*(_shown(row[column]) for column in _COLUMNS[kind]))
    # Lines are not wrapped in a pipe, so that grep finds whole rows.
    Console(width=None if sys.stdout.isatty() else 240).print(table)
    print(f"{len(rows):,} {kind if len(rows) == 1 else kind + 's'}", file=sys.stderr)
    return 0


def _rows(seqio: Any, regex: str | None) -> tuple[str, list[dict[str, Any]]]:
    mixtures = list(seqio.MixtureRegistry.names())
    if regex is None:
        return "mixture", [_mixture(seqio.MixtureRegistry.get(name)) for name in mixtures]
    if regex in mixtures:
        mixture = seqio.MixtureRegistry.get(regex)
        return "task", [_task(task, mixture.get_rate(task)) for task in mixture.tasks]
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise UserError(f"'{regex}' is not a regular expression: {error}") from error
    names = sorted(name for name in seqio.TaskRegistry.names() if pattern.match(name))
    if not names:
        known = [*mixtures, *seqio.TaskRegistry.names()]
        raise unknown_name("task or mixture", regex, known)
    return "task", [_task(seqio.TaskRegistry.get(name), None) for name in names]


def _mixture(mixture: Any) -> dict[str, Any]:
    tasks = mixture.tasks
    cached = sum(bool(task.cache_dir) for task in tasks)
    rate = sum(mixture.get_rate(task) for task in tasks)
    return {
        "mixture": mixture.name,
        "tasks": len(tasks),
        "rate": rate,
        "cached": f"{cached} of {len(tasks)}",
    }


def _task(task: Any, rate: float | None) -> dict[str, Any]:
    splits = {split: task.num_input_examples(split) for split in task.splits}
    return {"task": task.name, "splits": splits, "rate": rate, "cached": task.cache_dir or ""}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        # A source of text is not counted before it is read.
        sizes = {split: "?" if size is None else f"{size:,}" for split, size in value.items()}
        return ", ".join(f"{split} {size}" for split, size in sizes.items())
    if isinstance(value, int | float):
        return f"{value:,.0f}"
    return value or "-"
