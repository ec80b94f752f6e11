"""Reads the result files of evaluations, and returns evaluated checkpoints (runs).

A run is one evaluated checkpoint. It has a file of rank evaluation, a file of mode `eval`, or both.
The file of rank evaluation has a record for each task, which is one prompt of a dataset. The
per-example scores are in the folder `scores/` next to this file; they may be missing. The file of
mode `eval` has the metrics of decoded text:

    eval/results_1000.json
    eval/scores/super_glue_rte_must_be_true_score_eval_1000.jsonl
    eval/decoded_1000.json
    eval/predictions/mt_1000.jsonl

    runs = read_runs([Path("eval")])
    runs[0].label, runs[0].tasks[0].accuracy     # ('tiny, step 1,000', 54.15)
    runs[0].decoded[0].metrics                   # {'bleu': 21.3}

If a task has the metrics "rougeL" and "rougeL_for_data_to_text", the second one is the "rougeL" of
the examples in the group "data_to_text". An undefined metric (NaN or null), for example the
correlation of constant predictions, is None.

Assumptions: accuracies and chance levels are percentages (0 to 100). The results in one folder
belong to checkpoints of one training run, so they form a series over steps. Optional fields may be
missing. If a file or field is malformed, a UserError names it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from t0.errors import UserError, printable
from t0.progress import ProgressLine
from t0.reports.example_scores import ExampleScores, read_scores, with_answers
from t0.reports.lm_eval_samples import read_harness
from t0.reports.plots import Mark, run_letter
from t0.reports.published import held_out_titles
from t0.reports.result_files import (
    EXAMPLE,
    ROW,
    ResultsFile,
    TaskRecord,
    distinct_names,
    field,
    file_step,
    find_results,
    finite,
    is_harness,
    json_object,
    load_results,
    read_json_lines,
    read_record,
    read_text,
)

# The largest difference, in percentage points, between an accuracy in the results and the same
# accuracy computed from the scores. Published results are rounded to one or two decimals. A larger
# difference means that scores and results come from different runs.
_ACCURACY_TOLERANCE = 0.06
_GROUP_ORDER = {"held-out": 0, "training": 1}
_ANLI_ROUND = re.compile(r"(?:^|[_/])r([123])(?:_score_eval)?$")


@dataclass(frozen=True, kw_only=True)
class RankedTask(TaskRecord):
    """One prompt of one dataset in one run, with the fields of the results file.

    If there are per-example scores, accuracy, chance and the number of examples are computed from
    the scores.

    Attributes:
      accuracy: in percent.
      scores: the per-example scores; None if the file with the scores is missing.
    """

    name: str
    accuracy: float
    scores: ExampleScores | None


@dataclass(frozen=True)
class Prediction:
    """The text that a model generated for an example.

    Attributes:
      heading: the name of the example, if the file of predictions names its examples.
      row: the id of the row in the user's data, or its number; None if both are unknown.
    """

    heading: str
    inputs: str
    targets: tuple[str, ...]
    prediction: str
    row: str | int | None = None


@dataclass(frozen=True, kw_only=True)
class DecodedTask(TaskRecord):
    """One task of one run in mode `eval`, with the fields of the results file.

    Attributes:
      groups: name of a group of examples -> metric -> value for this group.
      predictions_file: the file of all predictions; None if it is unknown or missing.
      results_file: the file with the metrics.
    """

    name: str
    groups: Mapping[str, Mapping[str, float | None]]
    predictions_file: Path | None
    results_file: Path


@dataclass(frozen=True)
class EvaluatedRun:
    """One evaluated checkpoint.

    Attributes:
      name: the model's name. It is the relative path or hub name that the user typed. If the user
        typed an absolute path, it is the shortest end of the path that no other model's path has.
      label: the name and step, unique among the runs that are read together.
      series: the identifier of the training run, whose checkpoints share one line in plots.
      facts: the `run` object of the results file, without the notes in it.
      path: the file of the rank evaluation; without one, the file of mode `eval`.
      skipped: the names of tasks without an accuracy.
      decoded: the run's tasks in mode `eval`.
      other_paths: other result files of the same checkpoint (decoded text, perplexity).
      mark: the run's letter and colour.
    """

    name: str
    label: str
    series: str
    step: int | None
    path: Path
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    tasks: tuple[RankedTask, ...]
    skipped: tuple[str, ...]
    decoded: tuple[DecodedTask, ...] = ()
    other_paths: tuple[Path, ...] = ()
    mark: Mark = Mark()

    @property
    def ranked(self) -> bool:
        """Whether the run has a rank evaluation."""
        return bool(self.tasks or self.skipped)

    @property
    def files(self) -> str:
        """The names of the run's result files."""
        return ", ".join(printable(path.name) for path in (self.path, *self.other_paths))


def read_runs(paths: Iterable[Path]) -> tuple[EvaluatedRun, ...]:
    """Reads the runs of all result files in `paths`, which may be files or folders.

    Raises:
      UserError: if a file is missing or malformed, or no task has a metric.
    """
    runs: list[EvaluatedRun] = []
    for path in find_results(paths):
        _merge_run(runs, _read_run(path))
    if not any(run.tasks or run.decoded for run in runs):
        raise UserError(
            f"no task with an accuracy in {', '.join(str(run.path) for run in runs)}. "
            "A report needs results of mode score_eval or eval."
        )
    labelled = _with_unique_labels(_with_short_names(runs))
    return tuple(
        replace(run, mark=Mark(run_letter(position), position, run.label))
        for position, run in enumerate(labelled)
    )


def tasks_by_dataset(runs: Sequence[EvaluatedRun]) -> dict[tuple[str, int], list[RankedTask]]:
    """Returns (dataset, position of a run) -> the run's tasks, grouped by dataset."""
    datasets = dict.fromkeys(task.dataset for run in runs for task in run.tasks)
    return {
        (dataset, position): tasks
        for dataset in datasets
        for position, run in enumerate(runs)
        if (tasks := [task for task in run.tasks if task.dataset == dataset])
    }


def dataset_groups(runs: Sequence[EvaluatedRun]) -> dict[str, str]:
    """Returns dataset -> its group (held out, training or other), in the order of the report."""
    groups: dict[str, set[str]] = {}
    for run in runs:
        for task in run.tasks:
            groups.setdefault(task.dataset, set()).add(task.group)
    names = {
        name: " / ".join(sorted(filter(None, task_groups))) for name, task_groups in groups.items()
    }
    ordered = sorted(names, key=lambda name: (_GROUP_ORDER.get(names[name], 2), names[name], name))
    return {name: names[name] for name in ordered}


def last_of_series(runs: Sequence[EvaluatedRun], positions: Iterable[int]) -> tuple[int, ...]:
    """Returns, for each series among the runs at `positions`, its last checkpoint's position."""
    last: dict[str, int] = {}
    for i in positions:
        best = last.get(runs[i].series)
        if best is None or (runs[i].step or 0) >= (runs[best].step or 0):
            last[runs[i].series] = i
    return tuple(sorted(last.values()))


def _merge_run(runs: list[EvaluatedRun], new: EvaluatedRun) -> None:
    """Adds a run to `runs`. If `runs` already has the same checkpoint, merges both evaluations."""
    for i, run in enumerate(runs):
        is_same = _identify_checkpoint(run) == _identify_checkpoint(new)
        names = [task.name for task in (*run.decoded, *new.decoded)]
        if is_same and not (run.ranked and new.ranked) and len(set(names)) == len(names):
            first, other = (new, run) if new.ranked else (run, new)
            runs[i] = replace(
                first,
                facts={**other.facts, **first.facts},
                notes=tuple(dict.fromkeys((*first.notes, *other.notes))),
                decoded=first.decoded + other.decoded,
                other_paths=(*first.other_paths, other.path, *other.other_paths),
            )
            return
    runs.append(new)


def _identify_checkpoint(run: EvaluatedRun) -> tuple[Any, ...]:
    return run.series, run.step, PurePosixPath(run.name).name, run.facts.get("split")


def _read_run(path: Path) -> EvaluatedRun:
    content = load_results(path)
    if is_harness(content):
        return _read_harness_run(content, path)
    results = read_record(content, ResultsFile, path)
    is_decoded = results.run.mode in ("eval", "perplexity")
    hidden = ("notes", "mode") if is_decoded else ("notes",)
    facts = {name: x for name, x in (content.get("run") or {}).items() if name not in hidden}
    step = file_step(path) if results.run.step is None else results.run.step
    run = _make_run(path, facts, step, results.run.notes)
    if is_decoded:
        tasks = results.tasks.items()
        return replace(run, decoded=tuple([_make_decoded_task(*task, path) for task in tasks]))
    tasks, skipped = _read_ranked_tasks(results, path, step)
    return replace(run, tasks=tasks, skipped=skipped, notes=(*run.notes, *_note_numbers(tasks)))


def _note_numbers(tasks: Sequence[RankedTask]) -> list[str]:
    """Returns a note for each dataset whose prompts number their examples in different ways."""
    numbered: dict[str, dict[str, list[str]]] = {}
    for task in tasks:
        if task.scores:
            kinds = numbered.setdefault(task.dataset, {})
            kinds.setdefault(task.scores.numbered_by, []).append(task.name)
    return [
        f"{dataset}: the examples of {len(kinds[EXAMPLE])} prompts, such as {kinds[EXAMPLE][0]}, "
        "are not numbered by row, so they are not paired with the other prompts. Cache these "
        "tasks again and evaluate them again"
        for dataset, kinds in numbered.items()
        if len(kinds) > 1
    ]


def _make_run(
    path: Path, facts: Mapping[str, Any], step: int | None, notes: Sequence[str]
) -> EvaluatedRun:
    """Returns a run without tasks. Its name is the path or hub name of the model, if known."""
    folder = path.resolve().parent
    names = (facts.get("name"), facts.get("model_dir"), folder.name, "run")
    name = next(name for name in names if name and isinstance(name, str))
    series = printable(str(folder))
    return EvaluatedRun(name, "", series, step, path, facts, tuple(notes), (), ())


def _with_short_names(runs: Sequence[EvaluatedRun]) -> list[EvaluatedRun]:
    """Shortens the names of models to the shortest ends of their paths that differ.

    A relative path or a hub name is short, so it stays as the user typed it.
    """
    names = distinct_names({PurePosixPath(run.name) for run in runs})
    return [
        replace(run, name=printable(run.name))
        if run.facts.get("name") == run.name and run.name[0] != "/" and "://" not in run.name
        else replace(run, name=names[PurePosixPath(run.name)])
        for run in runs
    ]


def _with_unique_labels(runs: Sequence[EvaluatedRun]) -> tuple[EvaluatedRun, ...]:
    """Makes the labels of runs unique.

    A label consists of the run's name and step. If two labels are equal, the split is added to
    both. If they are still equal, the results file is added.
    """
    labels = [r.name if r.step is None else f"{r.name}, step {r.step:,}" for r in runs]
    splits = [run.facts.get("split") for run in runs]
    files = distinct_names([run.path.resolve() for run in runs])
    for suffixes in (
        [f", {split}" if split else "" for split in splits],
        [f" ({files[run.path.resolve()]})" for run in runs],
    ):
        repeated = Counter(labels)
        labels = [
            label + suffix if repeated[label] > 1 else label
            for label, suffix in zip(labels, suffixes, strict=True)
        ]
    return tuple(replace(run, label=label) for run, label in zip(runs, labels, strict=True))


# Results of rank evaluation.


def _read_ranked_tasks(
    results: ResultsFile, path: Path, step: int | None
) -> tuple[tuple[RankedTask, ...], tuple[str, ...]]:
    """Returns the tasks with an accuracy, and the names of the tasks without an accuracy."""
    tasks, skipped = [], []
    with ProgressLine(len(results.tasks), unit="task", doing="reading scores") as progress:
        for name, record in sorted(results.tasks.items()):
            numbering = record.numbered_by or results.run.numbered_by
            scores = _read_task_scores(path, name, step, decoded=record.decoded is not None)
            if scores:
                scores = replace(scores, numbered_by=ROW if numbering == ROW else EXAMPLE)
            task = _make_ranked_task(name, record, f"{path}: tasks.{name}", scores)
            if task is None:
                skipped.append(name)
            else:
                tasks.append(task)
            progress.count(1)
    return tuple(tasks), tuple(skipped)


def _read_task_scores(
    path: Path, name: str, step: int | None, *, decoded: bool
) -> ExampleScores | None:
    if PurePosixPath(name).name != name or "\\" in name:
        raise UserError(f"{path}: task name '{name}' must not contain path separators.")
    file = path.parent / "scores" / f"{name}_{step}.jsonl"
    if not file.is_file():
        return None
    answers = path.parent / "answers" / file.name
    scores = read_scores(file)
    return with_answers(scores, answers) if decoded and answers.is_file() else scores


def _make_ranked_task(
    name: str, record: TaskRecord, where: str, scores: ExampleScores | None
) -> RankedTask | None:
    """Returns the task; None if the accuracy is missing in both its record and its scores."""
    metrics, accuracy = _check_metrics(record.metrics, where), record.metrics.get("accuracy")
    if accuracy is not None and not 0 <= accuracy <= 100:
        raise UserError(
            f"{where}.metrics.accuracy is {accuracy!r:.80}; expected 0 to 100 (percent)."
        )
    if scores:
        _check_agreement(scores, accuracy, record.examples, sum(record.excluded.values()), where)
        record = replace(record, examples=len(scores), chance=scores.chance)
        accuracy = scores.accuracy
    if accuracy is None:
        return None
    if not record.dataset:
        raise UserError(f"{where} has no field 'dataset'.")
    dataset = _dataset_key(record.dataset, name)
    names = {"dataset": dataset, "prompt": record.prompt or name}
    names["group"] = record.group or _default_group(dataset)
    fields = vars(record) | names | {"metrics": metrics}
    return RankedTask(**fields, name=name, accuracy=float(accuracy), scores=scores)


def _check_metrics(metrics: Mapping[str, Any], where: str) -> dict[str, float | None]:
    """Returns metric -> value; None for an undefined value, which is NaN or null."""
    for metric, value in metrics.items():
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise UserError(f"{where}.metrics.{metric} is {value!r:.80}; expected a number.")
    return {metric: finite(value) for metric, value in metrics.items()}


def _default_group(dataset: str) -> str:
    """Returns the group of a dataset for which the results do not name a group."""
    return "held-out" if dataset in held_out_titles() else ""


def _check_agreement(
    scores: ExampleScores, accuracy: float | None, examples: int, excluded: int, where: str
) -> None:
    """Checks that the scores of a task have the accuracy that is in its results."""
    differs = accuracy is not None and abs(accuracy - scores.accuracy) > _ACCURACY_TOLERANCE
    if differs or len(scores) not in (examples, examples - excluded):
        raise UserError(
            f"{where} has {examples} examples and accuracy {accuracy}, but its scores file "
            f"{scores.path} has {len(scores)} and gives {scores.accuracy:g}. The files are from "
            "different evaluations, or one is incomplete: evaluate again."
        )


def _dataset_key(dataset: str, task: str) -> str:
    """Returns the name of a task's dataset. For ANLI, the name includes the round.

    >>> _dataset_key("anli", "anli_GPT_3_style_r2_score_eval"), _dataset_key("sciq/default", "x")
    ('anli/r2', 'sciq')
    """
    dataset = dataset.removesuffix("/default")
    if dataset.split("/")[0] == "anli":
        match = _ANLI_ROUND.search(dataset) or _ANLI_ROUND.search(task)
        return f"anli/r{match[1]}" if match else dataset
    return dataset


# Results of lm-evaluation-harness. Its samples are scores of our prompts.


def _read_harness_run(content: Mapping[str, Any], path: Path) -> EvaluatedRun:
    results = read_harness(content, path)
    tasks = []
    for name, ((_, dataset, prompt), scores) in sorted(results.tasks.items()):
        metrics = {"accuracy": scores.accuracy}
        record = TaskRecord(dataset=dataset, prompt=prompt, examples=len(scores), metrics=metrics)
        where = f"{path}: task '{name}'"
        tasks.append(_make_ranked_task(name, record, where, scores))
    run = _make_run(path, results.facts, None, results.notes)
    return replace(run, tasks=tuple(tasks), skipped=results.skipped)


# Results of mode `eval`, which are metrics of decoded text.


def _make_decoded_task(name: str, record: TaskRecord, path: Path) -> DecodedTask:
    where = f"{path}: tasks.{name}"
    whole, groups = _split_by_group(_check_metrics(record.metrics, where))
    for metric, (low, high) in record.intervals.items():
        if low > high:
            raise UserError(f"{where}.intervals.{metric} is {low, high}; expected low, then high.")
    return DecodedTask(
        **vars(record) | {"metrics": whole},
        name=name,
        groups=groups,
        predictions_file=_find_predictions_file(record.predictions, path, where),
        results_file=path,
    )


def _split_by_group(
    values: Mapping[str, float | None],
) -> tuple[dict[str, float | None], dict[str, dict[str, float | None]]]:
    """Splits metrics into the metrics of the whole task and the metrics of each group."""
    whole: dict[str, float | None] = {}
    groups: dict[str, dict[str, float | None]] = {}
    for name, value in values.items():
        metric, _, group = name.partition("_for_")
        if group and metric in values:
            groups.setdefault(group, {})[metric] = value
        else:
            whole[name] = value
    return whole, groups


def _find_predictions_file(name: str | None, path: Path, where: str) -> Path | None:
    if name is None:
        return None
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
        raise UserError(
            f"{where}.predictions is {name!r:.80}; expected a path below the folder of the results."
        )
    file = path.parent / name
    return file if file.is_file() else None


def read_predictions(file: Path) -> Iterator[Prediction]:
    """Yields the predictions in a file. A `.json` file contains only a sample of all predictions.

    Raises:
      UserError: if the file cannot be read, or a line is malformed; the message names file and
        line.
    """
    if file.suffix == ".json":
        content = json_object(read_text(file), file)
        examples = field(content, "examples", Sequence[Any], file, default=())
        records = ((f"{file}: example {n}", example) for n, example in enumerate(examples))
    else:
        records = read_json_lines(file)
    for where, record in records:
        yield _parse_prediction(record, where)


def _parse_prediction(record: object, where: str) -> Prediction:
    """Parses a record in one of the three formats that files in `predictions/` have."""
    if not isinstance(record, dict) or not isinstance(record.get("prediction"), str):
        raise UserError(f"{where}: expected an object with the text 'prediction'.")
    if isinstance(record.get("Instance"), dict):  # the format of Tk-Instruct
        instance = record["Instance"]
        inputs = _collect_texts(record.get("Definition"), instance.get("input"))
        heading, targets = record.get("Task"), instance.get("output")
    elif "question" in record:
        inputs = _collect_texts(record["question"], record.get("context"))
        heading, targets = record.get("id"), record.get("answers")
    else:
        inputs = _collect_texts(record.get("inputs"))
        heading, targets = None, record.get("targets")
    heading, targets = "".join(_collect_texts(heading)), tuple(_collect_texts(targets))
    rows = [record[key] for key in ("id", "idx") if isinstance(record.get(key), str | int)]
    prediction = record["prediction"]
    return Prediction(heading, "\n\n".join(inputs), targets, prediction, *rows[:1])


def _collect_texts(*values: object) -> list[str]:
    """Returns all texts among the values, including the texts in values that are lists."""
    lists = [value if isinstance(value, list) else [value] for value in values]
    return [text for texts in lists for text in texts if isinstance(text, str)]
