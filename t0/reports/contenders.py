"""The runs that a comparison is of: files read, seeds put under one name, and whether they fit.

    contenders = read_contenders(["eval/results_1000.json", "more=eval/results_1000.json"][:1])
    contenders[0].name, len(contenders[0].seeds)    # ('eval, step 1,000', 1)

A run is a folder or a file as `t0 report` takes it, with one evaluated checkpoint in it. Several of
them under one name, `NAME=RUN,RUN`, are seeds: their accuracies are averaged.

Assumptions: what a run is said to be stands in its results file under `run`; a fact that a file
does not have is not compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t0.errors import UserError, printable, unknown_name
from t0.files.any_path import any_path
from t0.reports.evaluations import EvaluatedRun, read_runs
from t0.reports.result_files import find_results

# Fact -> why runs that differ in it are not compared.
_REFUSED = {
    "split": "they scored other rows. Evaluate both on one split",
    "normalisation": "their choices are ranked in other ways. Evaluate both with one normalisation",
}
# Fact -> what is said of runs that differ in it.
_SAID = {
    "vocabulary_sha256": "other vocabularies: accuracies are compared; log-likelihoods, which are "
    "of other tokens, cannot be",
    "normalisation": "other sums for a choice, with its EOS or without",
    "joined": "other ways to join an input and a choice",
    "template_version": "prompts of other versions: examples whose texts differ are left out",
    "sequence_length": "other lengths: what one of them cut, the other may have read",
    "activation_dtype": "other types of activations, which round in other ways",
    "dtype": "other types, which round in other ways",
    "examples": "another number of examples for each task",
}


@dataclass(frozen=True)
class Contender:
    """One of the things compared: a name, and its evaluated runs, one for each seed."""

    name: str
    seeds: tuple[EvaluatedRun, ...]


def read_contenders(words: Sequence[str]) -> tuple[Contender, ...]:
    """Returns the contenders of a command line, in its order.

    Args:
      words: `RUN`, or `NAME=RUN,RUN` for the seeds of one name.

    Raises:
      UserError: if a file is missing or malformed, has several checkpoints or no scores, or if the
        runs cannot be compared.
    """
    given = [_split(word) for word in words]
    runs = read_runs([path for _, paths in given for path in paths])
    found: list[Contender] = []
    used: dict[Path, str] = {}
    for name, paths in given:
        seeds = tuple(_one_run(path, runs, used) for path in paths)
        found.append(Contender(name or seeds[0].label, seeds))
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two runs have the name '{name}'. Give each one of its own: NAME=RUN.")
    _check_facts(found)
    return tuple(found)


def position_of(word: str, contenders: Sequence[Contender], words: Sequence[str]) -> int:
    """Returns the position of a run that is given by its name, or as on the command line.

    Raises:
      UserError: if it is none of them.
    """
    for position, (one, given) in enumerate(zip(contenders, words, strict=True)):
        if word in (one.name, given, given.partition("=")[0]):
            return position
    names = [one.name for one in contenders]
    raise unknown_name("run", word, names, f"The runs are {'; '.join(names)}.")


def notes_on(contenders: Sequence[Contender]) -> list[str]:
    """Returns what readers must know of how the runs were made."""
    found = []
    for fact, meaning in _SAID.items():
        values = _values(contenders, fact)
        if len(set(values.values())) > 1:
            said = "; ".join(f"{name}: {value[:60]}" for name, value in values.items())
            found.append(f"The runs have {meaning} ({said}).")
    for one in contenders:
        bare = {task.name for run in one.seeds for task in run.tasks if task.scores is None}
        if bare:
            listed = ", ".join(sorted(bare)[:3]) + (" ..." if len(bare) > 3 else "")
            found.append(
                f"{one.name}: {len(bare)} tasks have no per-example scores beside the results, so "
                f"they are left out: {listed}."
            )
    return found


def _split(word: str) -> tuple[str, list[Path]]:
    name, equals, rest = word.partition("=")
    if not equals or any_path(word).exists():
        return "", [any_path(word)]
    paths = [any_path(part) for part in rest.split(",") if part]
    if not name or not paths:
        raise UserError(f"got {word!r}, wanted NAME=RUN or, for several seeds, NAME=RUN,RUN.")
    return printable(name), paths


def _one_run(path: Path, runs: Sequence[EvaluatedRun], used: dict[Path, str]) -> EvaluatedRun:
    files = {file.resolve() for file in find_results([path])}
    inside = [run for run in runs if run.path.resolve() in files and run.ranked]
    if not inside:
        raise UserError(
            f"{path} has no rank evaluation. A comparison needs results_<step>.json of tasks with "
            "answer choices, and the folder scores/ beside it."
        )
    if len(inside) > 1:
        names = "; ".join(f"{run.path} ({run.label})" for run in inside[:4])
        more = " ..." if len(inside) > 4 else ""
        raise UserError(
            f"{path} has {len(inside)} evaluated checkpoints: {names}{more}. Name one of the "
            "files; several seeds of one model are NAME=FILE,FILE."
        )
    (run,) = inside
    if run.path.resolve() in used:
        raise UserError(f"{run.path} is given twice. Each run is compared once.")
    used[run.path.resolve()] = run.label
    if not any(task.scores is not None and len(task.scores) for task in run.tasks):
        wanted = run.path.parent / "scores" / f"<task>_{run.step}.jsonl"
        raise UserError(
            f"{run.path} has no per-example scores: none of its {len(run.tasks)} tasks has a file "
            f"{wanted}. Copy the folder scores/ of that evaluation to there, or evaluate again."
        )
    return run


def _check_facts(contenders: Sequence[Contender]) -> None:
    for fact, why in _REFUSED.items():
        values = _values(contenders, fact)
        # After the colon is what is summed: a decoder-only model's choice may have no EOS.
        if len({value.partition(":")[0] for value in values.values()}) > 1:
            said = "; ".join(f"{name} has {value}" for name, value in values.items())
            raise UserError(f"these runs cannot be compared by '{fact}' ({said}): {why}.")


def _values(contenders: Sequence[Contender], fact: str) -> Mapping[str, str]:
    """Returns name -> the value of a fact, of the runs whose file has it."""
    found: dict[str, str] = {}
    for one in contenders:
        values: list[Any] = [run.facts[fact] for run in one.seeds if fact in run.facts]
        if values:
            found[one.name] = " and ".join(sorted({str(value) for value in values}))
    return found
