r"""Renders the accuracies of a comparison as a table for a paper, in LaTeX or Markdown.

    comparison = read_report(["eval"]).comparison        # None for a single run
    table = make_paper_table(comparison, statistic="median") if comparison else None
    table and table.latex()      # "\begin{table} ...", for \usepackage{booktabs}
    table and table.markdown()   # "| Run | RTE | ...", for GitHub and model cards

Runs are the rows and datasets the columns; `transpose=True` swaps them. The statistic is over
prompts. It is the mean with the interval for other examples and prompts, or the median with the
quartiles, as in T0's paper. A run is bold if it does not differ significantly from the run with the
best mean. These are the runs that share a tied set with it.

Assumption: names are printable. LaTeX needs a font that has their characters.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from t0.reports.accuracies import SIGNIFICANT, Grid, summarize_spread
from t0.reports.comparison import ComparedDataset, RunComparison
from t0.reports.statistics import CONFIDENCE

STATISTICS = ("mean", "median")
_PERCENT = round(100 * CONFIDENCE)
# Character -> LaTeX. After a line break, LaTeX would read "[" and "*" as arguments.
_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        **{sign: f"{{{sign}}}" for sign in "[]*"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
    }
)
_MARKDOWN_SIGN = re.compile(r"([\\`*_{}\[\]<>|~$&])")
_SPREADS = {
    "mean": f"{_PERCENT} % intervals for other examples and prompts",
    "median": "first and third quartiles",
}


@dataclass(frozen=True)
class PaperCell:
    """The accuracy of a run on a dataset, in percent.

    Attributes:
      ends: the ends of the interval, or the quartiles; None if there are none.
      bold: whether the run does not differ significantly from the best run.
    """

    value: float
    ends: tuple[float, float] | None
    bold: bool


@dataclass(frozen=True)
class PaperTable:
    """A table of accuracies. All texts are plain, without LaTeX's or Markdown's escapes.

    Attributes:
      columns: the headings; the first is that of the names.
      rows: the name of each row, and its cells; None for a run without scores of a dataset.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[PaperCell | None]]]

    def latex(self) -> str:
        """Formats the table as a LaTeX float for the package booktabs."""
        lines = _format_lines(self, escape_latex, _latex_cell)
        heading, *body = (f"    {' & '.join(line)} \\\\" for line in lines)
        return "\n".join(
            (
                r"% Needs \usepackage{booktabs}.",
                r"\begin{table}",
                r"  \centering",
                f"  \\caption{{{escape_latex(self.caption)}}}",
                r"  \label{tab:accuracies}",
                f"  \\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}",
                r"    \toprule",
                heading,
                r"    \midrule",
                *body,
                r"    \bottomrule",
                r"  \end{tabular}",
                r"\end{table}",
                "",
            )
        )

    def markdown(self) -> str:
        """Formats the table as GitHub's Markdown, with the caption below it."""
        heading, *body = (
            f"| {' | '.join(line)} |"
            for line in _format_lines(self, escape_markdown, _markdown_cell)
        )
        rule = f"|---|{'---:|' * (len(self.columns) - 1)}"
        return "\n".join((heading, rule, *body, "", escape_markdown(self.caption), ""))


def make_paper_table(
    comparison: RunComparison, *, statistic: str = "mean", transpose: bool = False
) -> PaperTable:
    """Makes the table of a comparison.

    Args:
      comparison: the compared runs.
      statistic: "mean" or "median", over the prompts of a dataset.
      transpose: whether datasets are the rows and runs the columns.
    """
    cells = [
        [_make_cell(row, run, statistic) for row in comparison.rows]
        for run in range(len(comparison.runs))
    ]
    names = [run.name for run in comparison.runs]
    titles = [row.title for row in comparison.rows]
    corner = "Run"
    if transpose:
        names, titles, cells, corner = titles, names, list(zip(*cells, strict=True)), "Dataset"
    return PaperTable(
        caption=_make_caption(comparison, statistic),
        columns=(corner, *titles),
        rows=list(zip(names, cells, strict=True)),
    )


def escape_latex(text: str) -> str:
    r"""Escapes the characters that LaTeX would interpret, and returns one line.

    Two hyphens are kept apart, so that LaTeX does not join them to a dash.

    >>> escape_latex("t5_xl--50%")
    't5\\_xl-{}-50\\%'
    """
    return re.sub("-(?=-)", "-{}", " ".join(text.split()).translate(_LATEX))


def escape_markdown(text: str) -> str:
    r"""Escapes the characters that Markdown would interpret, and returns one line.

    >>> escape_markdown("a|b_c")
    'a\\|b\\_c'
    """
    return _MARKDOWN_SIGN.sub(r"\\\1", " ".join(text.split()))


def _make_cell(row: ComparedDataset, run: int, statistic: str) -> PaperCell | None:
    if run not in row.runs:
        return None
    best = max(row.runs, key=lambda other: row.accuracies[other]["mean"])
    bold = any(best in tied and run in tied for tied in row.tied)
    accuracy = row.accuracies[run]
    if statistic == "mean":
        return PaperCell(accuracy["mean"], (accuracy["low"], accuracy["high"]), bold)
    spreads = [_summarize_prompts(grid, row.runs.index(run)) for grid in row.grids]
    median = float(np.mean([spread["median"] for spread in spreads]))
    if len(spreads) > 1:  # a mean over datasets
        return PaperCell(median, None, bold)
    return PaperCell(median, (spreads[0]["first_quartile"], spreads[0]["third_quartile"]), bold)


def _summarize_prompts(grid: Grid, run: int) -> dict[str, float]:
    """Returns the mean and the quartiles of a run's accuracies over prompts, in percent."""
    by_prompt = grid.right[run].mean(axis=0).sum(axis=-1) / grid.present.sum(axis=-1)
    return summarize_spread((100 * by_prompt).tolist())


def _make_caption(comparison: RunComparison, statistic: str) -> str:
    single = [row for row in comparison.rows if len(row.grids) == 1]
    sizes = "; ".join(
        f"{row.title}: {row.number_of_prompts} and {row.number_of_examples:,}" for row in single
    )
    whole = " (for the mean of datasets: mean of medians, without quartiles)"
    note = whole if statistic == "median" and len(single) < len(comparison.rows) else ""
    means = ", and separately for the means" if len(single) < len(comparison.rows) else ""
    seeds = [f"{run.name}: {len(run.seeds)}" for run in comparison.runs if len(run.seeds) > 1]
    return (
        f"Accuracy (%), {statistic} over prompts, with {_SPREADS[statistic]} in brackets{note}. "
        "Bold: not significantly worse than the run with the best mean accuracy "
        f"(p >= {SIGNIFICANT}; t-test of the mean difference, paired by prompt and example, for "
        "other examples and prompts; p-values adjusted over all pairs of runs and datasets with "
        f"the procedure of Benjamini and Hochberg{means}). "
        f"Prompts and examples (n): {sizes}." + (f" Seeds: {'; '.join(seeds)}." if seeds else "")
    )


def _format_lines(
    table: PaperTable, escape: Callable[[str], str], cell: Callable[[PaperCell | None], str]
) -> list[list[str]]:
    body = [[escape(name), *map(cell, cells)] for name, cells in table.rows]
    return [[escape(heading) for heading in table.columns], *body]


def _latex_cell(cell: PaperCell | None) -> str:
    if cell is None:
        return "--"
    value = f"\\textbf{{{cell.value:.1f}}}" if cell.bold else f"{cell.value:.1f}"
    return value if cell.ends is None else f"{value} {{\\scriptsize {_format_ends(cell.ends)}}}"


def _markdown_cell(cell: PaperCell | None) -> str:
    if cell is None:
        return "–"
    value = f"**{cell.value:.1f}**" if cell.bold else f"{cell.value:.1f}"
    return value if cell.ends is None else f"{value} {_format_ends(cell.ends)}"


def _format_ends(ends: tuple[float, float]) -> str:
    return f"[{ends[0]:.1f}, {ends[1]:.1f}]"
