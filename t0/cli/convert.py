"""`t0 convert`: converts checkpoints of Mesh TensorFlow, Hugging Face and T5X, and compares them.

t0 convert /models/t0_3b /models/t0_3b_mtf --to mtf
t0 convert /models/t0_3b /models/t0_rte --adapter /adapters/rte --merge --to hf
t0 convert reviews/model reviews_hf --to hf --results reviews/eval --license=apache-2.0
t0 convert --check /models/t0_3b /models/t0_3b_mtf
"""

import argparse
import os
import re
import sys

from t0.checkpoints import FORMATS, ConversionOptions, ConversionReport
from t0.checkpoints.formats import ACTIVATIONS, DTYPES
from t0.cli.arguments import Number, add_shared
from t0.config.plain_data import Count, Positive
from t0.errors import UserError, printable, say
from t0.files.any_path import any_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 convert`."""
    add, formats = parser.add_argument, ", ".join(FORMATS)
    add("source", metavar="SRC", help="a checkpoint; its format is detected")
    add("destination", metavar="DST", help="a new folder; with --check, the other checkpoint")
    add("--to", metavar="FORMAT", help=f"format of DST: {formats}")
    add("--check", action="store_true", help="compare SRC and DST instead of converting")
    table = "print the name, shape, dtype and checksum of every tensor"
    add("--table", action="store_true", help=table)
    add(
        "--step",
        action=Number,
        kind=Count,
        metavar="N",
        help="which checkpoint of SRC; the step to write in DST",
    )
    dtype = f"type of the parameters: {', '.join(DTYPES)}; default: SRC's"
    add("--dtype", metavar="TYPE", help=dtype)
    vocabulary = "SentencePiece model (default: SRC's; with --to hf also T0_VOCAB, if it fits)"
    add("--vocab", metavar="PATH", help=vocabulary)
    rows = "pad or cut the vocabulary to N embeddings"
    add("--vocabulary_rows", action=Number, kind=Positive, metavar="N", help=rows)
    add("--activation", metavar="NAME", help=f"{', '.join(ACTIVATIONS)}, if SRC does not say")
    add_shared(parser, "adapter")
    add("--merge", action="store_true", help="with --adapter: write SRC with the adapter merged")
    add("--drop_slots", action="store_true", help="skip the optimizer's state")
    scan = "with --to t5x: stack the layers, as scalable T5X does"
    add("--scan_layers", action="store_true", help=scan)
    results = "with --to hf: results files or folders of this checkpoint, for the model card"
    add("--results", nargs="+", action="extend", type=any_path, metavar="RESULTS", help=results)
    base = "with --to hf: the model on the hub that was trained further (default: SRC's, if known)"
    add("--base_model", metavar="OWNER/NAME", help=base)
    add("--license", metavar="NAME", help="with --to hf: the license, such as apache-2.0")


def main(args: argparse.Namespace) -> int:
    """Converts or compares; returns 1 if two compared checkpoints differ, else 0.

    Raises:
      UserError: flags contradict each other, or the conversion fails, or the comparison fails.
    """
    if args.check:
        ignored = [name for name in _CONVERSION_FLAGS if getattr(args, name) not in (None, False)]
        if ignored:
            raise UserError(
                f"--{ignored[0]} is for conversions; --check compares unchanged checkpoints"
            )
        return _check(args)
    if not args.to:
        raise UserError(f"--to must name the format of {args.destination}: {', '.join(FORMATS)}")
    if bool(args.adapter) != args.merge:
        raise UserError("--adapter and --merge belong together")
    if args.scan_layers and args.to != "t5x":
        raise UserError(f"--scan_layers is for --to t5x, got --to {args.to}")
    for name in _CARD_FLAGS:
        if getattr(args, name) and args.to != "hf":
            raise UserError(f"--{name} is for the model card of --to hf, got --to {args.to}")
    return _convert(args)


# The maximum number of differences that are printed without --table.
_MOST_DIFFERENCES = 20
# Flags that --check does not read.
_CONVERSION_FLAGS = ("to", "step", "dtype", "vocab", "vocabulary_rows", "activation")
_CARD_FLAGS = ("results", "base_model", "license")
_CONVERSION_FLAGS += ("adapter", "merge", "drop_slots", "scan_layers", *_CARD_FLAGS)
_STEP = re.compile(r"(?:ckpt-|checkpoint_)(\d+)$")


def _convert(args: argparse.Namespace) -> int:
    from t0.checkpoints import adapter_folders, convert

    vocabulary = any_path(args.vocab) if args.vocab else None
    if vocabulary and not vocabulary.is_file():
        raise UserError(f"--vocab {vocabulary} is not a file")
    default = os.environ.get("T0_VOCAB")
    names = ("step", "dtype", "vocabulary_rows", "activation", "drop_slots", "scan_layers")
    chosen = {name: getattr(args, name) for name in names}
    adapter = adapter_folders.choose(args.adapter) if args.adapter else None
    report = convert(
        args.source,
        args.destination,
        to=args.to,
        adapter=adapter,
        options=ConversionOptions(
            tokenizer=vocabulary,
            default_tokenizer=any_path(default) if default else None,
            model_card=_make_model_card(args, str(adapter or "")) if args.to == "hf" else "",
            **chosen,
        ),
    )
    _print_report(report, args.destination, table=args.table)
    return 0


def _make_model_card(args: argparse.Namespace, adapter: str) -> str:
    """Returns the text of the model card; `adapter` is the adapter's folder, or ""."""
    from t0.checkpoints.conversion import recognise
    from t0.run import model_card

    trained = adapter or args.source
    _, location = recognise(trained, step=None if adapter else args.step)
    step = _STEP.search(location)
    base = model_card.find_base_model(location)
    card = model_card.ModelCard(
        name=printable(any_path(args.destination).name),
        base_model=args.base_model
        or base
        or (model_card.name_in_cache(args.source) if adapter else ""),
        license=args.license or "",
        training_folder=location,
    )
    results = model_card.read_results(args.results or (), step=int(step[1]) if step else None)
    return card.markdown(results)


def _print_report(report: ConversionReport, destination: str, *, table: bool) -> None:
    """Prints the summary of a conversion, and its notes to stderr.

    Args:
      report: the conversion's report.
      destination: the new folder.
      table: whether to print a line for every tensor.
    """
    if table:
        for row in report.rows:
            shape = "x".join(map(str, row.shape)) or "scalar"
            print(f"{row.name}\t{shape}\t{row.dtype}\t{row.checksum}\t{row.source}")
        for name, reason in report.left_out:
            print(f"-\t-\t-\t-\t{name}\t{reason}")
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
    source, target = report.kinds
    say(
        f"{source} -> {target}: {len(report.rows):,} tensors, {report.nbytes / 1e9:,.2f} GB; "
        f"{len(report.left_out):,} left out\n{destination}"
    )


def _check(args: argparse.Namespace) -> int:
    """Compares two checkpoints and prints their differences; returns 1 if there are any, else 0.

    Raises:
      UserError: a checkpoint cannot be read.
    """
    from t0.checkpoints.compare import compare

    comparison = compare(args.source, args.destination)
    wrong = [row for row in comparison.rows if row.verdict != "same"]
    shown = comparison.rows if args.table else wrong[:_MOST_DIFFERENCES]
    for row in shown:
        gap = "" if row.verdict == "same" else f"\t{row.largest:.3g}"
        print(f"{row.name}\t{row.verdict}{gap}\t{row.detail}".rstrip())
    if len(shown) < len(wrong):
        print(f"... and {len(wrong) - len(shown):,} more (--table prints all)")
    for line in comparison.settings:
        print(f"setting\t{line}")
    if comparison.slots_ignored:
        print("note: one of them has an optimizer's state; it is not compared", file=sys.stderr)
    same = len(comparison.rows) - len(wrong)
    print(
        f"A is {comparison.kinds[0]}, B is {comparison.kinds[1]}: "
        f"{same:,} of {len(comparison.rows):,} tensors are the same"
    )
    return 0 if comparison.same else 1
