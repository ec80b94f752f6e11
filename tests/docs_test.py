"""The texts name what exists: paths in the repository, and functions beside them."""

import ast
import functools
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs", "benchmarks", "examples")
TEXTS = [
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
# A folder of the repository and what follows, but examples/s, a unit; `gin/runs/budget_*.gin` and
# braces are patterns.
TOP = r"t0|tests|gin|docs|examples|benchmarks|bin|seqio_tasks|\.ci|\.github"
IN_REPOSITORY = re.compile(rf"(?<![\w./$\[\]>'-])((?:{TOP})/(?!s\b)[\w./*{{,}}-]*)")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
FILE = re.compile(r"[\w./]+\.py")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)?")
# The headings of the lists; each enters a room once.
PATHS = ("## The path of a training batch", "## The path of a scored choice")
MOST_FILES_OF_A_PATH = 15


def spread(pattern):
    """`a{b,c}` -> ab, ac."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [path for part in match[1].split(",") for path in spread(before + part + after)]


def named_paths(text):
    """Yields the paths from the root that a text names, its links among them."""
    for match in IN_REPOSITORY.finditer(text):
        # Braces that do not close are a sentence's: (`gin/{a,b}.gin`, see gin/models/).
        path = match[1].rstrip(".,")
        yield from spread(path) if path.count("{") == path.count("}") else [path.split("{")[0]]


def test_patterns_are_spread():
    assert list(named_paths("see `gin/runs/{a,b}.gin`, t0/x.py.")) == [
        "gin/runs/a.gin",
        "gin/runs/b.gin",
        "t0/x.py",
    ]


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_exist(text):
    content = text.read_text(encoding="utf-8")
    from_root, links = set(named_paths(content)), set(LINK.findall(content))
    absent = {path for path in from_root if not list(ROOT.glob(path))}
    absent |= {link for link in links if not (text.parent / link).exists()}
    assert from_root | links, "this text names no path: is the pattern right?"
    assert not absent


@functools.cache
def defined_in(path):
    """The functions, classes, methods (as Class.method) and constants that a file defines."""
    names = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            names |= {
                f"{node.name}.{part.name}"
                for part in getattr(node, "body", [])
                if isinstance(node, ast.ClassDef) and isinstance(part, ast.FunctionDef)
            }
    return names


def spans(line):
    """The pieces of a line that are code: `...`, or the parts of a diagram's label."""
    label = re.search(r'\["([^"]+)"\]', line)
    pieces = re.split(r"<br>|, ", label[1]) if label else re.findall(r"`([^`]+)`", line)
    # A line of a diagram may have several labels.
    rest = line[label.end() :] if label else ""
    return [*pieces, *(spans(rest) if '["' in rest else [])]


def named_beside_files(line):
    """Yields (file or files, name) of each name in a line, with the files that stand before it."""
    files = []
    follows_a_name = True
    for piece in spans(line):
        if FILE.fullmatch(piece):
            files = [piece] if follows_a_name else [*files, piece]
            follows_a_name = False
        elif NAME.fullmatch(piece) and files:
            follows_a_name = True
            yield tuple(files), piece


def test_names_are_found_beside_files():
    table = "| `--x`? | `t0/a.py`, then `t0/b.py` | `F`; `g`; by `t0/c.py`: `C.d` |"
    diagram = 'A["t0/a.py<br>f, g"] --> B["t0/b.py<br>C.d"]'
    both = ("t0/a.py", "t0/b.py")
    assert list(named_beside_files(table)) == [(both, "F"), (both, "g"), (("t0/c.py",), "C.d")]
    assert list(named_beside_files(diagram)) == [
        (("t0/a.py",), "f"),
        (("t0/a.py",), "g"),
        (("t0/b.py",), "C.d"),
    ]


def test_names_beside_files_are_defined_there():
    found = 0
    wrong = []
    for line in ARCHITECTURE.read_text(encoding="utf-8").splitlines():
        for files, name in named_beside_files(line):
            found += 1
            if not any(name in defined_in(file) for file in files):
                wrong.append(f"{name} is not in {' or '.join(files)}")
    assert not wrong, "\n".join(wrong)
    assert found > 100, "names are not found any more"


@pytest.mark.parametrize("heading", PATHS)
def test_a_path_is_short_and_its_diagram_has_the_same_files(heading):
    section = ARCHITECTURE.read_text(encoding="utf-8").partition(heading)[2].partition("\n## ")[0]
    listed = re.findall(r"^\d+\. `(t0/[\w/]+\.py)`: ", section, re.MULTILINE)
    assert 10 <= len(listed) <= MOST_FILES_OF_A_PATH
    assert set(listed) == set(re.findall(r'\["(t0/[\w/]+\.py)<br>', section))
    rooms = [room for room, _ in itertools.groupby(file.split("/")[1] for file in listed)]
    assert len(rooms) == len(set(rooms)), rooms
