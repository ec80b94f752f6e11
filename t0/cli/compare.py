"""`t0 compare`: evaluated runs beside each other, with differences that are tested.

t0 compare first/eval second/eval                     # the first is the baseline
t0 compare a=s1/eval,s2/eval b=t1/eval,t2/eval        # seeds under one name are averaged
t0 compare first/eval second/eval --output compared   # a page, Markdown, JSON and pictures, too
"""

import argparse
import sys

from t0.errors import UserError, printable
from t0.files.any_path import any_path
from t0.reports.comparing import compare
from t0.reports.comparison_page import write_comparison
from t0.reports.comparison_tables import legend_lines, terminal_tables
from t0.reports.contenders import position_of, read_contenders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 compare`."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a folder or results_<step>.json of one evaluated checkpoint, with scores/ beside it; "
        "NAME=RUN names it, NAME=RUN,RUN averages several seeds",
    )
    parser.add_argument(
        "--baseline",
        metavar="RUN",
        help="the run that the others are compared with, by its name or as given; one that is not "
        "among the runs is added; by default the first",
    )
    parser.add_argument(
        "--output",
        type=any_path,
        metavar="DIR",
        help="folder for compare.html, .md, .json, pictures",
    )
    parser.add_argument(
        "--any_texts",
        action="store_true",
        help="compare examples of one row, right answer and number of choices though their inputs "
        "or choices differ, as for models that read prompts in other forms",
    )
    parser.add_argument("--title", help="heading of the page")


def main(args: argparse.Namespace) -> int:
    """Compares, prints the tables and the paths, and returns the exit status.

    Raises:
      UserError: if a file is missing or malformed, or the runs cannot be compared.
    """
    from rich.console import Console

    if args.title is not None and args.output is None:
        raise UserError("--title is the heading of the page that --output writes: give both")
    words = list(args.runs)
    names = [word.partition("=")[0] for word in words]
    if args.baseline and args.baseline not in (*words, *names) and _is_run(args.baseline):
        words.insert(0, args.baseline)
    if len(words) < 2:
        raise UserError(f"got one run, {words[0]}; wanted two or more to compare.")
    contenders = read_contenders(words)
    baseline = position_of(args.baseline, contenders, words) if args.baseline else 0
    found = compare(contenders, baseline=baseline, any_texts=args.any_texts)
    # In a pipe a row is one line, so that no name is broken.
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    for note in found.notes:
        console.print(f"Note: {note}")
    for line in legend_lines(found):
        console.print(line)
    for table in terminal_tables(found):
        console.print()
        console.print(table)
    if args.output is not None:
        for path in write_comparison(found, args.output, title=args.title):
            print(printable(str(path)))
    return 0


def _is_run(word: str) -> bool:
    return "=" in word or any_path(word).exists()
