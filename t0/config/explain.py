"""Turns gin's errors into sentences. If a name is unknown, the sentences suggest similar names.

    with explain_errors(folders, params):
        gin.parse_config_files_and_bindings(files, params)   # gin's errors become UserErrors
    schedules()                              # ["constant_learning_rate", "cosine_with_warmup", ...]
    check_not_text("optimizer", "adam")      # UserError: expected the optimizer itself ...

The suggested names come from gin's registry, so the modules that register them must have been
imported. An optimizer is a registered subclass of Mesh TensorFlow's `Optimizer`. A schedule is a
registered function with the parameters `step` and `total_train_steps`.
"""

import contextlib
import errno
import inspect
import os
import pathlib
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from t0.compat import gin_config
from t0.config.gin_files import t5x_file, why_not_computed
from t0.config.t5x_names import ours_for
from t0.errors import UserError, nearest, remote_mistake

_UNKNOWN_FILE = re.compile(r"Unable to open file: (.+?)\. Searched")
_UNKNOWN_NAME = re.compile(r"No configurable matching (?:reference )?'?@?([^'()]+)")
_UNKNOWN_PARAMETER = re.compile(r"Configurable '([^']+)' doesn't have a parameter named '([^']+)'")
# gin appends the location of the statement to its messages. If the statement is in a --gin_param,
# the location has no file.
_PLACE = re.compile(r'In (?:file "(?P<file>[^"]+)"|bindings string),? line (?P<line>\d+)')
_REQUIRED = re.compile(r"Required bindings for `([^`]+)` not provided in config: \['([^']+)'")
_BOUND = re.compile(r"(\w+)\s*=[^=]*@")
_LINE_OF_PARAMS = re.compile(r"\(line (\d+)\)$")
_AST = re.compile(r"malformed node or string on line \d+: <[^>]*> ")
_UNSET_MACRO = re.compile(r"macro\(\) missing .* in scope '([^']+)'")


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
        return unknown_file(missing[1], folders)
    name = _UNKNOWN_NAME.search(text)
    if name:
        ours = ours_for(text)
        if ours:
            return f"{ours}{_locate(text, params)}"
        registered_names = _known_names()
        assignment = _BOUND.search(text)
        return (
            f"unknown gin name '{name[1]}'{_locate(text, params)}."
            f"{_suggest_similar(name[1], registered_names)}"
            f"{list_choices(assignment[1]) if assignment else ''}"
        )
    parameter = _UNKNOWN_PARAMETER.search(text)
    if parameter:
        hint = _suggest_similar(parameter[2], _parameters_of(parameter[1]))
        return f"{parameter[1]} has no parameter '{parameter[2]}'{_locate(text, params)}.{hint}"
    return _explain_unreadable(_AST.sub("", text), params)


def unknown_file(name: str, folders: Sequence[str]) -> str:
    """Returns the message for a gin file that was found in none of the folders."""
    if "://" in name:
        missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return f"gin file not found: {remote_mistake(missing)}"
    ours = t5x_file(name)
    reason = why_not_computed(name)
    if reason:
        return f"T5X's gin file {name} has no equivalent here: {reason}"
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


def explain_unset(error: BaseException) -> str | None:
    """Describes an error about a required parameter or macro that has no value.

    Returns None for other errors.
    """
    text = " ".join(str(error).split())
    required = _REQUIRED.search(text)
    macro = _UNSET_MACRO.search(text)
    if required:
        setting = f"{required[1]}.{required[2]}"
    elif macro:
        setting = macro[1]
    else:
        return None
    return (
        f"the gin configuration needs {setting}, and nothing sets it: --gin_param='{setting} = ...'"
    )


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


def optimizers() -> list[str]:
    """Returns the names that `run.optimizer` can be bound to, as @NAME."""
    from t0.compat import optimize  # imported here, because this takes seconds and is rarely needed

    return _select_names(
        lambda candidate: inspect.isclass(candidate) and issubclass(candidate, optimize.Optimizer)
    )


def schedules() -> list[str]:
    """Returns the names that `run.learning_rate_schedule` can be bound to, as @NAME."""
    return _select_names(
        lambda candidate: (
            inspect.isfunction(candidate)
            and {"step", "total_train_steps"} <= inspect.signature(candidate).parameters.keys()
        )
    )


# Parameter of `run` -> (kind of its value, function that lists all names of this kind).
KINDS = {"optimizer": ("optimizer", optimizers), "learning_rate_schedule": ("schedule", schedules)}


def _select_names(fits: Callable[[Any], bool]) -> list[str]:
    registry = gin_config._REGISTRY
    selectors = [selector for selector, item in registry.items() if fits(item.wrapped)]
    return sorted(map(registry.minimal_selector, selectors))


def list_choices(parameter: str) -> str:
    """Returns a sentence that lists the values that a parameter of `run` can have.

    Args:
      parameter: "optimizer" or "learning_rate_schedule". For other parameters, the sentence is
        empty.
    """
    if parameter not in KINDS:
        return ""
    kind, names = KINDS[parameter]
    return f" The {kind}s are: {', '.join('@' + name for name in names())}"


def check_not_text(parameter: str, value: Any) -> None:
    """Checks that an optimizer or schedule parameter of `run` is bound to a class or function.

    A common mistake is to bind the parameter to a name as text.

    Args:
      parameter: "optimizer" or "learning_rate_schedule".
      value: the value that gin has bound to the parameter.

    Raises:
      UserError: the value is text. The message lists the possible names, the most similar first.
    """
    if not isinstance(value, str):
        return
    kind, names = KINDS[parameter]
    names_by_lowercase = {name.lower(): name for name in names()}
    close = nearest(value.lower().lstrip("@"), names_by_lowercase)
    hint = f" Did you mean @{names_by_lowercase[close[0]]}, without quotes?" if close else ""
    raise UserError(
        f"run.{parameter} is the text {value!r}; expected the {kind} itself, as @NAME.{hint}"
        f"{list_choices(parameter)}"
    )
