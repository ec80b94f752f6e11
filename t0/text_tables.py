"""Tables as plain text: aligned columns or, in a narrower terminal, a block for each row.

    print_table(("task", "rate"), [("weather_retell", "240")], right=("rate",))
    # task            rate
    # weather_retell   240

In a pipe a row is one line, however long, so that grep finds whole rows; nothing is coloured. On a
terminal no cell is broken in the middle: a name stays whole, so that it can be copied.
"""

import shutil
import sys
from collections.abc import Collection, Iterator, Sequence

from t0.errors import printable

_GAP = "  "
_INDENT = "    "


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()
) -> None:
    """Prints a table on standard output, as wide as the terminal at most.

    Args:
      columns: the titles; the first column holds the names.
      rows: the cells.
      right: the columns that are aligned at their right end.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in table_lines(columns, rows, right=right, width=width):
        print(line)


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
      right: the columns that are aligned at their right end.
      width: the most characters of a line; None for no limit.
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
    """Yields a row as its name and, indented, the other cells with their titles."""
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
