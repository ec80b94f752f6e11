"""What mode `eval` found, as Markdown and as records for JSON.

    generation_parts(content)       lines of Markdown: the metrics, their groups, a few predictions
    generation_records(content)     a record for each task, with every value

Assumptions: texts are untrusted, so in Markdown they are escaped.
"""

from typing import Any

from t0.reports.generation import Generation, GroupRow, MetricRow
from t0.reports.markdown import plain, table
from t0.reports.page import Content, number, shortened

_HEADS = ("Task", "Metric", "Run", "Value", "Examples", "Inputs cut", "Targets cut")


def generation_parts(content: Content) -> list[str]:
    """Returns lines of Markdown, none where no run was evaluated in mode `eval`."""
    if not content.generations:
        return []
    rows = [_cells(found, row, content) for found in content.generations for row in found.rows]
    parts = ["## Generation", "", *table(_HEADS, rows, 3), ""]
    for found in content.generations:
        parts += _signatures(found)
        for heading, groups in (("by category", found.categories), ("by task", found.parts)):
            if groups:
                parts += [f"### {plain(found.task)} {heading}", ""]
                parts += [*_groups_table(found, groups, content), ""]
    return parts + [line for found in content.generations for line in _predictions(found, content)]


def _cells(found: Generation, row: MetricRow, content: Content) -> list[object]:
    task = row.task
    cuts = (task.truncated_inputs, task.truncated_targets)
    return [
        found.task,
        row.measure,
        content.runs[row.run].label,
        number(row.value, 2),
        f"{task.examples:,}",
        *("–" if cut is None else f"{cut:,}" for cut in cuts),
    ]


def _signatures(found: Generation) -> list[str]:
    lines = dict.fromkeys(
        f"{plain(found.task)}: {plain(measure)} is sacreBLEU’s {plain(text)}"
        for row in found.rows
        for measure, text in row.task.signatures.items()
    )
    return [part for line in lines for part in (line, "")]


def _groups_table(found: Generation, groups: tuple[GroupRow, ...], content: Content) -> list[str]:
    rows = [
        [row.group, content.runs[row.run].label, *(number(value, 2) for value in row.values)]
        for row in groups
    ]
    return table(["Group", "Run", *(plain(m) for m in found.measures)], rows, 2)


def _predictions(found: Generation, content: Content) -> list[str]:
    if not found.cards:
        return []
    rows = []
    for card in found.cards:
        inputs = f"{card.heading}: {card.inputs}" if card.heading else card.inputs
        for run, text in card.answers:
            wanted = " / ".join(card.targets) or "–"
            cells = (inputs, content.runs[run].label, text, wanted)
            rows.append([shortened(cell, 300) for cell in cells])
    heads = ["Input", "Run", "Prediction", "Wanted"]
    files = [f"All: {', '.join(plain(file) for file in found.files)}", ""] if found.files else []
    return [f"### Predictions of {plain(found.task)}", "", *table(heads, rows, 4), "", *files]


def generation_records(content: Content) -> list[dict[str, Any]]:
    """Returns a record for each task and run; an undefined value is None."""
    return [
        {
            "task": found.task,
            "run": content.runs[run].label,
            "examples": task.examples,
            "metrics": dict(task.metrics),
            "groups": {group: dict(values) for group, values in task.groups.items()},
            "signatures": dict(task.signatures),
            "truncated_inputs": task.truncated_inputs,
            "truncated_targets": task.truncated_targets,
            "predictions": str(task.predictions_file) if task.predictions_file else None,
        }
        for found in content.generations
        for run, task in {row.run: row.task for row in found.rows}.items()
    ]
