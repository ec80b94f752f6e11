r"""Checks the TSV files of T5's `tsv_dataset_fn` before training, and unpacks compressed files.

    with checked_tsv_files():
        dataset = tsv_dataset_fn(filename="pairs.tsv.gz", ...)
    check_tsv_file("pairs.tsv")      # TsvFile(examples=200, has_mark=False)

Each line is an input, a tab and a target, in UTF-8. Quotes have no special meaning. T5's function
alone would not unpack `.gz` files, would keep a byte order mark as text, and would fail in the
middle of training at a line without a tab.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from t0 import compat
from t0.compat import tf1 as tf
from t0.errors import UserError, reading, say
from t0.files.any_path import any_path, unpacked
from t0.sources.csv_reader import MARKS, not_utf8
from t0.sources.readers import LARGEST_LINE, too_long

_MARK = "\ufeff"


class TsvFile(NamedTuple):
    """The number of examples in a TSV file, and whether it begins with a byte order mark."""

    examples: int
    has_mark: bool


@functools.lru_cache(maxsize=1024)  # a run opens its data several times
def check_tsv_file(path: str) -> TsvFile:
    """Checks a TSV file, and prints its number of examples. Each file is only read once.

    Args:
      path: the file. If its name ends in .gz, it is unpacked.

    Raises:
      UserError: if a line has no text, does not have exactly one tab, or is not UTF-8. The message
        has the number of the line.
    """
    count, has_mark = 0, False
    with reading(path), unpacked(any_path(path)) as file:
        for count in itertools.count():
            line = file.readline(LARGEST_LINE + 1)
            if not line:
                break
            if len(line) > LARGEST_LINE:
                raise too_long(any_path(path), count + 1)
            has_mark |= _check_line(path, count + 1, line)
    if not count:
        raise UserError(f"{path} is empty: wanted lines with an input, a tab and a target")
    say(f"tsv_dataset_fn reads {path}: {count:,} examples")
    return TsvFile(count, has_mark)


def _check_line(path: str, number: int, line: bytes) -> bool:
    """Checks a line, and returns whether it begins with a byte order mark."""
    where, name = f"{path}, line {number}", os.path.basename(path)  # noqa: PTH119 (or a URL)
    mark = next((mark for mark in MARKS if number == 1 and line.startswith(mark)), None)
    if mark and not MARKS[mark].startswith("utf-8"):
        raise UserError(f"{where}: {not_utf8(name, '', line[0], MARKS[mark].upper())}")
    try:
        text = line.decode("utf-8").strip("\r\n")
    except UnicodeDecodeError as error:
        before = line[: error.start].decode("utf-8")
        raise UserError(f"{where}: {not_utf8(name, before, line[error.start])}") from None
    tabs = text.count("\t")
    if tabs != 1:
        fault = f"has {tabs + 1} columns" if tabs else "has no tab" if text else "is empty"
        shown = f", {text[:60]!r}" if text else ""
        raise UserError(
            f"{where}: {fault}{shown}. Each line needs an input, one tab and a target. "
            "Remove the line, or replace a tab or line break inside a text by a space."
        )
    return text.startswith(_MARK)


def _checked_lines(filename: Any, *args: Any, **kwargs: Any) -> tf.data.Dataset:
    """Replaces `tf.data.TextLineDataset`: checks files, unpacks `.gz`, drops byte order marks."""
    names = [filename] if isinstance(filename, str | os.PathLike) else filename
    if args or kwargs or not isinstance(names, list | tuple):
        return tf.data.TextLineDataset(filename, *args, **kwargs)
    files = {os.fspath(name): check_tsv_file(os.fspath(name)) for name in names}
    if not any(name.endswith(".gz") or file.has_mark for name, file in files.items()):
        return tf.data.TextLineDataset(filename)
    datasets = []
    for name in map(os.fspath, names):
        packed = "GZIP" if name.endswith(".gz") else None
        lines = tf.data.TextLineDataset(name, compression_type=packed)
        if files[name].has_mark:
            lines = lines.map(lambda line: tf.strings.regex_replace(line, f"^{_MARK}", ""))
        datasets.append(lines)
    return functools.reduce(lambda first, second: first.concatenate(second), datasets)


class _Overlay:
    """Wraps a module, and replaces the values of some of its names."""

    def __init__(self, module: Any, **other: Any) -> None:
        self.__dict__.update(other, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextlib.contextmanager
def checked_tsv_files() -> Iterator[None]:
    """Makes T5's `tsv_dataset_fn` check its files while the context is open."""
    data = _Overlay(tf.data, TextLineDataset=_checked_lines)
    with compat.replaced("t5_mesh.tf", _Overlay(tf, data=data)):
        yield
