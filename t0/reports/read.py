"""Reads the result files of evaluations into runs, strictly.

A run is one evaluated checkpoint. Its file of rank evaluation holds one record for each task, that
is for each prompt of a dataset; the per-example scores lie beside it under `scores/` and may be
absent. Beside that, or alone, there may be a file of mode `eval`:

    eval/results_1000.json
    eval/scores/super_glue_rte_must_be_true_score_eval_1000.jsonl
    eval/decoded_1000.json

    >>> runs = read_runs([Path("eval")])            # doctest: +SKIP
    >>> runs[0].label, runs[0].tasks[0].accuracy    # doctest: +SKIP
    ('tiny, step 1,000', 54.15)

Assumptions: accuracies and chance levels are percentages (0 to 100); results of one folder are
checkpoints of one training run, so they form a series over steps. Optional fields may be absent;
a field that is there and malformed is a UserError naming the file and the field.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from t0.errors import UserError
from t0.reports.decoded import DecodedTask, read_decoded_tasks
from t0.reports.fields import counts, field, numbers, percentage
from t0.reports.files import file_step, find_results, is_decoded, load
from t0.reports.folders import telling_names
from t0.reports.scores import Scores, read_scores

# Published results are rounded to one or two decimals; anything further apart is another run.
_ACCURACY_TOLERANCE = 0.06
_ANLI_ROUND = re.compile(r"(?:^|[_/])r([123])(?:_score_eval)?$")


@dataclass(frozen=True)
class Task:
    """One prompt of one dataset in one run. Accuracy and chance in percent.

    Attributes:
        chance: accuracy of guessing: 100 / number of choices, averaged over examples when the
            scores are there, else as the results file states it, else None.
        excluded: number of examples left out, by reason.
        scores: the per-example scores, None where their file is absent.
    """

    name: str
    dataset: str
    prompt: str
    group: str
    examples: int
    accuracy: float
    chance: float | None
    metrics: Mapping[str, float]
    truncated_inputs: int | None
    truncated_targets: int | None
    excluded: Mapping[str, int]
    scores: Scores | None


@dataclass(frozen=True)
class Run:
    """One evaluated checkpoint.

    Attributes:
        name: of the model: its directory's last part, or more of it where several models' end
            alike, or as the results state it.
        label: name and step, unique among the runs read together.
        series: identifies the training run whose checkpoints belong on one line.
        facts: the results file's `run` object without its notes.
        skipped: names of tasks that state no accuracy.
        ranked: whether it was evaluated by rank; else `path` is of mode `eval`.
        decoded: its tasks in mode `eval`.
        decoded_path: the file of mode `eval` beside that of rank evaluation.
    """

    name: str
    label: str
    series: str
    step: int | None
    path: Path
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    tasks: tuple[Task, ...]
    skipped: tuple[str, ...]
    ranked: bool = True
    decoded: tuple[DecodedTask, ...] = ()
    decoded_path: Path | None = None

    @property
    def files(self) -> str:
        """The names of its result files."""
        return ", ".join(path.name for path in (self.path, self.decoded_path) if path)


def read_runs(paths: Iterable[Path]) -> tuple[Run, ...]:
    """Reads every result file among and below `paths`, with what lies beside each.

    Raises:
        UserError: a file is missing or malformed, or no task states a metric.
    """
    runs: list[Run] = []
    for path in find_results(paths):
        _join(runs, _read_run(path))
    if not any(run.tasks or run.decoded for run in runs):
        raise UserError(
            f"no task with an accuracy in {', '.join(str(run.path) for run in runs)}. "
            "A report needs results of mode score_eval or eval."
        )
    return _with_unique_labels(_with_telling_names(runs))


def _join(runs: list[Run], new: Run) -> None:
    """Adds a run, to its other half where one checkpoint was evaluated in both modes."""
    for i, run in enumerate(runs):
        same = all(getattr(run, key) == getattr(new, key) for key in ("series", "step", "name"))
        same = same and run.facts.get("split") == new.facts.get("split")
        if same and run.ranked != new.ranked and not run.decoded_path:
            ranked, decoded = (run, new) if run.ranked else (new, run)
            others = {k: v for k, v in decoded.facts.items() if k not in ranked.facts}
            runs[i] = replace(
                ranked,
                facts=ranked.facts | others,
                notes=tuple(dict.fromkeys((*ranked.notes, *decoded.notes))),
                decoded=decoded.decoded,
                decoded_path=decoded.path,
            )
            return
    runs.append(new)


def _read_run(path: Path) -> Run:
    content = load(path)
    facts = dict(field(content, "run", dict, path, default={}))
    notes = facts.pop("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise UserError(f"{path}: run.notes must be a list of texts, got {notes!r:.80}.")
    step = field(facts, "step", int, f"{path}: run", default=None)
    step = file_step(path) if step is None else step
    decoded = is_decoded(content)
    if decoded:
        facts.pop("mode")
    tasks, skipped = ((), ()) if decoded else _read_tasks(content, path, step)
    return Run(
        name=_name(path, facts),
        label="",
        series=str(path.parent.resolve()),
        step=step,
        path=path,
        facts=facts,
        notes=tuple(notes),
        tasks=tasks,
        skipped=skipped,
        ranked=not decoded,
        decoded=read_decoded_tasks(content, path) if decoded else (),
    )


def _read_tasks(
    content: Mapping[str, Any], path: Path, step: int | None
) -> tuple[tuple[Task, ...], tuple[str, ...]]:
    """Returns the tasks with an accuracy, and the names of those without."""
    tasks, skipped = [], []
    for name, record in sorted(field(content, "tasks", dict, path).items()):
        if not isinstance(record, dict):
            raise UserError(f"{path}: task '{name}' must be an object, got {record!r:.80}.")
        scores = _read_task_scores(path, name, step)
        task = _read_task(name, record, where=f"{path}: task '{name}'", scores=scores)
        if task is None:
            skipped.append(name)
        else:
            tasks.append(task)
    return tuple(tasks), tuple(skipped)


def _read_task_scores(path: Path, name: str, step: int | None) -> Scores | None:
    if PurePosixPath(name).name != name or "\\" in name:
        raise UserError(f"{path}: task name '{name}' must not contain path separators.")
    file = path.parent / "scores" / f"{name}_{step}.jsonl"
    return read_scores(file) if step is not None and file.is_file() else None


def _read_task(
    name: str, record: Mapping[str, Any], *, where: str, scores: Scores | None
) -> Task | None:
    """Returns the task, or None when neither metrics nor scores give an accuracy."""
    metrics = numbers(field(record, "metrics", dict, where), f"{where}: metrics")
    excluded = counts(field(record, "excluded", dict, where, default={}), f"{where}: excluded")
    examples = field(record, "examples", int, where)
    if examples < 0:
        raise UserError(f"{where}: examples is {examples}, wanted a count.")
    accuracy = percentage(metrics, "accuracy", f"{where}: metrics")
    chance = percentage(record, "chance", where)
    if scores is not None and len(scores):
        _check_agreement(scores, accuracy, examples, sum(excluded.values()), where)
        examples, accuracy = len(scores), scores.accuracy
        chance = scores.chance
    if accuracy is None:
        return None
    return Task(
        name=name,
        dataset=_dataset_key(field(record, "dataset", str, where), name),
        prompt=field(record, "prompt", str, where, default=name),
        group=field(record, "group", str, where, default="") or "",
        examples=examples,
        accuracy=accuracy,
        chance=chance,
        metrics=metrics,
        truncated_inputs=field(record, "truncated_inputs", int, where, default=None),
        truncated_targets=field(record, "truncated_targets", int, where, default=None),
        excluded=excluded,
        scores=scores,
    )


def _check_agreement(
    scores: Scores, accuracy: float | None, examples: int, excluded: int, where: str
) -> None:
    """Scores and results of two evaluations, mixed up in one folder, must not pass."""
    if len(scores) not in (examples, examples - excluded):
        raise UserError(
            f"{where}: {examples} examples, but its scores file {scores.path} holds {len(scores)}. "
            "The two are of different evaluations, or one is incomplete: evaluate again."
        )
    if accuracy is not None and abs(accuracy - scores.accuracy) > _ACCURACY_TOLERANCE:
        raise UserError(
            f"{where}: accuracy {accuracy:g} %, but its scores file {scores.path} gives "
            f"{scores.accuracy:g} %. The two are of different evaluations: evaluate again."
        )


def _dataset_key(dataset: str, task: str) -> str:
    """Returns the dataset's name; the rounds of ANLI, told apart by task name, are three.

    >>> _dataset_key("anli", "anli_GPT_3_style_r2_score_eval"), _dataset_key("sciq/default", "x")
    ('anli/r2', 'sciq')
    """
    dataset = dataset.removesuffix("/default")
    if dataset.split("/")[0] == "anli":
        found = _ANLI_ROUND.search(dataset) or _ANLI_ROUND.search(task)
        return f"anli/r{found[1]}" if found else dataset
    return dataset


def _name(path: Path, facts: Mapping[str, Any]) -> str:
    for key in ("name", "model_dir"):
        value = facts.get(key)
        if isinstance(value, str) and PurePosixPath(value).name:
            return PurePosixPath(value).name
    return path.resolve().parent.name or "run"


def _with_telling_names(runs: Sequence[Run]) -> list[Run]:
    """Names models whose directories end alike by more of their paths: `sni/model`, `qa/model`."""
    folders = [PurePosixPath(str(run.facts.get("model_dir", ""))) for run in runs]
    by_folder = [run.name == folder.name for run, folder in zip(runs, folders, strict=True)]
    names = telling_names([folder for folder, so in zip(folders, by_folder, strict=True) if so])
    return [
        replace(run, name=names[folder]) if so else run
        for run, folder, so in zip(runs, folders, by_folder, strict=True)
    ]


def _with_unique_labels(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Adds the step, then the split, the folder, and a number, as far as labels would be equal."""
    labels = [r.name if r.step is None else f"{r.name}, step {r.step:,}" for r in runs]
    for more in (
        [f", {run.facts.get('split')}" for run in runs],
        [f" ({run.path.resolve().parent.name})" for run in runs],
    ):
        told_apart = {
            label
            for label in labels
            if len({word for word, other in zip(more, labels, strict=True) if other == label}) > 1
        }
        labels = [
            label + word if label in told_apart else label
            for label, word in zip(labels, more, strict=True)
        ]
    return tuple(
        replace(run, label=f"{label} #{labels[: i + 1].count(label)}")
        if labels.count(label) > 1
        else replace(run, label=label)
        for i, (run, label) in enumerate(zip(runs, labels, strict=True))
    )
