"""The report as Markdown and JSON.

    markdown(content)    a document with the tables of the page, for a README or an issue
    data_json(content)   everything that the page shows but the examples, `{"schema": 1, ...}`

Assumptions: texts are untrusted, so in Markdown they are escaped, HTML in them included.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from t0.reports.generation_text import generation_parts, generation_records
from t0.reports.markdown import plain, table
from t0.reports.page import Content, all_notes, fact, interval, number, p_value, signed
from t0.reports.published import MODELS
from t0.reports.statistics import CONFIDENCE, RESAMPLES, SEED, Interval
from t0.reports.summary import DatasetRow, PromptRow

SCHEMA = 1


def markdown(content: Content, plots: Sequence[tuple[str, str]] = ()) -> str:
    """Returns the report as Markdown.

    Args:
        content: what to say.
        plots: (heading, path relative to the Markdown file) of each picture to show.
    """
    parts = [f"# {plain(content.title)}", ""]
    parts += [f"> {plain(note)}  " for note in all_notes(content)] + [""]
    if content.runs:
        parts += ["## Runs", "", *_runs_table(content), ""]
    if content.rows:
        parts += [
            "## Datasets",
            "",
            f"Accuracy in percent over prompts; the interval ({CONFIDENCE:.0%}, {RESAMPLES:,} "
            "bootstrap resamples of examples) is of the mean.",
            "",
            *_datasets_table(content),
            "",
        ]
    for heading, path in plots:
        parts += [f"## {plain(heading)}", "", f"![{plain(heading)}]({path})", ""]
    for comparison in content.comparisons:
        first, second = content.runs[comparison.first], content.runs[comparison.second]
        parts += [f"## {plain(second.label)} minus {plain(first.label)}", ""]
        parts += [*_comparison_table(comparison.datasets), ""]
    if content.rows:
        parts += ["## Prompts", "", *_prompts_table(content), ""]
    parts += generation_parts(content)
    return "\n".join(parts)


def _runs_table(content: Content) -> list[str]:
    keys = list(dict.fromkeys(key for run in content.runs for key in run.facts))
    rows = [[key, *(fact(run.facts.get(key)) for run in content.runs)] for key in keys]
    return table(["", *(plain(run.label) for run in content.runs)], rows, 1 + len(content.runs))


def _datasets_table(content: Content) -> list[str]:
    heads = ["Dataset", "Group", "Run", "Prompts", "Examples", "Mean", "Interval", "Median"]
    heads += ["Quartiles", "Range", "Chance", *MODELS, "Ties", "Truncated", "Excluded"]
    return table(heads, [_dataset_cells(row, content) for row in content.rows], 3)


def _dataset_cells(row: DatasetRow, content: Content) -> list[object]:
    s = row.spread
    values = row.published.values if row.published else {}
    low, high = row.examples
    cut = [count for count in (row.truncated_inputs, row.truncated_targets) if count is not None]
    return [
        row.dataset,
        row.group,
        content.runs[row.run].label,
        len(row.prompts),
        f"{low:,}" if low == high else f"{low:,}–{high:,}",
        number(s.mean),
        interval(row.interval) or "–",
        number(s.median),
        f"{s.first_quartile:.1f}–{s.third_quartile:.1f}",
        f"{s.low:.1f}–{s.high:.1f}",
        number(row.chance),
        *(number(values.get(model)) for model in MODELS),
        "–" if row.ties is None else row.ties,
        sum(cut) if cut else "–",
        sum(row.excluded.values()),
    ]


def _comparison_table(datasets: Sequence[Any]) -> list[str]:
    heads = ["Dataset", "Prompt", "Examples", "Difference", "Interval", "McNemar p"]
    rows = []
    for row in datasets:
        gap = row.difference
        rows.append(
            [
                row.dataset,
                "mean over prompts",
                gap.examples,
                signed(gap.difference),
                interval(gap.interval),
                "–",
            ]
        )
        for prompt in row.prompts:
            gap = prompt.difference
            rows.append(
                [
                    row.dataset,
                    prompt.task.prompt,
                    gap.examples,
                    signed(gap.difference),
                    interval(gap.interval),
                    p_value(prompt.test.p_value),
                ]
            )
    return table(heads, rows, 2)


def _prompts_table(content: Content) -> list[str]:
    heads = ["Dataset", "Run", "Prompt", "Accuracy", "Interval", "Chance", "Examples", "Ties"]
    rows = [
        [
            row.dataset,
            content.runs[row.run].label,
            prompt.task.prompt,
            number(prompt.task.accuracy),
            interval(prompt.interval) or "–",
            number(prompt.task.chance),
            prompt.task.examples,
            "–" if prompt.ties is None else prompt.ties,
        ]
        for row in content.rows
        for prompt in row.prompts
    ]
    return table(heads, rows, 3)


def data_json(content: Content) -> str:
    """Returns the numbers of the report; accuracies and differences in percent."""
    data = {
        "schema": SCHEMA,
        "title": content.title,
        "notes": all_notes(content),
        "bootstrap": {"resamples": RESAMPLES, "confidence": CONFIDENCE, "seed": SEED},
        "runs": [
            {
                "label": r.label,
                "step": r.step,
                "results": str(r.path),
                "decoded": str(r.decoded_path) if r.decoded_path else None,
                "run": dict(r.facts),
            }
            for r in content.runs
        ],
        "datasets": [_dataset_record(row, content) for row in content.rows],
        "comparisons": [
            {
                "first": content.runs[comparison.first].label,
                "second": content.runs[comparison.second].label,
                "datasets": [_comparison_record(row) for row in comparison.datasets],
            }
            for comparison in content.comparisons
        ],
        "generation": generation_records(content),
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _dataset_record(row: DatasetRow, content: Content) -> dict[str, Any]:
    return {
        "dataset": row.dataset,
        "group": row.group,
        "run": content.runs[row.run].label,
        "accuracy": asdict(row.spread),
        "interval_of_mean": _interval_record(row.interval),
        "chance": row.chance,
        "examples": list(row.examples),
        "ties": row.ties,
        "truncated_inputs": row.truncated_inputs,
        "truncated_targets": row.truncated_targets,
        "excluded": dict(row.excluded),
        "published": dict(row.published.values) if row.published else {},
        "prompts": [_prompt_record(prompt) for prompt in row.prompts],
    }


def _prompt_record(prompt: PromptRow) -> dict[str, Any]:
    task = prompt.task
    return {
        "prompt": task.prompt,
        "task": task.name,
        "accuracy": task.accuracy,
        "interval": _interval_record(prompt.interval),
        "chance": task.chance,
        "examples": task.examples,
        "ties": prompt.ties,
        "truncated_inputs": task.truncated_inputs,
        "truncated_targets": task.truncated_targets,
        "excluded": dict(task.excluded),
        "metrics": dict(task.metrics),
    }


def _comparison_record(row: Any) -> dict[str, Any]:
    return {
        "dataset": row.dataset,
        **asdict(row.difference),
        "clearly_better_prompts": row.better,
        "clearly_worse_prompts": row.worse,
        "prompts": [
            {"prompt": p.task.prompt, "task": p.task.name, **asdict(p.difference), **asdict(p.test)}
            for p in row.prompts
        ],
    }


def _interval_record(value: Interval | None) -> list[float] | None:
    return None if value is None else [value.low, value.high]
