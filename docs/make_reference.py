"""Writes docs/reference.md: flags, gin macros, gin parameters and file formats, read from the code.

    python docs/make_reference.py            # `make docs` runs it; tests/docs_test.py compares

Gin files and Python files are read as text, so TensorFlow is not imported:

- Flags come from the tables that define them.
- Macros are the plain names that a file in gin/ sets. Their meaning comes from the file's header.
- Gin parameters are those of the learning rate schedules, and of the functions and classes that
  `gin.configurable` or `gin.external_configurable` registers.
- A file format is the header of the module that writes it.
"""

import argparse
import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference.md"
HEAD = """\
# Reference

Made by `docs/make_reference.py` from the code: do not change it by hand.

- The commands' flags: [t5_mesh_transformer](#t5_mesh_transformer),
  [seqio_cache_tasks](#seqio_cache_tasks), [t0](#t0)
- [Environment variables](#environment-variables)
- [Gin macros](#gin-macros) of the files in `gin/`
- [Gin parameters](#gin-parameters) that this project adds
- [File formats](#file-formats)
"""
# Environment variable -> its meaning. A test fails if the code reads one that has no row here.
VARIABLES = {
    "T0_DATA_DIR": "folders with datasets and prompts of your own, `:` or `,` between them; "
    "`--data_dir`",
    "T0_PORT": "the port at which the machines of `bin/torch_train.slurm` meet (29500)",
    "T0_PROCESSES": "the processes that `bin/torch_train` starts (one for each GPU)",
    "T0_PYTHON": "the Python that `bin/setup`, `bin/quickstart` and `bin/torch_train` take",
    "T0_RESTART_SECONDS": "how long `bin/tpu_train` waits before it starts a run again (30)",
    "T0_RESTARTS": "how often `bin/torch_train` starts again after a process is lost (3)",
    "T0_SAVING_SECONDS": "`bin/torch_train*`: how long a run may take to save after SIGTERM (600)",
    "T0_SKIP_BAD_ROWS": "1: skip and count rows that hold half of a surrogate pair; "
    "`--skip_bad_rows`",
    "T0_TEMPLATE_CHARACTERS": "the most characters that a template may make of a row (20 million)",
    "T0_TEMPLATE_SECONDS": "the most seconds of the processor that a template may take for a row "
    "(10)",
    "T0_TRAIN_COMMAND": "what `bin/tpu_train` runs (`t5_mesh_transformer`)",
    "T0_VOCAB": "a SentencePiece model; `--vocab`",
}
# File or printed line -> the module whose header describes it.
FORMATS = (
    ("A task's cache: COMPLETED", "t0/caching/cache_files.py"),
    ("metrics.jsonl, and what a line of training says", "t0/training/recorder.py"),
    ("The lines that training prints at its start", "t0/training/start_report.py"),
    (
        "results_STEP.json, scores/TASK_STEP.jsonl, shard-I-of-N/: rank evaluation",
        "t0/scoring/results.py",
    ),
    ("answers/TASK_STEP.jsonl: decoded answers to ranked inputs", "t0/scoring/answers.py"),
    ("decoded_STEP.json and predictions/: decoding", "t0/scoring/decoded.py"),
    ("perplexity_STEP.json", "t0/scoring/perplexity.py"),
    ("TASK_STEP.jsonl: predictions of runs/infer.gin", "t0/inference/prediction_file.py"),
    ("--save_spec: the run as JSON", "t0/config/specification.py"),
    ("templates.yaml and mixtures.yaml of your own data", "t0/sources/own_data.py"),
)
_MACRO = re.compile(r"^([A-Za-z_]\w*)\s*=\s*(.+)$")
_DESCRIBED = re.compile(r"^#   (?! )([A-Za-z_][\w., /]*?)(?:  +(.*))?$")
_CONTINUED = re.compile(r"^#    +(\S.*)$")
# In Python a whole string; in shell $NAME or ${NAME...}.
_VARIABLE = re.compile(r"(?:(?<=[\"'])|(?<=\$)|(?<=\$\{))(T0_[A-Z_]+)(?=[\"':}])")
_REGISTERS = "gin.external_configurable"
_SECTION = re.compile(r"^\s*(Attributes|Args|Returns|Yields|Raises|Note|Example):")
_ENTRY = re.compile(r"^  (\w+(?:, \w+)*): (.*)$")


def main() -> None:
    """Writes the page."""
    PAGE.write_text(text(), encoding="utf-8")


def text() -> str:
    """Returns the page."""
    return (
        "\n".join([HEAD, *_commands(), *_variables(), *_macros(), *_parameters(), *_formats()])
        + "\n"
    )


def _cell(value: object) -> str:
    """Escapes text for a table cell; between backticks, `<` stays unchanged."""
    pieces = " ".join(str(value).split()).replace("|", "\\|").split("`")
    return "`".join(p if i % 2 else p.replace("<", "&lt;") for i, p in enumerate(pieces))


def _code(value: object) -> str:
    return _cell(f"`{value}`") if str(value) else ""


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield "|" + "---|" * len(names)
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


# Flags.


def _commands() -> Iterator[str]:
    from t0.cli.cache_tasks import FLAGS
    from t0.cli.main import VERBS
    from t0.config import flags

    yield "## t5_mesh_transformer\n"
    yield "T5's flags and ours. The last column has the modes that read a flag, where not all do.\n"
    rows = []
    for kind, name, default, what, *choices in flags._TABLE:
        modes = flags.MODE_FLAGS.get(name, {})
        read_by = ", ".join(mode for mode in modes if not mode.startswith("--"))
        rows.append((_flag(kind, name), _default(default), _meaning(what, choices), read_by))
    yield from _table(("flag", "default", "what", "modes"), rows)
    yield 'Also `--gin.NAME=VALUE`, which is `--gin_param="NAME = VALUE"`, and absl\'s own flags.\n'
    yield "## seqio_cache_tasks\n"
    yield from _table(
        ("flag", "default", "what"),
        [
            (_flag(kind, name), _default(default), _meaning(what, choices))
            for kind, name, default, what, *choices in FLAGS
        ],
    )
    yield "## t0\n"
    for verb, (module, what) in VERBS.items():
        yield f"### t0 {verb}\n"
        yield f"{what[0].upper()}{what[1:]}.\n"
        yield from _verb(importlib.import_module(module))


def _flag(kind: str, name: str) -> str:
    return f"`--{'[no]' if kind == 'boolean' else ''}{name}`"


def _default(default: Any) -> str:
    return "" if default is None or default is False or default in ([], "") else _code(default)


def _meaning(what: str, choices: Sequence[Sequence[str]]) -> str:
    return _cell(what) + (f" ({', '.join(choices[0])})" if choices else "")


def _verb(module: Any) -> Iterator[str]:
    parser = argparse.ArgumentParser(add_help=False)
    module.add_arguments(parser)
    rows = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        name = ", ".join(action.option_strings) or action.metavar or action.dest
        default = None if action.default == argparse.SUPPRESS else action.default
        what = (action.help or "") % {**vars(action), "prog": "t0"}
        if action.choices and "{" not in str(name):
            what += f" ({', '.join(map(str, action.choices))})"
        rows.append((_code(name), _default(default), _cell(what)))
    yield from _table(("argument", "default", "what"), rows)


# Environment variables.


def variables_of_the_code() -> set[str]:
    """Returns our environment variables that Python or shell code reads."""
    files = [*(ROOT / "t0").rglob("*.py"), *(path for path in (ROOT / "bin").iterdir())]
    texts = (path.read_text(encoding="utf-8") for path in files)
    return {name for text in texts for name in _VARIABLE.findall(text)}


def _variables() -> Iterator[str]:
    yield "## Environment variables\n"
    yield "A flag comes before its variable.\n"
    rows = [(f"`{name}`", VARIABLES[name]) for name in sorted(variables_of_the_code())]
    yield from _table(("variable", "what"), rows)


# Gin files.


def _macros() -> Iterator[str]:
    yield "## Gin macros\n"
    yield "`--gin.NAME=VALUE`, or a later gin file, sets a macro. **Bold** ones have to be set.\n"
    for folder, title in (("runs", "Run files"), ("models", "Models"), ("mesh", "Meshes")):
        yield f"### {title}\n"
        for path in sorted((ROOT / "gin" / folder).glob("*.gin"), key=_in_order):
            yield from _gin_file(path)
        yield ""


def _in_order(path: Path) -> list[Any]:
    """Returns a sort key that orders numbers in names as numbers."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def _gin_file(path: Path) -> Iterator[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    title = " ".join(_first_sentence(lines).split())
    macros = dict(filter(None, map(_macro, lines)))
    described = dict(_described(lines))
    includes = re.findall(r"^include ['\"]([^'\"]+)['\"]", "\n".join(lines), re.MULTILINE)
    if path.parent.name == "mesh":
        yield f"- `mesh/{path.name}`: {_cell(title)}"
        return
    yield f"#### {path.parent.name}/{path.name}\n"
    yield _cell(title) + "\n"
    if includes:
        yield f"Includes {', '.join(f'`{name}`' for name in includes)}.\n"
    rows = []
    for name, value in macros.items():
        required = value == "%gin.REQUIRED"
        rows.append(
            (
                f"**`{name}`**" if required else f"`{name}`",
                "" if required else _code(value),
                _cell(described.get(name, "")),
            )
        )
    if rows:
        yield from _table(("macro", "value", "what"), rows)


def _first_sentence(lines: Sequence[str]) -> str:
    comments = []
    for line in lines[1:]:
        if not line.startswith("# "):
            break
        comments.append(line[2:])
    return re.split(r"(?<=\.)\s+(?=[A-Z])", " ".join(comments))[0]


def _macro(line: str) -> tuple[str, str] | None:
    """Returns a macro and its value without the trailing comment."""
    found = _MACRO.match(line)
    return (found[1], re.sub(r"\s+#.*$", "", found[2])) if found else None


def _described(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the macros that a file's header describes, with their descriptions."""
    names, words = [], []
    for line in [*lines, ""]:
        more = _CONTINUED.match(line) if names else None
        if more:
            words.append(more[1])
            continue
        for name in names:
            yield name, " ".join(words)
        begun = _DESCRIBED.match(line)
        names = re.split(r", | or ", begun[1]) if begun else []
        words = [begun[2]] if begun and begun[2] else []


# Names that gin can configure, read from the source.


def _parameters() -> Iterator[str]:
    yield "## Gin parameters\n"
    yield (
        "What this project adds to gin; Mesh TensorFlow's and T5's own names stay as they are. "
        "`NAME.PARAMETER = VALUE` sets one.\n"
    )
    # Registered by `t0.run.configure`.
    schedules = ROOT / "t0" / "training" / "schedules.py"
    found = {
        node.name: (node, schedules)
        for node in ast.parse(schedules.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    for path in sorted((ROOT / "t0").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "gin.configurable" not in source and _REGISTERS not in source:
            continue
        tree = ast.parse(source)
        for node in tree.body:
            name = _registered(node)
            if name:
                found[name] = (node, path)
        found |= {name: _definition(tree, what) for name, what in _registered_elsewhere(tree)}
    for name, (node, path) in sorted(found.items()):
        yield f"### t0.{name}\n"
        docstring = inspect.cleandoc(ast.get_docstring(node) or "")
        yield f"{_cell(docstring.split(chr(10) + chr(10))[0])} (`{path.relative_to(ROOT)}`)\n"
        described = dict(_entries(docstring))
        rows = [
            (f"`{parameter}`", default, _cell(described.get(parameter, "")))
            for parameter, default in _defaults(node)
        ]
        if rows:
            yield from _table(("parameter", "default", "what"), rows)


def _registered(node: ast.stmt) -> str | None:
    """Returns the name that `gin.configurable` gives a function or class, or None."""
    for decorator in getattr(node, "decorator_list", ()):
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "gin.configurable":
            return decorator.args[0].value if decorator.args else node.name
    return None


def _registered_elsewhere(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields each name that `gin.external_configurable` gives, with its object as MODULE.NAME."""
    for node in tree.body:
        call = getattr(node, "value", None)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == _REGISTERS:
            yield call.args[1].value, ast.unparse(call.args[0])


def _definition(tree: ast.Module, name: str) -> tuple[ast.stmt, Path]:
    """Returns the definition of MODULE.NAME, where the file imports MODULE, and its file."""
    module, _, name = name.partition(".")
    (folder,) = (
        node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and module in [alias.name for alias in node.names]
    )
    path = ROOT / folder.replace(".", "/") / f"{module}.py"
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return next(node for node in body if getattr(node, "name", None) == name), path


def _defaults(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yields the parameters of a function, or of a class (fields or __init__), with defaults."""
    if isinstance(node, ast.ClassDef):
        own = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        if not own:
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and "field(init=False)" not in ast.unparse(
                    field
                ):
                    yield field.target.id, _code(ast.unparse(field.value)) if field.value else ""
            return
        node = own[0]
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*missing, *arguments.defaults], strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    for argument, default in pairs:
        if argument.arg != "self":
            yield argument.arg, _code(ast.unparse(default)) if default is not None else ""


def _entries(docstring: str) -> Iterator[tuple[str, str]]:
    """Yields the entries of Attributes and Args with their descriptions."""
    inside, names, words = False, (), []
    for line in [*docstring.splitlines(), "Raises:"]:
        section, entry = _SECTION.match(line), _ENTRY.match(line)
        if section or (inside and entry):
            for name in names:
                yield name, " ".join(words)
            names, words = (), []
        if section:
            inside = section[1] in ("Attributes", "Args")
        elif inside and entry:
            names, words = entry[1].split(", "), [entry[2]]
        elif inside and names:
            words.append(line.strip())


def _formats() -> Iterator[str]:
    yield "## File formats\n"
    yield "What the modules that write or read a file say of it.\n"
    for title, path in FORMATS:
        docstring = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        yield f"### {title}\n"
        yield f"From `{path}`:\n"
        yield "\n".join(f"    {line}".rstrip() for line in (docstring or "").splitlines())
        yield ""


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
