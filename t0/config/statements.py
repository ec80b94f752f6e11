"""Reads the statements of gin files and their locations with gin's own parser.

T5X's statements are translated into ours.

    for location, statement in read_files(["runs/finetune.gin"], search_path()):
        str(location), statement            # "runs/finetune.gin:5", BindingStatement(...)

This module is needed because gin stores values, but not where they were set. The module does not
look up the names of functions, so it can read statements before the modules that register the
functions are imported.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from t0.compat import gin_config, gin_parser
from t0.config.explain import unknown_file
from t0.config.t5x_names import StatementParser
from t0.errors import UserError

COMMAND_LINE = "the command line"
Statement = tuple["Location", Any]


@dataclasses.dataclass(frozen=True)
class Location:
    """A line of a gin file, or a source that is not a file, such as the command line.

    Attributes:
      file: the file's name, without the folder in which gin finds the file.
      line: the line number; the first line is 1. Line 0 means a source that is not a file.
      path: the path at which gin finds the file.
    """

    file: str
    line: int
    path: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class RemoteFileError(Exception):
    """Raised for a file on a remote file system."""


def read_files(
    names: Sequence[str], folders: Sequence[str], *, remote: bool = True
) -> Iterator[Statement]:
    """Yields the statements of gin files, and of the files that these files include.

    At the start of each file, None is yielded in place of a statement.

    Args:
      names: paths, or names to search for.
      folders: the folders to search after the working directory.
      remote: whether to read files on remote file systems. If so, TensorFlow must be imported.

    Raises:
      UserError: a file does not exist.
      RemoteFileError: a file is remote and `remote` is False.
    """
    for name in names:
        if "://" in name and not remote:
            raise RemoteFileError(name)
        path, reader = _find(name, folders)
        with reader(path) as file:
            statements = list(_parser(file, folders))
        short = _short(name, folders)
        yield Location(short, 0, path), None
        for statement in statements:
            if isinstance(statement, gin_parser.IncludeStatement):
                yield from read_files([statement.filename], folders, remote=remote)
            else:
                yield Location(short, statement.location.line_num, path), statement


def read_params(params: Sequence[str]) -> Iterator[Statement]:
    """Yields the statements of `--gin_param`s."""
    for statement in _parser("\n".join(params), ()):
        yield Location(COMMAND_LINE, 0), statement


def _parser(text: Any, folders: Sequence[str]) -> gin_parser.ConfigParser:
    return StatementParser(text, gin_config.ParserDelegate(skip_unknown=True), folders, {})


def _short(name: str, folders: Sequence[str]) -> str:
    inside = [name[len(f) :].lstrip("/") for f in folders if name.startswith(f.rstrip("/") + "/")]
    return min(inside, key=len, default=name)


def _find(name: str, folders: Sequence[str]) -> tuple[str, Any]:
    """Returns the path at which gin finds a file, and the function that opens the file."""
    for folder in [""] if os.path.isabs(name) else ["", *folders]:  # noqa: PTH117
        path = os.path.join(folder, name)  # noqa: PTH118
        for reader, readable in gin_config._FILE_READERS:
            if readable(path):
                return path, reader
    raise UserError(unknown_file(name, folders))
