"""The summary for the terminal: a row for each dataset, or metric, and run; also in a narrow one.

    from rich.console import Console
    Console().print(*console_tables([Path("eval/results_1000.json")]))

Chance comes from the per-example scores where they are there; no intervals are computed.
"""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from t0.reports.figures import letter
from t0.reports.generation import Generation, generations
from t0.reports.page import number
from t0.reports.read import Run, read_runs
from t0.reports.summary import DatasetRow, dataset_rows

if TYPE_CHECKING:
    from rich.table import Table

_HEADINGS = ("prompts", "examples", "mean", "median", "min–max", "chance")
_NARROW_HEADINGS = ("prom-\npts", "exam-\nples", "mean", "medi-\nan", "min–max", "chan-\nce")
_NARROW_COLUMNS = 72


def console_tables(results_paths: Iterable[Path], *, width: int | None = None) -> "list[Table]":
    """Returns tables of accuracy (percent) over prompts, and of what mode `eval` measured.

    Args:
        results_paths: result files or folders of them.
        width: columns of the terminal, by default those of this process's; from 50 on every number
            is whole, below 72 headings are broken and names folded.

    Raises:
        UserError: a file is missing or malformed.
    """
    runs = read_runs(results_paths)
    width = width or shutil.get_terminal_size().columns
    rows, found = dataset_rows(runs, with_intervals=False), generations(runs)
    tables = []
    if rows:
        tables.append(_accuracy_table(runs, rows, narrow=width < _NARROW_COLUMNS))
    if found:
        tables.append(_metrics_table(runs, found))
    return tables


def _accuracy_table(runs: Sequence[Run], rows: Sequence[DatasetRow], *, narrow: bool) -> "Table":
    table = _empty_table("Accuracy (%) over prompts", runs, ["dataset"], narrow=narrow)
    _add_numbers(table, _NARROW_HEADINGS if narrow else _HEADINGS)
    previous = None
    for row in rows:
        name = "" if row.dataset == previous else row.dataset
        _add_row(table, [name, *_run_cell(row.run, runs), *_cells(row)])
        previous = row.dataset
    return table


def _metrics_table(runs: Sequence[Run], found: Sequence[Generation]) -> "Table":
    table = _empty_table("Metrics of decoded text", runs, ["task", "metric"], narrow=True)
    _add_numbers(table, ["value", "examples"])
    for generation in found:
        previous = None
        for row in generation.rows:
            name = generation.task if previous is None else ""
            measure = "" if row.measure == previous else row.measure
            numbers = [number(row.value, 2), str(row.task.examples)]
            _add_row(table, [name, measure, *_run_cell(row.run, runs), *numbers])
            previous = row.measure
    return table


def _empty_table(title: str, runs: Sequence[Run], texts: Sequence[str], *, narrow: bool) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    several = len(runs) > 1
    labels = [f"{letter(i)} {run.label}" if several else run.label for i, run in enumerate(runs)]
    table = Table(
        title=Text(title),
        caption=Text("\n".join(labels)),
        box=box.SIMPLE_HEAD,
        padding=(0, 0 if narrow else 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for heading in texts:
        table.add_column(heading, overflow="fold")
    if several:
        table.add_column("run", no_wrap=True)
    return table


def _add_numbers(table: "Table", headings: Sequence[str]) -> None:
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)


def _add_row(table: "Table", cells: Sequence[str]) -> None:
    from rich.text import Text

    table.add_row(*map(Text, cells))


def _run_cell(position: int, runs: Sequence[Run]) -> list[str]:
    return [letter(position)] if len(runs) > 1 else []


def _cells(row: DatasetRow) -> list[str]:
    low, high = row.examples
    return [
        str(len(row.prompts)),
        f"{high}" if low == high else f"{low}–{high}",
        number(row.spread.mean),
        number(row.spread.median),
        f"{row.spread.low:.1f}–{row.spread.high:.1f}",
        number(row.chance),
    ]
