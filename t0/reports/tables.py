"""The report's tables as Markdown, CSV and JSON, and for the terminal.

    summary = summarise(read_runs([Path("eval")]))
    markdown(summary)      # a document with the tables of the page, for a README or an issue
    prompts_csv(summary)   # a row for each prompt and run, every number at full precision
    metrics_csv(summary)   # a row for each value of mode `eval`
    data_json(summary)     # everything that the page shows except the examples, {"schema": 1, ...}

    from rich.console import Console
    Console().print(*console_tables([Path("eval/results_1000.json")]))

Texts are untrusted: Markdown and HTML in them are escaped, and in CSV a text that a spreadsheet
would take for a formula begins with an apostrophe. This module writes Markdown tables itself,
because rich and pandas pad cells, and wrap or align them in other ways.
"""

import html
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from t0.errors import printable
from t0.reports.browsed import diagnosis_record
from t0.reports.clean_part import clean_rows, read_overlap
from t0.reports.diagnosis import diagnose
from t0.reports.evaluations import EvaluatedRun, read_runs
from t0.reports.held_out import HeldOutMean, held_out_mean
from t0.reports.plots import run_letter
from t0.reports.published import MODELS, published
from t0.reports.statistics import CONFIDENCE
from t0.reports.summary import (
    CATEGORY,
    PART,
    SPREAD_COLUMNS,
    WHOLE,
    Comparison,
    DecodedResults,
    Summary,
    group_values,
    metrics_table,
    rank_tables,
)
from t0.reports.ways import WAYS, judged_rows

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA = 1
TEXT_LIMIT = 1_500  # characters shown of an input or a choice


# Numbers and texts, in every form of the report.


def number(value: float | None, digits: int = 1) -> str:
    """Returns a number with the given digits after the point, a dash for None.

    >>> number(54.151), number(None)
    ('54.2', '–')
    """
    return "–" if value is None else f"{value:.{digits}f}"


def count(value: int | None) -> str:
    """Returns a count with thousands separators, a dash for None."""
    return "–" if value is None else f"{value:,}"


def signed(value: float, digits: int = 1) -> str:
    """Returns a number with its sign, which is a typographic minus or plus; zero has no sign.

    >>> signed(-2.04), signed(0.01)
    ('−2.0', '0.0')
    """
    text = f"{value:+.{digits}f}"
    return text[1:] if not float(text) else text.replace("-", "−")


def span(low: int, high: int) -> str:
    """Returns the smallest and the largest of some counts, one number where they are equal."""
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def interval(row: Any, kind: str = "interval") -> str:
    """Returns a table row's interval as "low to high", empty where there is none.

    Args:
      row: the row, with the columns `<kind>_low` and `<kind>_high`.
      kind: "interval", "fixed" (for these prompts alone) or "calibration".
    """
    ends = getattr(row, f"{kind}_low"), getattr(row, f"{kind}_high")
    if ends[0] is None:
        return ""
    low, high = (f"{end:.1f}".replace("-", "−") for end in ends)
    return f"{low} to {high}"


def most_predicted(row: Any) -> str:
    """Returns the answer that a prompt predicts most often, with its share, or a dash."""
    if row.most_predicted is None:
        return "–"
    return f"{shortened(row.most_predicted_answer, 40)} {row.most_predicted:.0f} %"


def p_value(p: float) -> str:
    """Returns a p-value to two significant digits, or that it is below 0.001."""
    return "< 0.001" if p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def fact(value: Any) -> str:
    """Returns a value of the results' `run` object as text; objects as "key value, ...".

    >>> fact({"inputs": 1024, "targets": 256})
    'inputs 1024, targets 256'
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {fact(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(fact, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)


def shortened(text: str, limit: int = TEXT_LIMIT) -> str:
    """Returns a text, or its beginning and the number of characters left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]} … [{len(text) - limit:,} more characters]"


# Markdown.

_SIGNS = re.compile(r"([\\`*_\[\]|#~])")


def plain(text: object) -> str:
    r"""Returns text that Markdown shows literally: without markup, without HTML, on one line.

    >>> print(plain("<b> | *"))
    &lt;b&gt; \| \*
    """
    escaped = _SIGNS.sub(r"\\\1", " ".join(str(text).split()))
    return html.escape(escaped, quote=False)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[object]], texts: int) -> list[str]:
    """Returns a table whose first `texts` columns are left-aligned texts, the others numbers."""
    rules = ["---"] * texts + ["---:"] * (len(heads) - texts)
    lines = [heads, rules, *([plain(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def markdown(summary: Summary, plots: Sequence[tuple[str, str]] = ()) -> str:
    """Returns the report as Markdown.

    Args:
      summary: the report's content.
      plots: (heading, path relative to the Markdown file) of each picture.
    """
    parts = [f"# {plain(summary.title)}", ""]
    parts += [f"> {plain(note)}  " for note in summary.notes] + [""]
    parts += _answer(summary)
    if not summary.datasets.empty:
        parts += [
            "## Datasets",
            "",
            f"Accuracy in percent over prompts. The interval ({CONFIDENCE:.0%}) is the mean’s for "
            "other examples and other prompts like these; the second for these prompts alone.",
            "",
            *_datasets(summary.datasets),
            "",
        ]
    if summary.clean:
        parts += ["## Without overlapping examples", "", plain(summary.overlap), ""]
        parts += [*_clean(summary.clean), ""]
    if summary.ways:
        parts += ["## Ways to judge", "", plain(WAYS_SENTENCE), "", *_ways(summary.ways), ""]
    for heading, path in plots:
        parts += [f"## {plain(heading)}", "", f"![{plain(heading)}]({path})", ""]
    for comparison in summary.comparisons:
        first, second = summary.runs[comparison.first], summary.runs[comparison.second]
        parts += [f"## {plain(second.label)} minus {plain(first.label)}", ""]
        parts += [*_differences(comparison), ""]
    if not summary.prompts.empty:
        parts += ["## Prompts", "", *_prompts(summary.prompts), ""]
    if summary.decoded:
        parts += ["## Generation", "", *_metrics(summary.metrics), ""]
    for found in summary.decoded:
        parts += _signatures_and_groups(found, summary)
    for found in summary.decoded:
        parts += _decoded_examples(found, summary.runs)
    if summary.runs:
        parts += ["## Runs", "", *_runs(summary.runs), ""]
    return "\n".join(parts)


def _answer(summary: Summary) -> list[str]:
    """Returns the means over T0's held-out datasets, if there are any."""
    found = [(run, run_mean(summary, position)) for position, run in enumerate(summary.runs)]
    rows = [
        [
            *(run.label, f"{mean.datasets} of {mean.every}", number(mean.mean)),
            *(number(mean.chance), *(number(mean.published.get(model)) for model in MODELS)),
        ]
        for run, mean in found
        if mean is not None
    ]
    if not rows:
        return []
    heads = ["Held-out mean", "Datasets", "Mean", "Chance", *MODELS]
    return [*markdown_table(heads, rows, 1), ""]


def run_mean(summary: Summary, position: int) -> HeldOutMean | None:
    """Returns a run's mean over T0's held-out datasets; None without one."""
    datasets = summary.datasets
    return held_out_mean(datasets[datasets.run == position].itertuples())


def _runs(runs: Sequence[EvaluatedRun]) -> list[str]:
    keys = list(dict.fromkeys(key for run in runs for key in run.facts))
    rows = [[key, *(fact(run.facts.get(key)) for run in runs)] for key in keys]
    return markdown_table(["", *(plain(run.label) for run in runs)], rows, 1 + len(runs))


def _datasets(datasets: pd.DataFrame) -> list[str]:
    heads = ["Dataset", "Group", "Run", "Prompts", "Examples", "Mean", "Interval", "These prompts"]
    heads += ["Median", "Quartiles", "Range", "Chance", *MODELS, "Ties", "Truncated", "Excluded"]
    rows = []
    for row in datasets.itertuples():
        facts = published().get(row.dataset)
        cuts = [cut for cut in (row.truncated_inputs, row.truncated_targets) if cut is not None]
        rows.append(
            [
                *(row.dataset, row.group, row.label, row.prompts),
                span(row.fewest_examples, row.most_examples),
                number(row.mean),
                interval(row) or "–",
                interval(row, "fixed") or "–",
                number(row.median),
                f"{row.first_quartile:.1f}–{row.third_quartile:.1f}",
                f"{row.low:.1f}–{row.high:.1f}",
                number(row.chance),
                *(number(facts.values.get(model) if facts else None) for model in MODELS),
                "–" if row.ties is None else row.ties,
                sum(cuts) if cuts else "–",
                row.excluded,
            ]
        )
    return markdown_table(heads, rows, 3)


CLEAN_HEADS = ("Examples", "Overlapping", "All", "Clean", "Clean - all", "Interval", "p")
_GAP_HEADS = ("Difference, all", "Difference, clean", "p, clean")


def clean_cells(row: Mapping[str, Any], *, gaps: bool) -> list[str]:
    """Returns the cells of a row of `Summary.clean`, under `CLEAN_HEADS` and those of gaps."""
    difference = ["–"] * 3
    if row["difference"] is not None:
        ends = (signed(row["difference_low"]), signed(row["difference_high"]))
        tested = p_value(row["p_value"])
        difference = [signed(row["difference"]), " to ".join(ends), tested]
    compared = ["–"] * 3
    if row["gap_clean"] is not None:
        compared = [signed(row["gap_all"]), signed(row["gap_clean"]), p_value(row["gap_p_value"])]
    counts = [count(row["examples"]), count(row["overlapping"])]
    means = [number(row["all"]), number(row["clean"])]
    return [*counts, *means, *difference, *(compared if gaps else ())]


def clean_heads(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], bool]:
    """Returns the headings of numbers for rows of `Summary.clean`, and whether there are gaps."""
    gaps = any(row["gap_all"] is not None for row in rows)
    return [*CLEAN_HEADS, *(_GAP_HEADS if gaps else ())], gaps


def _clean(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    heads, gaps = clean_heads(rows)
    cells = [[row["dataset"], row["label"], *clean_cells(row, gaps=gaps)] for row in rows]
    return markdown_table(["Dataset", "Run", *heads], cells, 2)


WAYS_SENTENCE = (
    "Accuracy in percent, mean over prompts with its interval. T0’s is by the plain sum of a "
    "choice’s log-probabilities; beside it the sum divided by the choice’s tokens, and by its "
    "characters; and whether the decoded answer is the right choice."
)


def ways_heads(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns way -> heading of the ways that rows of `Summary.ways` have."""
    return {way: head for way, head in WAYS.items() if any(row[way] is not None for row in rows)}


def ways_cells(row: Mapping[str, Any], ways: Iterable[str]) -> list[str]:
    """Returns the cells of a row of `Summary.ways`."""
    return [
        "–"
        if row[way] is None
        else f"{number(row[way])} ({row[f'{way}_low']:.1f} to {row[f'{way}_high']:.1f})"
        for way in ways
    ]


def _ways(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    heads = ways_heads(rows)
    cells = [[row["dataset"], row["label"], *ways_cells(row, heads)] for row in rows]
    return markdown_table(["Dataset", "Run", *heads.values()], cells, 2)


def _differences(comparison: Comparison) -> list[str]:
    heads = ["Dataset", "Prompt", "Examples", "Difference", "Interval", "p", "Adjusted p"]
    heads += ["Detectable"]
    rows = []
    for row in comparison.datasets.itertuples():
        gap = (row.examples, signed(row.difference), interval(row), p_value(row.p_value))
        last = (p_value(row.adjusted_p_value), number(row.detectable))
        rows.append([row.dataset, "mean over prompts", *gap, *last])
        prompts = comparison.prompts
        for prompt in prompts[prompts.dataset == row.dataset].itertuples():
            gap = (prompt.examples, signed(prompt.difference), interval(prompt))
            rows.append([row.dataset, prompt.prompt, *gap, p_value(prompt.p_value), "–", "–"])
    return markdown_table(heads, rows, 2)


def _prompts(prompts: pd.DataFrame) -> list[str]:
    heads = ["Dataset", "Run", "Prompt", "Accuracy", "Interval", "Chance", "Majority"]
    heads += ["Most predicted", "Examples", "Ties"]
    rows = [
        [
            *(row.dataset, row.label, row.prompt, number(row.accuracy), interval(row) or "–"),
            *(number(row.chance), number(row.majority), most_predicted(row)),
            *(row.examples, "–" if row.ties is None else row.ties),
        ]
        for row in prompts.itertuples()
    ]
    return markdown_table(heads, rows, 3)


def _metrics(metrics: pd.DataFrame) -> list[str]:
    heads = ["Task", "Metric", "Run", "Value", "Interval"]
    heads += ["Examples", "Inputs cut", "Targets cut"]
    rows = [
        [
            *(row.task, row.metric, row.label, number(row.value, 2), interval(row) or "–"),
            count(row.examples),
            *(count(row.truncated_inputs), count(row.truncated_targets)),
        ]
        for row in metrics[metrics.kind == WHOLE].itertuples()
    ]
    return markdown_table(heads, rows, 3)


def _signatures_and_groups(found: DecodedResults, summary: Summary) -> list[str]:
    parts = []
    for metric, signature in found.signatures:
        line = f"{plain(found.task)}: {plain(metric)} is sacreBLEU’s {plain(signature)}"
        parts += [line, ""]
    heads = ["Group", "Run", *map(plain, found.metrics)]
    for heading, kind in (("by category", CATEGORY), ("by task", PART)):
        rows = [
            [group, summary.runs[run].label, *(number(value, 2) for value in values)]
            for group, run, values in group_values(summary.metrics, found.task, kind)
        ]
        if rows:
            parts += [
                f"### {plain(found.task)} {heading}",
                "",
                *markdown_table(heads, rows, 2),
                "",
            ]
    return parts


def _decoded_examples(found: DecodedResults, runs: Sequence[EvaluatedRun]) -> list[str]:
    if not found.examples:
        return []
    rows = []
    for example in found.examples:
        inputs = f"{example.heading}: {example.inputs}" if example.heading else example.inputs
        wanted = " / ".join(example.targets) or "–"
        for run, text in example.answers:
            cells = (inputs, runs[run].label, text, wanted)
            rows.append([shortened(cell, 300) for cell in cells])
    table = markdown_table(["Input", "Run", "Prediction", "Wanted"], rows, 4)
    files = [f"All: {', '.join(map(plain, found.files))}", ""] if found.files else []
    return [f"### Predictions of {plain(found.task)}", "", *table, "", *files]


# CSV: column -> column of the summary's table.

PROMPT_COLUMNS = {
    "run": "label",
    "step": "step",
    "group": "group",
    "dataset": "dataset",
    "prompt": "prompt",
    "task": "task",
    "accuracy_percent": "accuracy",
    "interval_low_percent": "interval_low",
    "interval_high_percent": "interval_high",
    "chance_percent": "chance",
    "majority_percent": "majority",
    "most_predicted_percent": "most_predicted",
    "most_predicted_answer": "most_predicted_answer",
    "accuracy_by_tokens_percent": "by_tokens",
    "accuracy_by_characters_percent": "by_characters",
    "decoded_exact_match_percent": "by_decoded",
    "accuracy_without_ties_percent": "without_ties",
    "prediction_entropy_bits": "entropy",
    "calibration_error_percent": "calibration_error",
    "calibration_low_percent": "calibration_low",
    "calibration_high_percent": "calibration_high",
    "examples": "examples",
    "ties": "ties",
    "truncated_inputs": "truncated_inputs",
    "truncated_targets": "truncated_targets",
    "excluded": "excluded",
    "excluded_reasons": "excluded_reasons",
    "results_file": "results_file",
}
METRIC_COLUMNS = {
    "run": "label",
    "step": "step",
    "task": "task",
    "group": "group",
    "metric": "metric",
    "value": "value",
    "interval_low": "interval_low",
    "interval_high": "interval_high",
    "examples": "examples",
    "truncated_inputs": "truncated_inputs",
    "truncated_targets": "truncated_targets",
    "signature": "signature",
    "results_file": "results_file",
}
# A cell that begins with one of these is a formula to some spreadsheet.
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\n")


def prompts_csv(summary: Summary) -> str:
    """Returns one row for each prompt and run of rank evaluation; unknown values are empty."""
    return _csv(summary.prompts, PROMPT_COLUMNS)


def metrics_csv(summary: Summary) -> str:
    """Returns one row for each value of mode `eval`; `group` is empty for the whole task.

    An undefined value of a whole task is empty; of a group it has no row.
    """
    metrics = summary.metrics
    return _csv(metrics[(metrics.kind == WHOLE) | metrics.value.notna()], METRIC_COLUMNS)


def _csv(table: pd.DataFrame, columns: Mapping[str, str]) -> str:
    rows = table[list(columns.values())].itertuples(index=False)
    cells = [[_csv_cell(value) for value in row] for row in rows]
    return pd.DataFrame(cells, columns=list(columns), dtype=object).to_csv(
        index=False, lineterminator="\n"
    )


def _csv_cell(value: object) -> object:
    """Returns a number unchanged, and a text so that a spreadsheet does not run it."""
    if isinstance(value, dict):
        value = "; ".join(f"{key}: {part}" for key, part in value.items())
    if not isinstance(value, str):
        return value
    # Python's writer does not quote carriage returns, at which spreadsheets end a row.
    text = value.replace("\r\n", "\n")
    return f"'{text}" if text.startswith(_FORMULA_SIGNS) else text


# JSON.


def data_json(summary: Summary) -> str:
    """Returns the numbers of the report; accuracies and differences in percent."""
    runs = summary.runs
    data = {
        "schema": SCHEMA,
        "title": summary.title,
        "notes": list(summary.notes),
        "intervals": {"confidence": CONFIDENCE, "prompts": "random; interval_fixed: these alone"},
        "runs": [
            {
                "label": run.label,
                "step": run.step,
                "results": printable(str(run.path)),
                "decoded": next((printable(str(path)) for path in run.other_paths), None),
                "run": dict(run.facts),
            }
            for run in runs
        ],
        "datasets": _dataset_records(summary),
        **({"clean_part": [dict(row) for row in summary.clean]} if summary.clean else {}),
        "ways": [dict(row) for row in summary.ways],
        "calibration": [asdict(one) for one in summary.reliabilities],
        "comparisons": [
            {
                "first": runs[comparison.first].label,
                "second": runs[comparison.second].label,
                "datasets": _difference_records(comparison),
            }
            for comparison in summary.comparisons
        ],
        "generation": _decoded_records(summary),
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _dataset_records(summary: Summary) -> list[dict[str, Any]]:
    prompts = summary.prompts.groupby(["dataset", "run"], sort=False)
    predictions = {
        (position, task.name): diagnosis_record(diagnose(task.scores))
        for position, run in enumerate(summary.runs)
        for task in run.tasks
        if task.scores is not None
    }
    records = []
    for row in summary.datasets.itertuples():
        facts = published().get(row.dataset)
        records.append(
            {
                "dataset": row.dataset,
                "group": row.group,
                "run": row.label,
                "accuracy": {name: getattr(row, name) for name in SPREAD_COLUMNS},
                "interval_of_mean": _bounds(row),
                "interval_fixed": _bounds(row, "fixed"),
                "chance": row.chance,
                "examples": [row.fewest_examples, row.most_examples],
                **_count_records(row),
                "published": dict(facts.values) if facts else {},
                "prompts": [
                    {
                        "prompt": prompt.prompt,
                        "task": prompt.task,
                        "accuracy": prompt.accuracy,
                        "interval": _bounds(prompt),
                        "chance": prompt.chance,
                        "predictions": predictions.get((row.run, prompt.task)),
                        "examples": prompt.examples,
                        **_count_records(prompt),
                        "metrics": prompt.metrics,
                    }
                    for prompt in prompts.get_group((row.dataset, row.run)).itertuples()
                ],
            }
        )
    return records


def _bounds(row: Any, kind: str = "interval") -> list[float] | None:
    ends = [getattr(row, f"{kind}_low"), getattr(row, f"{kind}_high")]
    return None if ends[0] is None else ends


def _count_records(row: Any) -> dict[str, Any]:
    return {
        "ties": row.ties,
        "truncated_inputs": row.truncated_inputs,
        "truncated_targets": row.truncated_targets,
        "excluded": row.excluded_reasons,
    }


_TESTED = ("p_value", "fixed_p_value", "adjusted_p_value", "detectable", "correlation")


def _difference_records(comparison: Comparison) -> list[dict[str, Any]]:
    prompts = comparison.prompts.groupby("dataset", sort=False)
    return [
        {
            "dataset": row.dataset,
            **_difference_record(row),
            "interval_fixed": {"low": row.fixed_low, "high": row.fixed_high},
            **{name: getattr(row, name) for name in _TESTED},
            "clearly_better_prompts": row.better,
            "clearly_worse_prompts": row.worse,
            "prompts": [
                {
                    "prompt": prompt.prompt,
                    "task": prompt.task,
                    **_difference_record(prompt),
                    "first_only": prompt.first_only,
                    "second_only": prompt.second_only,
                    "p_value": prompt.p_value,
                    "mid_p_value": prompt.mid_p_value,
                }
                for prompt in prompts.get_group(row.dataset).itertuples()
            ],
        }
        for row in comparison.datasets.itertuples()
    ]


def _difference_record(row: Any) -> dict[str, Any]:
    bounds = {"low": row.interval_low, "high": row.interval_high}
    return {"examples": row.examples, "difference": row.difference, "interval": bounds}


def _decoded_records(summary: Summary) -> list[dict[str, Any]]:
    """Returns a record for each task and run; an undefined value is None."""
    whole = summary.metrics[summary.metrics.kind == WHOLE]
    records = []
    for row in whole.drop_duplicates(["task", "run"]).itertuples():
        (task,) = (task for task in summary.runs[row.run].decoded if task.name == row.task)
        file = task.predictions_file
        records.append(
            {
                "task": task.name,
                "run": row.label,
                "examples": task.examples,
                "metrics": dict(task.metrics),
                "intervals": {metric: list(ends) for metric, ends in task.intervals.items()},
                "groups": {group: dict(values) for group, values in task.groups.items()},
                "signatures": dict(task.signatures),
                "truncated_inputs": task.truncated_inputs,
                "truncated_targets": task.truncated_targets,
                "predictions": printable(str(file)) if file else None,
            }
        )
    return records


# For the terminal.

_HEADINGS = ("prompts", "examples", "mean", "median", "min–max", "chance")
_NARROW_HEADINGS = ("prom-\npts", "exam-\nples", "mean", "medi-\nan", "min–max", "chan-\nce")
_NARROW_COLUMNS = 72


def console_tables(
    results_paths: Iterable[Path],
    *,
    width: int | None = None,
    overlap_path: Path | None = None,
) -> "list[Table]":
    """Returns tables of accuracy (percent) over prompts, and of the metrics of mode `eval`.

    Chance is computed from the per-example scores, if there are any; there are no intervals.

    Args:
      results_paths: result files or folders of them.
      width: the terminal's columns; by default those of this process's terminal. From 50 columns
        no number is broken; below 72 headings are broken and names folded.
      overlap_path: what `t0 overlap` wrote, for a table of the accuracy on clean examples.

    Raises:
      UserError: if a file is missing or malformed.
    """
    runs = read_runs(results_paths)
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
