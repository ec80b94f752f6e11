"""Groups evaluated checkpoints into the runs of a report, and checks that runs are comparable.

    runs, baseline = read_named_runs(["eval"])
    runs[0].name, len(runs[0].checkpoints)    # ('eval, step 1,000', 1)
    runs[0].mark.letter                       # 'A'

All evaluated steps and files of one model form a run. The last step with a rank evaluation is
compared with other runs. `NAME=RUN` gives a run a name. So `a=results_100.json b=results_200.json`
compares two steps of a model. `NAME=RUN,RUN` gives one name to several seeds, whose accuracies are
averaged.

Assumptions: the facts about a run (its settings) are in its results file under `run`. If a fact is
missing in a file, it is not compared.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t0.errors import UserError, printable, unknown_name
from t0.files.any_path import any_path
from t0.reports.evaluations import EvaluatedRun, read_runs
from t0.reports.plots import Mark, run_letter
from t0.reports.result_files import find_results

# Fact -> the reason why runs with different values of this fact cannot be compared.
_REFUSED = {
    "split": "they scored different rows. Evaluate both on the same split",
    "normalisation": "they rank choices in different ways. Evaluate both with the same "
    "normalisation",
}
# Fact -> the note that the report shows if runs have different values of this fact.
_NOTED = {
    "vocabulary_sha256": "different vocabularies, so their log-likelihoods are for different "
    "tokens and only accuracies can be compared",
    "normalisation": "different sums for a choice, with its EOS or without",
    "joined": "different ways to join an input and a choice",
    "template_version": "different prompt versions: examples whose texts differ are left out",
    "sequence_length": "different lengths: one run may have truncated text that another read",
    "activation_dtype": "different types of activations, which round differently",
    "dtype": "different types, which round differently",
    "examples": "different numbers of examples for each task",
    "sample_seed": "different samples of the examples",
}


@dataclass(frozen=True)
class NamedRun:
    """One model with its evaluated checkpoints, or several seeds under one name.

    Attributes:
      name: the name that the user gave, or the label of the checkpoint that is compared.
      checkpoints: all evaluated checkpoints of the model or seeds.
      seeds: the checkpoints to compare: for each seed, its last checkpoint with a rank evaluation.
      mark: the run's letter and colour.
    """

    name: str
    checkpoints: tuple[EvaluatedRun, ...]
    seeds: tuple[EvaluatedRun, ...]
    mark: Mark = Mark()

    @property
    def has_scores(self) -> bool:
        """Whether every seed has per-example scores."""
        return bool(self.seeds) and all(
            any(task.scores for task in run.tasks) for run in self.seeds
        )


def read_named_runs(
    words: Sequence[str | Path], *, baseline: str | None = None
) -> tuple[tuple[NamedRun, ...], int]:
    """Reads the runs named on a command line.

    Args:
      words: the runs, each as `RUN`, `NAME=RUN`, or `NAME=RUN,RUN` for several seeds. A `RUN` is a
        file or folder.
      baseline: the name or the word of the run to compare with. If it is a file or folder that is
        not in `words`, it is added as the first run.

    Returns:
      The runs in the order of the words, and the position of the baseline.

    Raises:
      UserError: if a file is missing or malformed, a run is given twice, or a name is unknown or
        used twice.
    """
    words = [str(word) for word in words]
    names = [word.partition("=")[0] for word in words]
    if baseline and baseline not in (*words, *names) and _is_run(baseline):
        words.insert(0, baseline)
    parsed_words = {word: _parse_word(word) for word in words}
    runs = read_runs([path for _, paths in parsed_words.values() for path in paths])
    groups: dict[object, list[list[EvaluatedRun]]] = {}
    key_of_word: dict[str, object] = {}
    for word, (name, paths) in parsed_words.items():
        for path in paths:
            models = _group_models(path, runs)
            if name and len(models) > 1:
                labels = "; ".join(checkpoints[0].label for checkpoints in models.values())
                raise UserError(
                    f"{path} has {len(models)} models: {labels:.300}. A name is for one model, so "
                    "give the folder or file of one of them, or NAME=RUN,RUN for several seeds."
                )
            for model, checkpoints in models.items():
                key_of_word.setdefault(word, name or model)
                seeds = groups.setdefault(name or model, [])
                if name or not seeds:
                    seeds.append([])
                seeds[-1] += [run for run in checkpoints if run not in seeds[-1]]
    labels = [run.label for seeds in groups.values() for seed in seeds for run in seed]
    _check_distinct(labels, "{} is given twice. Name each run only once.")
    named = [_make_named_run(key, seeds, i) for i, (key, seeds) in enumerate(groups.items())]
    run_names = [name for name, _ in parsed_words.values() if name]
    run_names += [run.name for run in named if run.name not in run_names]
    _check_distinct(run_names, "two runs are named '{}'. Give each its own name: NAME=RUN.")
    if baseline is None:
        return tuple(named), 0
    positions = {word: [*groups].index(key) for word, key in key_of_word.items()}
    positions |= {run.name: position for position, run in enumerate(named)}
    if baseline not in positions:
        names = [run.name for run in named]
        raise unknown_name("run", baseline, names, f"The runs are {'; '.join(names)}.")
    return tuple(named), positions[baseline]


def _check_distinct(names: Sequence[str], message: str) -> None:
    for name, number in Counter(names).items():
        if number > 1:
            raise UserError(message.format(name))


def _is_run(word: str) -> bool:
    return "=" in word or any_path(word).exists()


def _parse_word(word: str) -> tuple[str, list[Path]]:
    name, equals, run_paths = word.partition("=")
    if not equals or any_path(word).exists():
        return "", [any_path(word)]
    paths = [any_path(path_text) for path_text in run_paths.split(",") if path_text]
    if not name or not paths:
        raise UserError(f"got {word!r}, expected NAME=RUN or, for several seeds, NAME=RUN,RUN.")
    return printable(name), paths


def _group_models(
    path: Path, runs: Sequence[EvaluatedRun]
) -> dict[tuple[Any, ...], list[EvaluatedRun]]:
    """Groups the checkpoints whose result files are at a path by their model."""
    files = {file.resolve() for file in find_results([path])}
    models: dict[tuple[Any, ...], list[EvaluatedRun]] = {}
    for run in runs:
        if files & {file.resolve() for file in (run.path, *run.other_paths)}:
            key = (run.series, run.name, run.facts.get("split"))
            models.setdefault(key, []).append(run)
    return models


def _make_named_run(
    key: object, seeds: Sequence[Sequence[EvaluatedRun]], position: int
) -> NamedRun:
    """Builds a named run, and gives its checkpoints a letter and a colour.

    Args:
      key: the name of the run. If it is not a text, the run is named after its checkpoint.
      seeds: for each seed, its checkpoints.
      position: the run's position in the report.
    """
    compared = tuple(_find_last(checkpoints) for checkpoints in seeds)
    checkpoints = [run for seed_checkpoints in seeds for run in seed_checkpoints]
    name = key if isinstance(key, str) else compared[0].label
    letter = run_letter(position)
    marked = {}
    for number, run in enumerate(checkpoints, start=1):
        label = name if len(checkpoints) == 1 else run.label
        checkpoint_letter = letter if len(checkpoints) == 1 else f"{letter}.{number}"
        mark = Mark(checkpoint_letter, position, label)
        marked[run.label] = dataclasses.replace(run, label=label, mark=mark)
    return NamedRun(
        name=name,
        checkpoints=tuple(marked.values()),
        seeds=tuple(marked[run.label] for run in compared),
        mark=Mark(letter, position, name),
    )


def _find_last(checkpoints: Sequence[EvaluatedRun]) -> EvaluatedRun:
    ranked = [run for run in checkpoints if run.tasks] or list(checkpoints)
    return max(ranked, key=lambda run: -1 if run.step is None else run.step)


def check_comparable(runs: Sequence[NamedRun]) -> None:
    """Checks that runs can be compared.

    Raises:
      UserError: if there are fewer than two runs, a run has no per-example scores, or the runs
        differ in a fact that must be equal.
    """
    if len(runs) < 2:
        raise UserError(
            f"got one run, {runs[0].name}; expected two or more to compare. Steps and files of one "
            "model are one run. To compare them, name them: FIRST=FILE SECOND=FILE"
        )
    for run in runs:
        if not run.has_scores:
            path = run.seeds[0].path
            raise UserError(
                f"{path} has no per-example scores. A comparison needs the results_<step>.json of "
                f"tasks with answer choices, and {path.parent}/scores/<task>_<step>.jsonl "
                "next to it. Copy that evaluation's folder scores/ there, or evaluate again."
            )
    _check_numbering(runs)
    for fact, why in _REFUSED.items():
        values = _collect_values(runs, fact)
        # The text after the colon says which tokens are scored. This text may differ, because the
        # choices of decoder-only models may have no EOS.
        if len({value.partition(":")[0] for value in values.values()}) > 1:
            descriptions = "; ".join(f"{name} has {value}" for name, value in values.items())
            raise UserError(f"these runs cannot be compared by '{fact}' ({descriptions}): {why}.")


def _check_numbering(runs: Sequence[NamedRun]) -> None:
    """Raises a UserError if no numbering of the examples is common to all runs."""
    kinds = {
        run.name: [
            {task.scores.numbered_by for task in seed.tasks if task.scores} for seed in run.seeds
        ]
        for run in runs
    }
    if not set.intersection(*(seed for seeds in kinds.values() for seed in seeds)):
        numbered = {
            name: " and ".join(sorted(set().union(*seeds))) for name, seeds in kinds.items()
        }
        raise UserError(
            "these runs number their examples in different ways "
            f"({'; '.join(f'{name}: by {kind}' for name, kind in numbered.items())}), so the same "
            "number is another row and examples cannot be paired. Evaluate again the runs that are "
            "not numbered by row"
        )


def notes_on(runs: Sequence[NamedRun]) -> list[str]:
    """Returns notes about facts in which comparable runs differ."""
    notes = []
    for fact, meaning in _NOTED.items():
        values = _collect_values(runs, fact)
        if fact == "sequence_length" and not any(map(_may_truncate, runs)):
            continue
        if len(set(values.values())) > 1:
            descriptions = "; ".join(f"{name}: {value[:60]}" for name, value in values.items())
            notes.append(f"The runs have {meaning} ({descriptions}).")
    return notes


def _may_truncate(run: NamedRun) -> bool:
    """Returns whether the run truncated some text, or whether this is unknown."""
    tasks = [task for seed in run.seeds for task in seed.tasks]
    return any(task.truncated_inputs != 0 or task.truncated_targets != 0 for task in tasks)


def _collect_values(runs: Sequence[NamedRun], fact: str) -> Mapping[str, str]:
    """Returns name of a run -> its value of a fact, for the runs whose files have this fact."""
    values_by_run: dict[str, str] = {}
    for run in runs:
        values: list[Any] = [seed.facts[fact] for seed in run.seeds if fact in seed.facts]
        if values:
            values_by_run[run.name] = " and ".join(sorted({str(value) for value in values}))
    return values_by_run
