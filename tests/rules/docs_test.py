"""The texts name what exists: paths, functions beside them, links, flags, gin files and macros."""

import ast
import functools
import importlib.util
import itertools
import json
import re
import shlex
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from absl import flags as absl_flags

from t0.catalogue import starter_folder
from t0.cli import cache_tasks, main, quickstart, torch_run
from t0.cli.verb_parser import VerbParser
from t0.config import flags
from t0.sources.schema import features
from tests.helpers.cases import as_subtests
from tests.helpers.programs import loaded

ROOT = Path(__file__).resolve().parents[2]
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


def test_docs_path_patterns_are_expanded():
    assert list(named_paths("see `gin/runs/{a,b}.gin`, t0/x.py.")) == [
        "gin/runs/a.gin",
        "gin/runs/b.gin",
        "t0/x.py",
    ]


@as_subtests("text", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_docs_paths_exist(text):
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


def test_docs_names_next_to_files_are_found():
    table = "| `--x`? | `t0/a.py`, then `t0/b.py` | `F`; `g`; by `t0/c.py`: `C.d` |"
    diagram = 'A["t0/a.py<br>f, g"] --> B["t0/b.py<br>C.d"]'
    both = ("t0/a.py", "t0/b.py")
    assert list(named_beside_files(table)) == [(both, "F"), (both, "g"), (("t0/c.py",), "C.d")]
    assert list(named_beside_files(diagram)) == [
        (("t0/a.py",), "f"),
        (("t0/a.py",), "g"),
        (("t0/b.py",), "C.d"),
    ]


def test_docs_names_next_to_files_are_defined_there():
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
def test_docs_architecture_path_is_short_and_matches_diagram(heading):
    section = ARCHITECTURE.read_text(encoding="utf-8").partition(heading)[2].partition("\n## ")[0]
    listed = re.findall(r"^\d+\. `(t0/[\w/]+\.py)`: ", section, re.MULTILINE)
    assert 10 <= len(listed) <= MOST_FILES_OF_A_PATH
    assert set(listed) == set(re.findall(r'\["(t0/[\w/]+\.py)<br>', section))
    rooms = [room for room, _ in itertools.groupby(file.split("/")[1] for file in listed)]
    assert len(rooms) == len(set(rooms)), rooms


PAGES = sorted((ROOT / "docs").glob("*.md"))
PICTURES = ROOT / "docs" / "pictures"
MOST_LINES_OF_README = 120


def test_docs_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES_OF_README


def test_docs_pictures_are_small_used_and_have_descriptions():
    texts = [page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *PAGES)]
    used = re.findall(r"!\[([^]]+)\]\((?:docs/)?pictures/([^)]+)\)", "\n".join(texts))
    assert {name for _, name in used} == {path.name for path in PICTURES.iterdir()}
    assert all(len(path.read_bytes()) < 300_000 for path in PICTURES.iterdir())
    for path in PICTURES.glob("*.svg"):
        assert not re.search(r"https?://(?!www\.w3\.org|www\.textualize)", path.read_text())


def test_docs_gallery_shows_the_plots_of_the_examples():
    for plot in ROOT.glob("examples/*/plot.png"):
        copy = PICTURES / f"{plot.parent.name}.png"
        same = copy.is_file() and copy.read_bytes() == plot.read_bytes()
        assert same, "run: python docs/make_pictures.py examples"


def test_docs_reference_equals_the_code():
    made = loaded(ROOT / "docs" / "make_reference.py").text()
    stored = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert stored == made, "run: python docs/make_reference.py"
    for part in (
        "T0_VOCAB",
        "--additional_task_cache_dirs",
        "--all_prompts",
        "EVAL_PERIOD",
        "t0.train_loop",
    ):
        assert part in made, part


def test_docs_environment_variables_are_all_described():
    reference = loaded(ROOT / "docs" / "make_reference.py")
    assert reference.variables_of_the_code() == reference.VARIABLES.keys()


def slug(heading):
    """The anchor of a heading, as MkDocs makes it."""
    words = re.sub(r"[^\w\s-]", "", heading.strip().lower())
    return re.sub(r"[-\s]+", "-", words)


def headings(page):
    """The anchors of a page; what stands in code has none."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    return {slug(found) for found in re.findall(r"^#+ (.+)$", text, re.M)}


def test_docs_anchors_are_found():
    assert slug("8. When something ends") == "8-when-something-ends"
    assert "batch-and-dropout" in headings(ROOT / "docs" / "recipe.md")


@as_subtests("page", [ROOT / "README.md", *PAGES], ids=lambda path: path.name)
def test_docs_links_have_headings_and_stay_within_pages(page):
    """MkDocs refuses a link that leaves docs/, and one to a heading that is not there."""
    wrong = []
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        file = (page.parent / target).resolve() if target else page
        if page in PAGES and file not in PAGES and file.parent != PICTURES:
            wrong.append(f"{target} is no page of docs/")
        if anchor and anchor not in headings(file):
            wrong.append(f"{target}#{anchor}: no such heading")
    assert not wrong


class SiteLoader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name functions of MkDocs."""


SiteLoader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, tag, node: tag)


def leaves(value):
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    else:
        yield value


def test_docs_site_has_every_page_once():
    site = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=SiteLoader)
    assert sorted(leaves(site["nav"])) == [page.name for page in PAGES]
    assert site["strict"]


def flags_of(parser):
    # The usage has only the first name of a flag.
    names = [parser.format_usage(), *getattr(parser, "flags", ())]
    return {"help", *re.findall(r"--([\w-]+)", " ".join(names))}


@functools.cache
def known_flags():
    """Command -> the names of its flags."""
    run, cache = flags.command_flags(), cache_tasks.command_flags()
    known = {}
    for command, values in (("t5_mesh_transformer", run), ("seqio_cache_tasks", cache)):
        names = {*values, *absl_flags.FLAGS}
        booleans = {name for name in values if values[name].flag_type() == "bool"}
        known[command] = names | {f"no{name}" for name in booleans} | {"help"}
    known["bin/tpu_train"] = set(known["t5_mesh_transformer"])
    known["t5_mesh_transformer"] |= flags_of(torch_run.make_parser())
    known["bin/torch_train"] = known["t5_mesh_transformer"]
    for verb, (module, _) in main.VERBS.items():
        known[f"t0 {verb}"] = flags_of(VerbParser(verb, "verb", importlib.import_module(module)))
    known["t0"] = {"help", "version"}
    known["bin/quickstart"] = flags_of(quickstart.make_parser())
    known["bin/setup"] = {"python", "with", "system-tensorflow", "locked-tensorflow", "help"}
    return known


COMMAND = re.compile(
    r"(?<![\w/.=-])(t5_mesh_transformer|seqio_cache_tasks|bin/\w+|t0(?: [a-z][a-z-]*)?)(?= |$)(.*)"
)
FLAG = re.compile(r"(?<!\S)--([A-Za-z][\w.-]*)")
OTHERS = {
    "runner",
    "job_endpoint",
    "spot",
    "log_samples",
    "model_args",
}  # of Beam, gcloud and lm_eval


def code(text):
    """The code of a text: blocks with their continued lines joined, less comments; spans."""
    joined = re.sub(r" *\\\n\s*", " ", text)
    lines = re.findall(r"^    (.+)$", joined, re.M)
    blocks = [re.sub(r"(^|\s)#.*$", "", line).rstrip() for line in lines]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^    .*$", "", joined, flags=re.M))
    return [*blocks, *spans]


def commands(text):
    """Yields (command, its words) of the code of a text."""
    for line in code(text):
        for part in re.split(r"&&|;| \| ", line):
            found = COMMAND.search(part)
            if found:
                yield found[1], found[2]


def test_docs_commands_are_found():
    text = "    a && t0 show X --ids   # --no\n    t5_mesh_transformer --a=1 \\\n"
    text += '      --b="c"\n`--d`\n'
    run = ("t5_mesh_transformer", ' --a=1 --b="c"')
    assert list(commands(text)) == [("t0 show", " X --ids"), run]
    assert code(text)[-1] == "--d"


GIN_FOLDERS = (ROOT / "gin", Path(importlib.util.find_spec("t5").origin).parent / "models" / "gin")


@functools.cache
def macros():
    """The macros that a gin file of ours sets."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "gin").rglob("*.gin")]
    return set(re.findall(r"^(\w+) *=", "\n".join(texts), re.M))


TOLD = [page for page in TEXTS if page.name != "reference.md"]


@as_subtests("page", TOLD, ids=lambda path: str(path.relative_to(ROOT)))
def test_docs_flags_gin_files_and_macros_exist(page):
    text = page.read_text(encoding="utf-8")
    known, wrong = known_flags(), []
    for command, words in commands(text):
        if command not in known and command.startswith("t0 "):
            wrong.append(f"{command}: no such verb")
        named = set(FLAG.findall(re.sub(r"--gin\.\w+|'[^']*'", "", words)))
        wrong += [f"{command} has no --{name}" for name in named - known.get(command, named)]
    # A flag without its command.
    alone = {FLAG.match(span)[1] for span in code(text) if FLAG.match(span)}
    alone = {name for name in alone if not name.startswith("gin.")}
    wrong += [f"--{name}: no such flag" for name in alone - OTHERS.union(*known.values())]
    for name in re.findall(r"--gin_file=\"?((?:models|runs|mesh)/[\w.+-]+)", text):
        if not any((folder / name).exists() for folder in GIN_FOLDERS):
            wrong.append(f"{name}: no such gin file")
    set_there = set(re.findall(r"--gin\.([A-Z_]+)=", text)) - {"NAME"}
    wrong += [f"{name}: no such macro" for name in set_there - macros()]
    assert not wrong, "\n".join(wrong)


def test_docs_tutorial_has_the_commands_that_init_prints():
    plan = starter_folder.StarterFolder(
        "reviews", None, ("text",), None, vocabulary="t5.spiece.model"
    )
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    told = [shlex.split(line) for line in code(text) if line.startswith(("t0", "t5", "seqio"))]
    for words in starter_folder.commands("reviews", plan).values():
        assert words in told, words


def test_docs_licensed_data_program_makes_story_cloze_columns(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "licensed.md").read_text(encoding="utf-8")
    program = textwrap.dedent(re.search(r"<<'END'\n(.*?)\n    END\n", text, re.S)[1])
    (tmp_path / "owners.csv").write_text('Id,1,2,3,4,A,B,Right\nx,a,"b, c",d,e,f,g,2\n')
    monkeypatch.setattr(sys, "argv", ["-", str(tmp_path / "owners.csv"), str(tmp_path / "rows")])
    exec(compile(program, "licensed.md", "exec"), {})
    row = json.loads((tmp_path / "rows").read_text())
    assert list(row) == list(features("story_cloze", "2016"))
    assert (row["input_sentence_2"], row["answer_right_ending"]) == ("b, c", 2)
