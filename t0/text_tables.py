"""Formats plain-text tables with aligned columns or, if the terminal is narrow, a block per row.

    print_table(("task", "rate"), [("weather_retell", "240")], right=("rate",))
    # task            rate
    # weather_retell   240
    print(wrap_text("a line of prose ...", terminal_width()))

If the output is a pipe, each row is one line, however long, so that grep finds whole rows. On a
terminal, a cell is never split across lines, so that names can be copied. Colours are not used.
"""

import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import TextIO

from t0.errors import printable

_GAP = "  "
_INDENT = "    "


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    file: TextIO | None = None,
) -> None:
    """Prints a table, at most as wide as the terminal.

    Args:
      columns: the titles; the first column holds the names.
      rows: the cells.
      right: the columns to align on the right.
      file: where to print; standard output by default.
    """
    for line in table_lines(columns, rows, right=right, width=terminal_width(file)):
        print(line, file=file)


def terminal_width(file: TextIO | None = None) -> int | None:
    """Returns the width, in characters, of the terminal that a file writes to.

    Returns None if the file does not write to a terminal.

    Args:
      file: the file; standard output by default.
    """
    return shutil.get_terminal_size().columns if (file or sys.stdout).isatty() else None


def wrap_text(text: str, width: int | None) -> str:
    """Wraps the lines of a text that are too long. The wrapped parts are indented by four spaces.

    A word is never split, so that names and paths can be copied.

    Args:
      width: the maximum number of characters in a line; None for no limit.
    """
    if width is None:
        return text
    lines = []
    for line in text.split("\n"):
        content = line.lstrip()
        indent = line.removesuffix(content)
        wrapped = textwrap.wrap(
            content,
            width,
            initial_indent=indent,
            subsequent_indent=indent + _INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += wrapped or [line]
    return "\n".join(lines)


def table_lines(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    width: int | None = None,
) -> Iterator[str]:
    """Yields the lines of a table.

    Args:
      columns: the titles.
      rows: the cells.
      right: the columns to align on the right.
      width: the maximum number of characters in a line; None for no limit.
    """
    cells = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    if width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        for row in cells:
            yield from _block(columns, row, width)
        return
    for row in (columns, *cells):
        padded = (
            cell.rjust(w) if column in right else cell.ljust(w)
            for cell, w, column in zip(row, widths, columns, strict=True)
        )
        yield _GAP.join(padded).rstrip()


def _block(columns: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """Yields the lines of a row's block.

    The first line is the row's name. The other cells follow, indented and with their titles.
    """
    yield row[0]
    line = ""
    for column, cell in zip(columns[1:], row[1:], strict=True):
        if not cell:
            continue
        for word in f"{column}: {cell};".split(" "):
            if line and len(_INDENT) + len(line) + 1 + len(word) > width:
                yield _INDENT + line
                line = ""
            line = f"{line} {word}".lstrip()
    if line:
        yield _INDENT + line.removesuffix(";")
