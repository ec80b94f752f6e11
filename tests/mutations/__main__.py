"""Breaks lines of the product, and finds out whether the tests notice: `python -m tests.mutations`.

    python -m tests.mutations lines lines.json
    python -m tests.mutations choose lines.json mutants.json --count=60 --seed=1
    python -m tests.mutations run lines.json mutants.json before.json
    # after a change of the tests: lines again, then the same mutants
    python -m tests.mutations run lines.json mutants.json after.json --before=before.json

`lines` runs the default tests once, and records which test executes which line. `choose` draws
mutants among the lines that a test executes. `run` applies each mutant to a copy of this checkout,
and runs the tests that execute its line until one fails. A mutant that no test detects has
survived. With --before, the exit status is 1 if a mutant survives that was detected before.
"""

import argparse
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mutations import FOLDER_VARIABLE
from tests.mutations.mutants import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[2]
_NOT_COPIED = shutil.ignore_patterns(".venv", ".git", ".uv", "__pycache__", ".ruff_cache", "site")
_PATIENCE_SECONDS = 600
# A mutant of a line that everything executes would need the whole suite.
_MOST_TESTS = 400
# File -> line -> the ids of the tests that execute it.
Lines = Mapping[str, Mapping[int, Sequence[str]]]


def executed_lines(folder: Path) -> Lines:
    """Runs the default tests; returns file -> line -> the ids of the tests that execute it."""
    import coverage

    environment = os.environ | {FOLDER_VARIABLE: str(folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutations.coverage_plugin"]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    whole = coverage.Coverage(str(folder / "lines"), config_file=False)
    whole.combine(map(str, folder.glob("lines.*")), keep=True)
    data, lines = whole.get_data(), {}
    for file in data.measured_files():
        contexts = data.contexts_by_lineno(file)
        path = str(Path(file).relative_to(ROOT))
        lines[path] = {number: sorted(filter(None, tests)) for number, tests in contexts.items()}
    return lines


def choose(lines: Lines, count: int, seed: int) -> list[Mutant]:
    """Draws mutants of lines that a test executes, at most one of a line."""
    candidates = [
        mutant
        for path in sorted(lines)
        for mutant in mutants_of(path, (ROOT / path).read_text(encoding="utf-8"))
        if 0 < len(lines[path].get(mutant.line, ())) <= _MOST_TESTS
    ]
    random.Random(seed).shuffle(candidates)
    first_of_line = {(mutant.path, mutant.line): mutant for mutant in reversed(candidates)}
    return list(first_of_line.values())[::-1][:count]


def run(mutant: Mutant, tests: Sequence[str], copy: Path) -> dict:
    """Runs the tests of a mutant in a copy of the checkout; returns what came of it."""
    file = copy / mutant.path
    source = file.read_text(encoding="utf-8")
    arguments = copy / "tests_of_mutant"
    arguments.write_text("\n".join(tests))
    began = time.monotonic()
    try:
        file.write_text(mutant.applied(source), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", f"@{arguments}"]
        done = subprocess.run(
            command,
            cwd=copy,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
        detected, output = done.returncode != 0, done.stdout
    except subprocess.TimeoutExpired:
        detected, output = True, "FAILED (hangs)"
    finally:
        file.write_text(source, encoding="utf-8")
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return {
        **dataclasses.asdict(mutant),
        "tests": len(tests),
        "detected": detected,
        "by": failed[0] if failed else "",
        "seconds": round(time.monotonic() - began, 1),
    }


def _find_line(mutant: Mutant, copy: Path) -> int | None:
    """Returns the number of a mutant's line in this version of its file; None if it is gone."""
    try:
        return mutant.line_in((copy / mutant.path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _run_all(mutants: Sequence[Mutant], lines: Lines, output: Path, before: Path | None) -> int:
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=_NOT_COPIED, symlinks=True)
        for mutant in mutants:
            line = _find_line(mutant, copy)
            if line is None:
                print(f"gone     {mutant.path}: {mutant.text.strip()}", flush=True)
                continue
            outcomes.append(run(mutant, lines.get(mutant.path, {}).get(line, ()), copy))
            output.write_text(json.dumps(outcomes, indent=1))
            last = outcomes[-1]
            word = "detected" if last["detected"] else "SURVIVED"
            change = f"{last['before']!r} -> {last['after']!r}"
            print(
                f"{word} {last['path']}:{last['line']} {change} ({last['tests']} tests)", flush=True
            )
    print(f"{sum(o['detected'] for o in outcomes)} of {len(outcomes)} mutants are detected")
    if before is None:
        return 0
    earlier = {
        (o["path"], o["text"], o["start"]): o["detected"] for o in json.loads(before.read_text())
    }
    lost = [o for o in outcomes if earlier[o["path"], o["text"], o["start"]] > o["detected"]]
    for each in lost:
        print(f"was detected before: {each['path']}: {each['text'].strip()}")
    return int(bool(lost))


def main() -> int:
    """Chooses or runs mutants."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("lines").add_argument("lines", type=Path)
    choosing = verbs.add_parser("choose")
    choosing.add_argument("lines", type=Path)
    choosing.add_argument("mutants", type=Path)
    choosing.add_argument("--count", type=int, default=60)
    choosing.add_argument("--seed", type=int, default=1)
    running = verbs.add_parser("run")
    running.add_argument("lines", type=Path)
    running.add_argument("mutants", type=Path)
    running.add_argument("output", type=Path)
    running.add_argument("--before", type=Path)
    args = parser.parse_args()
    if args.verb == "lines":
        with tempfile.TemporaryDirectory() as folder:
            args.lines.write_text(json.dumps(executed_lines(Path(folder))))
        return 0
    stored = json.loads(args.lines.read_text())
    lines = {path: {int(n): tests for n, tests in x.items()} for path, x in stored.items()}
    if args.verb == "run":
        mutants = [Mutant(**mutant) for mutant in json.loads(args.mutants.read_text())]
        return _run_all(mutants, lines, args.output, args.before)
    mutants = [*map(dataclasses.asdict, choose(lines, args.count, args.seed))]
    args.mutants.write_text(json.dumps(mutants, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
