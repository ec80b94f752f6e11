"""`t0 lint [REGEX]`: checks prompts on sample rows; exit status 1 if a template has a fault.

t0 lint 'super_glue_rte_.*'                     # tasks by regular expression, all by default
t0 lint --data_dir=my_data 'my_reviews_.*'      # your own templates, before training on them
t0 lint --json --max_share=0 t0_train > lint.json
"""

import argparse
import importlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from t0.errors import AbsentData, UserError, unknown_name
from t0.sources import set_data_dirs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("regex", nargs="?", help="a mixture, or tasks by regular expression")
    parser.add_argument("--rows", type=int, default=200, help="rows of each split to look at")
    parser.add_argument("--splits", help="splits to look at, comma-separated (default: all)")
    parser.add_argument(
        "--max_share",
        type=float,
        default=0.1,
        help="share of rows, 0 to 1, above which something odd is a fault (default 0.1)",
    )
    parser.add_argument("--data_dir", action="append", help="a folder with datasets of your own")
    parser.add_argument("--vocab", help="SentencePiece model; without one tokens are not counted")
    parser.add_argument(
        "--module_import", action="append", help="module to import (default t0.seqio_tasks)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def main(args: argparse.Namespace) -> int:
    """Prints the findings; returns 1 if a template has a fault, else 0."""
    if args.data_dir:
        set_data_dirs(args.data_dir)
    from t0.tasks import set_vocabulary

    set_vocabulary(args.vocab)
    for module in args.module_import or ["t0.seqio_tasks"]:
        importlib.import_module(module)
    selected = _selected(args.regex)
    found, absent = [], []
    for name, source in _with_progress(selected):
        for split in source.splits:
            if args.splits and split not in args.splits.split(","):
                continue
            try:
                found.append(_linted(name, source, split, args))
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
        Console(width=None if sys.stdout.isatty() else 400).print(_table(found))
    print(
        f"{len(found)} splits looked at, {faulty} with faults, {len(absent)} without data here",
        file=sys.stderr,
    )
    return 1 if faulty else 0


def _with_progress(selected: list[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    return track(selected, "linting", console=Console(stderr=True), transient=True)


def _selected(regex: str | None) -> list[tuple[str, Any]]:
    """Returns name and source of the plain tasks: each template is checked once."""
    from t0.compat import seqio
    from t0.tasks import SCORE_EVAL, PromptedSource

    names = [*seqio.TaskRegistry.names()]
    mixtures = [*seqio.MixtureRegistry.names()]
    if regex in mixtures:
        wanted = [task.name for task in seqio.MixtureRegistry.get(regex).tasks]
    else:
        try:
            pattern = re.compile(regex or "")
        except re.error as error:
            raise UserError(f"'{regex}' is not a regular expression: {error}") from error
        wanted = [name for name in names if pattern.match(name)]
    sources = {
        name.removesuffix(SCORE_EVAL): seqio.TaskRegistry.get(name).source for name in wanted
    }
    prompted = [(n, s) for n, s in sources.items() if isinstance(s, PromptedSource)]
    if not prompted:
        raise unknown_name("prompted task or mixture", regex or "", [*mixtures, *names])
    return sorted(prompted, key=lambda pair: pair[0])


def _linted(name: str, source: Any, split: str, args: argparse.Namespace) -> dict[str, Any]:
    from t0.tasks import lint

    known = dict(_known(source, split))
    try:
        report = lint.lint(source, split, rows=args.rows, count_tokens=_counter())
        faults = lint.faults_of(report, max_share=args.max_share, excused=known)
        facts = {"rows": report.rows, "counts": dict(report.counts), "draws": report.draws}
    except AbsentData:
        raise
    except UserError as error:  # a missing column, a template that does not compile
        faults, facts = {"fails": str(error)}, {"rows": 0, "counts": {}, "draws": False}
    return {"task": name, "split": split, **facts, "faults": faults, "known": known}


def _known(source: Any, split: str) -> Iterator[tuple[str, str]]:
    from t0.caching.split_state import DROPS, exemptions
    from t0.tasks import lint

    for known in exemptions(
        source.dataset, source.subset, source.split_mapping[split], source.template.name
    ):
        yield (lint.NOTHING if known.kind == DROPS else lint.HIDDEN), known.reason


def _counter() -> Any:
    """Returns a function that counts tokens, None without --vocab: T5's own would be downloaded."""
    from t0.tasks import default_vocabulary, vocabulary_path
    from t0.tasks.vocabulary import DEFAULT_VOCABULARY

    if vocabulary_path() == DEFAULT_VOCABULARY:
        return None
    tokenizer = default_vocabulary().tokenizer
    return lambda text: len(tokenizer.EncodeAsIds(text))


def _table(found: list[dict[str, Any]]) -> Table:
    from t0.tasks import lint

    table = Table(box=None, pad_edge=False)
    table.add_column("task", overflow="fold")
    table.add_column("split")
    checks = (*lint.CHECKS, *lint.LENGTHS)
    for column in ("rows", *checks, "random"):
        table.add_column(column, justify="right")
    table.add_column("verdict", overflow="fold")
    for row in found:
        cells = [_share(row["counts"].get(check, 0), row["rows"]) for check in checks]
        verdict = "; ".join(f"{check}: {why}" for check, why in row["faults"].items())
        known = "; ".join(f"known: {why}" for why in row["known"].values())
        draws = "seeded" if row["draws"] else ""
        table.add_row(
            *(
                row["task"],
                row["split"],
                f"{row['rows']:,}",
                *cells,
                draws,
                verdict or known or "ok",
            )
        )
    return table


def _share(count: int, rows: int) -> str:
    return f"{count / rows:.0%}" if count else ""
