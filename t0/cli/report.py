"""`t0 report`: tables, plots and one offline page from evaluations and training runs.

t0 report model/eval/results_1000.json --output report --metrics model/metrics.jsonl
t0 report --metrics first/ second/ --output curves        # training runs only
"""

import argparse
import sys

from t0.errors import UserError, printable
from t0.files.any_path import any_path
from t0.reports import console_tables, write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 report`."""
    parser.add_argument(
        "results",
        nargs="*",
        type=any_path,
        metavar="RESULTS.json",
        help="results_<step>.json of a rank evaluation, decoded_<step>.json of mode eval, or a "
        "folder: all of both below it; the first run is the baseline of the comparison; none for "
        "training runs only",
    )
    parser.add_argument(
        "--output",
        type=any_path,
        metavar="DIR",
        required=True,
        help="folder to write the report into",
    )
    parser.add_argument(
        "--metrics",
        nargs="+",
        action="extend",
        default=[],
        type=any_path,
        metavar="metrics.jsonl",
        help="metrics of training runs, or their model directories, for training curves with "
        "their best evaluation and early stop",
    )
    parser.add_argument(
        "--overlap",
        type=any_path,
        metavar="DIR",
        help="what `t0 overlap` wrote: adds the accuracy on examples that are not in the training "
        "data, with a paired test",
    )
    parser.add_argument("--title", help="heading of the page")
    parser.add_argument(
        "--note",
        action="append",
        default=[],
        metavar="TEXT",
        help="a sentence that readers must see first; may be given several times",
    )


def main(args: argparse.Namespace) -> int:
    """Writes the report, prints the table and the paths, and returns the exit status.

    Raises:
      UserError: if a file is missing or malformed, or the output cannot be written.
    """
    from rich.console import Console

    if args.overlap is not None and not args.results:
        raise UserError("--overlap is about evaluated examples: name results_<step>.json with it")
    paths = write_report(
        args.results,
        args.output,
        title=args.title,
        notes=args.note,
        metrics_paths=args.metrics,
        overlap_path=args.overlap,
    )
    if args.results:
        for table in console_tables(paths.runs, overlap_path=args.overlap):
            # In a pipe a row is one line, so that no name is broken.
            Console(width=None if sys.stdout.isatty() else 240).print(table)
    written = (paths.html, paths.markdown, paths.csv, paths.metrics_csv, paths.json, *paths.plots)
    for path in filter(None, written):
        print(printable(str(path)))
    return 0
