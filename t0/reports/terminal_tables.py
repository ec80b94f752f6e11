"""The report's tables for the terminal.

    from rich.console import Console
    Console().print(*console_tables([Path("eval/results_1000.json")]))

Texts are never markup. In narrow terminals headings are broken, numbers never.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from t0.reports.cells import clean_cells, clean_heads, number, ways_heads
from t0.reports.clean_part import clean_rows, read_overlap
from t0.reports.evaluations import EvaluatedRun, as_runs
from t0.reports.plots import run_letter
from t0.reports.summary import WHOLE, metrics_table, rank_tables
from t0.reports.ways import judged_rows

if TYPE_CHECKING:
    from rich.table import Table

_HEADINGS = ("prompts", "examples", "mean", "median", "min–max", "chance")
_NARROW_HEADINGS = ("prom-\npts", "exam-\nples", "mean", "medi-\nan", "min–max", "chan-\nce")
_NARROW_COLUMNS = 72


def console_tables(
    results: Iterable[Path | EvaluatedRun],
    *,
    width: int | None = None,
    overlap_path: Path | None = None,
) -> "list[Table]":
    """Returns tables of accuracy (percent) over prompts, and of the metrics of mode `eval`.

    Chance is computed from the per-example scores, if there are any; there are no intervals.

    Args:
      results: result files, folders of them, or runs that were read.
      width: the terminal's columns; by default those of this process's terminal. From 50 columns
        no number is broken; below 72 headings are broken and names folded.
      overlap_path: what `t0 overlap` wrote, for a table of the accuracy on clean examples.

    Raises:
      UserError: if a file is missing or malformed.
    """
    runs = as_runs(results)
    narrow = (width or shutil.get_terminal_size().columns) < _NARROW_COLUMNS
    datasets, _ = rank_tables(runs, with_intervals=False)
    metrics = metrics_table(runs)
    tables = []
    if not datasets.empty:
        tables.append(_accuracy_table(runs, datasets, narrow=narrow))
        tables += _ways_table(runs, narrow=narrow)
    if overlap_path is not None:
        tables.append(_clean_table(runs, clean_rows(runs, read_overlap(overlap_path)), narrow))
    if any(run.decoded for run in runs):
        tables.append(_metrics_table(runs, metrics[metrics.kind == WHOLE]))
    return tables


def _accuracy_table(
    runs: Sequence[EvaluatedRun], datasets: pd.DataFrame, *, narrow: bool
) -> "Table":
    table = _empty_table("Accuracy (%) over prompts", runs, ["dataset"], narrow=narrow)
    _add_columns_of_numbers(table, _NARROW_HEADINGS if narrow else _HEADINGS)
    repeated = datasets.dataset.duplicated()
    for row, again in zip(datasets.itertuples(), repeated, strict=True):
        low, high = row.fewest_examples, row.most_examples
        _add_row(
            table,
            *("" if again else row.dataset, *_run_cell(row.run, runs), str(row.prompts)),
            *(f"{high}" if low == high else f"{low}–{high}", number(row.mean), number(row.median)),
            *(f"{row.low:.1f}–{row.high:.1f}", number(row.chance)),
        )
    return table


def _ways_table(runs: Sequence[EvaluatedRun], *, narrow: bool) -> "list[Table]":
    rows = judged_rows(runs)
    heads = ways_heads(rows)
    if len(heads) < 2:
        return []
    table = _empty_table("Accuracy (%) by ways to judge", runs, ["dataset"], narrow=narrow)
    _add_columns_of_numbers(table, [head.replace(" ", "\n") for head in heads.values()])
    for row, shown in zip(rows, _first_of_each(rows), strict=True):
        _add_row(table, shown, *_run_cell(row["run"], runs), *(number(row[way]) for way in heads))
    return [table]


def _clean_table(
    runs: Sequence[EvaluatedRun], rows: Sequence[Mapping[str, Any]], narrow: bool
) -> "Table":
    title = "Accuracy (%) without overlapping examples"
    table = _empty_table(title, runs, ["dataset"], narrow=narrow)
    heads, gaps = clean_heads(rows)
    _add_columns_of_numbers(table, [head.replace(" ", "\n") for head in heads])
    for row, shown in zip(rows, _first_of_each(rows), strict=True):
        cells = clean_cells(row, gaps=gaps)
        _add_row(table, shown, *_run_cell(row["run"], runs), *cells)
    return table


def _first_of_each(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns each row's dataset, empty where the row before has the same."""
    names = [row["dataset"] for row in rows]
    return [
        name if place == 0 or names[place - 1] != name else "" for place, name in enumerate(names)
    ]


def _metrics_table(runs: Sequence[EvaluatedRun], metrics: pd.DataFrame) -> "Table":
    table = _empty_table("Metrics of the tasks", runs, ["task", "metric"], narrow=True)
    _add_columns_of_numbers(table, ["value", "examples"])
    same_task = metrics.duplicated("task")
    same_metric = metrics.duplicated(["task", "metric"])
    for row, task, metric in zip(metrics.itertuples(), same_task, same_metric, strict=True):
        names = ("" if task else row.task, "" if metric else row.metric)
        run = _run_cell(row.run, runs)
        _add_row(table, *names, *run, number(row.value, 2), str(row.examples))
    return table


def _empty_table(
    title: str, runs: Sequence[EvaluatedRun], texts: Sequence[str], *, narrow: bool
) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    labels = [
        f"{run_letter(i)} {run.label}" if len(runs) > 1 else run.label for i, run in enumerate(runs)
    ]
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
    if len(runs) > 1:
        table.add_column("run", no_wrap=True)
    return table


def _add_columns_of_numbers(table: "Table", headings: Sequence[str]) -> None:
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)


def _add_row(table: "Table", *cells: str) -> None:
    from rich.text import Text

    table.add_row(*map(Text, cells))  # not as markup


def _run_cell(position: int, runs: Sequence[EvaluatedRun]) -> list[str]:
    return [run_letter(position)] if len(runs) > 1 else []
