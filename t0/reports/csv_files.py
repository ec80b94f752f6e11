"""The report's tables as CSV, every number at full precision, unknown values empty.

prompts_csv(content)    one row for each prompt and run of rank evaluation
metrics_csv(content)    one row for each value that mode `eval` found
"""

import csv
import io
from collections.abc import Iterable, Sequence

from t0.reports.page import Content

PROMPT_COLUMNS = (
    "run",
    "step",
    "group",
    "dataset",
    "prompt",
    "task",
    "accuracy_percent",
    "interval_low_percent",
    "interval_high_percent",
    "chance_percent",
    "examples",
    "ties",
    "truncated_inputs",
    "truncated_targets",
    "excluded",
    "excluded_reasons",
    "results_file",
)
METRIC_COLUMNS = (
    "run",
    "step",
    "task",
    "group",
    "metric",
    "value",
    "examples",
    "truncated_inputs",
    "truncated_targets",
    "signature",
    "results_file",
)


def prompts_csv(content: Content) -> str:
    """Returns one row for each prompt and run."""
    rows = []
    for row in content.rows:
        run = content.runs[row.run]
        for prompt in row.prompts:
            task = prompt.task
            reasons = "; ".join(f"{reason}: {count}" for reason, count in task.excluded.items())
            rows.append(
                [
                    run.label,
                    run.step,
                    row.group,
                    row.dataset,
                    task.prompt,
                    task.name,
                    task.accuracy,
                    prompt.interval.low if prompt.interval else None,
                    prompt.interval.high if prompt.interval else None,
                    task.chance,
                    task.examples,
                    prompt.ties,
                    task.truncated_inputs,
                    task.truncated_targets,
                    sum(task.excluded.values()),
                    reasons,
                    str(run.path),
                ]
            )
    return _written(PROMPT_COLUMNS, rows)


def metrics_csv(content: Content) -> str:
    """Returns one row for each value; `group` is empty where it is of the whole task."""
    rows = []
    for found in content.generations:
        for row in found.rows:
            run, task = content.runs[row.run], row.task
            counts = [task.examples, task.truncated_inputs, task.truncated_targets]
            signature = task.signatures.get(row.measure)
            file = str(run.decoded_path or run.path)
            rows.append(
                [run.label, run.step, found.task, "", row.measure, row.value]
                + [*counts, signature, file]
            )
        for group in (*found.categories, *found.parts):
            run = content.runs[group.run]
            file = str(run.decoded_path or run.path)
            for measure, value in zip(found.measures, group.values, strict=True):
                if value is not None:
                    start = [run.label, run.step, found.task, group.group, measure, value]
                    rows.append([*start, None, None, None, None, file])
    return _written(METRIC_COLUMNS, rows)


def _written(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    return buffer.getvalue()
