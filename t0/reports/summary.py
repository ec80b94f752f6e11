"""Computes the numbers of a report from the evaluated runs, for all of its output formats.

    summary = summarise(read_named_runs(["eval"])[0])
    summary.datasets[0]["mean"], summary.datasets[0]["interval_low"]
    rows = normalization_rows(read_runs([Path("eval")]))
    rows[0]["sum"], rows[0]["characters"], rows[0]["decoded"]      # means over prompts, in percent

Rows are mappings in which unknown values are None. In a row, `run` is the position of a checkpoint
in `summary.runs`, and `label` is the checkpoint's name. Datasets are sorted by group (held-out,
training, others) and then by name. Tasks of mode `eval` are in the order of their files, and runs
are in the given order.

T0 ranks the choices by the plain sum of the log-probabilities of their tokens. The report also
shows accuracies under other normalizations:

| column | the prediction is |
|---|---|
| sum | the choice with the highest log-likelihood (as in T0; used for all headline results) |
| tokens | the choice with the highest log-likelihood per token, including EOS |
| characters | the choice with the highest log-likelihood per character |
| decoded | the decoded text, which is right if it is an exact match (`t0.scoring.answers`) |

Assumptions: tasks with the same name have the same prompt and dataset in every run. All accuracies
and differences are in percent. A dataset has an accuracy under a normalization only if each of its
prompts has such an accuracy.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t0.absent_classes import warn_of_absent_classes
from t0.errors import UserError, printable
from t0.reports import accuracies, class_metrics
from t0.reports.accuracies import Accuracy, bounds, scores_of
from t0.reports.clean_examples import Overlap, clean_rows
from t0.reports.comparison import RunComparison, compare
from t0.reports.diagnosis import diagnose, reliability_rows
from t0.reports.evaluations import (
    DecodedTask,
    EvaluatedRun,
    RankedTask,
    dataset_groups,
    last_of_series,
)
from t0.reports.example_scores import ExampleScores
from t0.reports.held_out import title_of
from t0.reports.named_runs import NamedRun
from t0.reports.statistics import Interval
from t0.reports.tables import MARK, Row

# The kinds of rows in the table `metrics`: a task, one of its categories, or one of its subtasks.
WHOLE, CATEGORY, PART = "whole", "category", "part"
# Column of `normalization_rows` -> its heading in tables.
NORMALIZATIONS = {
    "sum": "Sum",
    "tokens": "By tokens",
    "characters": "By characters",
    "decoded": "Decoded",
}
_DIAGNOSIS = ("majority", "most_predicted", "most_predicted_answer", "without_ties", "entropy")
# Matches the name of a group that is a task of Super-NaturalInstructions. All other groups are
# categories.
_INSTRUCTION_TASK = re.compile(r"task\d+_")
# (whether there is a rank evaluation, whether there is a mode `eval`) -> the report's title.
_TITLES = {
    (True, False): "T0 rank evaluation",
    (True, True): "T0 evaluation",
    (False, True): "Evaluation",
    (False, False): "Training runs",
}


@dataclass(frozen=True)
class DecodedResults:
    """One task of mode `eval` in all runs that have it.

    Attributes:
      metrics: the metrics of the whole task, in the order of the files.
      signatures: the distinct pairs (metric, signature) of all runs.
      files: for each series, the file with the predictions of its last checkpoint.
    """

    task: str
    metrics: tuple[str, ...]
    signatures: tuple[tuple[str, str], ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """The content of a report, independent of its output format.

    Attributes:
      notes: the caller's notes, the runs' notes, and warnings about the data.
      runs: all evaluated checkpoints. Each one is an `EvaluatedRun`.
      named: the models that the report compares, each with its checkpoints or seeds.
      comparison: the comparison of the runs with the baseline; None if there is only one run.
      datasets: a row for each dataset and run. It has statistics of the accuracies over prompts,
        counts summed over prompts and, if every prompt has per-example scores, the interval of the
        mean accuracy.
      prompts: a row for each prompt and run.
      metrics: a row for each value of mode `eval`. The `kind` of a row is WHOLE if the value is for
        a task, CATEGORY if it is for a category of the task, and PART if it is for a subtask. An
        undefined value is None.
      clean: a row for each dataset and run, see `clean_examples.clean_rows`; empty if no overlap is
        given.
      overlap: a sentence that defines when an example overlaps; None if no overlap is given.
      normalizations: a row for each dataset and run, see `normalization_rows`.
      reliabilities: a row for each dataset and run with scores, see `diagnosis.reliability_rows`.
    """

    title: str
    notes: tuple[str, ...]
    runs: tuple[EvaluatedRun, ...]
    named: tuple[NamedRun, ...]
    comparison: RunComparison | None
    datasets: Sequence[Row]
    prompts: Sequence[Row]
    metrics: Sequence[Row]
    decoded: Sequence[DecodedResults]
    clean: Sequence[Row]
    overlap: str | None
    normalizations: Sequence[Row]
    reliabilities: Sequence[Row]


def summarise(
    named: Sequence[NamedRun],
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
    overlap: Overlap | None = None,
    baseline: int = 0,
    any_texts: bool = False,
    must_compare: bool = False,
) -> Summary:
    """Computes the numbers of a report on runs.

    Args:
      named: the runs; if there are no runs, all tables are empty.
      title: the report's title; None for a title that names the kinds of evaluations.
      notes: sentences that are shown before all other notes.
      overlap: the overlap with the training data, or None.
      baseline: the position of the run with which all other runs are compared.
      any_texts: whether examples with different texts may be compared, see `comparison.compare`.
      must_compare: whether it is an error if the runs cannot be compared. Otherwise the report has
        a note with the reason.

    Raises:
      UserError: if the overlap was computed for different rows than the evaluations, or if
        `must_compare` is set and the runs cannot be compared.
    """
    runs = tuple(run for model in named for run in model.checkpoints)
    datasets, prompts = rank_rows(runs)
    metrics = metric_rows(runs)
    comparison, compared_notes = _compare_runs(
        named, baseline, any_texts=any_texts, must_compare=must_compare
    )
    all_notes = dict.fromkeys(
        [*map(printable, notes), *(note for run in runs for note in run.notes)]
    )
    warnings = (*_find_warnings(runs), *compared_notes, *_find_signature_warnings(metrics))
    return Summary(
        title=printable(title) if title else _TITLES[bool(datasets), bool(_group_by_task(runs))],
        notes=(*all_notes, *warnings),
        runs=runs,
        named=tuple(named),
        comparison=comparison,
        datasets=datasets,
        prompts=prompts,
        metrics=metrics,
        decoded=_collect_decoded_results(runs),
        clean=clean_rows(runs, overlap) if overlap else (),
        overlap=printable(overlap.sentence) if overlap else None,
        normalizations=normalization_rows(runs),
        reliabilities=reliability_rows(runs),
    )


def _compare_runs(
    named: Sequence[NamedRun], baseline: int, *, any_texts: bool, must_compare: bool
) -> tuple[RunComparison | None, tuple[str, ...]]:
    """Returns the comparison of the runs that have scores, and the notes about this comparison."""
    compared = list(named) if must_compare else [run for run in named if run.has_scores]
    if len(compared) < 2 and not must_compare:
        return None, ()
    chosen = named[baseline]
    try:
        comparison = compare(
            compared,
            baseline=compared.index(chosen) if chosen in compared else 0,
            any_texts=any_texts,
        )
    except UserError as error:
        if must_compare:
            raise
        return None, (f"The runs are not compared: {error}",)
    return comparison, comparison.notes


# The tables of rank evaluation.


def rank_rows(runs: Sequence[EvaluatedRun]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the rows of the tables `datasets` and `prompts`."""
    datasets, prompts = [], []
    for dataset, group in dataset_groups(runs).items():
        for position, run in enumerate(runs):
            tasks = [task for task in run.tasks if task.dataset == dataset]
            if not tasks:
                continue
            names = {"run": position, "label": run.label, MARK: run.mark, "step": run.step}
            names |= {"dataset": dataset, "title": title_of(dataset), "group": group}
            rows = [_make_prompt_row(task) for task in tasks]
            path = printable(str(run.path))
            prompts += [names | row | {"results_file": path} for row in rows]
            datasets.append(names | _make_dataset_row(tasks, rows))
    return datasets, prompts


def _make_prompt_row(task: RankedTask) -> dict[str, Any]:
    scores = scores_of([task])
    accuracy = accuracies.accuracy(accuracies.shared_grid([scores]), 0) if scores else None
    diagnosis = diagnose(scores[0]) if scores else None
    calibration, classes = diagnosis and diagnosis.calibration, diagnosis and diagnosis.classes
    right_by = scores[0].right_by if scores else {}
    return {
        "prompt": task.prompt,
        "task": task.name,
        "accuracy": task.accuracy,
        **bounds(accuracy),
        **{
            f"by_{name}": 100 * float(right_by[name].mean()) if name in right_by else None
            for name in [*NORMALIZATIONS][1:]
        },
        "chance": task.chance,
        **{name: diagnosis and getattr(diagnosis, name) for name in _DIAGNOSIS},
        **(classes.means if classes else dict.fromkeys(class_metrics.MEANS)),
        **{
            f"calibration_{name}": calibration and getattr(calibration, name)
            for name in ("error", "low", "high")
        },
        "examples": task.examples,
        "ties": None if task.scores is None else int(task.scores.tied.sum()),
        "truncated_inputs": task.truncated_inputs,
        "truncated_targets": task.truncated_targets,
        "excluded": sum(task.excluded.values()),
        "excluded_reasons": dict(task.excluded),
        "metrics": dict(task.metrics),
        "diagnosis": diagnosis,
    }


def _make_dataset_row(tasks: Sequence[RankedTask], rows: Sequence[Row]) -> dict[str, Any]:
    reasons = sum((Counter(task.excluded) for task in tasks), Counter())
    return {
        "prompts": len(tasks),
        "fewest_examples": min(task.examples for task in tasks),
        "most_examples": max(task.examples for task in tasks),
        **accuracies.summarize_spread([task.accuracy for task in tasks]),
        **bounds(_mean_accuracy([task.scores for task in tasks]), fixed=True),
        **{name: _mean_or_none(row[name] for row in rows) for name in _MEANS},
        **{name: _sum_or_none(row[name] for row in rows) for name in _TOTALS},
        "excluded": reasons.total(),
        "excluded_reasons": dict(sorted(reasons.items())),
    }


_MEANS = ("chance", "majority", "most_predicted", *class_metrics.MEANS)
_TOTALS = ("ties", "truncated_inputs", "truncated_targets")


def _mean_accuracy(scores: Sequence[ExampleScores | None]) -> Accuracy | None:
    """Returns the mean accuracy over prompts; None if a prompt has no scores."""
    if not scores or any(
        prompt_scores is None or not len(prompt_scores) for prompt_scores in scores
    ):
        return None
    return accuracies.accuracy(accuracies.shared_grid([scores]), 0)


def _mean_or_none(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def _sum_or_none(counts: Iterable[int | None]) -> int | None:
    numbers = [count for count in counts if count is not None]
    return sum(numbers) if numbers else None


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
            by_sum = _mean_accuracy(scores)
            if by_sum is None:
                continue
            row = {"dataset": dataset, "run": position, "label": run.label, "prompts": len(scores)}
            for name in NORMALIZATIONS:
                accuracy = by_sum if name == "sum" else _normalized_accuracy(scores, name)
                columns = ((name, "mean"), (f"{name}_low", "low"), (f"{name}_high", "high"))
                row |= {key: accuracy and getattr(accuracy, field) for key, field in columns}
            rows.append(row)
    return rows


def _normalized_accuracy(scores: Sequence[ExampleScores], name: str) -> Accuracy | None:
    if any(name not in prompt_scores.right_by for prompt_scores in scores):
        return None
    return _mean_accuracy([dataclasses.replace(s, correct=s.right_by[name]) for s in scores])


# The tables of mode `eval`.


def metric_rows(runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Returns the rows of the table `metrics`."""
    rows = []
    for tasks in _group_by_task(runs).values():
        metrics = _list_metrics(tasks)
        rows += [
            _make_value_row(runs, run, task, metric)
            for metric in metrics
            for run, task in tasks.items()
            if metric in task.metrics
        ]
        groups = sorted({group for task in tasks.values() for group in task.groups})
        rows += [
            _make_value_row(runs, run, task, metric, group)
            for group in sorted(groups, key=_classify_group)  # CATEGORY comes before PART
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
    ends = None if group else task.intervals.get(metric)
    # Counts and signatures belong to the whole task.
    return {
        "run": position,
        "label": run.label,
        MARK: run.mark,
        "step": run.step,
        "task": task.name,
        "kind": _classify_group(group) if group else WHOLE,
        "group": group,
        "metric": metric,
        "value": values.get(metric),
        **bounds(Interval(*ends) if ends else None),
        "examples": None if group else task.examples,
        "truncated_inputs": None if group else task.truncated_inputs,
        "truncated_targets": None if group else task.truncated_targets,
        "signature": None if group else task.signatures.get(metric),
        "results_file": printable(str(task.results_file)),
    }


def _classify_group(group: str) -> str:
    return PART if _INSTRUCTION_TASK.match(group) else CATEGORY


def group_values(
    metrics: Sequence[Row], task: str, kind: str
) -> list[tuple[str, int, tuple[float | None, ...]]]:
    """Returns the values of a task's metrics for its categories or its subtasks.

    Args:
      metrics: the rows of the table `metrics`.
      task: the name of the task.
      kind: CATEGORY or PART.

    Returns:
      a list of (group, position of the run, values in the order of the task's metrics), sorted by
      group and then by run.
    """
    values: dict[tuple[str, int], list[float | None]] = {}
    for row in metrics:
        if (row["task"], row["kind"]) == (task, kind):
            values.setdefault((row["group"], row["run"]), []).append(row["value"])
    return [(group, run, tuple(group_row)) for (group, run), group_row in values.items()]


def _group_by_task(runs: Sequence[EvaluatedRun]) -> dict[str, dict[int, DecodedTask]]:
    """Returns task -> position of a run -> the results of this run for the task."""
    by_task: dict[str, dict[int, DecodedTask]] = {}
    for position, run in enumerate(runs):
        for task in run.decoded:
            by_task.setdefault(task.name, {})[position] = task
    return by_task


def _list_metrics(tasks: Mapping[int, DecodedTask]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(metric for task in tasks.values() for metric in task.metrics))


def _collect_decoded_results(runs: Sequence[EvaluatedRun]) -> tuple[DecodedResults, ...]:
    last = last_of_series(runs, [i for i, run in enumerate(runs) if run.decoded])
    results = []
    for name, tasks in _group_by_task(runs).items():
        shown = {run: task for run, task in tasks.items() if run in last}
        computed = [task.signatures.items() for task in tasks.values() if task.metrics]
        files = [task.predictions_file for task in shown.values() if task.predictions_file]
        results.append(
            DecodedResults(
                task=name,
                metrics=_list_metrics(tasks),
                signatures=tuple(dict.fromkeys(pair for pairs in computed for pair in pairs)),
                files=tuple(printable(str(file)) for file in files),
            )
        )
    return tuple(results)


# Warnings about the data.


def _find_warnings(runs: Sequence[EvaluatedRun]) -> list[str]:
    warnings = []
    tied = [task.name for run in runs for task in run.tasks if _is_mostly_tied(task)]
    if tied:
        warnings.append(
            f"In {len(tied)} of {sum(len(run.tasks) for run in runs)} evaluations of a task, "
            "several choices tie for the highest score in most examples, so the accuracy means "
            f"little: {_format_first_five(list(dict.fromkeys(tied)))}."
        )
    warnings += _find_absent_classes(runs)
    for run in runs:
        without_scores = sum(task.scores is None for task in run.tasks)
        if without_scores:
            warnings.append(
                f"{run.label}: {without_scores} of {len(run.tasks)} tasks have no per-example "
                "scores next to the results, so they have no intervals, ties or examples."
            )
        if run.skipped:
            warnings.append(
                f"{run.label}: {len(run.skipped)} tasks have no accuracy and are left out: "
                f"{_format_first_five(run.skipped)}."
            )
    return warnings


def _find_absent_classes(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Returns a warning for each dataset with a prompt that has a class without examples."""
    warnings: dict[str, dict[str, str]] = {}
    for task in (task for run in runs for task in run.tasks):
        scores = task.scores
        if scores is not None and scores.labels:
            counts = Counter(scores.gold.tolist())
            support = {name: counts[number] for number, name in enumerate(scores.labels)}
            if warning := warn_of_absent_classes(support, task.dataset):
                warnings.setdefault(task.dataset, {})[task.name] = warning
    return [
        f"{next(iter(by_task.values()))}"
        + (f" (first of {len(by_task)} prompts)." if len(by_task) > 1 else ".")
        for by_task in warnings.values()
    ]


def _format_first_five(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")


def _is_mostly_tied(task: RankedTask) -> bool:
    return task.scores is not None and len(task.scores) > 0 and task.scores.tied.mean() > 0.5


def _find_signature_warnings(metrics: Sequence[Row]) -> list[str]:
    """Returns a warning for each metric that was computed differently for different runs."""
    signatures: dict[tuple[str, str], set[str]] = {}
    for row in metrics:
        if row["kind"] == WHOLE:
            signatures.setdefault((row["task"], row["metric"]), set()).add(str(row["signature"]))
    return [
        f"{task}: {metric} was computed in different ways "
        f"({'; '.join(sorted(distinct))}): do not compare its values."
        for (task, metric), distinct in signatures.items()
        if len(distinct) > 1
    ]
