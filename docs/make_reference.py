"""Writes docs/reference.md: flags, gin macros, gin parameters and file formats, read from the code.

    python docs/make_reference.py         # `make docs` runs it; tests/rules/docs_test.py compares

- Flags come from the tables that define them.
- Macros are the plain names that a file in gin/ sets. Their meaning comes from the file's header.
- Gin parameters are those of the functions and classes that this project registers with gin.
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

Generated from the code by `docs/make_reference.py`: do not edit it by hand.

- The commands' flags: [t5_mesh_transformer](#t5_mesh_transformer),
  [seqio_cache_tasks](#seqio_cache_tasks), [t0.torch](#t0torch), [t0](#t0)
- [Environment variables](#environment-variables)
- [Gin macros](#gin-macros) of the files in `gin/`
- [Gin parameters](#gin-parameters) that this project adds
- [File formats](#file-formats)
"""
# Environment variable -> its meaning. A test fails if the code reads one that has no row here.
VARIABLES = {
    "T0_DATA_DIR": "folders with your own datasets and prompts, separated by `:` or `,`; "
    "`--data_dir`",
    "T0_PORT": "the port on which the machines of `bin/torch_train.slurm` connect (29500)",
    "T0_PROCESSES": "the number of processes that `bin/torch_train` starts (one per GPU)",
    "T0_PYTHON": "the Python that `bin/setup`, `bin/quickstart` and `bin/torch_train` use",
    "T0_RESTART_SECONDS": "how long `bin/tpu_train` waits before it restarts a run (30)",
    "T0_RESTARTS": "how often `bin/torch_train` restarts after losing a process (3)",
    "T0_SAVING_SECONDS": "`bin/torch_train*`: how long a run may take to save after SIGTERM (600)",
    "T0_SKIP_BAD_ROWS": "1: skip and count rows with half of a surrogate pair; `--skip_bad_rows`",
    "T0_TEMPLATE_CHARACTERS": "the most characters that a template may produce for a row "
    "(20 million)",
    "T0_TEMPLATE_SECONDS": "the most seconds of CPU time that a template may use for a row (10)",
    "T0_TRAIN_COMMAND": "the command that `bin/tpu_train` runs (`t5_mesh_transformer`)",
    "T0_VOCAB": "a SentencePiece model; `--vocab`",
}
# File or printed line -> the module whose header describes it.
FORMATS = (
    ("A task's cache: COMPLETED", "t0/caching/cache_files.py"),
    ("metrics.jsonl, and the log lines of training", "t0/training/recorder.py"),
    (
        "results_STEP.json, scores/, answers/, shard-I-of-N/: rank evaluation",
        "t0/evaluation/results.py",
    ),
    ("decoded_STEP.json and predictions/: decoding", "t0/evaluation/decoding.py"),
    ("perplexity_STEP.json", "t0/evaluation/perplexity.py"),
    ("TASK_STEP.jsonl: predictions of runs/infer.gin", "t0/inference/predictions.py"),
    ("--save_spec: the run as JSON", "t0/config/specification.py"),
    ("templates.yaml of your own data", "t0/sources/own_data.py"),
    ("mixtures.yaml of your own data", "t0/sources/mixture_files.py"),
)
_MACRO = re.compile(r"^([A-Za-z_]\w*)\s*=\s*(.+)$")
_DESCRIBED = re.compile(r"^#   (?! )([A-Za-z_][\w., /]*?)(?:  +(.*))?$")
_CONTINUED = re.compile(r"^#    +(\S.*)$")
# In Python a whole string; in shell $NAME or ${NAME...}.
_VARIABLE = re.compile(r"(?:(?<=[\"'])|(?<=\$)|(?<=\$\{))(T0_[A-Z_]+)(?=[\"':}])")
_SECTION = re.compile(r"^\s*(Attributes|Args|Returns|Yields|Raises|Note|Example):")
_ENTRY = re.compile(r"^  (\w+(?:, \w+)*): (.*)$")


def main() -> None:
    """Writes the page."""
    PAGE.write_text(text(), encoding="utf-8")


def text() -> str:
    """Returns the page."""
    return (
        "\n".join(
            [
                HEAD,
                *_format_commands(),
                *_format_variables(),
                *_format_macros(),
                *_format_parameters(),
                *_format_file_formats(),
            ]
        )
        + "\n"
    )


def _escape(value: object) -> str:
    """Escapes text for a table cell; between backticks, `<` stays unchanged."""
    pieces = " ".join(str(value).split()).replace("|", "\\|").split("`")
    return "`".join(p if i % 2 else p.replace("<", "&lt;") for i, p in enumerate(pieces))


def _format_code(value: object) -> str:
    return _escape(f"`{value}`") if str(value) else ""


def _format_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield "|" + "---|" * len(names)
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


# Flags.


def _format_commands() -> Iterator[str]:
    from t0.cli.cache_tasks import FLAGS
    from t0.cli.main import VERBS
    from t0.cli.torch_run import make_parser
    from t0.cli.verb_parser import VerbParser
    from t0.config.flag_table import TABLE

    yield "## t5_mesh_transformer\n"
    yield "T5's flags and ours. The last column lists the modes that read a flag, if not all do.\n"
    rows = []
    for kind, name, default, description, choices, modes, *_ in TABLE:
        read_by = ", ".join(mode for mode in modes if not mode.startswith("--"))
        rows.append(
            (
                _format_flag(kind, name),
                _format_default(default),
                _format_description(description, choices),
                read_by,
            )
        )
    yield from _format_table(("flag", "default", "description", "modes"), rows)
    yield 'Also `--gin.NAME=VALUE`, which is `--gin_param="NAME = VALUE"`, and absl\'s own flags.\n'
    yield "## seqio_cache_tasks\n"
    yield from _format_table(
        ("flag", "default", "description"),
        [
            (
                _format_flag(kind, name),
                _format_default(default),
                _format_description(description, choices),
            )
            for kind, name, default, description, choices, *_ in FLAGS
        ],
    )
    yield "## t0.torch\n"
    yield "`bin/torch_train`, `python -m t0.torch`: also the flags of t5_mesh_transformer.\n"
    yield from _format_arguments(make_parser())
    yield "## t0\n"
    for verb, (module, description) in VERBS.items():
        yield f"### t0 {verb}\n"
        yield f"{description[0].upper()}{description[1:]}.\n"
        yield from _format_arguments(VerbParser(verb, description, importlib.import_module(module)))


def _format_flag(kind: str, name: str) -> str:
    return f"`--{'[no]' if kind == 'boolean' else ''}{name}`"


def _format_default(default: Any) -> str:
    return (
        "" if default is None or default is False or default in ([], "") else _format_code(default)
    )


def _format_description(description: str, choices: Sequence[str]) -> str:
    return _escape(description) + (f" ({', '.join(choices)})" if choices else "")


def _format_arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    rows = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or action.dest == "help":
            continue
        name = ", ".join(action.option_strings) or action.metavar or action.dest
        default = None if action.default == argparse.SUPPRESS else action.default
        description = (action.help or "") % {**vars(action), "prog": "t0"}
        if action.choices and "{" not in str(name):
            description += f" ({', '.join(map(str, action.choices))})"
        rows.append((_format_code(name), _format_default(default), _escape(description)))
    yield from _format_table(("argument", "default", "description"), rows)


# Environment variables.


def variables_of_the_code() -> set[str]:
    """Returns our environment variables that Python or shell code reads."""
    files = [*(ROOT / "t0").rglob("*.py"), *(path for path in (ROOT / "bin").iterdir())]
    texts = (path.read_text(encoding="utf-8") for path in files)
    return {name for text in texts for name in _VARIABLE.findall(text)}


def _format_variables() -> Iterator[str]:
    yield "## Environment variables\n"
    yield "A flag overrides its variable.\n"
    rows = [(f"`{name}`", VARIABLES[name]) for name in sorted(variables_of_the_code())]
    yield from _format_table(("variable", "description"), rows)


# Gin files.


def _format_macros() -> Iterator[str]:
    yield "## Gin macros\n"
    yield "`--gin.NAME=VALUE`, or a later gin file, sets a macro. **Bold** macros must be set.\n"
    for folder, title in (("runs", "Run files"), ("models", "Models"), ("mesh", "Meshes")):
        yield f"### {title}\n"
        for path in sorted((ROOT / "gin" / folder).glob("*.gin"), key=_natural_sort_key):
            yield from _format_gin_file(path)
        yield ""


def _natural_sort_key(path: Path) -> list[Any]:
    """Returns a sort key that orders numbers in names as numbers."""
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", path.name)]


def _format_gin_file(path: Path) -> Iterator[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    title = " ".join(_read_first_sentence(lines).split())
    macros = dict(filter(None, map(_parse_macro, lines)))
    descriptions = dict(_read_descriptions(lines))
    includes = re.findall(r"^include ['\"]([^'\"]+)['\"]", "\n".join(lines), re.MULTILINE)
    if path.parent.name == "mesh":
        yield f"- `mesh/{path.name}`: {_escape(title)}"
        return
    yield f"#### {path.parent.name}/{path.name}\n"
    yield _escape(title) + "\n"
    if includes:
        yield f"Includes {', '.join(f'`{name}`' for name in includes)}.\n"
    rows = []
    for name, value in macros.items():
        required = value == "%gin.REQUIRED"
        rows.append(
            (
                f"**`{name}`**" if required else f"`{name}`",
                "" if required else _format_code(value),
                _escape(descriptions.get(name, "")),
            )
        )
    if rows:
        yield from _format_table(("macro", "value", "description"), rows)


def _read_first_sentence(lines: Sequence[str]) -> str:
    comments = []
    for line in lines[1:]:
        if not line.startswith("# "):
            break
        comments.append(line[2:])
    return re.split(r"(?<=\.)\s+(?=[A-Z])", " ".join(comments))[0]


def _parse_macro(line: str) -> tuple[str, str] | None:
    """Returns a macro and its value without the trailing comment."""
    match = _MACRO.match(line)
    return (match[1], re.sub(r"\s+#.*$", "", match[2])) if match else None


def _read_descriptions(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the macros that a file's header describes, with their descriptions."""
    names, words = [], []
    for line in [*lines, ""]:
        continuation = _CONTINUED.match(line) if names else None
        if continuation:
            words.append(continuation[1])
            continue
        for name in names:
            yield name, " ".join(words)
        match = _DESCRIBED.match(line)
        names = re.split(r", | or ", match[1]) if match else []
        words = [match[2]] if match and match[2] else []


# Names that gin can configure.


def _format_parameters() -> Iterator[str]:
    from t0.config.bindings import annotations_of, registered
    from t0.config.plain_data import describe_type, is_plain
    from t0.run import configure
    from t0.tasks import instruction_tasks, metrics, recipe_tasks  # noqa: F401 (register names)

    configure.register()
    yield "## Gin parameters\n"
    yield (
        "The names that this project adds to gin; those of Mesh TensorFlow and T5 are unchanged. "
        "`NAME.PARAMETER = VALUE` sets a parameter. A run checks the values before it starts.\n"
    )
    for name, configurable in sorted(registered("t0").items()):
        function = configurable.wrapped
        path = Path(inspect.getsourcefile(function)).relative_to(ROOT)
        docstring = inspect.cleandoc(function.__doc__ or "")
        yield f"### t0.{name}\n"
        yield f"{_escape(docstring.split(chr(10) + chr(10))[0])} (`{path}`)\n"
        descriptions, kinds = dict(_parse_entries(docstring)), annotations_of(function)
        rows = []
        for parameter in inspect.signature(function).parameters.values():
            name, default = parameter.name, parameter.default
            if name in (configurable.denylist or ()) or parameter.kind is parameter.VAR_KEYWORD:
                continue
            rows.append(
                (
                    f"`{name}`",
                    "" if default is parameter.empty else _format_code(repr(default)),
                    _escape(describe_type(kinds[name])) if is_plain(kinds[name]) else "",
                    _escape(descriptions.get(name, "")),
                )
            )
        if rows:
            yield from _format_table(("parameter", "default", "value", "description"), rows)


def _parse_entries(docstring: str) -> Iterator[tuple[str, str]]:
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


def _format_file_formats() -> Iterator[str]:
    yield "## File formats\n"
    yield "Each section is the header of the module that writes or reads the file.\n"
    for title, path in FORMATS:
        docstring = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        yield f"### {title}\n"
        yield f"From `{path}`:\n"
        yield "\n".join(f"    {line}".rstrip() for line in (docstring or "").splitlines())
        yield ""


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
