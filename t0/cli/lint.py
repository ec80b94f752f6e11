"""`t0 lint [REGEX]`: checks prompts on sample rows; exit status 1 if a template has a fault.

t0 lint 'super_glue_rte_.*'                     # tasks by regular expression, all by default
t0 lint --data_dir=my_data 'my_reviews_.*'      # your own templates, before training on them
t0 lint --json --max_share=0 t0_train > lint.json
"""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from t0.cli.flag_lists import JoinedList
from t0.errors import AbsentData, UserError, unknown_name
from t0.sources import SKIP_BAD_ROWS_HELP, set_data_dirs
from t0.text_tables import print_table

DEFAULT_ROWS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("regex", nargs="?", help="a mixture, or tasks by regular expression")
    parser.add_argument(
        "--rows",
        type=int,
        default=DEFAULT_ROWS,
        help=f"rows of each split to look at, spread over it (default {DEFAULT_ROWS})",
    )
    parser.add_argument(
        "--splits", action=JoinedList, help="splits to look at, comma-separated (default: all)"
    )
    parser.add_argument(
        "--max_share",
        type=float,
        default=0.1,
        help="share of rows, 0 to 1, above which something odd is a fault (default 0.1)",
    )
    parser.add_argument("--data_dir", action="append", help="a folder with datasets of your own")
    parser.add_argument("--skip_bad_rows", action="store_true", help=SKIP_BAD_ROWS_HELP)
    parser.add_argument("--vocab", help="SentencePiece model; without one tokens are not counted")
    parser.add_argument(
        "--module_import", action="append", help="module to import (default t0.seqio_tasks)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def main(args: argparse.Namespace) -> int:
    """Prints the findings; returns 1 if a template has a fault, else 0."""
    from t0.catalogue.sentence_pieces import given_tokens

    if args.rows < 1:
        raise UserError(f"--rows={args.rows}: wanted a number from 1")
    if not 0 <= args.max_share <= 1:
        raise UserError(f"--max_share={args.max_share:g}: wanted a share from 0 to 1")
    if args.data_dir:
        set_data_dirs(args.data_dir)
    tokens = given_tokens(args.vocab)
    selected = _selected(args)
    wanted = args.splits.split(",") if args.splits else None
    there = {split: None for _, source in selected for split in source.split_mapping}
    for split in wanted or ():
        if split not in there:
            raise unknown_name("split", split, there, f"(--splits; there are {', '.join(there)})")
    found, absent = [], []
    for name, source in tqdm(selected, "linting", disable=None, leave=False):
        for split in source.split_mapping:
            if wanted and split not in wanted:
                continue
            try:
                found.append(_linted(name, source, split, args, tokens))
            except AbsentData:
                absent.append(f"{name} split '{split}'")
    if not found:
        raise UserError(
            f"the data of none of these {len(selected)} tasks is here: name its folder with "
            "--data_dir"
        )
    faulty = sum(bool(row["faults"]) for row in found)
    if args.json:
        json.dump({"splits": found, "absent": absent, "faulty": faulty}, sys.stdout, indent=1)
        print()
    else:
        _print(found, counted=tokens is not None)
    print(
        f"{len(found)} splits looked at, {faulty} with faults, {len(absent)} without data here; "
        f"at most {args.rows:,} rows of each (--rows)"
        + ("" if tokens else ". Tokens were not counted: that needs --vocab"),
        file=sys.stderr,
    )
    return 1 if faulty else 0


def _selected(args: argparse.Namespace) -> list[tuple[str, Any]]:
    """Returns name and rows of the plain tasks: each template is checked once."""
    from t0.catalogue import SCORE_EVAL
    from t0.catalogue.listing import read_listing

    if args.module_import:
        from t0.cli.registered import registered_listing
        from t0.tasks import PromptedSource

        listing = registered_listing(args.module_import, [])
        rows = {n: t.source for n, t in listing.tasks.items()}
        rows = {n: source for n, source in rows.items() if isinstance(source, PromptedSource)}
    else:
        listing = read_listing()
        rows = {name: listed.task for name, listed in listing.tasks.items()}
    wanted = {
        n.removesuffix(SCORE_EVAL): rows[n] for n in listing.select(args.regex or "") if n in rows
    }
    if not wanted:
        raise unknown_name(
            "prompted task or mixture", args.regex or "", [*listing.mixtures, *listing.tasks]
        )
    return sorted(wanted.items())


def _linted(
    name: str, source: Any, split: str, args: argparse.Namespace, tokens: Any
) -> dict[str, Any]:
    from t0.catalogue import lint

    known = dict(_known(source, split))
    notes: list[str] = []
    try:
        report = lint.lint(source, split, rows=args.rows, tokens=tokens)
        notes = [f"{lint.UNKNOWN_TOKENS}: {note}" for note in report.notes]
        if lint.SEPARATOR in report.counts:
            notes.append(f"{lint.SEPARATOR}: {report.counts[lint.SEPARATOR]:,} rows")
        faults = lint.faults_of(report, max_share=args.max_share, excused=known)
        facts = {"rows": report.rows, "counts": dict(report.counts), "draws": report.draws}
    except AbsentData:
        raise
    except UserError as error:  # a missing column, a template that does not compile
        faults, facts = {"fails": str(error)}, {"rows": 0, "counts": {}, "draws": False}
    return {
        "task": name,
        "split": split,
        **facts,
        "faults": faults,
        "known": known,
        "notes": notes,
    }


def _known(source: Any, split: str) -> Iterator[tuple[str, str]]:
    from t0.caching.split_state import DROPS, exemptions
    from t0.catalogue import lint

    for known in exemptions(
        source.dataset, source.subset, source.split_mapping[split], source.template.name
    ):
        yield (lint.NOTHING if known.kind == DROPS else lint.HIDDEN), known.reason


def _print(found: list[dict[str, Any]], *, counted: bool) -> None:
    from t0.catalogue import lint

    checks = (*lint.CHECKS, *(lint.BY_TOKENS if counted else ()))
    rows = []
    for row in found:
        cells = [_share(row["counts"].get(check, 0), row["rows"]) for check in checks]
        faults = [f"{check}: {why}" for check, why in row["faults"].items()]
        known = [f"known: {why}" for why in row["known"].values()]
        verdict = "; ".join([*(faults or known), *row["notes"]])
        draws = "seeded" if row["draws"] else "no"
        looked_at = f"{row['rows']:,}"
        rows.append((row["task"], row["split"], looked_at, *cells, draws, verdict or "ok"))
    columns = ("task", "split", "rows", *checks, "random", "verdict")
    print_table(columns, rows, right=("rows", *checks, "random"))


def _share(count: int, rows: int) -> str:
    return f"{count / rows:.0%}" if count else "no"
