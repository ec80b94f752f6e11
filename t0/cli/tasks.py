"""`t0 tasks [REGEX]`: lists tasks and mixtures, their sizes, and whether they are cached.

t0 tasks                         # the mixtures
t0 tasks t0++_train              # a mixture's tasks with their rates
t0 tasks 'super_glue_rte_.*'     # tasks by regular expression (matched at the name's start)
t0 tasks --cache_dirs=/data/cache --json sciq_.*

Without --module_import, it reads T0's catalogue. This does not need TensorFlow.
"""

import argparse
import json
import sys
from typing import Any

from t0.cli.arguments import add_shared, split_list
from t0.text_tables import print_table

_COLUMNS = {
    "mixture": ("mixture", "tasks", "rate", "cached"),
    "task": ("task", "splits", "rate", "cached"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    regex = "a mixture's name, or a regular expression of tasks"
    parser.add_argument("regex", nargs="?", help=regex)
    add_shared(parser, "data_dir", "cache_dirs", "module_import", "json")


def main(args: argparse.Namespace) -> int:
    """Lists the selected tasks or mixtures.

    Raises:
      UserError: a name is unknown. The message suggests similar names.
    """
    from t0.cli.registered import read_listing

    listing = read_listing(args.module_import, split_list(args.cache_dirs))
    kind, rows = _rows(listing, args.regex)
    if args.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
        return 0
    columns = _COLUMNS[kind]
    print_table(
        columns, [[_format_value(row[c]) for c in columns] for row in rows], right=("rate",)
    )
    print(f"{len(rows):,} {kind if len(rows) == 1 else kind + 's'}", file=sys.stderr)
    return 0


def _rows(listing: Any, regex: str | None) -> tuple[str, list[dict[str, Any]]]:
    if regex is None:
        return "mixture", [_mixture(listing, name) for name in listing.mixtures]
    if regex in listing.mixtures:
        return "task", [_task(listing, name, rate) for name, rate in listing.members(regex)]
    return "task", [_task(listing, name, None) for name in listing.select(regex)]


def _mixture(listing: Any, name: str) -> dict[str, Any]:
    members = listing.members(name)
    cached = sum(bool(listing.tasks[task].cache_dir) for task, _ in members)
    return {
        "mixture": name,
        "tasks": len(members),
        "rate": None if None in dict(members).values() else sum(dict(members).values()),
        "cached": f"{cached} of {len(members)}",
    }


def _task(listing: Any, name: str, rate: float | None) -> dict[str, Any]:
    cached = listing.tasks[name].cache_dir or ""
    return {"task": name, "splits": listing.sizes(name), "rate": rate, "cached": cached}


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        # The number of examples of a text source is unknown before it is read.
        sizes = {split: "?" if size is None else f"{size:,}" for split, size in value.items()}
        return ", ".join(f"{split} {size}" for split, size in sizes.items())
    if isinstance(value, int | float):
        return f"{value:,.0f}"
    return value or "-"
