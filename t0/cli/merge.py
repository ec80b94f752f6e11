"""`t0 merge`: joins the results of a rank evaluation that was divided into shards.

t0 eval /models/t0_3b --data_dir=data --output=out --num_shards=4 --shard_id=0    # and 1, 2, 3
t0 merge out --output out            # or the folders of four machines: t0 merge a b c d --output out
"""  # noqa: E501 (a command)

import argparse

from t0.errors import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 merge`."""
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="DIR",
        help="a folder of results with one or more shards (shard-00000-of-00004) below it",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        required=True,
        help="folder for the merged results; may be one of the others",
    )


def main(args: argparse.Namespace) -> int:
    """Merges the shards, prints the paths of the results files, and returns the exit status.

    Raises:
      UserError: a shard is missing, unfinished, duplicated or from another run.
    """
    from t0.evaluation.merging import merge

    for path in merge(args.folders, args.output):
        print(printable(path))
    return 0
