"""Shows that a change of the code changed nothing that a user sees.

    python -m tests.equality record DIR [--real_rows FOLDER]     # before the change
    python -m tests.equality compare DIR [--only train score]    # after it

A recording runs the commands of each section over small data and keeps what each printed and
wrote: checksums and text of files, losses in full, operative configs. A comparison runs them again,
over the same inputs, and shows every difference; its exit status is 1 where there is one. Numbers
are those of one machine: a recording is compared on the machine that made it. Run from the root.
"""

import argparse
import difflib
import json
import os
import shutil
import sys
import time
from pathlib import Path

from tests.equality import foundation, snapshot, unfinished
from tests.equality.bench import Bench
from tests.equality.sections import SECTIONS

LONGEST_DIFFERENCE = 40


def main() -> int:
    """Records or compares; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.equality", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--real_rows", type=Path, help="folder of T0's datasets, for real rows")
    parser.add_argument("--whole", action="store_true", help="print differences of any length")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return {"record": _record, "compare": _compare}[args.what](args)


def _record(args: argparse.Namespace) -> int:
    base = args.folder / "base"
    args.folder.mkdir(parents=True, exist_ok=True)
    made = base.is_dir()
    with Bench(base if made else None) as bench:
        if not made:
            foundation.make(bench, args.real_rows)
            unfinished.leave_all(bench)
            shutil.copytree(bench.base, base)
        for name in args.only:
            kept = {"commit": foundation.commit(), "commands": _run(bench, name)}
            text = json.dumps(kept, indent=1, sort_keys=True)
            (args.folder / f"{name}.json").write_text(text)
    return 0


def _compare(args: argparse.Namespace) -> int:
    different = 0
    with Bench(args.folder / "base") as bench:
        for name in args.only:
            wanted = json.loads((args.folder / f"{name}.json").read_text())["commands"]
            found = json.loads(json.dumps(_run(bench, name)))
            longest = None if args.whole else LONGEST_DIFFERENCE
            for line in _differences(snapshot.again(wanted), snapshot.again(found), longest, name):
                different += not line.startswith(" ")
                print(line, flush=True)
    print(f"{different} differences" if different else "all equal")
    return 1 if different else 0


def _run(bench: Bench, section: str) -> dict:
    began = time.monotonic()
    shutil.rmtree(bench.folder / "out", ignore_errors=True)
    bench.kept.clear()
    SECTIONS[section](bench)
    slowest = max(bench.kept, key=lambda name: bench.seconds[name])
    print(
        f"{section}: {len(bench.kept)} commands, {time.monotonic() - began:.0f} s "
        f"({slowest} {bench.seconds[slowest]:.0f} s)",
        file=sys.stderr,
        flush=True,
    )
    return dict(bench.kept)


def _differences(wanted: object, found: object, longest: int | None, place: str = "") -> list[str]:
    """Returns a line for each place that differs, and behind it indented lines about how."""
    if wanted == found:
        return []
    if isinstance(wanted, dict) and isinstance(found, dict):
        names = sorted(wanted.keys() | found.keys())
        each = (_differences(wanted.get(n), found.get(n), longest, f"{place}/{n}") for n in names)
        return [line for lines in each for line in lines]
    if isinstance(wanted, list) and isinstance(found, list):
        lines = list(difflib.unified_diff(wanted, found, lineterm="", n=0))[2:]
        cut = [] if longest is None or len(lines) <= longest else [f"... {len(lines)} lines"]
        return [place, *(f"    {line}" for line in [*lines[:longest], *cut])]
    return [place, f"    was {wanted}", f"    now {found}"]


if __name__ == "__main__":
    sys.exit(main())
