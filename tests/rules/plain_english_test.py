"""Plain English: constructions that made readers stop do not come back.

Reads Markdown, docstrings, comments, headers of gin files and page templates. Where one of these
words is right, add the file and the phrase to `ALLOWED`.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Construction -> the plain wording.
CONSTRUCTIONS = {
    r"\bbeside\b": "next to, compared with, instead of",
    r"\b(?:go|goes|going|went) on\b": "continue, resume",
    r"\bwhere there (?:is|are)\b": "if there is",
    r"\bbut for\b": "except",
    r", too[.;:,)]": "also, next to the verb",
    r"\b(?:is|are|was|were) said\b": "is reported, is printed",
    r"\bof (?:its|their) own\b(?! \w)": "its own X",
    r"\bNone where\b": "None if",
    r"(?<!soon )(?<!long )\bas (?:it|they) (?:is|are|was|were)\b(?! \w)": "unchanged",
    r"\bat once\b": "immediately, in one call",
    r"\banew\b": "again",
    r"\black(?:s|ed)?\b": "is missing, has no",
    r"\bhand(?:s|ed)? (?:on|over|back)\b": "return, pass",
    r"\b(?:train|rank|decode)(?:s|ed)? by (?:PyTorch|TensorFlow|Mesh|Transformers)\b": "with X",
}
# File -> phrases in which a construction is right.
ALLOWED: dict[str, tuple[str, ...]] = {}
# Names of variables that do not say what they hold.
# Fields of classes are left out: some are written to files.
VAGUE_NAMES = {"found", "one", "place", "wanted", "given", "known", "kept", "parts", "held"}


def tracked(*patterns):
    hidden = (".venv", "site", "build")
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            if not any(part in hidden for part in path.relative_to(ROOT).parts):
                yield path


def prose_of_markdown(text):
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`", "`x`", line)


def prose_of_python(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            for offset, line in enumerate(docstring.splitlines()):
                yield node.body[0].lineno + offset, re.sub(r"`[^`]*`", "`x`", line)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def prose_of_gin(text):
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            yield number, line


def prose_of_template(text):
    shown = re.sub(
        r"\{#.*?#\}|\{%.*?%\}|<[^>]*>", lambda m: "\n" * m[0].count("\n"), text, flags=re.S
    )
    yield from enumerate(shown.splitlines(), 1)


READERS = {
    ".md": prose_of_markdown,
    ".py": prose_of_python,
    ".gin": prose_of_gin,
    ".j2": prose_of_template,
}
FILES = list(
    tracked("*.md", "*/*.md", "examples/**/*.md", "t0/**/*.py", "seqio_tasks/*.py", "setup.py")
) + list(tracked("bin/*.py", ".ci/*.py", "gin/**/*.gin", "t0/**/*.html.j2"))


def hits(path, text):
    name = path.relative_to(ROOT).as_posix()
    for number, line in READERS[path.suffix](text):
        for phrase in ALLOWED.get(name, ()):
            line = line.replace(phrase, "")
        for construction, plain in CONSTRUCTIONS.items():
            for match in re.finditer(construction, line):
                yield f"{name}:{number}: '{match[0]}' -> {plain}: {line.strip()[:100]}"


def test_plain_english_reads_files_of_every_kind():
    assert {path.suffix for path in FILES} == set(READERS)
    assert len(FILES) > 300


@pytest.mark.parametrize("kind", READERS)
def test_plain_english_in_prose(kind):
    found = [x for p in FILES if p.suffix == kind for x in hits(p, p.read_text("utf-8"))]
    assert not found, "\n".join(found)


def vague_variables(tree):
    """Yields the vague names that functions bind."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in (node for function in functions for node in ast.walk(function)):
        bound = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        if bound and node.id in VAGUE_NAMES:
            yield node


def test_plain_english_in_names():
    vague = [
        f"{path.relative_to(ROOT)}:{node.lineno}: a variable named '{node.id}'"
        for path in FILES
        if path.suffix == ".py"
        for node in vague_variables(ast.parse(path.read_text("utf-8")))
    ]
    assert not vague, "\n".join(vague)


def test_plain_english_finds_a_vague_name():
    tree = ast.parse("def join(rows):\n    found = rows\n    return found\n")
    assert [node.id for node in vague_variables(tree)] == ["found"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "The run goes on here.\n"),
        ("code.py", '"""A file that lacks rows."""\n'),
        ("code.py", "x = 1  # read anew\n"),
        ("run.gin", "# Trains beside the other.\n"),
        ("page.html.j2", "<p>Rows are said.</p>\n"),
    ],
)
def test_plain_english_finds_an_old_construction(name, text):
    assert len(list(hits(ROOT / name, text))) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "Set `beside`.\n\n    t0 --beside\n"),
        ("run.gin", "run.beside = 1\n"),
        ("code.py", "beside = 1\n"),
    ],
)
def test_plain_english_leaves_code_unread(name, text):
    assert not list(hits(ROOT / name, text))
