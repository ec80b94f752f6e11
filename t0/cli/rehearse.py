"""`t0 rehearse`: trains a few steps of a TPU run on virtual cores, and checks the result.

    t0 rehearse --gin_file=runs/t0_3b.gin --gin_file=mesh/v3-8.gin

It accepts the flags of `t5_mesh_transformer`, makes the model small, and runs the program of each
core of the slice on this machine. It compares the results with those of our own training loop,
which runs the same steps on one device. If they differ, the exit status is 1. It needs no TPU, no
checkpoint, no data and no network. By default, both sides train on random tokens. With `--data
DIR`, they train on the run's own mixture, whose cache or sources are in DIR.

    t0 rehearse ... --data=cache --steps 30 --kill_at 12 --batch_hashes hashes.txt

`--kill_at` stops the pod's program after a step, and restarts it from its checkpoint.
`--batch_hashes` writes a file with the hash of the batch of each step and core. The file must equal
that of an unbroken run.
"""

import argparse
from pathlib import Path

from t0.cli.arguments import Number
from t0.cli.plan import add_run_flags, configure_run, reworded, run_flags
from t0.config.plain_data import Positive
from t0.errors import UserError
from t0.files.paths import is_remote

__all__ = ["add_arguments", "main", "reworded"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 rehearse` and those of `t5_mesh_transformer`."""
    parser.add_argument(
        "--steps", action=Number, kind=Positive, default=5, metavar="N", help="training steps (5)"
    )
    parser.add_argument(
        "--shrink",
        choices=("auto", "none"),
        default="auto",
        help="shrink model and batch (auto), or keep their sizes (none, needs more memory)",
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="train on the run's mixture, from its cache or data in DIR (default: random tokens)",
    )
    parser.add_argument(
        "--kill_at",
        action=Number,
        kind=Positive,
        metavar="N",
        help="stop the pod after step N, and restart it",
    )
    parser.add_argument(
        "--batch_hashes", metavar="FILE", help="write a hash of the batch of each step and core"
    )
    add_run_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Rehearses the run and prints the comparison."""
    if args.kill_at is not None and args.kill_at >= args.steps:
        raise UserError(
            f"--kill_at {args.kill_at}: expected a step from 1 to {args.steps - 1}, before the "
            "last one (--steps)"
        )
    flag_values = run_flags(args, "t0 rehearse", more=("engine",))
    if flag_values.engine != "mesh":
        raise UserError("t0 rehearse runs a TPU's program with Mesh TensorFlow: leave out --engine")
    if args.data is not None:
        if not is_remote(args.data) and not Path(args.data).is_dir():
            raise UserError(f"--data {args.data}: there is no such folder")
        for name in ("data_dir", "additional_task_cache_dirs"):
            flag_values[name].value = [*flag_values[name].value, args.data]
    configure_run(flag_values, reads_data=args.data is not None)
    from t0.rehearsal import rehearse

    return rehearse.rehearse(
        steps=args.steps,
        small=args.shrink == "auto",
        data=flag_values if args.data is not None else None,
        kill_at=args.kill_at,
        batch_hashes=args.batch_hashes,
    )
