"""Checks a change before you send it: formats, lints, regenerates pages, and runs its tests.

    bin/check                    # all files that differ from main
    bin/check --base HEAD        # only what is not committed

The tests are those of each changed module, and of the modules that import it. The rules of
`tests/rules/` are checked only for the changed files. The last lines name what was left out, which
`bin/test` and `.ci/run` check.
"""

import argparse
import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("t0", "seqio_tasks", "tests", "benchmarks")
# Pages that a program writes from the code, and the folders that it reads.
PAGES = {"docs/make_reference.py": ("t0", "gin", "seqio_tasks", "docs")}


def changed_files(base: str | None) -> list[str]:
    """Returns the files that differ from a commit and still exist, relative to the root.

    Args:
      base: the commit; None for the commit at which this branch left main.
    """
    if base is None:
        left = _git("merge-base", "HEAD", "main") or _git("merge-base", "HEAD", "origin/main")
        base = left[0] if left else "HEAD"
    names = {*_git("diff", "--name-only", base), *_git("ls-files", "-o", "--exclude-standard")}
    return sorted(name for name in names if (ROOT / name).is_file())


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines()


def importers() -> dict[str, set[str]]:
    """Returns, for each Python file, the files that import it, relative to the root."""
    files = {str(p.relative_to(ROOT)) for name in FOLDERS for p in (ROOT / name).rglob("*.py")}
    graph: dict[str, set[str]] = {name: set() for name in files}
    for name in files:
        for module in _imports(ROOT / name):
            stem = module.replace(".", "/")
            for file in (f"{stem}.py", f"{stem}/__init__.py"):
                if file in graph:
                    graph[file].add(name)
    return graph


def _imports(path: Path) -> Iterator[str]:
    """Yields every dotted name that a file imports, also within functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def choose_tests(changed: Iterable[str], graph: dict[str, set[str]]) -> tuple[set[str], set[str]]:
    """Returns the test files to run for changed files, and those that are left out.

    The first are the tests that import a changed file or a file that imports one, and all tests of
    a package whose data changed. Those left out reach a changed file through more imports. The
    rules are in neither.
    """
    near: set[str] = set()
    for name in changed:
        package = Path(name).parts[1] if name.startswith("t0/") and Path(name).parts[1:] else ""
        if name.endswith(".py"):
            first = {name, *graph.get(name, ())}
            near |= first.union(*(graph[user] for user in first if user in graph))
        else:
            near |= {test for test in graph if test.startswith(f"tests/{package}/") and package}
    far, waiting = set(near), list(near)
    while waiting:
        new = graph.get(waiting.pop(), set()) - far
        far |= new
        waiting += new
    tests = [name for name in far if name.endswith("_test.py") and "/rules/" not in name]
    return {name for name in tests if name in near}, {name for name in tests if name not in near}


def main(argv: list[str]) -> int:
    """Runs the checks; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="bin/check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", metavar="COMMIT", help="default: where this branch left main")
    changed = changed_files(parser.parse_args(argv).base)
    if not changed:
        print("bin/check: nothing differs from main. For the last commit: bin/check --base HEAD~1")
        return 0
    for program, folders in PAGES.items():
        if any(name.startswith(folders) for name in changed):
            subprocess.run([sys.executable, program], cwd=ROOT, check=True)
    python = [name for name in changed if name.endswith(".py")]
    for words in (["format"], ["check", "--fix"]) if python else ():
        if status := subprocess.run([".venv/bin/ruff", *words, *python], cwd=ROOT).returncode:
            return status
    tests, left_out = choose_tests(changed, importers())
    print(f"bin/check: {len(changed)} changed files, {len(tests)} files of tests, and the rules")
    status = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *sorted(tests), "tests/rules"],
        cwd=ROOT,
        env={**os.environ, "T0_CHANGED_FILES": os.pathsep.join(changed)},
    ).returncode
    print(
        f"bin/check: left out: {len(left_out)} files of tests that only reach the change through "
        "other modules (bin/test), the rules for other files (bin/test tests/rules), and slow "
        "tests (.ci/run)"
    )
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
