"""`t0 convert`: converts checkpoints of Mesh TensorFlow, Hugging Face and T5X, and compares them.

t0 convert /models/t0_3b /models/t0_3b_mtf --to mtf
t0 convert /models/t0_3b /models/t0_rte --adapter /adapters/rte --merge --to hf
t0 convert --check /models/t0_3b /models/t0_3b_mtf --text "Is it? ||| yes" --vocab spiece.model
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from t0.checkpoints import FORMATS, ConversionOptions, ConversionReport
from t0.checkpoints.formats import ACTIVATIONS, DTYPES
from t0.cli.arguments import add_shared
from t0.errors import UserError, say
from t0.files.any_path import any_path
from t0.files.paths import read_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 convert`."""
    add, formats = parser.add_argument, ", ".join(FORMATS)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = __doc__.partition("\n\n")[2]
    add("source", metavar="SRC", help="a checkpoint; its format is detected")
    add("destination", metavar="DST", help="a new folder; with --check, the other checkpoint")
    add("--to", metavar="FORMAT", help=f"format of DST: {formats}")
    add("--check", action="store_true", help="compare SRC and DST instead of converting")
    add("--text", metavar="'INPUT ||| TARGET'", help="with --check: also compare logits")
    add(
        "--table",
        action="store_true",
        help="print the name, shape, dtype and checksum of every tensor",
    )
    add("--step", type=int, metavar="N", help="which checkpoint of SRC; the step to write in DST")
    add(
        "--dtype",
        metavar="TYPE",
        help=f"type of the parameters: {', '.join(DTYPES)}; default: SRC's",
    )
    add(
        "--vocab",
        metavar="PATH",
        help="SentencePiece model (default: SRC's, else T0_VOCAB if it fits)",
    )
    add(
        "--vocabulary_rows", type=int, metavar="N", help="pad or cut the vocabulary to N embeddings"
    )
    add("--activation", metavar="NAME", help=f"{', '.join(ACTIVATIONS)}, if SRC does not say")
    add_shared(parser, "adapter")
    add("--merge", action="store_true", help="with --adapter: write SRC with the adapter merged")
    add("--drop_slots", action="store_true", help="skip the optimizer's state")
    add(
        "--scan_layers",
        action="store_true",
        help="with --to t5x: stack the layers, as scalable T5X does",
    )
    add(
        "--gzip_level",
        type=int,
        default=0,
        metavar="0-9",
        help="with --to t5x: 1 is T5X's, 0 is fast",
    )


def main(args: argparse.Namespace) -> int:
    """Converts or compares; returns 1 if two compared checkpoints differ, else 0.

    Raises:
      UserError: flags contradict each other, or the conversion fails, or the comparison fails.
    """
    unread = _explain_ignored_flag(args)
    if unread:
        raise UserError(unread)
    if not args.check and not args.to:
        raise UserError(f"--to must name the format of {args.destination}: {', '.join(FORMATS)}")
    return _check(args) if args.check else _convert(args)


# The maximum number of differences that are printed without --table.
_MOST_DIFFERENCES = 20
# Flags that --check does not read.
_CONVERSION_FLAGS = ("to", "step", "dtype", "vocabulary_rows", "activation")
_CONVERSION_FLAGS += ("adapter", "merge", "drop_slots", "scan_layers", "gzip_level")


def _explain_ignored_flag(args: argparse.Namespace) -> str | None:
    """Returns a message about a flag that would have no effect; None if there is no such flag."""
    if args.check:
        ignored = [
            name for name in _CONVERSION_FLAGS if getattr(args, name) not in (None, False, 0)
        ]
        if ignored:
            return f"--{ignored[0]} is for conversions; --check compares unchanged checkpoints"
        if args.vocab and not args.text:
            return "--vocab needs --text, which it encodes"
        return None
    if bool(args.adapter) != args.merge:
        return "--adapter and --merge belong together: t0 convert SRC DST --adapter DIR --merge"
    if args.text:
        return "--text needs --check"
    for name in ("scan_layers", "gzip_level"):
        if getattr(args, name) and args.to not in (None, "t5x"):
            return f"--{name} is for --to t5x, got --to {args.to}"
    return None


def _convert(args: argparse.Namespace) -> int:
    from t0.checkpoints import adapter_folders, convert

    if not 0 <= args.gzip_level <= 9:
        raise UserError(f"--gzip_level {args.gzip_level}; expected 0 to 9")
    options = ConversionOptions(
        step=args.step,
        dtype=args.dtype,
        tokenizer=_find_file(args.vocab, "--vocab"),
        usual_tokenizer=_find_file(os.environ.get("T0_VOCAB"), "T0_VOCAB"),
        vocabulary_rows=args.vocabulary_rows,
        activation=args.activation,
        drop_slots=args.drop_slots,
        scan_layers=args.scan_layers,
        gzip_level=args.gzip_level,
    )
    report = convert(
        args.source,
        args.destination,
        to=args.to,
        adapter=adapter_folders.choose(args.adapter) if args.adapter else None,
        options=options,
        checksums=args.table,
        progress=sys.stderr.isatty(),
    )
    _print_report(report, table=args.table)
    return 0


def _find_file(path: str | None, flag: str) -> Path | None:
    # T0_VOCAB may name a remote vocabulary, because other commands can read it.
    if not path or (flag == "T0_VOCAB" and "://" in path):
        return None
    file = any_path(path)
    if not file.is_file():
        raise UserError(f"{flag} {path} is not a file")
    return file


def _print_report(report: ConversionReport, *, table: bool) -> None:
    """Prints the summary of a conversion, and its notes to stderr.

    Args:
      report: the conversion's report.
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
    rate = report.nbytes / max(report.seconds, 1e-9) / 1e6
    source, target = report.kinds
    say(
        f"{source} -> {target}: {len(report.rows):,} tensors, each used once and written once, "
        f"{report.nbytes / 1e9:,.2f} GB in {report.seconds:,.1f} s ({rate:,.0f} MB/s); "
        f"{len(report.left_out):,} left out\n{report.path}"
    )


def _check(args: argparse.Namespace) -> int:
    """Compares two checkpoints and prints their differences; returns 1 if there are any, else 0.

    Raises:
      UserError: a checkpoint cannot be read, or --text is given without a vocabulary.
    """
    from t0.checkpoints.compare import compare

    comparison = compare(args.source, args.destination, progress=sys.stderr.isatty())
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
    if args.text:
        _compare_text(args)
    return 0 if comparison.same else 1


def _compare_text(args: argparse.Namespace) -> None:
    from t0.checkpoints.compare import compare_forward

    inputs, targets = _encode_text(args.text, args.vocab or os.environ.get("T0_VOCAB"))
    with tempfile.TemporaryDirectory() as folder:
        forward = compare_forward(args.source, args.destination, inputs, targets, Path(folder))
    (first, second), (first_nats, second_nats) = forward.computed_by, forward.nats
    print(
        f"logits: largest difference {forward.largest:.3g}; log-likelihood of the target "
        f"{first_nats:.6f} nats (A, {first}) and {second_nats:.6f} nats (B, {second})"
    )


def _encode_text(text: str, vocabulary: str | None) -> tuple:
    import numpy as np
    import sentencepiece

    inputs, separator, targets = text.partition("|||")
    if not (separator and inputs.strip() and targets.strip()):
        raise UserError(f"--text {text!r}: expected 'INPUT ||| TARGET'")
    if not vocabulary:
        raise UserError("--text needs a SentencePiece model: set --vocab PATH or T0_VOCAB")
    try:
        pieces = sentencepiece.SentencePieceProcessor(model_proto=read_bytes(vocabulary))
    except (OSError, RuntimeError) as error:
        raise UserError(f"--vocab {vocabulary} is not a SentencePiece model: {error}") from error
    ids = [pieces.encode(side.strip()) for side in (inputs, targets)]
    # As in T0, the target ends in EOS (1) and the input does not.
    return np.asarray([ids[0]], np.int32), np.asarray([[*ids[1], 1]], np.int32)
