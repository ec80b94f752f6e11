"""`t0 lint [REGEX]`: checks prompts on sample rows, and exits with 1 if a template has faults.

t0 lint 'super_glue_rte_.*'                     # tasks by regular expression, all by default
t0 lint --data_dir=my_data 'my_reviews_.*'      # your own templates, before training on them
t0 lint --json --max_share=0 t0_train > lint.json
"""

import argparse
import json
import sys
from typing import Any

from tqdm import tqdm

from t0.cli.arguments import JoinedList, Number, add_shared, find_starter_tasks, split_list
from t0.config.plain_data import Positive, Share
from t0.errors import AbsentData, UserError, nearest, unknown_name
from t0.text_tables import print_table

DEFAULT_ROWS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add = parser.add_argument
    add("regex", nargs="?", help="a mixture, tasks by regular expression, or a folder of `t0 init`")
    rows = f"rows to check per split, spread over the split (default {DEFAULT_ROWS})"
    add("--rows", action=Number, kind=Positive, default=DEFAULT_ROWS, help=rows)
    splits = "splits to check, comma-separated (default: all)"
    add("--splits", action=JoinedList, help=splits)
    share = "share of rows, 0 to 1, above which a failed check is a fault (default 0.1)"
    add("--max_share", action=Number, kind=Share, default=0.1, help=share)
    add("--vocab", help="SentencePiece model; without it, tokens are not counted")
    add_shared(parser, "data_dir", "skip_bad_rows", "module_import", "json")


def main(args: argparse.Namespace) -> int:
    """Prints the findings; returns 1 if a template has a fault, else 0."""
    from t0.catalogue.sentence_pieces import load_tokens

    settings = find_starter_tasks(args, "regex")
    lengths = dict(settings.lengths) if settings else None
    tokens = load_tokens(args.vocab)
    selected = _select(args)
    splits = split_list(args.splits)
    all_splits = {split: None for _, source in selected for split in source.split_mapping}
    for split in splits:
        if split not in all_splits:
            raise unknown_name("split", split, all_splits, f"There are {', '.join(all_splits)}.")
    rows, absent = [], []
    for name, source in tqdm(selected, "linting", disable=None, leave=False):
        for split in source.split_mapping:
            if splits and split not in splits:
                continue
            try:
                rows.append(_lint(name, source, split, args, tokens, lengths=lengths))
            except AbsentData:
                absent.append(f"{name} split '{split}'")
    if not rows:
        raise UserError(
            f"none of these {len(selected)} tasks has its data here: set the folder with --data_dir"
        )
    faulty = sum(bool(row["faults"]) for row in rows)
    if args.json:
        json.dump({"splits": rows, "absent": absent, "faulty": faulty}, sys.stdout, indent=1)
        print()
    else:
        _print(rows)
    print(
        f"{len(rows)} splits checked, {faulty} with faults, {len(absent)} without data here; "
        f"at most {args.rows:,} rows of each (--rows)"
        + ("" if tokens else ". Tokens were not counted, which needs --vocab"),
        file=sys.stderr,
    )
    return 1 if faulty else 0


def _select(args: argparse.Namespace) -> list[tuple[str, Any]]:
    """Returns the names and row sources of the tasks to check.

    The rank-evaluation forms of tasks are left out, so that each template is checked only once.
    """
    from t0.catalogue import SCORE_EVAL
    from t0.cli.tasks import read_listing

    listing = read_listing(args.module_import)
    if args.module_import:
        from t0.tasks import PromptedSource

        rows = {n: t.source for n, t in listing.tasks.items()}
        rows = {n: source for n, source in rows.items() if isinstance(source, PromptedSource)}
    else:
        rows = {name: listed.task for name, listed in listing.tasks.items()}
    sources = {
        n.removesuffix(SCORE_EVAL): rows[n] for n in listing.select(args.regex or "") if n in rows
    }
    if not sources:
        raise unknown_name(
            "prompted task or mixture", args.regex or "", [*listing.mixtures, *listing.tasks]
        )
    return sorted(sources.items())


def _lint(
    name: str,
    source: Any,
    split: str,
    args: argparse.Namespace,
    tokens: Any,
    *,
    lengths: dict[str, int] | None,
) -> dict[str, Any]:
    """Returns the findings for a split. `lengths` are those of a starter folder."""
    from t0.caching.split_state import DROPS, exemptions
    from t0.catalogue import lint
    from t0.catalogue.row_preview import T0_LENGTHS
    from t0.catalogue.sentence_pieces import describe_unknown

    limits = T0_LENGTHS | (lengths or {})
    exempted = exemptions(
        source.dataset, source.subset, source.split_mapping[split], source.template.name
    )
    excused = {
        lint.NOTHING if exemption.kind == DROPS else lint.HIDDEN: exemption.reason
        for exemption in exempted
    }
    notes: list[str] = []
    try:
        report = lint.lint(source, split, rows=args.rows, tokens=tokens, lengths=limits)
        notes = [f"{lint.UNKNOWN_TOKENS}: {note}" for note in report.notes]
        notes += [f"inputs: {describe_unknown(report.unknown)}"] if report.unknown else []
        notes += [
            f"{check}: {report.counts[check]:,} row{'s' * (report.counts[check] != 1)}"
            for check in lint.NOTED
            if check in report.counts
        ]
        faults = lint.faults_of(
            report,
            max_share=args.max_share,
            excused=excused,
            lengths=limits,
            truncates=lengths is None,
        )
        faults |= _unknown_metrics(source.template)
        facts = {"rows": report.rows, "counts": dict(report.counts), "draws": report.draws}
    except AbsentData:
        raise
    except UserError as error:  # such as a missing column or a template that does not compile
        faults, facts = {"fails": str(error)}, {"rows": 0, "counts": {}, "draws": False}
    told = {"faults": faults, "known": excused, "notes": notes}
    return {"task": name, "split": split, **facts, **told}


def _unknown_metrics(template: Any) -> dict[str, str]:
    from t0.catalogue import lint
    from t0.prompts.templates import METRIC_NAMES

    names = {name.lower(): name for name in METRIC_NAMES}
    for metric in template.metrics:
        if metric not in METRIC_NAMES and not template.published:
            close = [names[name] for name in nearest(metric.lower(), names, count=1)]
            names_text = close[0] if close else ", ".join(METRIC_NAMES)
            return {lint.UNKNOWN_METRIC: f"'{metric}', expected {names_text}"}
    return {}


def _print(reports: list[dict[str, Any]]) -> None:
    # Checks without any finding have no column.
    checks = [*dict.fromkeys(check for row in reports for check in row["counts"])]
    rows = []
    for row in reports:
        cells = [_share(row["counts"].get(check, 0), row["rows"]) for check in checks]
        faults = [f"{check}: {why}" for check, why in row["faults"].items()]
        exempted = [f"known: {why}" for why in row["known"].values()]
        verdict = "; ".join([*(faults or exempted), *row["notes"]])
        draws = ["seeded" if row["draws"] else "no"]
        checked_rows = f"{row['rows']:,}"
        rows.append((row["task"], row["split"], checked_rows, *cells, *draws, verdict or "ok"))
    columns = ("task", "split", "rows", *checks, "random", "verdict")
    print_table(columns, rows, right=("rows", *checks, "random"))


def _share(count: int, rows: int) -> str:
    return f"{count / rows:.0%}" if count else "no"
