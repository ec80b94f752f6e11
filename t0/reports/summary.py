"""Makes the tables that every form of the report shows, from the evaluated runs.

    summary = summarise(read_runs([Path("eval")]))
    summary.datasets[["title", "label", "mean", "interval_low", "interval_high"]]
    summary.prompts.query("dataset == 'super_glue/rte'").accuracy.max()

Tables are data frames of Python objects, so that integers stay integers and an unknown value is
None. `run` is a run's position in `summary.runs`, `label` its name. Datasets are sorted by group
(held-out, training, others) and name, tasks of mode `eval` as in their files, runs as given. The
first run with rank evaluation is the baseline, with which every other run is compared.

Assumptions: a task with the same name is the same prompt of the same dataset in every run; all
accuracies and differences are in percent.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from t0.errors import printable
from t0.reports import accuracies
from t0.reports.accuracies import Accuracy
from t0.reports.clean_part import Overlap, clean_rows
from t0.reports.diagnosis import diagnose
from t0.reports.evaluations import DecodedTask, EvaluatedRun, RankedTask
from t0.reports.paired_runs import (
    COMPARED_DATASET_COLUMNS,
    COMPARED_PROMPT_COLUMNS,
    FIXED,
    INTERVAL,
    bounds,
    clear_prompts,
    fixed_bounds,
    gap_row,
    other_texts,
    prompt_gaps,
    shared_tasks,
)
from t0.reports.published import published
from t0.reports.reliability import Reliability, reliabilities
from t0.reports.statistics import Interval, benjamini_hochberg
from t0.reports.ways import judged_rows

# The kinds of rows in the table `metrics`: a task, one of its categories, or a task within it.
WHOLE, CATEGORY, PART = "whole", "category", "part"
SPREAD_COLUMNS = ("mean", "median", "first_quartile", "third_quartile", "low", "high")

_NAMES = ("run", "label", "step", "dataset", "title", "group")
_ANSWERS = ("majority", "most_predicted", "most_predicted_answer", "without_ties", "entropy")
_WAYS = ("tokens", "characters", "decoded")
_CALIBRATION = ("calibration_error", "calibration_low", "calibration_high")
_COUNTS = ("ties", "truncated_inputs", "truncated_targets", "excluded", "excluded_reasons")
_DATASET_COLUMNS = (
    *_NAMES,
    *("prompts", "fewest_examples", "most_examples", *SPREAD_COLUMNS, *INTERVAL, *FIXED),
    *("chance", "majority", "most_predicted"),
    *_COUNTS,
)
_PROMPT_COLUMNS = (
    *_NAMES,
    *("prompt", "task", "accuracy", *INTERVAL, *(f"by_{way}" for way in _WAYS)),
    *("chance", *_ANSWERS, *_CALIBRATION),
    *("examples", *_COUNTS),
    *("metrics", "results_file"),
)
_METRIC_COLUMNS = (
    *("run", "label", "step", "task", "kind", "group", "metric", "value", *INTERVAL, "examples"),
    *("truncated_inputs", "truncated_targets", "signature", "results_file"),
)
_GROUP_ORDER = {"held-out": 0, "training": 1}
# The name of a group that is a task of Super-NaturalInstructions; other groups are categories.
_INSTRUCTION_TASK = re.compile(r"task\d+_")
# (whether there is rank evaluation, whether there is mode `eval`) -> the report's title.
_TITLES = {
    (True, False): "T0 rank evaluation",
    (True, True): "T0 evaluation",
    (False, True): "Evaluation",
    (False, False): "Training runs",
}


@dataclass(frozen=True)
class Comparison:
    """The comparison of two runs, given by their positions, on the examples that both scored.

    Attributes:
      datasets: a row for each dataset: the difference of mean accuracies, its test, adjusted by
        Benjamini and Hochberg over these datasets, and the number of prompts where the second run
        is `better` or `worse` with McNemar's p below `SIGNIFICANT`.
      prompts: a row for each prompt, with McNemar's test.
      notes: what only one of the runs has, or has with other texts.
    """

    first: int
    second: int
    datasets: pd.DataFrame
    prompts: pd.DataFrame
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DecodedExample:
    """One example, and the texts that some runs wrote for it, as (run, text)."""

    heading: str
    inputs: str
    targets: tuple[str, ...]
    answers: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class DecodedResults:
    """One task of mode `eval` in all runs that have it.

    Attributes:
      metrics: the metrics of the whole task, in the order of the files.
      signatures: (metric, signature), each once.
      examples: a few examples, with the texts that the last checkpoint of each series wrote.
      files: the files of all predictions of these checkpoints.
    """

    task: str
    metrics: tuple[str, ...]
    signatures: tuple[tuple[str, str], ...]
    examples: tuple[DecodedExample, ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """The content of a report, in whatever form it is written.

    Attributes:
      notes: the caller's notes, the runs' notes, and warnings about the data.
      datasets: a row for each dataset and run: accuracy over prompts, counts summed over prompts,
        and the interval of the mean, if every prompt has per-example scores.
      prompts: a row for each prompt and run.
      metrics: a row for each value of mode `eval`: of a task (`kind` is WHOLE), of one of its
        categories, or of a task within it. An undefined value is None.
      clean: a row for each dataset and run, see `clean_part.clean_rows`; none without an overlap.
      overlap: what an overlap is, in a sentence; None without one.
      ways: a row for each dataset and run, see `ways.judged_rows`; none without scores.
      reliabilities: of each dataset and run with scores, see `reliability.reliabilities`.
    """

    title: str
    notes: tuple[str, ...]
    runs: tuple[EvaluatedRun, ...]
    datasets: pd.DataFrame
    prompts: pd.DataFrame
    metrics: pd.DataFrame
    comparisons: tuple[Comparison, ...]
    decoded: tuple[DecodedResults, ...]
    clean: tuple[Mapping[str, Any], ...] = ()
    overlap: str | None = None
    ways: tuple[Mapping[str, Any], ...] = ()
    reliabilities: tuple[Reliability, ...] = ()


def summarise(
    runs: Sequence[EvaluatedRun],
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
    overlap: Overlap | None = None,
) -> Summary:
    """Returns the tables of some runs; without runs they are empty.

    Args:
      runs: the runs, the baseline first.
      title: the report's title; None for a title that names its content.
      notes: sentences that are shown first.
      overlap: the overlap with the training data, or None.

    Raises:
      UserError: if the overlap is of other rows than the runs.
    """
    datasets, prompts = rank_tables(runs)
    metrics = metrics_table(runs)
    comparisons = _comparisons(runs)
    given = dict.fromkeys([*map(printable, notes), *(note for run in runs for note in run.notes)])
    return Summary(
        title=printable(title) if title else _TITLES[not datasets.empty, bool(_by_task(runs))],
        notes=(
            *given,
            *_warnings(runs),
            *(note for comparison in comparisons for note in comparison.notes),
            *_signature_warnings(metrics),
        ),
        runs=tuple(runs),
        datasets=datasets,
        prompts=prompts,
        metrics=metrics,
        comparisons=comparisons,
        decoded=_decoded_results(runs),
        clean=tuple(clean_rows(runs, overlap)) if overlap else (),
        overlap=printable(overlap.sentence) if overlap else None,
        ways=tuple(judged_rows(runs)),
        reliabilities=tuple(reliabilities(runs)),
    )


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns), dtype=object)


# Rank evaluation.


def rank_tables(
    runs: Sequence[EvaluatedRun], *, with_intervals: bool = True
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the tables `datasets` and `prompts` of a summary."""
    datasets, prompts = [], []
    for dataset, group in dataset_groups(runs).items():
        for position, run in enumerate(runs):
            tasks = [task for task in run.tasks if task.dataset == dataset]
            if not tasks:
                continue
            names = (position, run.label, run.step, dataset, title_of(dataset), group)
            named = dict(zip(_NAMES, names, strict=True))
            intervals, overall = _intervals(tasks) if with_intervals else ({}, None)
            each = [_prompt_row(task, intervals.get(task.name)) for task in tasks]
            prompts += [named | row | {"results_file": printable(str(run.path))} for row in each]
            datasets.append(named | _dataset_row(tasks, each, overall))
    return _table(datasets, _DATASET_COLUMNS), _table(prompts, _PROMPT_COLUMNS)


def dataset_groups(runs: Sequence[EvaluatedRun]) -> dict[str, str]:
    """Returns the group of each dataset, in the order of the report."""
    groups: dict[str, set[str]] = {}
    for run in runs:
        for task in run.tasks:
            groups.setdefault(task.dataset, set()).add(task.group)
    names = {name: " / ".join(sorted(filter(None, found))) for name, found in groups.items()}
    ordered = sorted(names, key=lambda name: (_GROUP_ORDER.get(names[name], 2), names[name], name))
    return {name: names[name] for name in ordered}


def title_of(dataset: str) -> str:
    """Returns T0's title of a held-out dataset; of any other its name."""
    facts = published().get(dataset)
    return facts.title if facts else dataset


def _intervals(tasks: Sequence[RankedTask]) -> tuple[dict[str, Interval], Accuracy | None]:
    """Returns the interval of each task with scores, and the mean's if all tasks have scores."""
    scored = [task for task in tasks if task.scores is not None and len(task.scores)]
    each = {task.name: accuracies.prompt_interval(task.scores) for task in scored}
    if not scored or len(scored) < len(tasks):
        return each, None
    grid = accuracies.shared_grid([[task.scores for task in scored]])
    return each, accuracies.accuracy(grid, 0)


def _prompt_row(task: RankedTask, interval: Interval | None) -> dict[str, Any]:
    return {
        "prompt": task.prompt,
        "task": task.name,
        "accuracy": task.accuracy,
        **bounds(interval),
        **_by_ways(task),
        "chance": task.chance,
        **_answers(task),
        "examples": task.examples,
        "ties": None if task.scores is None else int(task.scores.tied.sum()),
        "truncated_inputs": task.truncated_inputs,
        "truncated_targets": task.truncated_targets,
        "excluded": sum(task.excluded.values()),
        "excluded_reasons": dict(task.excluded),
        "metrics": dict(task.metrics),
    }


def _by_ways(task: RankedTask) -> dict[str, float | None]:
    found = {} if task.scores is None or not len(task.scores) else task.scores.right_by
    return {f"by_{way}": 100 * float(found[way].mean()) if way in found else None for way in _WAYS}


def _answers(task: RankedTask) -> dict[str, Any]:
    found = None if task.scores is None else diagnose(task.scores)
    return {
        name: None if found is None else getattr(found, name) for name in (*_ANSWERS, *_CALIBRATION)
    }


def _dataset_row(
    tasks: Sequence[RankedTask], rows: Sequence[Mapping[str, Any]], overall: Accuracy | None
) -> dict[str, Any]:
    chances = [task.chance for task in tasks if task.chance is not None]
    reasons = sum((Counter(task.excluded) for task in tasks), Counter())
    return {
        "prompts": len(tasks),
        "fewest_examples": min(task.examples for task in tasks),
        "most_examples": max(task.examples for task in tasks),
        **asdict(accuracies.spread([task.accuracy for task in tasks])),
        **bounds(overall),
        **fixed_bounds(overall),
        "chance": sum(chances) / len(chances) if chances else None,
        **{name: _mean(row[name] for row in rows) for name in ("majority", "most_predicted")},
        "ties": _total(row["ties"] for row in rows),
        "truncated_inputs": _total(task.truncated_inputs for task in tasks),
        "truncated_targets": _total(task.truncated_targets for task in tasks),
        "excluded": reasons.total(),
        "excluded_reasons": dict(sorted(reasons.items())),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


# The comparison of two runs.


def _comparisons(runs: Sequence[EvaluatedRun]) -> tuple[Comparison, ...]:
    """Compares the first ranked run with every other that has scores of the same examples."""
    first, *others = [i for i, run in enumerate(runs) if run.tasks] or [0]
    found = (_compare(runs, first, second) for second in others)
    return tuple(comparison for comparison in found if not comparison.datasets.empty)


def _compare(runs: Sequence[EvaluatedRun], first: int, second: int) -> Comparison:
    datasets, prompts, notes = [], [], []
    for dataset in dataset_groups(runs):
        tasks, grid = shared_tasks([[runs[first]], [runs[second]]], dataset)
        if grid is None:
            continue
        names = {"dataset": dataset, "title": title_of(dataset)}
        rows = [names | row for row in prompt_gaps(tasks, grid, 0, 1)]
        found = accuracies.gap(grid, 0, 1)
        datasets.append(names | gap_row(found) | clear_prompts(rows))
        prompts += rows
        notes += other_texts(tasks, grid)
    adjusted = benjamini_hochberg([row["p_value"] for row in datasets])
    for row, value in zip(datasets, adjusted, strict=True):
        row["adjusted_p_value"] = float(value)
    return Comparison(
        first,
        second,
        _table(datasets, COMPARED_DATASET_COLUMNS),
        _table(prompts, COMPARED_PROMPT_COLUMNS),
        tuple(f"{runs[second].label}: {note}" for note in notes),
    )


# Mode `eval`.


def metrics_table(runs: Sequence[EvaluatedRun]) -> pd.DataFrame:
    """Returns the table `metrics` of a summary."""
    rows = []
    for tasks in _by_task(runs).values():
        metrics = _metrics_of(tasks)
        rows += [
            _value_row(runs, run, task, metric)
            for metric in metrics
            for run, task in tasks.items()
            if metric in task.metrics
        ]
        groups = sorted({group for task in tasks.values() for group in task.groups})
        rows += [
            _value_row(runs, run, task, metric, group)
            for group in sorted(groups, key=_kind)  # CATEGORY is before PART
            for run, task in tasks.items()
            if group in task.groups
            for metric in metrics
        ]
    return _table(rows, _METRIC_COLUMNS)


def _value_row(
    runs: Sequence[EvaluatedRun], position: int, task: DecodedTask, metric: str, group: str = ""
) -> dict[str, Any]:
    run = runs[position]
    values = task.groups[group] if group else task.metrics
    # Counts and signatures are of the whole task.
    return {
        "run": position,
        "label": run.label,
        "step": run.step,
        "task": task.name,
        "kind": _kind(group) if group else WHOLE,
        "group": group,
        "metric": metric,
        "value": values.get(metric),
        **bounds(_metric_interval(task, metric) if not group else None),
        "examples": None if group else task.examples,
        "truncated_inputs": None if group else task.truncated_inputs,
        "truncated_targets": None if group else task.truncated_targets,
        "signature": None if group else task.signatures.get(metric),
        "results_file": printable(str(task.results_file)),
    }


def _metric_interval(task: DecodedTask, metric: str) -> Interval | None:
    ends = task.intervals.get(metric)
    return None if ends is None else Interval(*ends)


def _kind(group: str) -> str:
    return PART if _INSTRUCTION_TASK.match(group) else CATEGORY


def group_values(
    metrics: pd.DataFrame, task: str, kind: str
) -> list[tuple[str, int, tuple[float | None, ...]]]:
    """Returns (group, run, values) of a task's groups of a kind, by name, then run.

    Args:
      metrics: the table `metrics` of a summary.
      task: the task of the groups; the values are in the order of its metrics.
      kind: CATEGORY or PART.
    """
    rows = metrics[(metrics.task == task) & (metrics.kind == kind)]
    found = rows.groupby(["group", "run"], sort=False).value
    return [(group, run, tuple(values)) for (group, run), values in found]


def _by_task(runs: Sequence[EvaluatedRun]) -> dict[str, dict[int, DecodedTask]]:
    """Returns task -> position of a run -> the run's results of that task."""
    by_task: dict[str, dict[int, DecodedTask]] = {}
    for position, run in enumerate(runs):
        for task in run.decoded:
            by_task.setdefault(task.name, {})[position] = task
    return by_task


def _metrics_of(tasks: Mapping[int, DecodedTask]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(metric for task in tasks.values() for metric in task.metrics))


def _decoded_results(runs: Sequence[EvaluatedRun]) -> tuple[DecodedResults, ...]:
    last = _last_of_series(runs)
    results = []
    for name, tasks in _by_task(runs).items():
        shown = {run: task for run, task in tasks.items() if run in last}
        computed = [task.signatures.items() for task in tasks.values() if task.metrics]
        files = [task.predictions_file for task in shown.values() if task.predictions_file]
        results.append(
            DecodedResults(
                task=name,
                metrics=_metrics_of(tasks),
                signatures=tuple(dict.fromkeys(pair for pairs in computed for pair in pairs)),
                examples=_decoded_examples(shown),
                files=tuple(printable(str(file)) for file in files),
            )
        )
    return tuple(results)


def _last_of_series(runs: Sequence[EvaluatedRun]) -> set[int]:
    """Returns the positions of each series' last checkpoint in mode `eval`."""
    last: dict[str, int] = {}
    for position, run in enumerate(runs):
        best = last.get(run.series)
        if run.decoded and (best is None or (run.step or 0) >= (runs[best].step or 0)):
            last[run.series] = position
    return set(last.values())


def _decoded_examples(tasks: Mapping[int, DecodedTask]) -> tuple[DecodedExample, ...]:
    # Two examples may have the same text: their order distinguishes them.
    found: dict[tuple[str, str, tuple[str, ...], int], list[tuple[int, str]]] = {}
    for run, task in tasks.items():
        seen: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
        for one in task.predictions:
            key = (one.heading, one.inputs, one.targets)
            found.setdefault((*key, seen[key]), []).append((run, one.prediction))
            seen[key] += 1
    return tuple(DecodedExample(*key[:3], tuple(answers)) for key, answers in found.items())


# Warnings about the data.


def _warnings(runs: Sequence[EvaluatedRun]) -> list[str]:
    found = []
    tied = [task.name for run in runs for task in run.tasks if _mostly_tied(task)]
    if tied:
        found.append(
            f"In {len(tied)} of {sum(len(run.tasks) for run in runs)} evaluations of a task "
            "most examples have several choices of the same highest score, so the accuracy says "
            f"little: {_first_five(list(dict.fromkeys(tied)))}."
        )
    for run in runs:
        bare = sum(task.scores is None for task in run.tasks)
        if bare:
            found.append(
                f"{run.label}: {bare} of {len(run.tasks)} tasks have no per-example scores "
                "beside the results; they show no intervals, ties or examples."
            )
        if run.skipped:
            found.append(
                f"{run.label}: {len(run.skipped)} tasks state no accuracy and are left out: "
                f"{_first_five(run.skipped)}."
            )
    return found


def _first_five(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")


def _mostly_tied(task: RankedTask) -> bool:
    return task.scores is not None and len(task.scores) > 0 and task.scores.tied.mean() > 0.5


def _signature_warnings(metrics: pd.DataFrame) -> list[str]:
    """Returns a note for each metric whose values are not comparable between the runs."""
    whole = metrics[metrics.kind == WHOLE]
    notes = []
    for (task, metric), rows in whole.groupby(["task", "metric"], sort=False):
        signatures = sorted(str(signature) for signature in set(rows.signature))
        if len(signatures) > 1:
            notes.append(
                f"{task}: {metric} was computed in different ways "
                f"({'; '.join(signatures)}): do not compare its values."
            )
    return notes
