"""Checks gin files and bindings before TensorFlow is imported.

    check(["runs/finetune.gin"], ["TRAIN_STEP = 5"])   # UserError: ... Did you mean TRAIN_STEPS?

A misspelled file or macro, or text without quotes, is reported immediately. `t0.config.parse`
checks the names of functions and parameters later, when the modules that register them have been
imported. `t0.config.parse` also reads files on gs://, which this module skips.
"""

import pathlib
import re
from collections.abc import Sequence

from t0.compat import gin_parser
from t0.config.bindings import macros_within
from t0.config.explain import explain_errors
from t0.config.gin_files import defaults_file, in_order, quiet_search, resolved_names, search_path
from t0.config.statements import RemoteFileError, read_files, read_params
from t0.config.t5x_names import T5X
from t0.errors import UserError, nearest

# Macros that our code or T5's code reads from gin by name.
READ_BY_CODE = {"MIXTURE_NAME", "MODEL_DIR"}
# If no file reads a macro, and its name is at least this similar to the name of a macro that is
# read, the name is probably misspelled.
SIMILARITY = 0.8


def check(
    gin_files: Sequence[str], gin_params: Sequence[str], location_prefixes: Sequence[str] = ()
) -> None:
    """Checks the files, the syntax and the macros of a configuration.

    Args:
      gin_files: paths, or names to search for.
      gin_params: bindings such as "run.train_steps = 100".
      location_prefixes: folders to search before this project's folder.

    Raises:
      UserError: a file is missing, there is a syntax error, a setting of T5X has no
        equivalent, or a macro is probably misspelled: no file reads it, but a file reads a macro
        with a similar name.
    """
    folders = search_path(location_prefixes)
    names = [defaults_file(), *in_order(resolved_names(gin_files, location_prefixes))]
    read, macros = set(READ_BY_CODE), {}
    try:
        with explain_errors(folders, gin_params), quiet_search():
            statements = [*read_files(names, folders, remote=False), *read_params(gin_params)]
            for location, statement in statements:
                if isinstance(statement, gin_parser.BindingStatement):
                    read |= set(macros_within(statement.value))
                    if not location.path and not statement.arg_name:
                        macros[statement.selector] = statement.value
    except RemoteFileError:
        return
    for name in macros.keys() - read - T5X.keys():
        close = nearest(name, {*read, *T5X}, count=1, cutoff=SIMILARITY)
        if close and not _read_elsewhere(name):
            raise UserError(
                f"no gin file reads the macro '{name}' (--gin_param='{name} = {macros[name]!r}'). "
                f"Did you mean {close[0]}?"
            )


def _read_elsewhere(name: str) -> bool:
    """Returns whether any gin file in the search path reads a macro.

    For example, a file for another mode may read it.
    """
    reference = re.compile(rf"%{re.escape(name)}\b")
    files = (path for folder in search_path() for path in pathlib.Path(folder).rglob("*.gin"))
    return any(reference.search(path.read_text("utf-8", errors="replace")) for path in files)
