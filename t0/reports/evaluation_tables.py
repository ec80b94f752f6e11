"""Computes the tables of evaluated runs: by dataset, prompt, normalization, class and metric.

    runs = read_runs([Path("eval")])
    tables = {table.name: table for table in evaluation_tables(runs)}
    tables["datasets"].records()[0]["mean"]
    print(tables["prompts"].csv())
    rows = normalization_rows(runs)
    rows[0]["sum"], rows[0]["characters"], rows[0]["decoded"]      # means over prompts, in percent

Rows are mappings in which unknown values are None. In a row, `run` is the position of a checkpoint
in the report, and `label` is the checkpoint's name. In CSV and JSON, "run" is the label. Datasets
are sorted by group (held-out, training, others) and then by name. Tasks of mode `eval` are in the
order of their files, and runs are in the given order.

T0 ranks the choices by the plain sum of the log-probabilities of their tokens. The report also
shows accuracies under other normalizations:

| column | the prediction is |
|---|---|
| sum | the choice with the highest log-likelihood (as in T0; used for all headline results) |
| tokens | the choice with the highest log-likelihood per token, including EOS |
| characters | the choice with the highest log-likelihood per character |
| decoded | the decoded text, which is right if it is an exact match (`t0.evaluation.rank_metrics`) |

Assumptions: tasks with the same name have the same prompt and dataset in every run. All accuracies
and differences are in percent. The accuracy of a dataset is the mean over its prompts. A dataset
has an accuracy under a normalization only if each of its prompts has such an accuracy.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from t0.errors import printable
from t0.measures.rank_measures import CLASS_MEASURES, MEASURES, measure
from t0.reports import accuracies
from t0.reports.accuracies import bounds
from t0.reports.clean_examples import Overlap, clean_rows
from t0.reports.diagnosis import diagnose
from t0.reports.evaluation_plots import axis_label
from t0.reports.evaluations import (
    DecodedTask,
    EvaluatedRun,
    RankedTask,
    dataset_groups,
    last_of_series,
)
from t0.reports.example_scores import ExampleScores
from t0.reports.examples import cut_in_middle
from t0.reports.published import MODELS, held_out_titles, published_mean, title_of
from t0.reports.statistics import CONFIDENCE
from t0.reports.tables import (
    MARK,
    ReportColumn,
    ReportTable,
    Row,
    interval,
    number,
    p_value,
    prompt_name,
    signed,
    span,
)

# Column of `normalization_rows` -> its heading in tables.
NORMALIZATIONS = {
    "sum": "Sum",
    "tokens": "By tokens",
    "characters": "By characters",
    "decoded": "Decoded",
}
# Matches the name of a group that is a task of Super-NaturalInstructions. All other groups are
# categories, which come first.
_INSTRUCTION_TASK = re.compile(r"task\d+_")
PROMPTS_FILE = "report.csv"
_PERCENT = round(100 * CONFIDENCE)
_MOST_TERMINAL_ROWS = 40
_RUN = ReportColumn("label", "Run", "run", css="t short", kind="run")
_DATASET = ReportColumn("dataset", "Dataset", "dataset", css="t head", kind="name")


def evaluation_tables(
    runs: Sequence[EvaluatedRun], overlap: Overlap | None = None
) -> list[ReportTable]:
    """Returns the non-empty tables of a report, in the order of the page.

    Args:
      runs: the evaluated checkpoints.
      overlap: the overlap with the training data, or None.

    Raises:
      UserError: if the overlap was computed for different rows than the evaluations.
    """
    prompts = prompt_rows(runs)
    datasets = dataset_rows(runs, prompts)
    tables = [
        _make_dataset_table(datasets),
        _make_clean_table(runs, overlap),
        _make_normalization_table(runs),
        _make_class_mean_table(datasets),
        _make_rank_metric_table(prompts),
        _make_metric_table(metric_rows(runs)),
        _make_prompt_table(prompts),
        _make_class_table(prompts),
    ]
    return [_hide_run(table, runs) for table in tables if table.rows]


def _hide_run(table: ReportTable, runs: Sequence[EvaluatedRun]) -> ReportTable:
    """Removes the column of the run if there is only one run."""
    columns = [column for column in table.columns if column != _RUN or len(runs) > 1]
    return dataclasses.replace(table, columns=columns)


# Datasets, prompts and classes.


def prompt_rows(runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Returns a row for each prompt and run."""
    return [
        {"run": position, "label": run.label, MARK: run.mark, "step": run.step, "group": group}
        | _make_prompt_row(task)
        | {"results_file": printable(str(run.path))}
        for dataset, group in dataset_groups(runs).items()
        for position, run in enumerate(runs)
        for task in run.tasks
        if task.dataset == dataset
    ]


def _make_prompt_row(task: RankedTask) -> dict[str, Any]:
    scores = task.scores or None
    accuracy = _mean_accuracy([scores])
    diagnosis = diagnose(scores)
    low, high = diagnosis["calibration_interval"] if diagnosis else (None, None)
    return {
        "dataset": task.dataset,
        "prompt": task.prompt,
        "task": task.name,
        "accuracy_percent": task.accuracy,
        **{f"{key}_percent": value for key, value in bounds(accuracy).items()},
        "chance_percent": task.chance,
        **(scores.measures if scores else measure(None)),
        "calibration_low_percent": low,
        "calibration_high_percent": high,
        "examples": task.examples,
        "ties": int(scores.tied.sum()) if scores else None,
        "truncated_inputs": task.truncated_inputs,
        "truncated_targets": task.truncated_targets,
        "excluded": sum(task.excluded.values()),
        "excluded_reasons": dict(task.excluded),
        "metrics": dict(task.metrics),
        "predictions": diagnosis,
    }


def dataset_rows(runs: Sequence[EvaluatedRun], prompts: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns a row for each dataset and run.

    It has statistics of the accuracies over prompts, counts summed over prompts and, if every
    prompt has per-example scores, the interval of the mean accuracy.
    """
    rows_of: dict[tuple[str, int], list[Row]] = {}
    for row in prompts:
        rows_of.setdefault((row["dataset"], row["run"]), []).append(row)
    return [
        {key: rows[0][key] for key in ("run", "label", MARK, "step", "dataset")}
        | {"title": title_of(dataset), "group": rows[0]["group"]}
        | _make_dataset_row([task for task in runs[run].tasks if task.dataset == dataset], rows)
        for (dataset, run), rows in rows_of.items()
    ]


def _make_dataset_row(tasks: Sequence[RankedTask], rows: Sequence[Row]) -> dict[str, Any]:
    def known(key: str) -> list[Any]:
        return [row[key] for row in rows if row[key] is not None]

    def mean(key: str) -> float | None:
        values = known(f"{key}_percent")
        return sum(values) / len(values) if values else None

    means = ("chance", *(m.name for m in MEASURES if m.averaged))
    totals = ("ties", "truncated_inputs", "truncated_targets")
    reasons = sum((Counter(task.excluded) for task in tasks), Counter())
    dataset = tasks[0].dataset
    return {
        "prompts": len(tasks),
        "fewest_examples": min(task.examples for task in tasks),
        "most_examples": max(task.examples for task in tasks),
        **accuracies.summarize_spread([task.accuracy for task in tasks]),
        **bounds(_mean_accuracy([task.scores for task in tasks]), fixed=True),
        **{name: mean(name) for name in means},
        **{name: sum(known(name)) if known(name) else None for name in totals},
        "excluded": reasons.total(),
        "excluded_reasons": dict(sorted(reasons.items())),
        **{model: published_mean([dataset], model) for model in MODELS},
    }


def _mean_accuracy(scores: Sequence[ExampleScores | None]) -> dict[str, float] | None:
    """Returns the mean accuracy over prompts; None if a prompt has no scores."""
    return accuracies.accuracy([accuracies.shared_grid([scores])], 0) if all(scores) else None


def _make_dataset_table(rows: Sequence[Row]) -> ReportTable:
    references = any(row["dataset"] in held_out_titles() for row in rows)
    has_intervals = any(row["interval_low"] is not None for row in rows)
    interval_column = ReportColumn("interval_low", "", f"{_PERCENT}% interval", text=interval)
    columns = (
        ReportColumn("dataset", "", "dataset", css="t"),
        ReportColumn("title", "Dataset", css="t head", kind="name", detail=_format_dataset_name),
        _RUN,
        ReportColumn("group", "Group", css="t short"),
        ReportColumn("prompts", "Prompts", "prompts"),
        ReportColumn("most_examples", "Examples", "examples", text=_format_examples),
        ReportColumn("mean", "Mean", "mean", detail=interval),
        *([interval_column] if has_intervals else []),
        ReportColumn("median", "Median", "median", detail=_format_quartiles),
        ReportColumn("high", "Range", "range", text=lambda row: span(row["low"], row["high"], 1)),
        ReportColumn("chance", "Chance", "chance"),
        ReportColumn("majority", "Majority"),
        *(ReportColumn(model, model, model, css="n ref") for model in MODELS if references),
        ReportColumn("ties", "Ties"),
        ReportColumn("truncated_inputs", "Inputs cut"),
        ReportColumn("truncated_targets", "Targets cut"),
        ReportColumn("excluded", "Excluded", css="n long", detail=_format_excluded_reasons),
    )
    note = (
        "Rank evaluation: the answer choice of the highest log-likelihood is the prediction. "
        "Accuracy (%) over the prompts of each dataset; in small type the quartiles and the "
        f"{_PERCENT} % interval of the mean for other examples and other prompts like these (JSON "
        "also has it for these prompts only). Group: whether T0 held the dataset out or trained on "
        "it. Majority: always giving the most frequent right answer. Ties, cut texts and excluded "
        "examples are summed over prompts. Click a heading to sort."
    )
    return ReportTable(
        "datasets",
        "Accuracy (%) over prompts",
        columns,
        rows,
        note,
        file="report_datasets.csv",
        nested=("excluded_reasons",),
    )


def _format_dataset_name(row: Row) -> str:
    return "" if row["title"] == row["dataset"] else row["dataset"]


def _format_examples(row: Row) -> str:
    return span(row["fewest_examples"], row["most_examples"])


def _format_quartiles(row: Row) -> str:
    return span(row["first_quartile"], row["third_quartile"], 1)


def _format_excluded_reasons(row: Row) -> str:
    return ", ".join(f"{value} {reason}" for reason, value in row["excluded_reasons"].items())


# Clean examples and normalizations.


def _name_rows(rows: Iterable[Row], runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Adds to each row the mark of its run and the title of its dataset."""
    return [{**row, MARK: runs[row["run"]].mark, "title": title_of(row["dataset"])} for row in rows]


def _make_clean_table(runs: Sequence[EvaluatedRun], overlap: Overlap | None) -> ReportTable:
    rows = _name_rows(clean_rows(runs, overlap) if overlap else [], runs)
    gap_columns = (
        ReportColumn("gap_all", "Difference, all", "diff. all", signed),
        ReportColumn("gap_clean", "Difference, clean", "diff. clean", signed),
        ReportColumn("gap_p_value", "p, clean", "p, clean", p_value),
    )
    gap_interval = partial(interval, kind="difference")
    columns = (
        _DATASET,
        _RUN,
        ReportColumn("examples", "Examples", "examples"),
        ReportColumn("overlapping", "Overlapping", "overlapping"),
        ReportColumn("all", "All", "all"),
        ReportColumn("clean", "Clean", "clean"),
        ReportColumn("difference", "Clean - all", "clean - all", signed, detail=gap_interval),
        ReportColumn("p_value", "p", "p", p_value),
        *(gap_columns if any(row["gap_all"] is not None for row in rows) else ()),
    )
    note = (
        f"{printable(overlap.sentence) if overlap else ''} Clean: accuracy (%) on the other "
        "examples. The test of clean minus all is paired, because both contain the clean examples."
    )
    title = "Accuracy (%) without overlapping examples"
    return ReportTable("clean_part", title, columns, rows, note)


def normalization_rows(runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Returns the accuracies under each normalization.

    Returns:
      a row for each dataset and run, if all prompts of the dataset have scores. The rows have these
      keys:
        `dataset`, `run` (the run's position), `label`, `prompts`;
        `<name>`, for each name in `NORMALIZATIONS`: the mean accuracy over prompts in percent;
        `<name>_low`, `<name>_high`: the ends of its interval.
      The last three values are None if a prompt has no accuracy under the normalization.
    """
    rows = []
    for dataset in dict.fromkeys(task.dataset for run in runs for task in run.tasks):
        for position, run in enumerate(runs):
            scores = [task.scores for task in run.tasks if task.dataset == dataset]
            if not scores or not all(scores):
                continue
            row = {"dataset": dataset, "run": position, "label": run.label, "prompts": len(scores)}
            for name in NORMALIZATIONS:
                accuracy = _normalized_accuracy(scores, name)
                columns = {name: "mean", f"{name}_low": "low", f"{name}_high": "high"}
                row |= {column: accuracy and accuracy[key] for column, key in columns.items()}
            rows.append(row)
    return rows


def _normalized_accuracy(scores: Sequence[ExampleScores], name: str) -> dict[str, float] | None:
    if name == "sum":
        return _mean_accuracy(scores)
    if any(name not in prompt_scores.right_by for prompt_scores in scores):
        return None
    return _mean_accuracy([dataclasses.replace(s, correct=s.right_by[name]) for s in scores])


def _make_normalization_table(runs: Sequence[EvaluatedRun]) -> ReportTable:
    rows = _name_rows(normalization_rows(runs), runs)
    headings = {
        key: head for key, head in NORMALIZATIONS.items() if any(r[key] is not None for r in rows)
    }
    columns = (
        _DATASET,
        _RUN,
        *(
            ReportColumn(key, head, head.lower(), detail=partial(interval, kind=key))
            for key, head in headings.items()
        ),
    )
    note = (
        "Mean over prompts with its interval. T0’s accuracy uses the plain sum of a choice’s "
        "log-probabilities. Next to it: the sum divided by the choice’s tokens, and by its "
        "characters; and whether the decoded answer is the right choice."
    )
    return ReportTable("ways", "Accuracy (%) by normalization", columns, rows, note)


# Prompts and classes.


def _make_prompt_table(rows: Sequence[Row]) -> ReportTable:
    columns = (
        ReportColumn("dataset", "Dataset", css="t", text=lambda row: title_of(row["dataset"])),
        _RUN,
        ReportColumn("prompt", "Prompt", css="t head", kind="prompt", text=prompt_name),
        ReportColumn("accuracy_percent", "Accuracy", css="n strong"),
        ReportColumn("interval_low_percent", "Interval", text=_format_prompt_interval),
        ReportColumn("chance_percent", "Chance"),
        ReportColumn("majority_percent", "Majority"),
        ReportColumn(
            "most_predicted_percent",
            "Most predicted",
            "",
            lambda value: f"{value:.0f} %",
            detail=lambda row: cut_in_middle(row["most_predicted_answer"] or "", 40),
        ),
        ReportColumn("examples", "Examples"),
        ReportColumn("ties", "Ties"),
        ReportColumn("truncated_inputs", "Inputs cut"),
        ReportColumn("truncated_targets", "Targets cut"),
        ReportColumn("excluded", "Excluded"),
    )
    note = (
        f"Accuracy (%) of each prompt with its {_PERCENT} % interval. Most predicted: the answer "
        "that the model gives most often, and how often. A prompt’s name opens its confusion "
        "matrix, calibration and examples. Click a heading to sort."
    )
    return ReportTable(
        name="prompts",
        title="Prompts",
        columns=columns,
        rows=rows,
        note=note,
        file=PROMPTS_FILE,
        nested=("metrics", "predictions"),
        long=True,
    )


def _format_prompt_interval(row: Row) -> str:
    return interval(row, suffix="_percent") or "–"


def _make_class_mean_table(datasets: Sequence[Row]) -> ReportTable:
    names = [m.name for m in CLASS_MEASURES]
    keys = ("run", "label", MARK, "step", "dataset", "prompts", *names)
    rows = [{key: row[key] for key in keys} for row in datasets if row[names[0]] is not None]
    columns = (_DATASET, _RUN, *(ReportColumn(m.name, m.heading, m.short) for m in CLASS_MEASURES))
    meanings = " ".join(filter(None, (m.meaning for m in CLASS_MEASURES)))
    note = f"Mean over the prompts whose choices are the same in all examples. {meanings}"
    title = "Macro F1 and balanced accuracy (%)"
    return ReportTable("class_means", title, columns, rows, note)


def _make_class_table(prompts: Sequence[Row]) -> ReportTable:
    rows = _expand(prompts, lambda row: (row["predictions"] or {}).get("classes") or ())
    columns = [
        _DATASET,
        _RUN,
        ReportColumn("prompt", "Prompt", "prompt", css="t head", text=prompt_name),
        ReportColumn("class", "Class", "class", lambda text: cut_in_middle(text, 40), css="t"),
        ReportColumn("precision", "Precision", "precision"),
        ReportColumn("recall", "Recall", "recall"),
        ReportColumn("f1", "F1", "F1"),
        ReportColumn("support", "Examples", "examples"),
        ReportColumn("predicted", "Predicted", "predicted"),
    ]
    note = (
        "Precision, recall and F1 (%) of each class of the prompts whose choices are the same in "
        "all examples. Examples: how often the class is right. A dash: the class is never "
        "predicted, or has no examples."
    )
    return ReportTable(
        name="classes",
        title="Metrics per class (%)",
        columns=_hide_many(columns, rows),
        rows=rows,
        note=note,
        file="report_classes.csv",
        long=True,
    )


def _make_rank_metric_table(prompts: Sequence[Row]) -> ReportTable:
    """Returns the table of the metrics in results files, which can be a user's own."""
    rows = _expand(prompts, _list_other_metrics)
    columns = [
        _DATASET,
        _RUN,
        ReportColumn("prompt", "Prompt", "prompt", css="t head", text=prompt_name),
        ReportColumn("metric", "Metric", "metric", axis_label, css="t wide"),
        ReportColumn("value", "Value", "value", _format_two_digits, css="n strong"),
    ]
    return ReportTable(
        name="rank_metrics",
        title="Metrics of the ranked tasks",
        columns=_hide_many(columns, rows),
        rows=rows,
        note="The other metrics of the tasks (`metric_fns`), as the evaluation computed them.",
        file="report_rank_metrics.csv",
        long=True,
    )


def _list_other_metrics(row: Row) -> list[Row]:
    values = row["metrics"].items()
    return [{"metric": name, "value": value} for name, value in values if name != "accuracy"]


def _expand(prompts: Sequence[Row], details: Callable[[Row], Iterable[Row]]) -> list[Row]:
    """Returns a row for each detail of each prompt, which also names the prompt."""
    keys = ("run", "label", MARK, "step", "dataset", "prompt", "task")
    return [{key: row[key] for key in keys} | detail for row in prompts for detail in details(row)]


def _hide_many(columns: Sequence[ReportColumn], rows: Sequence[Row]) -> Sequence[ReportColumn]:
    """Hides the columns in the terminal if there are many rows."""
    if len(rows) <= _MOST_TERMINAL_ROWS:
        return columns
    return [dataclasses.replace(column, short="") for column in columns]


# Metrics of mode `eval`.


def metric_rows(runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Returns a row for each value of mode `eval`; an undefined value is None.

    If the value is for a category or a subtask of its task, `group` is the name of this part.
    """
    by_task = _group_by_task(runs).values()
    return [
        row for tasks in by_task for row in (*_whole_rows(runs, tasks), *_group_rows(runs, tasks))
    ]


def _whole_rows(
    runs: Sequence[EvaluatedRun], tasks: Mapping[int, DecodedTask]
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a task's metrics for all of its examples."""
    for metric in _list_metrics(tasks):
        for run, task in tasks.items():
            if metric in task.metrics:
                yield _make_value_row(runs, run, task, metric)


def _group_rows(
    runs: Sequence[EvaluatedRun], tasks: Mapping[int, DecodedTask]
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a task's metrics by category and by subtask."""
    groups = {group for task in tasks.values() for group in task.groups}
    for group in sorted(groups, key=lambda name: (bool(_INSTRUCTION_TASK.match(name)), name)):
        for run, task in tasks.items():
            if group in task.groups:
                for metric in _list_metrics(tasks):
                    yield _make_value_row(runs, run, task, metric, group)


def _make_value_row(
    runs: Sequence[EvaluatedRun], position: int, task: DecodedTask, metric: str, group: str = ""
) -> dict[str, Any]:
    run = runs[position]
    values = task.groups[group] if group else task.metrics
    low, high = (None, None) if group else task.intervals.get(metric, (None, None))
    # Counts and signatures belong to the whole task.
    return {
        "run": position,
        "label": run.label,
        MARK: run.mark,
        "step": run.step,
        "task": task.name,
        "group": group,
        "metric": metric,
        "value": values.get(metric),
        "interval_low": low,
        "interval_high": high,
        "examples": None if group else task.examples,
        "truncated_inputs": None if group else task.truncated_inputs,
        "truncated_targets": None if group else task.truncated_targets,
        "signature": None if group else task.signatures.get(metric),
        "results_file": printable(str(task.results_file)),
    }


def _make_metric_table(values: Sequence[Row]) -> ReportTable:
    rows = [row for row in values if not row["group"] or row["value"] is not None]
    columns = (
        ReportColumn("task", "Task", "task", css="t head", kind="name"),
        ReportColumn("metric", "Metric", "metric", axis_label, css="t wide"),
        _RUN,
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
        long=True,
        shown=lambda row: not row["group"],
    )


def _format_two_digits(value: float) -> str:
    return number(value, 2)


def group_table(runs: Sequence[EvaluatedRun], task: str) -> ReportTable:
    """Returns the table of a task's metrics by category and by subtask, if it has any."""
    tasks = _group_by_task(runs).get(task, {})
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for value in _group_rows(runs, tasks):
        row = {"group": value["group"], "label": value["label"], MARK: value[MARK]}
        row = rows.setdefault((value["group"], value["run"]), row)
        row[f"metric {value['metric']}"] = value["value"]
    columns = [ReportColumn("group", "Group", css="t head"), _RUN]
    for metric in _list_metrics(tasks):
        head = axis_label(metric)
        column = ReportColumn(f"metric {metric}", head, "", _format_two_digits, css="n strong")
        columns.append(column)
    return _hide_run(ReportTable(f"{task}-groups", "Groups", columns, [*rows.values()]), runs)


def _group_by_task(runs: Sequence[EvaluatedRun]) -> dict[str, dict[int, DecodedTask]]:
    """Returns task -> position of a run -> the results of this run for the task."""
    by_task: dict[str, dict[int, DecodedTask]] = {}
    for position, run in enumerate(runs):
        for task in run.decoded:
            by_task.setdefault(task.name, {})[position] = task
    return by_task


def _list_metrics(tasks: Mapping[int, DecodedTask]) -> list[str]:
    return list(dict.fromkeys(metric for task in tasks.values() for metric in task.metrics))


def decoded_results(runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Returns a record for each task of mode `eval`.

    Returns:
      records with the keys `task`; `metrics`, the metrics of the whole task, in the order of the
      files; `signatures`, the distinct pairs (metric, signature) of all runs; and `files`: for each
      series, the file with the predictions of its last checkpoint.
    """
    last = last_of_series(runs, [i for i, run in enumerate(runs) if run.decoded])
    results = []
    for name, tasks in _group_by_task(runs).items():
        pairs = [pair for t in tasks.values() if t.metrics for pair in t.signatures.items()]
        files = [tasks[run].predictions_file for run in last if run in tasks]
        results.append(
            {
                "task": name,
                "metrics": _list_metrics(tasks),
                "signatures": list(dict.fromkeys(pairs)),
                "files": [printable(str(file)) for file in files if file],
            }
        )
    return results
