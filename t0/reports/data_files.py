"""The report's numbers as files for programs and spreadsheets: CSV and JSON.

    summary = summarise(read_runs([Path("eval")]))
    prompts_csv(summary)   # a row for each prompt and run, every number at full precision
    metrics_csv(summary)   # a row for each value of mode `eval`
    data_json(summary)     # everything that the page shows except the examples, {"schema": 1, ...}

Texts are untrusted: in CSV a text that a spreadsheet would take for a formula begins with an
apostrophe.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd

from t0.errors import printable
from t0.reports.browsed import diagnosis_record
from t0.reports.diagnosis import diagnose
from t0.reports.published import published
from t0.reports.statistics import CONFIDENCE
from t0.reports.summary import SPREAD_COLUMNS, WHOLE, Comparison, Summary

SCHEMA = 1

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
