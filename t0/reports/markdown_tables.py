"""The report as a Markdown document, for a README or an issue.

    summary = summarise(read_runs([Path("eval")]))
    markdown(summary)      # a document with the tables of the page

Texts are untrusted: Markdown and HTML in them are escaped. This module writes Markdown tables
itself, because rich and pandas pad cells, and wrap or align them in other ways.
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from t0.reports.cells import (
    WAYS_SENTENCE,
    clean_cells,
    clean_heads,
    count,
    fact,
    interval,
    most_predicted,
    number,
    p_value,
    shortened,
    signed,
    span,
    ways_cells,
    ways_heads,
)
from t0.reports.evaluations import EvaluatedRun
from t0.reports.held_out import HeldOutMean, held_out_mean
from t0.reports.published import MODELS, published
from t0.reports.statistics import CONFIDENCE
from t0.reports.summary import (
    CATEGORY,
    PART,
    WHOLE,
    Comparison,
    DecodedResults,
    Summary,
    group_values,
)

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


def _clean(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    heads, gaps = clean_heads(rows)
    cells = [[row["dataset"], row["label"], *clean_cells(row, gaps=gaps)] for row in rows]
    return markdown_table(["Dataset", "Run", *heads], cells, 2)


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
