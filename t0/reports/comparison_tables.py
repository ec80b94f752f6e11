"""The tables of a comparison: accuracies, differences from the baseline, prompts, examples.

    runs, _ = read_named_runs(["eval"])
    tables = comparison_tables(compare(runs)) if len(runs) > 1 else {}

Runs have letters, A the first. A small letter after an accuracy names a set of runs that cannot be
told apart on that dataset; runs that share none differ.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from t0.reports.browsed import cut_in_middle
from t0.reports.cells import interval, number, p_value, signed
from t0.reports.comparing import ComparedDataset, RunComparison
from t0.reports.paired_runs import clear_prompts, gap_row
from t0.reports.statistics import CONFIDENCE
from t0.reports.tables import MARK, Column, Row, Table

_PERCENT = round(100 * CONFIDENCE)
_DATASET = Column("title", "Dataset", "dataset", css="t head", kind="name")
_RUN = Column("run", "Run", "run", css="t short", kind="run")
_LEGEND = (
    "diff.: run minus {baseline}, points; interval: for other examples and prompts; adj. p: over "
    "all datasets and runs (Benjamini and Hochberg), of the mean over runs; detect.: the least "
    "true difference found in 4 of 5 evaluations; +/−: prompts better and worse by McNemar's "
    "test, not adjusted; won/lost: examples right under more and fewer prompts"
)


def comparison_tables(found: RunComparison) -> dict[str, Table]:
    """Returns the tables by name, in the order of the page."""
    tables = [_accuracies(found), _differences(found), _prompts(found), _examples(found)]
    return {table.name: table for table in tables}


def legend_lines(found: RunComparison) -> list[str]:
    """Returns what the letters and columns mean, for the terminal."""
    lines = []
    for position, run in enumerate(found.runs):
        seeds = f" (mean of {len(run.seeds)} seeds)" if len(run.seeds) > 1 else ""
        base = " (baseline)" if position == found.baseline else ""
        lines.append(f"{run.mark.letter} {run.name}{seeds}{base}")
    if any(len(row.tied) > 1 for row in _rows(found)):
        lines.append("small letters: runs with a letter in common cannot be told apart there")
    elif found.datasets:
        lines.append("no two runs can be told apart on any dataset")
    return [*lines, _LEGEND.format(baseline=found.runs[found.baseline].mark.letter)]


def tied_letters(row: ComparedDataset, run: int) -> str:
    """Returns the small letters of the sets that a run is in; none if all runs are one set.

    The sets are in the order of their best accuracy.
    """
    sets = sorted(row.tied, key=lambda group: -max(row.accuracies[one].mean for one in group))
    if len(sets) < 2:
        return ""
    return "".join(chr(ord("a") + place) for place, one in enumerate(sets) if run in one)


def _rows(found: RunComparison) -> list[ComparedDataset]:
    """Returns the mean first, if there is one, then the datasets."""
    return [*([found.mean] if found.mean else []), *found.datasets]


def _names(row: ComparedDataset) -> dict[str, str]:
    return {"dataset": row.dataset or row.title, "title": row.title}


def _accuracies(found: RunComparison) -> Table:
    rows: list[dict[str, Any]] = []
    for row in _rows(found):
        names = {run: found.runs[run].name for run in row.runs}
        rows.append(
            {
                **_names(row),
                "group": row.group,
                "prompts": row.number_of_prompts,
                "examples": row.number_of_examples,
                "accuracies": {names[run]: asdict(one) for run, one in row.accuracies.items()},
                "tied_sets": [[names[run] for run in group] for group in row.tied],
                "letters": {names[run]: tied_letters(row, run) for run in row.runs},
            }
        )
    columns = [
        _DATASET,
        Column("prompts", "Prompts", "pr."),
        Column("examples", "Examples", "ex."),
    ]
    for run in found.runs:
        letter = run.mark.letter
        columns.append(
            Column("title", letter, letter, text=_accuracy(run.name), detail=_interval(run.name))
        )
    note = (
        "Mean over prompts, on the prompts and examples that all runs of a row scored; in small "
        f"type the {_PERCENT} % interval for other examples and prompts. Runs with a small letter "
        "in common cannot be told apart on that dataset; if there are no letters, no two can."
    )
    return Table("accuracies", "Compared accuracy (%)", columns, rows, note)


def _accuracy(name: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        found = row["accuracies"].get(name)
        return f"{number(found['mean'])} {row['letters'][name]}".strip() if found else "–"

    return text


def _interval(name: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        found = row["accuracies"].get(name)
        return f"{number(found['low'])} to {number(found['high'])}" if found else ""

    return text


def _differences(found: RunComparison) -> Table:
    rows = []
    for row in _rows(found):
        for one in row.differences:
            run, prompts = found.runs[one.run], row.prompts.get(one.run)
            rows.append(
                {
                    **_names(row),
                    "run": run.name,
                    MARK: run.mark,
                    **gap_row(one.gap),
                    "adjusted_p_value": one.adjusted,
                    **(clear_prompts(prompts) if prompts else {"better": None, "worse": None}),
                    "won": row.won.get(one.run),
                    "lost": row.lost.get(one.run),
                }
            )
    letter = found.runs[found.baseline].mark.letter
    columns = (
        _DATASET,
        _RUN,
        Column("difference", "Difference", "diff.", signed, detail=interval),
        Column("interval_low", "", f"{_PERCENT}% interval", text=interval),
        Column("fixed_low", "These prompts", text=lambda row: interval(row, "fixed")),
        Column("adjusted_p_value", "Adjusted p", "adj. p", p_value),
        Column("detectable", "Detectable", "detect."),
        Column("correlation", "Correlation", "", lambda value: number(value, 2)),
        Column("better", "Better / worse prompts", "+/−", text=_pair("better", "worse")),
        Column("won", "Won / lost", "won/lost", text=_pair("won", "lost")),
        Column("examples", "Examples"),
    )
    note = (
        "In percentage points, paired by prompt and example; in small type the interval for other "
        "examples and prompts, under “These prompts” for other examples only. Adjusted p: by "
        "Benjamini and Hochberg over this table. Detectable: the least true difference that an "
        "evaluation like this finds in four of five cases. Correlation: of the two runs’ means by "
        "example, which is what pairing uses. Better and worse: prompts with McNemar’s p below "
        "0.05, before any correction. Won and lost: examples that the run has right under more, "
        "and under fewer, prompts."
    )
    title = f"Difference from {letter}"
    return Table("differences", title, columns, rows, note, file="report_differences.csv")


def _pair(first: str, second: str) -> Callable[[Row], str]:
    return lambda row: "–" if row[first] is None else f"{row[first]}/{row[second]}"


def _prompts(found: RunComparison) -> Table:
    rows = [
        {"dataset": row.dataset, "title": row.title, "run": found.runs[run].name}
        | {MARK: found.runs[run].mark}
        | dict(prompt)
        for row in found.datasets
        for run, prompts in row.prompts.items()
        for prompt in prompts
    ]
    columns = (
        Column("title", "Dataset", css="t"),
        _RUN,
        Column("prompt", "Prompt", css="t head", text=_prompt),
        Column("first_accuracy", "Baseline"),
        Column("second_accuracy", "Run’s"),
        Column("difference", "Difference", "", signed, detail=interval),
        Column("first_only", "Only baseline right"),
        Column("second_only", "Only run right"),
        Column("p_value", "McNemar p", "", p_value, detail=_mid_p),
    )
    note = (
        "Each prompt by itself, with McNemar’s exact test, which rejects too rarely, and mid-p; "
        "neither is adjusted for the number of prompts."
    )
    file = "report_prompt_differences.csv"
    title = "Differences of each prompt"
    return Table("prompt_differences", title, columns, rows, note, file=file, long=True)


def _mid_p(row: Row) -> str:
    return f"mid-p {p_value(row['mid_p_value'])}"


def _examples(found: RunComparison) -> Table:
    rows = [
        {
            "dataset": row.dataset,
            "title": row.title,
            "run": found.runs[one.run].name,
            MARK: found.runs[one.run].mark,
            **{key: getattr(one, key) for key in ("row", "gain", "prompt", "task")},
            "right": one.gold,
            "baseline": one.baseline,
            "prediction": one.prediction,
        }
        for row in found.datasets
        for one in row.examples
    ]
    columns = (
        Column("title", "Dataset", css="t"),
        _RUN,
        Column("row", "Row"),
        Column("gain", "Won under", "", lambda gain: f"{signed(100 * gain, 0)} %"),
        Column("prompt", "Prompt", css="t head", kind="prompt", text=_prompt),
        *(
            Column(key, head, "", lambda text: cut_in_middle(text, 120), css="t")
            for key, head in (
                ("right", "Right"),
                ("baseline", "Baseline’s"),
                ("prediction", "Run’s"),
            )
        ),
    )
    note = (
        "Of each dataset and run, the examples with the largest losses and gains over all prompts, "
        "each under a prompt where the run differs from the baseline. Won under: the share of the "
        "prompts under which the run is right, less the baseline’s. A prompt’s name opens its "
        "examples, by row."
    )
    name = "differing_examples"
    return Table(name, "Examples on which they differ", columns, rows, note, long=True)


def _prompt(row: Row) -> str:
    return row["prompt"] or row["task"]
