"""Builds the tables of evaluated runs: datasets, prompts, normalizations, clean examples, metrics.

    summary = summarise(read_named_runs(["eval"])[0])
    tables = evaluation_tables(summary)
    tables["datasets"].records()[0]["mean"]
    print(tables["prompts"].csv())

Accuracies are in percent. The accuracy of a dataset is the mean over its prompts. In CSV and JSON,
"run" is the label of a checkpoint.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from t0.reports import class_metrics
from t0.reports.evaluation_plots import axis_label
from t0.reports.example_browser import cut_in_middle, diagnosis_record
from t0.reports.held_out import MODELS, held_out_titles, published_mean, title_of
from t0.reports.statistics import CONFIDENCE
from t0.reports.summary import CATEGORY, NORMALIZATIONS, PART, WHOLE, Summary, group_values
from t0.reports.tables import (
    MARK,
    ReportColumn,
    ReportTable,
    Row,
    count,
    interval,
    number,
    p_value,
    signed,
    span,
)

_PERCENT = round(100 * CONFIDENCE)
_MOST_TERMINAL_ROWS = 40
_RUN = ReportColumn("label", "Run", "run", css="t short", kind="run")
# Name of a column in CSV and JSON -> its key in the rows of prompts.
_PROMPT_FIELDS = {
    "run": "label",
    **{key: key for key in ("step", "group", "dataset", "prompt", "task")},
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
    **{f"{name}_percent": name for name in class_metrics.MEANS},
    "calibration_error_percent": "calibration_error",
    "calibration_low_percent": "calibration_low",
    "calibration_high_percent": "calibration_high",
    **{key: key for key in ("examples", "ties", "truncated_inputs", "truncated_targets")},
    **{key: key for key in ("excluded", "excluded_reasons", "results_file")},
}
_METRIC_FIELDS = {
    "run": "label",
    **{key: key for key in ("step", "task", "group", "metric", "value")},
    **{key: key for key in ("interval_low", "interval_high", "examples")},
    **{key: key for key in ("truncated_inputs", "truncated_targets", "signature", "results_file")},
}


def evaluation_tables(summary: Summary) -> dict[str, ReportTable]:
    """Returns name -> table for the non-empty tables of a report, in the order of the page."""
    tables = [
        _make_dataset_table(summary),
        _make_clean_table(summary),
        _make_normalization_table(summary),
        _make_class_mean_table(summary),
        _make_metric_table(summary),
        _make_prompt_table(summary),
        _make_class_table(summary),
    ]
    return {table.name: table for table in tables if table.rows}


def run_column(summary: Summary) -> list[ReportColumn]:
    """Returns a list with the column that names the run; empty if there is only one run."""
    return [_RUN] if len(summary.runs) > 1 else []


def _make_dataset_table(summary: Summary) -> ReportTable:
    rows = [
        {**row, **{model: published_mean([row["dataset"]], model) for model in MODELS}}
        for row in summary.datasets
    ]
    references = any(row["dataset"] in held_out_titles() for row in rows)
    columns = (
        ReportColumn("dataset", "", "dataset", css="t"),
        ReportColumn("title", "Dataset", css="t head", kind="name", detail=_format_dataset_name),
        *run_column(summary),
        ReportColumn("group", "Group", css="t short"),
        ReportColumn("prompts", "Prompts", "prompts"),
        ReportColumn("most_examples", "Examples", "examples", text=_format_examples),
        ReportColumn("mean", "Mean", "mean", detail=interval),
        ReportColumn("median", "Median", "median", detail=_format_quartiles),
        ReportColumn("high", "Range", "range", text=lambda row: span(row["low"], row["high"], 1)),
        ReportColumn("chance", "Chance", "chance"),
        ReportColumn("majority", "Majority"),
        *(ReportColumn(model, model, model, css="n ref") for model in MODELS if references),
        ReportColumn("ties", "Ties"),
        ReportColumn(
            "truncated_inputs", "Truncated", text=_format_truncated, detail=_format_truncated_parts
        ),
        ReportColumn("excluded", "Excluded", css="n long", detail=_format_excluded_reasons),
    )
    note = (
        "Rank evaluation: the answer choice of the highest log-likelihood is the prediction. "
        "Accuracy (%) over the prompts of each dataset; in small type the quartiles and the "
        f"{_PERCENT} % interval of the mean for other examples and other prompts like these (JSON "
        "also has it for these prompts only). Group: whether T0 held the dataset out or trained on "
        "it. Majority: always giving the most frequent right answer. Ties, truncated and excluded "
        "count examples summed over prompts. Click a heading to sort."
    )
    return ReportTable("datasets", "Accuracy (%) over prompts", columns, rows, note)


def _format_dataset_name(row: Row) -> str:
    return "" if row["title"] == row["dataset"] else row["dataset"]


def _format_examples(row: Row) -> str:
    return span(row["fewest_examples"], row["most_examples"])


def _format_quartiles(row: Row) -> str:
    return span(row["first_quartile"], row["third_quartile"], 1)


def _format_truncated(row: Row) -> str:
    cuts = [row[key] for key in ("truncated_inputs", "truncated_targets") if row[key] is not None]
    return count(sum(cuts) if cuts else None)


def _format_truncated_parts(row: Row) -> str:
    inputs, targets = row["truncated_inputs"] or 0, row["truncated_targets"] or 0
    return f"{inputs:,} in, {targets:,} out" if inputs + targets else ""


def _format_excluded_reasons(row: Row) -> str:
    return ", ".join(f"{value} {reason}" for reason, value in row["excluded_reasons"].items())


def _add_marks(rows: Iterable[Row], summary: Summary) -> list[dict[str, Any]]:
    """Adds to each row the mark of its run and the title of its dataset."""
    runs = summary.runs
    return [{**row, MARK: runs[row["run"]].mark, "title": title_of(row["dataset"])} for row in rows]


_DATASET = ReportColumn("dataset", "Dataset", "dataset", css="t head", kind="name")


def _make_clean_table(summary: Summary) -> ReportTable:
    rows = _add_marks(summary.clean, summary)
    gap_columns = (
        ReportColumn("gap_all", "Difference, all", "diff. all", signed),
        ReportColumn("gap_clean", "Difference, clean", "diff. clean", signed),
        ReportColumn("gap_p_value", "p, clean", "p, clean", p_value),
    )
    columns = (
        _DATASET,
        *run_column(summary),
        ReportColumn("examples", "Examples", "examples"),
        ReportColumn("overlapping", "Overlapping", "overlapping"),
        ReportColumn("all", "All", "all"),
        ReportColumn("clean", "Clean", "clean"),
        ReportColumn(
            "difference",
            "Clean - all",
            "clean - all",
            signed,
            detail=_interval_formatter("difference"),
        ),
        ReportColumn("p_value", "p", "p", p_value),
        *(gap_columns if any(row["gap_all"] is not None for row in rows) else ()),
    )
    note = (
        f"{summary.overlap} Clean: accuracy (%) on the other examples. The test of clean minus all "
        "is paired, because both contain the clean examples."
    )
    title = "Accuracy (%) without overlapping examples"
    return ReportTable("clean_part", title, columns, rows, note)


def _interval_formatter(kind: str) -> Any:
    return lambda row: interval(row, kind)


def _make_normalization_table(summary: Summary) -> ReportTable:
    rows = _add_marks(summary.normalizations, summary)
    headings = {
        key: head for key, head in NORMALIZATIONS.items() if any(r[key] is not None for r in rows)
    }
    columns = (
        _DATASET,
        *run_column(summary),
        *(
            ReportColumn(key, head, head.lower(), detail=_interval_formatter(key))
            for key, head in headings.items()
        ),
    )
    note = (
        "Mean over prompts with its interval. T0’s accuracy uses the plain sum of a choice’s "
        "log-probabilities. Next to it: the sum divided by the choice’s tokens, and by its "
        "characters; and whether the decoded answer is the right choice."
    )
    return ReportTable("ways", "Accuracy (%) by normalization", columns, rows, note)


def _make_prompt_table(summary: Summary) -> ReportTable:
    rows = [{**row, "predictions": diagnosis_record(row["diagnosis"])} for row in summary.prompts]
    columns = (
        ReportColumn("title", "Dataset", css="t"),
        *run_column(summary),
        ReportColumn("prompt", "Prompt", css="t head", kind="prompt", text=_format_prompt_name),
        ReportColumn("accuracy", "Accuracy", css="n strong"),
        ReportColumn("interval_low", "Interval", text=lambda row: interval(row) or "–"),
        ReportColumn("chance", "Chance"),
        ReportColumn("majority", "Majority"),
        ReportColumn(
            "most_predicted", "Most predicted", "", _format_share, detail=_format_most_predicted
        ),
        ReportColumn("examples", "Examples"),
        ReportColumn("ties", "Ties"),
        ReportColumn("truncated_inputs", "Truncated", text=_format_truncated),
        ReportColumn("excluded", "Excluded"),
    )
    note = (
        f"Accuracy (%) of each prompt with its {_PERCENT} % interval. Most predicted: the answer "
        "that the model gives most often, and how often. A prompt’s name opens its confusion "
        "matrix, calibration and examples. Click a heading to sort."
    )
    nested = ("metrics", "predictions")
    return ReportTable(
        name="prompts",
        title="Prompts",
        columns=columns,
        rows=rows,
        note=note,
        file="report.csv",
        fields=_PROMPT_FIELDS | {key: key for key in nested},
        nested=nested,
        long=True,
    )


def _make_class_mean_table(summary: Summary) -> ReportTable:
    keys = ("run", "label", MARK, "step", "dataset", "prompts", *class_metrics.MEANS)
    rows = [
        {key: row[key] for key in keys} for row in summary.datasets if row["macro_f1"] is not None
    ]
    columns = (
        _DATASET,
        *run_column(summary),
        ReportColumn("macro_f1", "Macro F1", "macro F1"),
        ReportColumn("macro_f1_all_classes", "Over all choices", "over all choices"),
        ReportColumn("balanced_accuracy", "Balanced accuracy", "balanced accuracy"),
    )
    note = (
        "Mean over the prompts whose choices are the same in all examples. Macro F1: the mean F1 "
        "of the classes that have examples; next to it, the mean over all choices, in which a "
        "class without examples and predictions counts as 0. Balanced accuracy: the mean recall "
        "of the classes that have examples."
    )
    title = "Macro F1 and balanced accuracy (%)"
    return ReportTable("class_means", title, columns, rows, note)


def _make_class_table(summary: Summary) -> ReportTable:
    keys = ("run", "label", MARK, "step", "dataset", "prompt", "task")
    rows = [
        {key: row[key] for key in keys} | of_class
        for row in summary.prompts
        if row["diagnosis"] and row["diagnosis"].classes
        for of_class in row["diagnosis"].classes.rows
    ]
    columns = [
        ReportColumn("dataset", "Dataset", "dataset", css="t head", kind="name"),
        *run_column(summary),
        ReportColumn("prompt", "Prompt", "prompt", css="t head", text=_format_prompt_name),
        ReportColumn("class", "Class", "class", _cut_class, css="t"),
        ReportColumn("precision", "Precision", "precision"),
        ReportColumn("recall", "Recall", "recall"),
        ReportColumn("f1", "F1", "F1"),
        ReportColumn("support", "Examples", "examples"),
        ReportColumn("predicted", "Predicted", "predicted"),
    ]
    if len(rows) > _MOST_TERMINAL_ROWS:  # only on the page and in files
        columns = [replace(column, short="") for column in columns]
    note = (
        "Precision, recall and F1 (%) of each class of the prompts whose choices are the same in "
        "all examples. Examples: how often the class is right. A dash: the class is never "
        "predicted, or has no examples."
    )
    return ReportTable(
        name="classes",
        title="Metrics per class (%)",
        columns=columns,
        rows=rows,
        note=note,
        file="report_classes.csv",
        long=True,
    )


def _cut_class(text: str) -> str:
    return cut_in_middle(text, 40)


def _format_prompt_name(row: Row) -> str:
    return row["prompt"] or row["task"]


def _format_share(value: float) -> str:
    return f"{value:.0f} %"


def _format_most_predicted(row: Row) -> str:
    return cut_in_middle(row["most_predicted_answer"] or "", 40)


def _make_metric_table(summary: Summary) -> ReportTable:
    rows = [row for row in summary.metrics if row["kind"] == WHOLE or row["value"] is not None]
    columns = (
        ReportColumn("task", "Task", "task", css="t head", kind="name"),
        ReportColumn("metric", "Metric", "metric", axis_label, css="t wide"),
        *run_column(summary),
        ReportColumn(
            "value", "Value", "value", _format_two_digits, detail=interval, css="n strong"
        ),
        ReportColumn("examples", "Examples", "examples"),
        ReportColumn("truncated_inputs", "Inputs cut"),
        ReportColumn("truncated_targets", "Targets cut"),
    )
    note = (
        "The tasks’ metrics of the decoded text; a dash if a metric is undefined. In small type "
        f"the {_PERCENT} % interval over other examples, if the evaluation computed one. Cut: "
        "texts longer than the limits of the evaluation. Click a heading to sort."
    )
    return ReportTable(
        name="metrics",
        title="Metrics of the tasks",
        columns=columns,
        rows=rows,
        note=note,
        file="report_metrics.csv",
        fields=_METRIC_FIELDS,
        long=True,
        shown=lambda row: row["kind"] == WHOLE,
    )


def _format_two_digits(value: float) -> str:
    return number(value, 2)


def group_tables(summary: Summary, task: str) -> dict[str, ReportTable]:
    """Returns tables of a task's metrics by category and by subtask, if the task has any."""
    (results,) = (results for results in summary.decoded if results.task == task)
    tables = {}
    for kind, head in ((CATEGORY, "Category"), (PART, "Task")):
        rows = [
            {"group": group.replace("_", " ") if kind == CATEGORY else group}
            | {"label": summary.runs[run].label, MARK: summary.runs[run].mark}
            | {f"metric {name}": value for name, value in zip(results.metrics, values, strict=True)}
            for group, run, values in group_values(summary.metrics, task, kind)
        ]
        columns = (
            ReportColumn("group", head, css="t head"),
            *run_column(summary),
            *(
                ReportColumn(
                    f"metric {metric}", axis_label(metric), "", _format_two_digits, css="n strong"
                )
                for metric in results.metrics
            ),
        )
        if rows:
            tables[kind] = ReportTable(f"{task}-{kind}", head, columns, rows)
    return tables
