"""The output of `t0 convert`: a conversion's summary, the differences of two checkpoints."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from t0.checkpoints import ConversionReport
from t0.errors import UserError, say
from t0.files.paths import read_bytes

_SHOWN = 20


def print_report(report: ConversionReport, *, table: bool) -> None:
    """Prints the summary of a conversion; the notes go to stderr.

    Args:
      report: the conversion's report.
      table: whether a line is printed for every tensor.
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


def check(args: argparse.Namespace) -> int:
    """Compares two checkpoints and prints their differences; returns 1 if there are any, else 0.

    Raises:
      UserError: if a checkpoint cannot be read, or there is a text but no vocabulary.
    """
    from t0.checkpoints.compare import compare

    comparison = compare(args.source, args.destination, progress=sys.stderr.isatty())
    wrong = [row for row in comparison.rows if row.verdict != "same"]
    shown = comparison.rows if args.table else wrong[:_SHOWN]
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

    inputs, targets = _ids(args.text, args.vocab or os.environ.get("T0_VOCAB"))
    with tempfile.TemporaryDirectory() as folder:
        forward = compare_forward(args.source, args.destination, inputs, targets, Path(folder))
    (first, second), (one, other) = forward.computed_by, forward.nats
    print(
        f"logits: largest difference {forward.largest:.3g}; log-likelihood of the target "
        f"{one:.6f} nats (A, {first}) and {other:.6f} nats (B, {second})"
    )


def _ids(text: str, vocabulary: str | None) -> tuple:
    import numpy as np
    import sentencepiece

    inputs, bar, targets = text.partition("|||")
    if not (bar and inputs.strip() and targets.strip()):
        raise UserError(f"--text {text!r}: wanted 'INPUT ||| TARGET'")
    if not vocabulary:
        raise UserError("--text needs the SentencePiece model: --vocab PATH, or T0_VOCAB")
    try:
        pieces = sentencepiece.SentencePieceProcessor(model_proto=read_bytes(vocabulary))
    except (OSError, RuntimeError) as error:
        raise UserError(f"--vocab {vocabulary} is no SentencePiece model: {error}") from error
    ids = [pieces.encode(part.strip()) for part in (inputs, targets)]
    # As in T0, the target ends in EOS (1) and the input does not.
    return np.asarray([ids[0]], np.int32), np.asarray([[*ids[1], 1]], np.int32)
