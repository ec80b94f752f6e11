"""Where each gin binding was written: its file and line, or the command line.

    parsed = config.parse(["runs/pretrain.gin"], ["TRAIN_STEPS = 5"])
    found = origins.of(parsed)
    str(found.places[("TRAIN_STEPS", "gin.macro", "value")])      # "the command line"

gin keeps the values alone. So the files are read a second time, with gin's own parser, for the
places of their statements; the last one that binds a parameter is the one in force.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from t0.compat import gin_config
from t0.compat import gin_parser as config_parser
from t0.training import config

# Scope, function in full and parameter of a binding; a macro's are NAME, "gin.macro", "value".
Key = tuple[str, str, str]
COMMAND_LINE = "the command line"


@dataclasses.dataclass(frozen=True)
class Place:
    """A line of a gin file, by the name that one asks for the file; no line for what is none."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclasses.dataclass(frozen=True)
class Origins:
    """Where a configuration comes from.

    Attributes:
      places: of each binding, the statement in force.
      files: name and path of each file, in the order read, included ones before what follows them.
    """

    places: dict[Key, Place]
    files: tuple[tuple[str, str], ...]

    def of_macro(self, name: str) -> Place:
        """Returns where a macro was set; what this program sets comes from the command line."""
        return self.places.get((name, "gin.macro", "value"), Place(COMMAND_LINE, 0))


def of(parsed: config.Config) -> Origins:
    """Returns the places of all bindings of what `config.parse` has parsed."""
    places: dict[Key, Place] = {}
    files: dict[str, str] = {}
    with config.quiet_search():
        for name in parsed.files:
            for place, statement in _statements_of_file(name, files):
                _note(places, place, statement)
        command_line = Place(COMMAND_LINE, 0)
        for statement in _parser("\n".join(parsed.params)):
            _note(places, command_line, statement)
    return Origins(places, tuple(files.items()))


def _note(places: dict[Key, Place], place: Place, statement: Any) -> None:
    if not isinstance(statement, config_parser.BindingStatement):
        return
    scope, selector, parameter, *_ = statement
    if not parameter:
        places["/".join(filter(None, (scope, selector))), "gin.macro", "value"] = place
        return
    # A binding to a name that is gone was left out.
    with contextlib.suppress(ValueError):
        key = gin_config.ParsedBindingKey.parse((scope, selector, parameter))
        places[key.scope_selector_arg] = place


def _statements_of_file(name: str, files: dict[str, str]) -> Iterator[tuple[Place, Any]]:
    path, reader = _found(name)
    files.setdefault(name, path)
    with reader(path) as file:
        for statement in _parser(file):
            if isinstance(statement, config_parser.IncludeStatement):
                yield from _statements_of_file(statement.filename, files)
            else:
                yield Place(_short(name), statement.location.line_num), statement


def _short(name: str) -> str:
    """Returns a file's name as one would ask for it: without the folder that gin finds it in."""
    folders = [folder for folder in gin_config._LOCATION_PREFIXES if folder]
    inside = [name[len(f) :].lstrip("/") for f in folders if name.startswith(f.rstrip("/") + "/")]
    return min(inside, key=len, default=name)


def _parser(text: Any) -> config_parser.ConfigParser:
    return config_parser.ConfigParser(text, gin_config.ParserDelegate(skip_unknown=True))


def _found(name: str) -> tuple[str, Any]:
    """Returns the path that gin takes for a file's name, and what opens it."""
    folders = [""] if os.path.isabs(name) else gin_config._LOCATION_PREFIXES  # noqa: PTH117
    paths = (os.path.join(folder, name) for folder in folders)  # noqa: PTH118
    return next(
        (path, reader)
        for path in paths
        for reader, readable in gin_config._FILE_READERS
        if readable(path)
    )
