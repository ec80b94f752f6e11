"""Computes the numbers that every rendering of a report shows, from the evaluated runs.

    summary = summarise(read_named_runs(["eval"])[0])
    summary.datasets[["title", "label", "mean", "interval_low", "interval_high"]]
    summary.prompts.query("dataset == 'super_glue/rte'").accuracy.max()

Tables are data frames of Python objects, so that integers stay integers and an unknown value is
None. `run` is a checkpoint's position in `summary.runs`, `label` its name. Datasets are sorted by
group (held-out, training, others) and name, tasks of mode `eval` as in their files, runs as given.

Assumptions: a task with the same name is the same prompt of the same dataset in every run; all
accuracies and differences are in percent.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from t0.errors import UserError, printable
from t0.reports import accuracies
from t0.reports.accuracies import Accuracy
from t0.reports.clean_part import Overlap, clean_rows
from t0.reports.comparing import RunComparison, compare
from t0.reports.diagnosis import diagnose
from t0.reports.evaluations import DecodedTask, EvaluatedRun, RankedTask, dataset_groups
from t0.reports.named_runs import NamedRun
from t0.reports.paired_runs import FIXED, INTERVAL, bounds, fixed_bounds
from t0.reports.published import title_of
from t0.reports.reliability import Reliability, reliabilities
from t0.reports.statistics import Interval
from t0.reports.ways import judged_rows

# The kinds of rows in the table `metrics`: a task, one of its categories, or a task within it.
WHOLE, CATEGORY, PART = "whole", "category", "part"
SPREAD_COLUMNS = ("mean", "median", "first_quartile", "third_quartile", "low", "high")

_NAMES = ("run", "label", "mark", "step", "dataset", "title", "group")
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
    *(
        "run",
        "label",
        "mark",
        "step",
        "task",
        "kind",
        "group",
        "metric",
        "value",
        *INTERVAL,
        "examples",
    ),
    *("truncated_inputs", "truncated_targets", "signature", "results_file"),
)
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
class DecodedResults:
    """One task of mode `eval` in all runs that have it.

    Attributes:
      metrics: the metrics of the whole task, in the order of the files.
      signatures: (metric, signature), each once.
      files: the files of predictions of each series' last checkpoint.
    """

    task: str
    metrics: tuple[str, ...]
    signatures: tuple[tuple[str, str], ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """The content of a report, in whatever form it is written.

    Attributes:
      notes: the caller's notes, the runs' notes, and warnings about the data.
      runs: all evaluated checkpoints.
      named: the runs that these checkpoints are of.
      comparison: the runs compared with the baseline; None for one run.
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
    decoded: tuple[DecodedResults, ...]
    named: tuple[NamedRun, ...] = ()
    comparison: RunComparison | None = None
    clean: tuple[Mapping[str, Any], ...] = ()
    overlap: str | None = None
    ways: tuple[Mapping[str, Any], ...] = ()
    reliabilities: tuple[Reliability, ...] = ()


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
    """Returns the tables of some runs; without runs they are empty.

    Args:
      named: the runs.
      title: the report's title; None for a title that names its content.
      notes: sentences that are shown first.
      overlap: the overlap with the training data, or None.
      baseline: the position of the run that the others are compared with.
      any_texts: whether examples with other texts are compared, see `comparing.compare`.
      must_compare: whether runs that cannot be compared are an error; otherwise a note says why.

    Raises:
      UserError: if the overlap is of other rows than the runs, or runs cannot be compared.
    """
    runs = tuple(run for one in named for run in one.checkpoints)
    datasets, prompts = rank_tables(runs)
    metrics = metrics_table(runs)
    comparison, compared_notes = _comparison(
        named, baseline, any_texts=any_texts, must_compare=must_compare
    )
    given = dict.fromkeys([*map(printable, notes), *(note for run in runs for note in run.notes)])
    warnings = (*_warnings(runs), *compared_notes, *_signature_warnings(metrics))
    return Summary(
        title=printable(title) if title else _TITLES[not datasets.empty, bool(_by_task(runs))],
        notes=(*given, *warnings),
        runs=runs,
        datasets=datasets,
        prompts=prompts,
        metrics=metrics,
        decoded=_decoded_results(runs),
        named=tuple(named),
        comparison=comparison,
        clean=tuple(clean_rows(runs, overlap)) if overlap else (),
        overlap=printable(overlap.sentence) if overlap else None,
        ways=tuple(judged_rows(runs)),
        reliabilities=tuple(reliabilities(runs)),
    )


def _comparison(
    named: Sequence[NamedRun], baseline: int, *, any_texts: bool, must_compare: bool
) -> tuple[RunComparison | None, tuple[str, ...]]:
    """Returns the comparison of the runs with scores, and the notes about it."""
    compared = list(named) if must_compare else [run for run in named if run.has_scores]
    if len(compared) < 2 and not must_compare:
        return None, ()
    chosen = named[baseline]
    try:
        found = compare(
            compared,
            baseline=compared.index(chosen) if chosen in compared else 0,
            any_texts=any_texts,
        )
    except UserError as error:
        if must_compare:
            raise
        return None, (f"The runs are not compared: {error}",)
    return found, found.notes


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns), dtype=object)


# Rank evaluation.


def rank_tables(runs: Sequence[EvaluatedRun]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the tables `datasets` and `prompts` of a summary."""
    datasets, prompts = [], []
    for dataset, group in dataset_groups(runs).items():
        for position, run in enumerate(runs):
            tasks = [task for task in run.tasks if task.dataset == dataset]
            if not tasks:
                continue
            names = (position, run.label, run.mark, run.step, dataset, title_of(dataset), group)
            named = dict(zip(_NAMES, names, strict=True))
            intervals, overall = _intervals(tasks)
            each = [_prompt_row(task, intervals.get(task.name)) for task in tasks]
            prompts += [named | row | {"results_file": printable(str(run.path))} for row in each]
            datasets.append(named | _dataset_row(tasks, each, overall))
    return _table(datasets, _DATASET_COLUMNS), _table(prompts, _PROMPT_COLUMNS)


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
        "mark": run.mark,
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
