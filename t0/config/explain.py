"""Explains gin's errors in sentences that name the unknown name and the most similar known ones.

    with explain_errors(folders, params):
        gin.parse_config_files_and_bindings(files, params)   # gin's errors become UserErrors
    schedules()                              # ["constant_learning_rate", "cosine_with_warmup", ...]
    check_not_text("optimizer", "adam")      # UserError: wanted the optimizer itself ...

The known names are those in gin's registry, so the modules that register them must have been
imported. An optimizer is a registered subclass of Mesh TensorFlow's `Optimizer`; a schedule is a
registered function of `step` and `total_train_steps`.
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
from t0.config.gin_files import t5x_file
from t0.config.t5x_names import ours_for
from t0.errors import UserError, nearest, remote_mistake

_UNKNOWN_FILE = re.compile(r"Unable to open file: (.+?)\. Searched")
_UNKNOWN_NAME = re.compile(r"No configurable matching (?:reference )?'?@?([^'()]+)")
_UNKNOWN_PARAMETER = re.compile(r"Configurable '([^']+)' doesn't have a parameter named '([^']+)'")
# gin appends the location of the statement. A statement from --gin_param has no file.
_PLACE = re.compile(r'In (?:file "(?P<file>[^"]+)"|bindings string),? line (?P<line>\d+)')
_REQUIRED = re.compile(r"Required bindings for `([^`]+)` not provided in config: \['([^']+)'")
_BOUND = re.compile(r"(\w+)\s*=[^=]*@")
_LINE_OF_PARAMS = re.compile(r"\(line (\d+)\)$")
_AST = re.compile(r"malformed node or string on line \d+: <[^>]*> ")
_UNSET_MACRO = re.compile(r"macro\(\) missing .* in scope '([^']+)'")


@contextlib.contextmanager
def explain_errors(folders: Sequence[str] = (), params: Sequence[str] = ()) -> Iterator[None]:
    """Turns errors that gin raises during parsing or evaluation into UserErrors.

    Args:
      folders: the folders that are searched for gin files.
      params: the --gin_param bindings.
    """
    try:
        yield
    except RecursionError as error:
        raise UserError(
            "the gin files include each other without end. A file is looked for in the working "
            "directory first: if one there has the name of a file that it includes, or that this "
            "one includes in turn, such as eval.gin, rename it."
        ) from error
    except (ValueError, OSError, ImportError, SyntaxError, TypeError, tokenize.TokenError) as error:
        raise UserError(explain(error, folders, params)) from error


def explain(error: Exception, folders: Sequence[str], params: Sequence[str] = ()) -> str:
    """Explains an error that gin raised during parsing in a sentence or two.

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
            return f"{ours}{_place(text, params)}"
        known = _known_names()
        bound = _BOUND.search(text)
        return (
            f"unknown gin name '{name[1]}'{_place(text, params)}.{_hint(name[1], known)}"
            f"{listed(bound[1]) if bound else ''}"
        )
    parameter = _UNKNOWN_PARAMETER.search(text)
    if parameter:
        hint = _hint(parameter[2], _parameters_of(parameter[1]))
        return f"{parameter[1]} has no parameter '{parameter[2]}'{_place(text, params)}.{hint}"
    return _unreadable(_AST.sub("", text), params)


def unknown_file(name: str, folders: Sequence[str]) -> str:
    """Describes a gin file that is in none of the folders, in sentences for a message."""
    if "://" in name:
        missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return f"gin file not found: {remote_mistake(missing)}"
    ours = t5x_file(name)
    hint = f" It is T5X's name of {ours}." if ours else _hint(name, _files_at_hand(folders))
    return (
        f"gin file not found: {name}.{hint} Looked in the working directory, {', '.join(folders)}"
    )


def _unreadable(text: str, params: Sequence[str]) -> str:
    lines = "\n".join(params).splitlines()
    place = _LINE_OF_PARAMS.search(text)
    if not place or int(place[1]) > len(lines):
        return f"the gin configuration cannot be read: {text}"
    line = lines[int(place[1]) - 1]
    name, _, value = (part.strip() for part in line.partition("="))
    # The shell removes one pair of quotes.
    bare = value and value[0] not in "'\"([{@%"
    quoted = f" Text needs quotes of its own: --gin.{name}=\"'{value}'\"" if bare else ""
    reason = text[: place.start()].strip(" .")
    return f"the gin configuration cannot be read at --gin_param='{line}': {reason}.{quoted}"


def explain_unset(error: BaseException) -> str | None:
    """Describes a required value of a function or macro that is not set; None for other errors."""
    text = " ".join(str(error).split())
    required = _REQUIRED.search(text)
    macro = _UNSET_MACRO.search(text)
    if required:
        what = f"{required[1]}.{required[2]}"
    elif macro:
        what = macro[1]
    else:
        return None
    return f"the gin configuration needs {what}, and nothing sets it: --gin_param='{what} = ...'"


def _place(text: str, params: Sequence[str]) -> str:
    place = _PLACE.search(text)
    if not place:
        return ""
    if place["file"]:
        return f" (line {place['line']} of {place['file']})"
    # gin joins the bindings, one per line.
    lines = "\n".join(params).splitlines()
    number = int(place["line"])
    return f" (--gin_param='{lines[number - 1]}')" if number <= len(lines) else " (--gin_param)"


def _hint(name: str, known: Iterable[str]) -> str:
    close = nearest(name, known)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def _known_names() -> list[str]:
    # Users may write any suffix of a name's module path that is unique, so all suffixes are known
    # names.
    parts = (name.split(".") for name, _ in gin_config._REGISTRY.items())
    return list({".".join(p[-n:]): None for p in parts for n in range(1, min(3, len(p)) + 1)})


def _parameters_of(selector: str) -> list[str]:
    configurable = gin_config._REGISTRY.get_match(selector)
    return list(inspect.signature(configurable.wrapped).parameters) if configurable else []


def _files_at_hand(folders: Sequence[str]) -> list[str]:
    local = [pathlib.Path(folder) for folder in folders if "://" not in folder]
    return [str(file.relative_to(f)) for f in local for file in sorted(f.rglob("*.gin"))]


def optimizers() -> list[str]:
    """Returns the names that `run.optimizer` can be bound to, as @NAME."""
    from t0.compat import optimize  # takes seconds, and not needed to report an unknown file

    return _named(lambda found: inspect.isclass(found) and issubclass(found, optimize.Optimizer))


def schedules() -> list[str]:
    """Returns the names that `run.learning_rate_schedule` can be bound to, as @NAME."""
    return _named(
        lambda found: (
            inspect.isfunction(found)
            and {"step", "total_train_steps"} <= inspect.signature(found).parameters.keys()
        )
    )


# Parameter of `run` -> the kind of its value, and the function that lists the names of that kind.
KINDS = {"optimizer": ("optimizer", optimizers), "learning_rate_schedule": ("schedule", schedules)}


def _named(fits: Callable[[Any], bool]) -> list[str]:
    registry = gin_config._REGISTRY
    found = [selector for selector, item in registry.items() if fits(item.wrapped)]
    return sorted(map(registry.minimal_selector, found))


def listed(parameter: str) -> str:
    """Returns a sentence that lists the choices for `run.optimizer` or
    `run.learning_rate_schedule`.

    Args:
      parameter: the name after the dot; for other parameters the sentence is empty.
    """
    if parameter not in KINDS:
        return ""
    kind, names = KINDS[parameter]
    return f" The {kind}s are: {', '.join('@' + name for name in names())}"


def check_not_text(parameter: str, value: Any) -> None:
    """Checks that a parameter of `run` is an optimizer or a schedule, and not its name as text.

    Args:
      parameter: "optimizer" or "learning_rate_schedule".
      value: the value that gin has bound to the parameter.

    Raises:
      UserError: the value is text; the message lists the names, the most similar one first.
    """
    if not isinstance(value, str):
        return
    kind, names = KINDS[parameter]
    known = {name.lower(): name for name in names()}
    close = nearest(value.lower().lstrip("@"), known)
    hint = f" Did you mean @{known[close[0]]}, without quotes?" if close else ""
    raise UserError(
        f"run.{parameter} is the text {value!r}; wanted the {kind} itself, as @NAME.{hint}"
        f"{listed(parameter)}"
    )
