"""Parses JSON and YAML from untrusted sources, with limits on size and depth; checks names in them.

    parsed_json('{"text": "a"}')       # a dict; ValueError if not JSON, or nested too deep
    read_json(Path("config.json"))     # a dict; UserError with the file and the problem
    read_yaml(Path("mixtures.yaml"))   # the content; UserError with the file, line and problem

If `count_values` is set, `read_yaml` also limits the number of values. Without this limit, a YAML
file of a few lines that has aliases of aliases could stand for a billion values.

    checked_name("validation", "split", "/data/reviews/state.json")     # "validation"
    checked_name("../../x/train", "split", "/data/reviews/state.json")  # UserError
    path_inside("gs://bucket/cache", "my_task", "info.train.json")
    # "gs://bucket/cache/my_task/info.train.json"

    check_bucket("gs://bucket/cache", "/models/tiny", "add --bucket={bucket}")   # UserError

The names of splits, files, datasets and tasks are checked twice: when a name is read
(`checked_name`), and when a file is written under that name (`path_inside`). The second check
accepts every name that other packages give their tasks. It refuses every name that would lead out
of the folder.
"""

import json
import os
import posixpath
import re
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from t0.errors import UserError, reading
from t0.files.any_path import binary
from t0.files.paths import is_remote

SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DEEPEST = 100
LARGEST_JSON = 100_000_000
LARGEST_YAML = 16 * 2**20
# The maximum number of values in a YAML file. An alias counts as all the values it stands for.
MOST_YAML_VALUES = 200_000
# The bucket of T5's vocabulary, which is the default of most files.
_PUBLISHED = re.compile(r"gs://t5-data/vocabs/[\w./-]+")
_REMOTE = re.compile(r"\w+://\S+\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
# The remote paths that a caller of this package's functions has named.
named_buckets: set[str] = set()
_NAME_RULE = "letters A to Z, digits and . _ - only, and neither '.' nor '..'"


def parsed_json(text: str | bytes) -> Any:
    """Parses a JSON text.

    Raises:
      ValueError: if the text is not JSON in UTF-8, or is nested more than `DEEPEST` levels deep.
    """
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {DEEPEST} levels deep") from None
    if text.count("[") + text.count("{") > DEEPEST and _is_deeper(value, DEEPEST):
        raise ValueError(f"nested more than {DEEPEST} levels deep")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Raises:
      UserError: if the file cannot be read, is too large or does not contain a JSON object.
    """
    try:
        with reading(path), binary(path) as file:
            # Check the size first, because read(LARGEST_JSON + 1) would allocate a large buffer.
            if path.stat().st_size > LARGEST_JSON:
                raise ValueError(f"it has more than {LARGEST_JSON:,} bytes")
            value = parsed_json(file.read())
        if not isinstance(value, dict):
            raise ValueError(f"expected an object, got a {type(value).__name__}")
    except ValueError as error:
        raise UserError(f"{path} is not a JSON file: {error}. Copy it again.") from error
    return value


def _is_deeper(value: object, levels: int) -> bool:
    level = [value]
    for _ in range(levels + 1):
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return False
        level = [p for item in level for p in (item.values() if isinstance(item, dict) else item)]
    return True


def find_lone_surrogate(value: object) -> str | None:
    r"""Returns the first lone surrogate in the texts and keys of a JSON value, or None.

    >>> find_lone_surrogate([{"a": "whole \U0001f600"}, {"b": ["half \ud83d"]}])
    '\ud83d'
    """
    if isinstance(value, str):
        match = None if value.isascii() else _SURROGATE.search(value)
        return match and match[0]
    items = (*value, *value.values()) if isinstance(value, dict) else value
    if not isinstance(items, list | tuple):
        return None
    return next((half for half in map(find_lone_surrogate, items) if half is not None), None)


def read_yaml(
    path: Path,
    loader: type = yaml.SafeLoader,
    *,
    kind: str = "YAML file",
    tags: str = "no tags",
    count_values: bool = False,
) -> Any:
    """Parses a YAML file.

    Args:
      path: the file.
      loader: a PyYAML loader that builds only plain values.
      kind: the kind of file, for messages.
      tags: the tags that the loader knows, for messages.
      count_values: whether to refuse deep nesting and too many values before building any value.

    Raises:
      UserError: if the file cannot be read, is not YAML, is too large or is nested too deep.
    """
    with reading(path), binary(path) as file:
        data = file.read(LARGEST_YAML + 1)
    if len(data) > LARGEST_YAML:
        raise UserError(f"{path}: has more than {LARGEST_YAML:,} bytes, the limit for this file.")
    try:
        if count_values:
            _check_yaml(data)
        return yaml.load(data, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = " ".join((getattr(error, "problem", None) or str(error)).split())
        if "could not determine a constructor" in problem:
            problem += f"; only {tags} are known"
        raise UserError(f"{where}: not a {kind}: {problem}.") from error
    except RecursionError:
        raise UserError(f"{path}: not a {kind}: it is nested too deep.") from None
    # PyYAML raises these errors for a number or date that Python cannot represent (`!!int x`,
    # 2021-13-45), and for a list as a key.
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{path}: a value cannot be read: {error!s:.200}.") from error


def _check_yaml(data: bytes) -> None:
    """Raises a YAMLError if there are too many values, or if values are nested too deep."""
    sizes: dict[str | None, int] = {}
    # For each open list or mapping: its anchor, and the number of its values so far.
    open_: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(data, Loader=SAFE_LOADER):
        size, anchor = 0, getattr(event, "anchor", None)
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((anchor, 1))
            # An alias of an open list or mapping would contain itself and never end.
            sizes[anchor] = MOST_YAML_VALUES
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_.pop()
            sizes[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            size = sizes.get(anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            size = sizes[anchor] = 1
        anchor, before = open_[-1]
        open_[-1] = (anchor, before + size)
        if len(open_) > DEEPEST:
            raise _make_error(event, f"nested more than {DEEPEST} levels deep")
        if open_[-1][1] > MOST_YAML_VALUES:
            raise _make_error(
                event, f"more than {MOST_YAML_VALUES:,} values, with those of aliases"
            )


def _make_error(event: yaml.Event, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def match_names(expression: str, names: Iterable[str], *, ends: float) -> list[str]:
    """Returns the names that a regular expression from a file matches completely.

    Python's `re` cannot be stopped, and some expressions need years. The package `regex` reads the
    same expressions, and has a time limit.

    Args:
      expression: the expression.
      names: the names to compare.
      ends: the time, as of `time.monotonic`, at which the comparison must be done.

    Raises:
      ValueError: if the text is not a regular expression.
      TimeoutError: if the comparison takes longer.
    """
    import regex  # here, because most commands do not need it

    try:
        pattern, matches = regex.compile(expression), []
        for name in names:
            if (seconds := ends - time.monotonic()) <= 0:
                raise TimeoutError
            if pattern.fullmatch(name, timeout=seconds):
                matches.append(name)
        return matches
    except (regex.error, MemoryError, RecursionError, OverflowError) as error:
        raise ValueError(f"it is not a regular expression: {error}") from error


def checked_name(name: object, kind: str, where: object) -> str:
    """Checks that a name is safe as a part of a path, and returns the name.

    Args:
      name: the name in the data.
      kind: the kind of object that has this name, for messages: split, file, dataset or subset.
      where: the file or folder that contains the name.

    Raises:
      UserError: if the name is not text, or if it contains a character that is not a letter, a
        digit, `.`, `_` or `-`.
    """
    if isinstance(name, str) and _NAME.fullmatch(name) and name not in (".", ".."):
        return name
    raise UserError(
        f"{where}: {name!r:.80} cannot be the name of a {kind}. Names have {_NAME_RULE}: choose "
        "another name."
    )


def check_bucket(path: str, where: object, fix: str) -> None:
    """Checks that the user has named the bucket of a path that data contains.

    A downloaded file must not make a command contact a bucket. So the command line must name the
    bucket, or the file must be in this bucket.

    Args:
      path: the path in the data. A local path is accepted.
      where: the file or folder that contains the path.
      fix: the end of the message, which says how to name the bucket; `{bucket}` is replaced.

    Raises:
      UserError: if the user has not named the bucket.
    """
    if not is_remote(path) or _PUBLISHED.fullmatch(path) and ".." not in path:
        return
    bucket = "/".join(path.split("/")[:3])
    name = re.compile(rf"{re.escape(bucket)}(?![\w.-])")
    if not any(map(name.search, [*sys.argv[1:], *named_buckets, os.fspath(where)])):
        raise UserError(
            f"{where} names {path!r:.200}, and only the command line names buckets. If you trust "
            f"this file, {fix.format(bucket=bucket)}"
        )


def check_buckets(value: Any, where: object, fix: str) -> None:
    """Calls `check_bucket` for each text of a JSON value that is a remote path."""
    values = [value]
    for item in values:
        if isinstance(item, Mapping):
            values += [*item, *item.values()]
        elif isinstance(item, list | tuple):
            values += item
        elif isinstance(item, str) and _REMOTE.match(item):
            check_bucket(item, where, fix)


def path_inside(folder: str, *names: str) -> str:
    """Joins names to a folder and returns a path that is inside the folder.

    Raises:
      UserError: if a name is empty or would lead out of the folder.
    """
    for name in names:
        if name in ("", ".", "..") or any(character in name for character in "/\\\0"):
            raise UserError(
                f"{name!r:.80} cannot be the name of a file in {folder}: it would be written "
                "elsewhere. Rename the task or split."
            )
    return posixpath.join(folder, *names)
