"""`t0 report` and `t0 compare`: show evaluation and training runs in tables, plots and a page.

t0 report model/eval                                           # tables in the terminal
t0 report model/eval --output report --metrics model           # also a page, CSV, JSON, pictures
t0 report first/eval second/eval                               # compared with the first
t0 report a=s1/eval,s2/eval b=t1/eval,t2/eval --baseline=b     # seeds under one name are averaged
t0 report --metrics first/ second/ --output curves             # training runs only
t0 report model/eval --examples wrong.csv --only wrong         # examples for a spreadsheet
t0 report first/eval second/eval --latex table.tex             # a table for a paper
"""

import argparse
import json

from t0.cli.arguments import add_shared
from t0.errors import UserError, printable
from t0.files.any_path import any_path
from t0.files.publishing import write_whole
from t0.files.table_files import check_format
from t0.progress import ProgressLine
from t0.reports import EvaluationReport, read_report
from t0.reports.comparison import RunComparison
from t0.reports.evaluations import last_of_series
from t0.reports.examples import ONLY, write_examples
from t0.reports.paper_tables import STATISTICS, make_paper_table
from t0.text_tables import terminal_width

_FOR_EXCEL = (".csv", ".tsv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 report`."""
    add = parser.add_argument
    runs = (
        "results_<step>.json of a rank evaluation, decoded_<step>.json of mode eval, or a folder "
        "with such files; the steps and files of one model are one run, and its last step is "
        "compared; NAME=RUN sets its name, NAME=RUN,RUN averages several seeds; leave out for "
        "training runs only"
    )
    add("runs", nargs="*", metavar="RUN", help=runs)
    baseline = (
        "the run to compare the others with, by its name or path (default: the first); it is "
        "added to the runs if it is not among them"
    )
    add("--baseline", metavar="RUN", help=baseline)
    any_texts = (
        "compare examples with the same row, right answer and number of choices even if their "
        "inputs or choices differ, such as for models that read prompts in other forms"
    )
    add("--any_texts", action="store_true", help=any_texts)
    output = "folder for report.html, CSV, JSON and pictures"
    add("--output", type=any_path, metavar="DIR", help=output)
    examples = "file for the examples of the last step: .csv, .tsv, .jsonl or .parquet"
    add("--examples", type=any_path, metavar="FILE", help=examples)
    excel = "begin that CSV or TSV file with a byte order mark, so that Excel reads it as UTF-8"
    add("--excel", action="store_true", help=excel)
    add("--only", choices=ONLY, help="write only the wrong or the right examples to that file")
    latex = "file for a LaTeX table of the compared accuracies, runs by datasets (needs booktabs)"
    add("--latex", type=any_path, metavar="FILE", help=latex)
    add("--markdown", type=any_path, metavar="FILE", help="file for the same table in Markdown")
    statistic = (
        "accuracy over prompts in that table: mean (default), with intervals, or median, with "
        "quartiles, as in T0's paper"
    )
    add("--statistic", choices=STATISTICS, help=statistic)
    transpose = "put datasets in the rows and runs in the columns of that table"
    add("--transpose", action="store_true", help=transpose)
    metrics = (
        "metrics of training runs, or their model directories, for training curves with the best "
        "evaluation and early stopping"
    )
    several = {"nargs": "+", "action": "extend", "default": [], "type": any_path}
    add("--metrics", **several, metavar="metrics.jsonl", help=metrics)
    overlap = (
        "the output of `t0 overlap`: adds the accuracy on examples that are not in the training "
        "data, with a paired test"
    )
    add("--overlap", type=any_path, metavar="DIR", help=overlap)
    add("--title", help="heading of the page")
    note = "a sentence to show first; repeatable"
    add("--note", action="append", default=[], metavar="TEXT", help=note)
    add_shared(parser, "json")


def main(args: argparse.Namespace, *, must_compare: bool = False) -> int:
    """Prints the tables, writes the report, and returns the exit status.

    Args:
      args: the flags.
      must_compare: whether it is an error if the runs cannot be compared.

    Raises:
      UserError: a file is missing or malformed, the runs cannot be compared although `must_compare`
        is True, or the output cannot be written.
    """
    if args.overlap is not None and not args.runs:
        raise UserError("--overlap needs evaluated examples: add results_<step>.json")
    for flag, value in (("--title", args.title), ("--metrics", args.metrics)):
        if value and args.output is None:
            raise UserError(f"{flag} is for the page that --output writes: add --output")
    if args.only and args.examples is None:
        raise UserError("--only selects what --examples writes: add --examples FILE")
    if args.excel and (args.examples is None or args.examples.suffix.lower() not in _FOR_EXCEL):
        raise UserError("--excel is for tables of --examples: add --examples FILE.csv or FILE.tsv")
    table_paths = [path for path in (args.latex, args.markdown) if path is not None]
    for flag, value in (("--statistic", args.statistic), ("--transpose", args.transpose)):
        if value and not table_paths:
            raise UserError(f"{flag} is for the table of --latex and --markdown: add one of them")
    if args.examples is not None:
        check_format(str(args.examples), "--examples")
        if not args.runs:
            raise UserError("--examples needs evaluated examples: add results_<step>.json")
    report = read_report(
        args.runs,
        title=args.title,
        notes=args.note,
        metrics_paths=args.metrics,
        overlap_path=args.overlap,
        baseline=args.baseline,
        any_texts=args.any_texts,
        must_compare=must_compare or bool(table_paths),
    )
    with ProgressLine.hidden(hides=args.json):
        _print_and_write(args, report)
    if args.json:
        print(json.dumps(report.data(), allow_nan=False))
    return 0


def _print_and_write(args: argparse.Namespace, report: EvaluationReport) -> None:
    for line in report.lines(terminal_width()) if args.runs else ():
        print(printable(line))
    if args.examples is not None:
        runs = report.runs
        last = [runs[position] for position in last_of_series(runs, range(len(runs)))]
        count = write_examples(last, args.examples, args.only, excel=args.excel)
        print(printable(f"{args.examples}: {count:,} examples"))
    if args.latex is not None or args.markdown is not None:
        _write_paper_tables(args, report.comparison)
    if args.output is not None:
        paths = report.write(args.output)
        for path in (paths.html, *paths.csv, paths.json, *paths.plots):
            print(printable(str(path)))


def _write_paper_tables(args: argparse.Namespace, comparison: RunComparison) -> None:
    table = make_paper_table(
        comparison, statistic=args.statistic or STATISTICS[0], transpose=args.transpose
    )
    for path, text in ((args.latex, table.latex()), (args.markdown, table.markdown())):
        if path is not None:
            write_whole(str(path), text)
            print(printable(str(path)))


def compare(args: argparse.Namespace) -> int:
    """Runs `t0 compare`. If the runs cannot be compared, it ends with an error."""
    return main(args, must_compare=True)
