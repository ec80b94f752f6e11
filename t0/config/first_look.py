"""Reads gin files and bindings for what can be wrong with them before anything heavy is imported.

    check(["runs/finetune.gin"], ["TRAIN_STEP = 5"])   # UserError: ... Did you mean TRAIN_STEPS?

A misspelt file or macro, or text without quotes, is found in half a second. Names of functions and
parameters are checked by `t0.config.parse`, after the modules that register them are imported: that
takes TensorFlow, and seconds. Files on gs:// are left to it, too.
"""

import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from t0.compat import gin_config, gin_parser
from t0.config.explain import explained, unknown_file
from t0.config.gin_files import DEFAULTS, in_order, quiet_search, resolved_names, search_path
from t0.config.t5x_names import UNMISTAKABLE, ours_for
from t0.errors import UserError, nearest

# Macros that T5's code, or ours, reads from gin by name.
READ_BY_CODE = {"MIXTURE_NAME", "MODEL_DIR"}
# How alike a macro that nothing reads must be to one that is read, to be a slip of the pen.
_ALIKE = 0.8


class _Remote(Exception):
    """A file is not on this machine."""


class _Delegate(gin_parser.ParserDelegate):
    """Makes no references, and notes which macros are read."""

    def __init__(self, read: set[str]) -> None:
        self._read = read

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> str:
        return f"@{scoped_configurable_name}{'()' * evaluate}"

    def macro(self, macro_name: str) -> str:
        self._read.add(macro_name)
        return f"%{macro_name}"


def check(
    gin_files: Sequence[str], gin_params: Sequence[str], location_prefixes: Sequence[str] = ()
) -> None:
    """Checks the files, the syntax and the macros of a configuration.

    Args:
      gin_files: paths, or names to search for.
      gin_params: bindings such as "run.train_steps = 100".
      location_prefixes: folders to search before this project's.

    Raises:
      UserError: for a missing file, a syntax error, a macro that nothing reads and whose name is
        nearly that of one that is read, or a name of T5X's.
    """
    folders = search_path(location_prefixes)
    read: set[str] = set()
    names = in_order(resolved_names(gin_files, location_prefixes))
    try:
        with explained(folders, gin_params), quiet_search():
            for name in (DEFAULTS, *names):
                _read_file(name, read, folders, ())
            given = dict(_macros(gin_parser.ConfigParser("\n".join(gin_params), _Delegate(read))))
    except _Remote:
        return
    read |= READ_BY_CODE
    for name, binding in given.items():
        if name in read:
            continue
        close = nearest(name, read, count=1, cutoff=_ALIKE)
        if close and not _read_elsewhere(name):
            raise UserError(
                f"no gin file reads the macro '{name}' (--gin_param='{binding}'). Did you mean "
                f"{close[0]}?"
            )


def _read_elsewhere(name: str) -> bool:
    """Returns whether another published gin file reads the macro, as of another mode."""
    reference = re.compile(rf"%{re.escape(name)}\b")
    files = (path for folder in search_path() for path in pathlib.Path(folder).rglob("*.gin"))
    return any(reference.search(path.read_text("utf-8", errors="replace")) for path in files)


def _read_file(name: str, read: set[str], folders: Sequence[str], within: tuple[str, ...]) -> None:
    """Adds the macros that a file reads, those of its includes among them, to `read`."""
    if "://" in name:
        raise _Remote
    if name in within:
        raise RecursionError(name)
    places = (pathlib.Path(folder, name) for folder in ("", *folders))
    path = next(filter(pathlib.Path.is_file, places), None)
    if path is None:
        # gin also finds files in Python packages.
        if any(readable(name) for _, readable in gin_config._FILE_READERS):
            raise _Remote
        raise UserError(unknown_file(name, folders))
    with path.open(encoding="utf-8") as file:
        for statement in gin_parser.ConfigParser(file, _Delegate(read)):
            _check_t5x(statement, str(path))
            if isinstance(statement, gin_parser.IncludeStatement):
                _read_file(statement.filename, read, folders, (*within, name))


def _check_t5x(statement: Any, path: str) -> None:
    if isinstance(statement, gin_parser.BindingStatement):
        text = ".".join(filter(None, (statement.selector, statement.arg_name)))
    elif isinstance(statement, gin_parser.ImportStatement):
        text = statement.format()
    else:
        return
    if any(name in text for name in UNMISTAKABLE):
        ours = ours_for(text)
        if ours:
            raise UserError(f"{ours} ({path}:{statement.location.line_num})")


def _macros(statements: Any) -> Iterator[tuple[str, str]]:
    """Yields (macro, its binding as text) of the macros that statements set."""
    for statement in statements:
        _check_t5x(statement, "--gin_param")
        if isinstance(statement, gin_parser.BindingStatement) and not statement.arg_name:
            yield statement.selector, f"{statement.selector} = {statement.value!r}"
