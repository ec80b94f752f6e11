"""A comparison as tables: for the terminal, as Markdown and as JSON.

    found = compare(read_contenders(["eval/results_1000.json"]))
    tables = terminal_tables(found)                 # to be printed by rich's console
    text = comparison_markdown(found, "Mine", [])   # the same, for an issue or an appendix
    text = comparison_json(found)                   # every number, {"schema": 1, ...}

Runs have letters, A the first. A small letter after an accuracy names a set of runs that cannot be
told apart on that dataset; runs that share none differ.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from t0.errors import printable
from t0.reports.cells import number, p_value, shortened, signed
from t0.reports.comparing import ComparedDataset, DifferingExample, RunComparison
from t0.reports.markdown_tables import markdown_table, plain
from t0.reports.plots import run_letter
from t0.reports.statistics import CONFIDENCE, POWER

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA = 1
DIFFERENCE_HEADS = ("dataset", "run", "diff.", "95% interval", "adj. p", "detect.", "+/−", "ex.")
_LEGEND = (
    "diff.: run minus {baseline}, points; interval: for other examples and prompts; adj. p: over "
    "all datasets and runs (Benjamini and Hochberg), of the mean over runs; detect.: the least "
    "true difference found in 4 of 5 evaluations; +/−: prompts better and worse by McNemar's "
    "test, not adjusted; ex.: examples"
)


def tied_letters(row: ComparedDataset, run: int) -> str:
    """Returns the small letters of the sets that a run is in; none if all runs are one set.

    The sets are in the order of their best accuracy.
    """
    sets = sorted(row.tied, key=lambda group: -max(row.accuracies[one].mean for one in group))
    if len(sets) < 2:
        return ""
    return "".join(chr(ord("a") + place) for place, one in enumerate(sets) if run in one)


def rows_of(found: RunComparison) -> list[ComparedDataset]:
    """Returns the rows of the tables: the mean first, if there is one, then the datasets."""
    return [*([found.mean] if found.mean else []), *found.datasets]


def accuracy_cells(found: RunComparison) -> list[list[str]]:
    """Returns title, prompts, examples and each run's accuracy with its tied sets."""
    cells = []
    for row in rows_of(found):
        values = [
            f"{number(row.accuracies[run].mean)} {tied_letters(row, run)}".strip()
            if run in row.accuracies
            else "–"
            for run in range(len(found.contenders))
        ]
        cells.append([row.title, f"{row.number_of_prompts}", f"{row.number_of_examples}", *values])
    return cells


def difference_cells(found: RunComparison) -> list[list[str]]:
    """Returns the cells under `DIFFERENCE_HEADS`."""
    cells = []
    for row in rows_of(found):
        for one in row.differences:
            gap = one.gap
            ends = [f"{end:.1f}".replace("-", "−") for end in (gap.low, gap.high)]
            cells.append(
                [
                    *(row.title, run_letter(one.run), signed(gap.difference), " to ".join(ends)),
                    *(p_value(one.adjusted), number(gap.detectable), clear_text(row, one.run)),
                    f"{gap.examples}",
                ]
            )
    return cells


def clear_text(row: ComparedDataset, run: int) -> str:
    """Returns how many prompts are clearly better and worse, a dash for a mean over datasets."""
    prompts = row.prompts.get(run)
    if prompts is None:
        return "–"
    clear = [one["difference"] for one in prompts if one["p_value"] < 1 - CONFIDENCE]
    return f"{sum(gap > 0 for gap in clear)}/{sum(gap < 0 for gap in clear)}"


def example_cells(found: RunComparison, most: int) -> list[list[str]]:
    """Returns dataset, run, examples won and lost, and the rows of the largest changes."""
    cells = []
    for row in found.datasets:
        for run in row.won:
            of_run = [one for one in row.examples if one.run == run]
            won = [str(one.row) for one in of_run if one.gain > 0][:most]
            lost = [str(one.row) for one in of_run if one.gain < 0][:most]
            counts = [f"{row.won[run]}", f"{row.lost[run]}"]
            cells.append([row.title, run_letter(run), *counts, " ".join(won), " ".join(lost)])
    return cells


# For the terminal.


def terminal_tables(found: RunComparison) -> "list[Table]":
    """Returns accuracies, differences and differing examples; they fit 80 columns of four runs."""
    letters = [run_letter(run) for run in range(len(found.contenders))]
    tables = [
        _table("Accuracy (%)", ["dataset", "pr.", "ex.", *letters], accuracy_cells(found), 1),
        _table(
            f"Difference from {letters[found.baseline]}",
            DIFFERENCE_HEADS,
            difference_cells(found),
            2,
        ),
        _table(
            "Examples on which they differ",
            ("dataset", "run", "won", "lost", "most won (rows)", "most lost"),
            example_cells(found, 3),
            2,
        ),
    ]
    return [table for table in tables if table.row_count]


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for place, head in enumerate(heads):
        folded = {"overflow": "fold"} if place == 0 else {"no_wrap": True}
        table.add_column(Text(head), justify="left" if place < texts else "right", **folded)
    before = None
    for row in rows:
        table.add_row(*(Text(cell) for cell in ("" if row[0] == before else row[0], *row[1:])))
        before = row[0]
    return table


def legend_lines(found: RunComparison) -> list[str]:
    """Returns what the letters and columns are."""
    lines = []
    for run, one in enumerate(found.contenders):
        seeds = f" (mean of {len(one.seeds)} seeds)" if len(one.seeds) > 1 else ""
        base = " (baseline)" if run == found.baseline else ""
        lines.append(f"{run_letter(run)} {one.name}{seeds}{base}")
    if any(len(row.tied) > 1 for row in rows_of(found)):
        lines.append("small letters: runs with a letter in common cannot be told apart there")
    elif len(found.contenders) > 1 and found.datasets:
        lines.append("no two runs can be told apart on any dataset")
    return [*lines, _LEGEND.format(baseline=run_letter(found.baseline))]


# Markdown and JSON.


def comparison_markdown(
    found: RunComparison, title: str, pictures: Sequence[tuple[str, str]]
) -> str:
    """Returns the comparison as Markdown, with (heading, path) of its pictures."""
    parts = [f"# {plain(title)}", ""]
    parts += [f"> {plain(note)}  " for note in found.notes] + [""]
    parts += [f"- {plain(line)}" for line in legend_lines(found)] + [""]
    heads = ["Dataset", "Prompts", "Examples", *map(run_letter, range(len(found.contenders)))]
    parts += ["## Accuracy (%)", "", *markdown_table(heads, accuracy_cells(found), 1), ""]
    parts += ["## Differences", ""]
    parts += [*markdown_table(DIFFERENCE_HEADS, difference_cells(found), 2), ""]
    for heading, path in pictures:
        parts += [f"## {plain(heading)}", "", f"![{plain(heading)}]({path})", ""]
    heads = ["Dataset", "Run", "Row", "Prompt", "Gain", "Right", "Baseline's", "Run's"]
    rows = [
        [
            *(row.title, run_letter(one.run), str(one.row), one.prompt, signed(100 * one.gain, 0)),
            *(shortened(text, 60) for text in answers(one)),
        ]
        for row in found.datasets
        for one in row.examples
    ]
    return "\n".join([*parts, "## Examples", "", *markdown_table(heads, rows, 4), ""])


def answers(one: DifferingExample) -> tuple[str, str, str]:
    """Returns the right choice, the baseline's and the run's, under the prompt that is shown."""
    choices = one.example.choices
    places = (one.example.gold, one.baseline, one.example.prediction)
    return tuple(choices[place].text if place < len(choices) else "?" for place in places)


def comparison_json(found: RunComparison) -> str:
    """Returns the numbers; accuracies and differences in percent and points."""
    names = [one.name for one in found.contenders]
    data = {
        "schema": SCHEMA,
        "confidence": CONFIDENCE,
        "power": POWER,
        "notes": list(found.notes),
        "baseline": names[found.baseline],
        "runs": [
            {"name": one.name, "results": [printable(str(run.path)) for run in one.seeds]}
            for one in found.contenders
        ],
        "mean": None if found.mean is None else _record(found.mean, names),
        "datasets": [_record(row, names) for row in found.datasets],
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _record(row: ComparedDataset, names: Sequence[str]) -> dict[str, Any]:
    differences = []
    for one in row.differences:
        gap = asdict(one.gap)
        del gap["estimates"]
        counts = {"won": row.won.get(one.run), "lost": row.lost.get(one.run)}
        differences.append(
            {"run": names[one.run], **gap, "adjusted_p_value": one.adjusted, **counts}
        )
    return {
        "dataset": row.dataset or row.title,
        "group": row.group,
        "prompts": row.number_of_prompts,
        "examples": row.number_of_examples,
        "accuracies": {names[run]: asdict(one) for run, one in row.accuracies.items()},
        "differences": differences,
        "tied_sets": [[names[run] for run in group] for group in row.tied],
        "by_prompt": {names[run]: [dict(one) for one in rows] for run, rows in row.prompts.items()},
        "examples_that_differ": [
            {"run": names[one.run], "row": one.row, "gain": one.gain, "prompt": one.prompt}
            for one in row.examples
        ],
    }
