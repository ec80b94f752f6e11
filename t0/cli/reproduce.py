"""`bin/reproduce_t0_eval`: T0's held-out evaluation, beside the published values.

bin/reproduce_t0_eval bigscience/T0_3B --output=out          # rows and weights from the hub
bin/reproduce_t0_eval /models/t0_3b --data_dir=DATA --skip_absent
bin/reproduce_t0_eval --downloads                            # what a machine without network needs

It is `t0 eval --tasks=t0_eval`, whose other flags it takes, and then the table of
`t0.reports.reproduction`; `t0 report OUTPUT` makes the report again.
"""

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from t0.errors import AbsentData, UserError, printable, reported
from t0.reports.published import figures
from t0.sources import data_dirs, open_split, set_data_dirs, split_sizes
from t0.sources.hub import HUB, PARQUET_REVISION

_NAME = "bin/reproduce_t0_eval"
# Code that stands for itself between double quotes.
_PLAIN = re.compile(r"[\w\s.,;:=(){}'/*@-]+")
_CAUTION = (
    "Within: the published value is in the interval of this run's mean, which is for these prompts "
    "and other examples. A run of the same checkpoint on the same rows differs by much less."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluates, prints the table and returns the exit status; a user's mistake ends with a line.

    Args:
      argv: the words of the command; by default those of the process.
    """
    with reported(_NAME):
        args, others = _parser().parse_known_args(argv)
        if args.data_dir:
            set_data_dirs(args.data_dir)
        if args.downloads:
            print("\n".join(_download_lines([*held_out_splits()])))
            return 0
        if args.checkpoint is None:
            raise UserError(f"no checkpoint: {_NAME} CHECKPOINT, as `t0 eval` takes it")
        if not any(word.startswith("--cache_dirs") for word in others):
            _check_data(skip=args.skip_absent)
        return _reproduce(args, others)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_NAME,
        description="Ranks with a checkpoint on T0's eleven held-out datasets, all prompts, and "
        "prints the means beside the published ones.",
        epilog="Other flags are those of `t0 eval`: --batch_tokens, --vocab, --activation_dtype, "
        "--cache_dirs, --lengths, --limit ...",
        allow_abbrev=False,
    )
    parser.add_argument("checkpoint", nargs="?", help="in any format, or a hub name")
    parser.add_argument("--data_dir", action="append", help="a folder with datasets (T0_DATA_DIR)")
    parser.add_argument(
        "--output", default="t0_reproduction", metavar="DIR", help="results (%(default)s)"
    )
    parser.add_argument("--skip_absent", action="store_true", help="leave out absent datasets")
    parser.add_argument(
        "--downloads", action="store_true", help="print what to download, from where, and end"
    )
    return parser


def held_out_splits() -> Iterator[tuple[str, str | None, str]]:
    """Yields dataset, subset and split of each of T0's held-out datasets."""
    for key in dict.fromkeys(one for row in figures() for one in row.datasets):
        name, _, subset = key.partition("/")
        if name == "anli":  # whose rounds are splits
            yield name, None, f"dev_{subset}"
        else:
            yield name, subset or None, "validation"


def _check_data(*, skip: bool) -> None:
    absent = []
    for dataset, subset, split in held_out_splits():
        try:
            open_split(dataset, subset, split)
        except AbsentData:
            absent.append((dataset, subset, split))
    if not absent:
        return
    lines = "\n".join(_download_lines(absent))
    if not skip:
        raise UserError(
            f"{len(absent)} of {len([*held_out_splits()])} splits are not here:\n{lines}\n"
            "Or leave them out: --skip_absent"
        )
    print(f"left out, with --skip_absent:\n{lines}", file=sys.stderr)


def _download_lines(splits: Sequence[tuple[str, str | None, str]]) -> list[str]:
    """Returns for each split its rows, where it is, and the command that gets it."""
    folder = next(map(str, data_dirs()), "DATA")
    lines = [
        "With a network they are read from the Hugging Face hub. Without, from another machine:"
    ]
    for dataset, subset, split in splits:
        target = Path(folder) / dataset / (subset or "default")
        rows = (split_sizes(dataset, subset) or {}).get(split)
        size = f", {rows:,} rows" if rows else ""
        row = HUB[dataset]
        lines += ["", f"# {'/'.join(filter(None, (dataset, subset)))}, {split}{size}: {target}"]
        if row.by_hand:
            lines.append(f"# {row.by_hand} docs/licensed.md has the command.")
            continue
        files = {split: f"{subset or '*'}/{split}/*.parquet"}
        code = (
            f"import datasets; datasets.load_dataset('hf://datasets/{row.repos[0]}', "
            f"revision='{PARQUET_REVISION}', data_files={files!r}, split='{split}')"
            f".to_parquet({str(target / f'{split}.parquet')!r})"
        )
        word = f'"{code}"' if _PLAIN.fullmatch(code) else shlex.quote(code)
        lines.append(f"mkdir -p {shlex.quote(str(target))} && python -c {word}")
    return lines


def _reproduce(args: argparse.Namespace, others: Sequence[str]) -> int:
    from t0.cli import main as t0
    from t0.files.publishing import write_whole
    from t0.reports import read_runs
    from t0.reports.reproduction import reproduction, reproduction_lines

    words = ["eval", args.checkpoint, "--tasks=t0_eval", f"--output={args.output}", *others]
    words += [f"--data_dir={folder}" for folder in args.data_dir or ()]
    words += ["--skip_absent"] if args.skip_absent else []
    status = t0.main(words)
    if status:
        return status
    results = sorted(Path(args.output).glob("results_*.json"))
    if not results:  # of a shard
        return 0
    for run in read_runs(results):
        rows = reproduction(run)
        print(f"\n{printable(run.label)}, beside the published values:")
        for line in [*reproduction_lines(rows), _CAUTION]:
            print(printable(line))
        path = Path(args.output) / f"reproduction_{run.step}.json"
        sources = sorted({row.source for row in figures()})
        content = {"schema": 1, "rows": rows, "sources": sources}
        write_whole(str(path), json.dumps(content, indent=1) + "\n")
        print(f"table: {printable(str(path))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
