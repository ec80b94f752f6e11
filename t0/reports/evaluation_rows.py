"""Computes the rows of evaluated runs: by dataset, prompt, normalization, class and metric.

    runs = read_runs([Path("eval")])
    evaluation_rows(runs)["datasets"][0]["mean"]
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from t0.errors import printable
from t0.measures.choice_lengths import LENGTHS
from t0.measures.rank_measures import CLASS_MEASURES, MEASURES, measure
from t0.reports import accuracies
from t0.reports.accuracies import name_columns
from t0.reports.clean_examples import Overlap, clean_rows
from t0.reports.diagnosis import diagnose
from t0.reports.evaluations import (
    DecodedTask,
    EvaluatedRun,
    RankedTask,
    dataset_groups,
    last_of_series,
    tasks_by_dataset,
)
from t0.reports.example_scores import ExampleScores
from t0.reports.published import MODELS, published_mean, title_of
from t0.reports.tables import MARK, Row, group_by

# The columns of `normalization_rows`.
NORMALIZATIONS = ("sum", *LENGTHS, "decoded")
# Column of a dataset's row -> the key of `accuracies.accuracy`.
_INTERVALS = {"interval_low": "low", "interval_high": "high"}
_INTERVALS |= {key: key for key in ("fixed_low", "fixed_high")}
# Matches the name of a group that is a task of Super-NaturalInstructions. All other groups are
# categories, which come first.
_INSTRUCTION_TASK = re.compile(r"task\d+_")


def evaluation_rows(
    runs: Sequence[EvaluatedRun], overlap: Overlap | None = None
) -> dict[str, list[Row]]:
    """Returns name of a table -> its rows, for the tables about single runs.

    Args:
      runs: the evaluated checkpoints.
      overlap: the overlap with the training data, or None.

    Raises:
      UserError: if the overlap was computed for different rows than the evaluations.
    """
    prompts = prompt_rows(runs)
    datasets = dataset_rows(runs, prompts)
    metrics = [r for r in metric_rows(runs) if not r["group"] or r["value"] is not None]
    return {
        "datasets": datasets,
        "clean_part": _name_rows(clean_rows(runs, overlap) if overlap else [], runs),
        "ways": _name_rows(normalization_rows(runs), runs),
        "class_means": _class_mean_rows(datasets),
        "rank_metrics": _expand(prompts, _list_other_metrics),
        "metrics": metrics,
        "prompts": prompts,
        "classes": _expand(prompts, lambda row: (row["predictions"] or {}).get("classes") or ()),
    }


# Datasets, prompts and classes.


def prompt_rows(runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Returns a row for each prompt and run."""
    tasks_of = tasks_by_dataset(runs)
    return [
        {"run": position, "label": run.label, MARK: run.mark, "step": run.step, "group": group}
        | _make_prompt_row(task)
        | {"results_file": printable(str(run.path))}
        for dataset, group in dataset_groups(runs).items()
        for position, run in enumerate(runs)
        for task in tasks_of.get((dataset, position), ())
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
        **name_columns(accuracy, interval_low_percent="low", interval_high_percent="high"),
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
    tasks_of = tasks_by_dataset(runs)
    return [
        {key: rows[0][key] for key in ("run", "label", MARK, "step", "dataset")}
        | {"title": title_of(dataset), "group": rows[0]["group"]}
        | _make_dataset_row(tasks_of[dataset, run], rows)
        for (dataset, run), rows in group_by(prompts, "dataset", "run").items()
    ]


def _make_dataset_row(tasks: Sequence[RankedTask], rows: Sequence[Row]) -> dict[str, Any]:
    def list_values(key: str) -> list[Any]:
        return [row[key] for row in rows if row[key] is not None]

    def mean(key: str) -> float | None:
        values = list_values(f"{key}_percent")
        return sum(values) / len(values) if values else None

    means = ("chance", *(m.name for m in MEASURES if m.averaged))
    totals = ("ties", "truncated_inputs", "truncated_targets")
    reasons = sum((Counter(task.excluded) for task in tasks), Counter())
    return {
        "prompts": len(tasks),
        "fewest_examples": min(task.examples for task in tasks),
        "most_examples": max(task.examples for task in tasks),
        **accuracies.summarize_spread([task.accuracy for task in tasks]),
        **name_columns(_mean_accuracy([task.scores for task in tasks]), **_INTERVALS),
        **{name: mean(name) for name in means},
        **{name: sum(values) if (values := list_values(name)) else None for name in totals},
        "excluded": reasons.total(),
        "excluded_reasons": dict(sorted(reasons.items())),
        **{model: published_mean([tasks[0].dataset], model) for model in MODELS},
    }


def _mean_accuracy(scores: Sequence[ExampleScores | None]) -> dict[str, float] | None:
    """Returns the mean accuracy over prompts; None if a prompt has no scores."""
    return accuracies.accuracy([accuracies.shared_grid([scores])], 0) if all(scores) else None


# Clean examples and normalizations.


def _name_rows(rows: Iterable[Row], runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Adds to each row the mark of its run and the title of its dataset."""
    return [{**row, MARK: runs[row["run"]].mark, "title": title_of(row["dataset"])} for row in rows]


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
    for (dataset, position), tasks in tasks_by_dataset(runs).items():
        scores = [task.scores for task in tasks]
        if not all(scores):
            continue
        label = runs[position].label
        row = {"dataset": dataset, "run": position, "label": label, "prompts": len(scores)}
        for name in NORMALIZATIONS:
            columns = {name: "mean", f"{name}_low": "low", f"{name}_high": "high"}
            row |= name_columns(_normalized_accuracy(scores, name), **columns)
        rows.append(row)
    return rows


def _normalized_accuracy(scores: Sequence[ExampleScores], name: str) -> dict[str, float] | None:
    if name == "sum":
        return _mean_accuracy(scores)
    if any(name not in prompt_scores.right_by for prompt_scores in scores):
        return None
    return _mean_accuracy([dataclasses.replace(s, correct=s.right_by[name]) for s in scores])


# Prompts and classes.


def _class_mean_rows(datasets: Sequence[Row]) -> list[Row]:
    names = [m.name for m in CLASS_MEASURES]
    keys = ("run", "label", MARK, "step", "dataset", "prompts", *names)
    return [{key: row[key] for key in keys} for row in datasets if row[names[0]] is not None]


def _list_other_metrics(row: Row) -> list[Row]:
    values = row["metrics"].items()
    return [{"metric": name, "value": value} for name, value in values if name != "accuracy"]


def _expand(prompts: Sequence[Row], details: Callable[[Row], Iterable[Row]]) -> list[Row]:
    """Returns a row for each detail of each prompt, which also names the prompt."""
    keys = ("run", "label", MARK, "step", "dataset", "prompt", "task")
    return [{key: row[key] for key in keys} | detail for row in prompts for detail in details(row)]


# Metrics of mode `eval`.


def metric_rows(runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Returns a row for each value of mode `eval`; an undefined value is None.

    If the value is for a category or a subtask of its task, `group` is the name of this part.
    """
    rows = []
    for tasks in _group_by_task(runs).values():
        metrics = _list_metrics(tasks)
        rows += [
            _make_value_row(runs, run, task, metric)
            for metric in metrics
            for run, task in tasks.items()
            if metric in task.metrics
        ]
        groups = {group for task in tasks.values() for group in task.groups}
        rows += [
            _make_value_row(runs, run, task, metric, group)
            for group in sorted(
                groups, key=lambda name: (bool(_INSTRUCTION_TASK.match(name)), name)
            )
            for run, task in tasks.items()
            if group in task.groups
            for metric in metrics
        ]
    return rows


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


def group_rows(runs: Sequence[EvaluatedRun]) -> dict[str, list[dict[str, Any]]]:
    """Returns task -> a row for each of its groups and each run, for the tasks with groups.

    The value of a metric has the key `metric <name>`.
    """
    rows_of: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
    for value in metric_rows(runs):
        if value["group"]:
            names = {key: value[key] for key in ("group", "label", MARK)}
            rows = rows_of.setdefault(value["task"], {})
            row = rows.setdefault((value["group"], value["run"]), names)
            row[f"metric {value['metric']}"] = value["value"]
    return {task: [*rows.values()] for task, rows in rows_of.items()}


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
