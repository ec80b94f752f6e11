"""`t0 rehearse`: trains some steps of a TPU run on virtual cores here, beside our own loop.

    t0 rehearse --gin_file=runs/t0_3b.gin --gin_file=mesh/v3-8.gin

It takes the flags of `t5_mesh_transformer`, makes the model small, runs the program of each core of
the slice, and compares it with the same steps on one device; the exit status is 1 if they differ.
It needs no TPU, no checkpoint, no data and no network.
"""

import argparse

from t0.cli.plan import add_run_flags, configure_run, reworded, run_flags
from t0.errors import UserError

__all__ = ["add_arguments", "main", "reworded"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 rehearse` and those of `t5_mesh_transformer`."""
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="training steps (5)")
    parser.add_argument(
        "--shrink",
        choices=("auto", "none"),
        default="auto",
        help="make model and batch small (auto), or take them as they are",
    )
    add_run_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Rehearses the run and prints the comparison."""
    if args.steps < 1:
        raise UserError(f"--steps {args.steps}: wanted a whole number above 0")
    configure_run(run_flags(args, "t0 rehearse"))
    from t0.rehearsal import rehearse

    return rehearse.rehearse(steps=args.steps, small=args.shrink == "auto")
