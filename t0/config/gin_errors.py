"""Turns gin's errors into sentences. If a name is unknown, the sentences suggest similar names.

    with explain_errors(folders, params):
        gin.parse_config_files_and_bindings(files, params)   # gin's errors become UserErrors

The suggested names come from gin's registry, so the modules that register them must have been
imported.
"""

import contextlib
import errno
import inspect
import os
import pathlib
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence

from t0.compat import gin_config
from t0.config.gin_files import t5x_file
from t0.config.t5x_names import ours_for
from t0.errors import UserError, nearest, remote_mistake

_UNKNOWN_FILE = re.compile(r"Unable to open file: (.+?)\. Searched")
_UNKNOWN_NAME = re.compile(r"No configurable matching (?:reference )?'?@?([^'()]+)")
_UNKNOWN_PARAMETER = re.compile(r"Configurable '([^']+)' doesn't have a parameter named '([^']+)'")
# gin appends the location of the statement to its messages. If the statement is in a --gin_param,
# the location has no file.
_PLACE = re.compile(r'In (?:file "(?P<file>[^"]+)"|bindings string),? line (?P<line>\d+)')
_LINE_OF_PARAMS = re.compile(r"\(line (\d+)\)$")
_AST = re.compile(r"malformed node or string on line \d+: <[^>]*> ")


@contextlib.contextmanager
def explain_errors(folders: Sequence[str] = (), params: Sequence[str] = ()) -> Iterator[None]:
    """Turns errors that gin raises in a `with` block into UserErrors.

    The block may parse gin files or evaluate bindings.

    Args:
      folders: the folders that are searched for gin files.
      params: the --gin_param bindings.
    """
    try:
        yield
    except RecursionError as error:
        raise UserError(
            "the gin files include each other in a cycle. gin looks in the working directory "
            "first. If a file there has the same name as a file that it includes, directly or "
            "indirectly, such as eval.gin, rename it."
        ) from error
    except (ValueError, OSError, ImportError, SyntaxError, TypeError, tokenize.TokenError) as error:
        raise UserError(explain(error, folders, params)) from error


def explain(error: Exception, folders: Sequence[str], params: Sequence[str] = ()) -> str:
    """Explains, in a sentence or two, an error that gin raised during parsing.

    Args:
      error: the error that `gin.parse_config_files_and_bindings` raised.
      folders: the folders that are searched for gin files.
      params: the --gin_param bindings, one line each.
    """
    text = " ".join(str(error).split())
    missing = _UNKNOWN_FILE.search(text)
    if missing:
        return _explain_missing_file(missing[1], folders)
    name = _UNKNOWN_NAME.search(text)
    if name:
        ours = ours_for(text)
        if ours:
            return f"{ours}{_locate(text, params)}"
        hint = _suggest_similar(name[1], _known_names())
        return f"unknown gin name '{name[1]}'{_locate(text, params)}.{hint}"
    parameter = _UNKNOWN_PARAMETER.search(text)
    if parameter:
        hint = _suggest_similar(parameter[2], _parameters_of(parameter[1]))
        return f"{parameter[1]} has no parameter '{parameter[2]}'{_locate(text, params)}.{hint}"
    return _explain_unreadable(_AST.sub("", text), params)


def _explain_missing_file(name: str, folders: Sequence[str]) -> str:
    if "://" in name:
        missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return f"gin file not found: {remote_mistake(missing)}"
    ours = t5x_file(name)
    if ours is None and "t5x/" in name:
        return (
            f"T5X's gin file {name} has no equivalent here: only T5 1.0, T5 1.1 and mT5 have model "
            "files (models/), and only pretrain, finetune, eval and infer have run files (runs/)"
        )
    hint = (
        f" It is T5X's name for {ours}."
        if ours
        else _suggest_similar(name, _list_local_gin_files(folders))
    )
    return (
        f"gin file not found: {name}.{hint} Looked in the working directory, {', '.join(folders)}"
    )


def _explain_unreadable(text: str, params: Sequence[str]) -> str:
    lines = "\n".join(params).splitlines()
    line_number = _LINE_OF_PARAMS.search(text)
    if not line_number or int(line_number[1]) > len(lines):
        return f"the gin configuration cannot be read: {text}"
    line = lines[int(line_number[1]) - 1]
    name, _, value = (side.strip() for side in line.partition("="))
    # If a value begins with none of these characters, it is probably text whose quotes the shell
    # has removed.
    bare = value and value[0] not in "'\"([{@%"
    quoted = f" Text needs a second pair of quotes: --gin.{name}=\"'{value}'\"" if bare else ""
    reason = text[: line_number.start()].strip(" .")
    return f"the gin configuration cannot be read at --gin_param='{line}': {reason}.{quoted}"


def _locate(text: str, params: Sequence[str]) -> str:
    location = _PLACE.search(text)
    if not location:
        return ""
    if location["file"]:
        return f" (line {location['line']} of {location['file']})"
    # gin joins the bindings, one per line.
    lines = "\n".join(params).splitlines()
    number = int(location["line"])
    return f" (--gin_param='{lines[number - 1]}')" if number <= len(lines) else " (--gin_param)"


def _suggest_similar(name: str, known: Iterable[str]) -> str:
    close = nearest(name, known)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def _known_names() -> list[str]:
    # In gin, "submodule.function" or "function" can stand for "module.submodule.function" if the
    # short name is unique. Therefore the short names are also suggested.
    paths = (name.split(".") for name, _ in gin_config._REGISTRY.items())
    return list({".".join(p[-n:]): None for p in paths for n in range(1, min(3, len(p)) + 1)})


def _parameters_of(selector: str) -> list[str]:
    configurable = gin_config._REGISTRY.get_match(selector)
    return list(inspect.signature(configurable.wrapped).parameters) if configurable else []


def _list_local_gin_files(folders: Sequence[str]) -> list[str]:
    local = [pathlib.Path(folder) for folder in folders if "://" not in folder]
    return [str(file.relative_to(f)) for f in local for file in sorted(f.rglob("*.gin"))]
