"""Compares runs: accuracies on what they share, differences, sets that cannot be told apart.

    runs, baseline = read_named_runs(["eval"])
    found = compare(runs, baseline=baseline) if len(runs) > 1 else None
    found                         # None; else found.datasets, found.mean, found.notes

Every dataset is compared on the prompts and examples that all of its runs scored. Differences are
with the baseline; their p-values are adjusted over the table (Benjamini and Hochberg, 1995, J. R.
Stat. Soc. B 57), those of all pairs, which decide the tied sets, over all pairs and datasets.

Assumptions: a task with the same name is the same prompt; see `accuracies.shared_grid` for what the
same example is. The mean is over the datasets that all runs have.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from t0.errors import UserError
from t0.reports import accuracies
from t0.reports.accuracies import Accuracy, Gap, Grid
from t0.reports.diagnosis import answers_of
from t0.reports.evaluations import EvaluatedRun, RankedTask, dataset_groups
from t0.reports.named_runs import NamedRun, check_comparable, notes_on
from t0.reports.paired_runs import SIGNIFICANT, other_texts, prompt_gaps, shared_tasks
from t0.reports.published import title_of
from t0.reports.statistics import pairs_of, tied_sets

SHOWN_EXAMPLES = 5  # for each dataset, run and direction


@dataclass(frozen=True)
class Difference:
    """A run's difference from the baseline; `adjusted` is its p-value over the table."""

    run: int
    gap: Gap
    adjusted: float

    @property
    def clear(self) -> bool:
        """Whether the difference is told apart from none."""
        return self.adjusted < SIGNIFICANT


@dataclass(frozen=True)
class DifferingExample:
    """An example on which a run and the baseline differ.

    Attributes:
      run: the run's position.
      row: the row of the dataset.
      gain: the share of prompts (and seeds) that the run has right, less the baseline's.
      prompt: a prompt under which they differ so.
      task: the name of that prompt's task.
      gold: the right answer under that prompt.
      prediction: the run's prediction.
      baseline: the baseline's prediction.
    """

    run: int
    row: int
    gain: float
    prompt: str
    task: str
    gold: str
    prediction: str
    baseline: str


@dataclass(frozen=True)
class ComparedDataset:
    """One dataset, or the mean over datasets.

    Attributes:
      runs: the positions of the runs that have it.
      accuracies: of each of these runs.
      differences: of each run but the baseline; none if the baseline does not have it.
      tied: the maximal sets of runs, by position, of which no two are told apart.
      prompts: for each run but the baseline, a row for each prompt, see `prompt_gaps`.
      won: for each run, how many examples it has right under more prompts than the baseline.
      lost: for each run, under fewer.
      examples: the examples of the largest differences.
    """

    dataset: str
    title: str
    group: str
    runs: tuple[int, ...]
    accuracies: Mapping[int, Accuracy]
    differences: tuple[Difference, ...]
    tied: tuple[tuple[int, ...], ...]
    prompts: Mapping[int, Sequence[Mapping[str, Any]]]
    won: Mapping[int, int]
    lost: Mapping[int, int]
    examples: tuple[DifferingExample, ...]
    number_of_prompts: int
    number_of_examples: int


@dataclass(frozen=True)
class RunComparison:
    """A comparison of runs; `mean` is over the datasets that all runs have, if there are two."""

    runs: tuple[NamedRun, ...]
    baseline: int
    datasets: tuple[ComparedDataset, ...]
    mean: ComparedDataset | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Shared:
    dataset: str
    group: str
    runs: tuple[int, ...]
    tasks: Sequence[RankedTask]
    grid: Grid
    gaps: Mapping[tuple[int, int], Gap]


def compare(
    runs: Sequence[NamedRun], *, baseline: int = 0, any_texts: bool = False
) -> RunComparison:
    """Returns the comparison of some runs.

    Args:
      runs: the runs.
      baseline: the position of the run that the others are compared with.
      any_texts: whether examples are the same though their inputs or choices differ.

    Raises:
      UserError: if there are fewer than two runs, they cannot be compared, or share no example.
    """
    check_comparable(runs)
    notes = notes_on(runs)
    shared = _shared(runs, any_texts=any_texts, notes=notes)
    if not shared:
        raise UserError(
            "these runs share no example of any prompt, so there is nothing to compare. "
            + " ".join(notes)
        )
    datasets = _adjusted(
        [_compared(one, runs, baseline) for one in shared],
        [one.gaps for one in shared],
    )
    complete = [one for one in shared if len(one.runs) == len(runs)]
    mean = _mean(complete, baseline) if len(complete) > 1 else None
    return RunComparison(tuple(runs), baseline, datasets, mean, tuple(dict.fromkeys(notes)))


def _shared(runs: Sequence[NamedRun], *, any_texts: bool, notes: list[str]) -> list[_Shared]:
    """Returns what is shared of each dataset, and adds to the notes what is not."""
    found = []
    groups = dataset_groups([run for one in runs for run in one.seeds])
    for dataset, group in groups.items():
        having = [
            position
            for position, one in enumerate(runs)
            if all(_task_names(run, dataset) for run in one.seeds)
        ]
        if len(having) < 2:
            names = ", ".join(runs[i].name for i in having) or "no run in all its seeds"
            notes.append(f"{dataset} is left out: only {names} has scores of it.")
            continue
        tasks, grid = shared_tasks([runs[i].seeds for i in having], dataset, any_texts=any_texts)
        notes += _prompts_left_out(runs, having, dataset)
        if grid is None:
            notes.append(f"{dataset} is left out: its runs share no example of the same prompt.")
            continue
        notes += other_texts(tasks, grid, any_texts=any_texts)
        rows = sum(grid.left_out)
        if rows:
            notes.append(
                f"{dataset}: {rows:,} of {rows + int(grid.present.sum()):,} examples (summed over "
                "prompts) were not scored by all runs, or have another right answer there, and are "
                "left out."
            )
        gaps = {
            (having[i], having[j]): accuracies.gap(grid, i, j) for i, j in pairs_of(len(having))
        }
        found.append(_Shared(dataset, group, tuple(having), tasks, grid, gaps))
    return found


def _task_names(run: EvaluatedRun, dataset: str) -> set[str]:
    return {
        task.name
        for task in run.tasks
        if task.dataset == dataset and task.scores is not None and len(task.scores)
    }


def _prompts_left_out(runs: Sequence[NamedRun], having: Sequence[int], dataset: str) -> list[str]:
    names = {i: [_task_names(run, dataset) for run in runs[i].seeds] for i in having}
    every = [one for seeds in names.values() for one in seeds]
    common = set.intersection(*every)
    notes = []
    for i, seeds in names.items():
        alone = set.union(*seeds) - common
        if alone:
            listed = ", ".join(sorted(alone)[:3]) + (" ..." if len(alone) > 3 else "")
            notes.append(
                f"{dataset}: {runs[i].name} has prompts that not every run has: {listed} "
                f"({len(alone)} in all). Compared are {len(common)}."
            )
    return notes


def _compared(shared: _Shared, runs: Sequence[NamedRun], baseline: int) -> ComparedDataset:
    places = {run: place for place, run in enumerate(shared.runs)}
    others = [run for run in shared.runs if run != baseline] if baseline in places else []
    grid = shared.grid
    gains = {run: _gains(grid, places[baseline], places[run]) for run in others}
    return ComparedDataset(
        dataset=shared.dataset,
        title=title_of(shared.dataset),
        group=shared.group,
        runs=shared.runs,
        accuracies={run: accuracies.accuracy(grid, place) for run, place in places.items()},
        differences=tuple(Difference(run, _between(shared, baseline, run), 1.0) for run in others),
        tied=(),
        prompts={
            run: prompt_gaps(shared.tasks, grid, places[baseline], places[run]) for run in others
        },
        won={run: int((gain > 0).sum()) for run, gain in gains.items()},
        lost={run: int((gain < 0).sum()) for run, gain in gains.items()},
        examples=tuple(
            one
            for run, gain in gains.items()
            for one in _examples(shared, runs, (baseline, run), gain)
        ),
        number_of_prompts=len(shared.tasks),
        number_of_examples=len(grid.rows),
    )


def _between(shared: _Shared, baseline: int, run: int) -> Gap:
    """Returns the run's difference from the baseline, whichever of them comes first."""
    if (baseline, run) in shared.gaps:
        return shared.gaps[baseline, run]
    places = [shared.runs.index(baseline), shared.runs.index(run)]
    return accuracies.gap(shared.grid, *places)


def _gains(grid: Grid, first: int, second: int) -> np.ndarray:
    weights = grid.present.sum(axis=0)
    one, two = (grid.right[run].mean(axis=0).sum(axis=0) / weights for run in (first, second))
    return two - one


def _examples(
    shared: _Shared, runs: Sequence[NamedRun], pair: tuple[int, int], gains: np.ndarray
) -> list[DifferingExample]:
    """Returns the examples with the largest gains and losses, the losses first."""
    order = np.argsort(gains, kind="stable")
    lost = [e for e in order[:SHOWN_EXAMPLES] if gains[e] < 0]
    won = [e for e in order[::-1][:SHOWN_EXAMPLES] if gains[e] > 0]
    baseline, run = (shared.runs.index(one) for one in pair)
    means = shared.grid.right[run].mean(axis=0) - shared.grid.right[baseline].mean(axis=0)
    found = []
    for e in [*lost, *won]:
        row, task = (
            int(shared.grid.rows[e]),
            shared.tasks[int(np.argmax(np.sign(gains[e]) * means[:, e]))],
        )
        answers = [_answers(runs[one], task.name, row) for one in reversed(pair)]
        given = (float(gains[e]), task.prompt, task.name)
        found.append(DifferingExample(pair[1], row, *given, *answers[0], answers[1][1]))
    return found


def _answers(run: NamedRun, task: str, row: int) -> tuple[str, str]:
    """Returns the right answer of a row and the predicted one, of the run's first seed."""
    (scores,) = (one.scores for one in run.seeds[0].tasks if one.name == task)
    (place,) = np.flatnonzero(scores.idx == row)
    answers = answers_of(scores)
    return answers[int(scores.gold[place])], answers[int(scores.prediction[place])]


def _adjusted(
    datasets: Sequence[ComparedDataset], gaps: Sequence[Mapping[tuple[int, int], Gap]]
) -> tuple[ComparedDataset, ...]:
    """Returns the datasets with p-values adjusted over all of them, and with their tied sets."""
    plain = [one.gap.p_value for dataset in datasets for one in dataset.differences]
    of_table = iter(_adjust(plain))
    of_pairs = iter(_adjust([one.p_value for found in gaps for one in found.values()]))
    return tuple(
        dataclasses.replace(
            dataset,
            differences=tuple(
                dataclasses.replace(one, adjusted=next(of_table)) for one in dataset.differences
            ),
            tied=_tied(dataset.runs, {pair: next(of_pairs) for pair in found}),
        )
        for dataset, found in zip(datasets, gaps, strict=True)
    )


def _adjust(p_values: Sequence[float]) -> list[float]:
    """Returns the p-values of one table, adjusted by Benjamini's and Hochberg's procedure."""
    from scipy import stats

    return stats.false_discovery_control(p_values).tolist() if p_values else []


def _tied(
    runs: Sequence[int], p_values: Mapping[tuple[int, int], float]
) -> tuple[tuple[int, ...], ...]:
    different = {
        tuple(runs.index(one) for one in pair) for pair, p in p_values.items() if p < SIGNIFICANT
    }
    found = tied_sets(len(runs), different=different)
    return tuple(tuple(runs[place] for place in group) for group in found)


def _mean(shared: Sequence[_Shared], baseline: int) -> ComparedDataset:
    """Returns the mean over datasets; its p-values are adjusted over the runs alone."""
    runs = shared[0].runs
    pairs = {
        pair: accuracies.mean_gap([one.gaps[pair] for one in shared]) for pair in shared[0].gaps
    }
    others = [run for run in runs if run != baseline]
    between = [
        accuracies.mean_gap([_between(one, baseline, run) for one in shared]) for run in others
    ]
    adjusted = _adjust([one.p_value for one in between])
    of_pairs = _adjust([one.p_value for one in pairs.values()])
    return ComparedDataset(
        dataset="",
        title=f"Mean of {len(shared)} datasets",
        group="",
        runs=runs,
        accuracies={
            run: accuracies.mean_accuracy([one.grid for one in shared], run) for run in runs
        },
        differences=tuple(
            Difference(run, one, p) for run, one, p in zip(others, between, adjusted, strict=True)
        ),
        tied=_tied(runs, dict(zip(pairs, of_pairs, strict=True))),
        prompts={},
        won={},
        lost={},
        examples=(),
        number_of_prompts=sum(len(one.tasks) for one in shared),
        number_of_examples=sum(len(one.grid.rows) for one in shared),
    )
