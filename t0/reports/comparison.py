"""Compares runs on shared examples: accuracies, differences from a baseline, and tied sets.

    runs, baseline = read_named_runs(["eval"])
    comparison = compare(runs, baseline=baseline) if len(runs) > 1 else None
    comparison                         # None; otherwise comparison.rows, .notes
    rows = comparison_rows(comparison) if comparison else {}

Runs are compared on each dataset, with the prompts and examples that all of them scored. If a run
has no scores for a dataset, only the other runs are compared on this dataset. The p-values of the
differences from the baseline are adjusted over the whole table (Benjamini and Hochberg, 1995, J. R.
Stat. Soc. B 57). Runs that do not differ significantly from each other on a dataset form a tied
set. To find the tied sets, all pairs of runs are tested, and the p-values are adjusted over all
pairs and datasets.

In tables, each run has a letter; the first run is A. Each tied set has a small letter: the set with
the best run has the letter a, and the other sets follow in the order of their best runs. If two
runs have no small letter in common on a dataset, they differ significantly. If no two runs differ
on a dataset, no small letters are shown for it.

Assumptions: `accuracies.shared_grid` decides which examples are the same. Means are over the
datasets that all runs have.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from t0.errors import UserError
from t0.reports import accuracies
from t0.reports.accuracies import SIGNIFICANT, Grid
from t0.reports.evaluations import RankedTask, dataset_groups
from t0.reports.published import title_of
from t0.reports.report_runs import NamedRun, check_comparable, notes_on
from t0.reports.statistics import tied_sets
from t0.reports.tables import MARK, Row

_LEGEND = (
    "diff.: run minus {baseline}, points; interval: for other examples and prompts; adj. p: over "
    "all datasets and runs (Benjamini and Hochberg), of the mean over runs; detect.: the smallest "
    "true difference that 4 of 5 evaluations find; +/−: prompts better and worse by McNemar's "
    "test, not adjusted; won/lost: examples right under more and fewer prompts"
)


@dataclass
class ComparedDataset:
    """The comparison of runs on one dataset, or the comparison of their means over datasets.

    Attributes:
      runs: the positions of the runs that scored this dataset.
      grids: the examples that these runs share; for a mean, those of each dataset.
      accuracies: position of a run -> its accuracy, see `accuracies.accuracy`.
      p_values: (i, j) with i < j -> the p-value of the difference of the runs at these positions.
      differences: position of a run (not of the baseline) -> its difference from the baseline, with
        the columns of `accuracies.gap` and:
          `adjusted_p_value`: the p-value after the adjustment over all rows of the table;
          `better`, `worse`: the number of prompts with a significant difference, not adjusted;
          `won`, `lost`: the number of examples that the run answers correctly under more, and under
            fewer, prompts than the baseline does;
          `differing`: the number of examples on which the runs differ under at least one prompt.
        The last five are None for a mean. There are no differences if the baseline has no scores
        for this dataset.
      prompts: position of a run (not of the baseline) -> a row for each prompt, see
        `accuracies.prompt_gaps`.
      tied: the tied sets, as positions of runs. No two runs in a set differ significantly, and no
        further run could be added to a set.
    """

    dataset: str
    title: str
    group: str
    runs: tuple[int, ...]
    grids: Sequence[Grid]
    accuracies: Mapping[int, Mapping[str, float]]
    p_values: Mapping[tuple[int, int], float]
    differences: Mapping[int, dict[str, Any]]
    prompts: Mapping[int, Sequence[Row]] = field(default_factory=dict)
    tied: Sequence[tuple[int, ...]] = ()

    @property
    def number_of_prompts(self) -> int:
        """The number of prompts that all of these runs scored."""
        return sum(len(grid.present) for grid in self.grids)

    @property
    def number_of_examples(self) -> int:
        """The number of examples that all of these runs scored."""
        return sum(len(grid.rows) for grid in self.grids)


@dataclass(frozen=True)
class RunComparison:
    """A comparison of runs.

    Attributes:
      rows: the compared datasets. If all runs have two or more datasets in common, the first row
        compares the means over these datasets.
    """

    runs: tuple[NamedRun, ...]
    baseline: int
    rows: tuple[ComparedDataset, ...]
    notes: tuple[str, ...]

    @property
    def baseline_letter(self) -> str:
        """The letter of the baseline in tables and plots."""
        return self.runs[self.baseline].mark.letter


def compare(
    runs: Sequence[NamedRun], *, baseline: int = 0, any_texts: bool = False
) -> RunComparison:
    """Compares runs on the examples that they share.

    Args:
      runs: two or more runs.
      baseline: the position of the run with which the others are compared.
      any_texts: whether examples with equal rows count as the same even if their inputs or choices
        differ.

    Raises:
      UserError: if there are fewer than two runs, if the runs cannot be compared, or if they share
        no example.
    """
    check_comparable(runs)
    notes = notes_on(runs)
    groups = dataset_groups([seed for run in runs for seed in run.seeds])
    compared = [
        _compare_dataset(runs, dataset, group, baseline, any_texts=any_texts, notes=notes)
        for dataset, group in groups.items()
    ]
    datasets = [row for row in compared if row is not None]
    if not datasets:
        raise UserError(
            "these runs share no example of any prompt, so there is nothing to compare. "
            + " ".join(notes)
        )
    means = []
    complete = [row.grids[0] for row in datasets if len(row.runs) == len(runs)]
    if len(complete) > 1:
        title = f"Mean of {len(complete)} datasets"
        means = [_compare_grids(title, title, "", range(len(runs)), complete, baseline)]
    for rows in (means, datasets):
        _adjust_p_values(rows)
    return RunComparison(tuple(runs), baseline, (*means, *datasets), tuple(dict.fromkeys(notes)))


def _compare_dataset(
    runs: Sequence[NamedRun],
    dataset: str,
    group: str,
    baseline: int,
    *,
    any_texts: bool,
    notes: list[str],
) -> ComparedDataset | None:
    """Compares the runs that scored a dataset; returns None if that is impossible.

    The comparison is impossible if fewer than two runs scored the dataset, or if they share no
    example. For each run, prompt or example that is left out, a sentence is appended to `notes`.
    """
    tasks_of = {
        i: [accuracies.scored_tasks(seed, dataset) for seed in run.seeds]
        for i, run in enumerate(runs)
    }
    scored = [i for i, seeds in tasks_of.items() if all(seeds)]
    if len(scored) < 2:
        names = ", ".join(runs[i].name for i in scored) or "none in all its seeds"
        notes.append(f"{dataset} is left out: fewer than two runs have scores of it ({names}).")
        return None
    by_run = {runs[i].name: tasks_of[i] for i in scored}
    tasks, grid = accuracies.shared_tasks([*by_run.values()], any_texts=any_texts)
    notes += _describe_omitted_prompts(dataset, by_run)
    if grid is None:
        notes.append(f"{dataset} is left out: its runs share no example of the same prompt.")
        return None
    notes += _describe_omitted_examples(dataset, tasks, grid, any_texts=any_texts)
    row = _compare_grids(dataset, title_of(dataset), group, scored, [grid], baseline)
    for run, difference in row.differences.items():
        pair = scored.index(baseline), scored.index(run)
        row.prompts[run] = prompts = accuracies.prompt_gaps(tasks, grid, *pair)
        significant = [p["difference"] for p in prompts if p["p_value"] < SIGNIFICANT]
        first, second = (accuracies.mean_by_example(grid, position) for position in pair)
        difference |= {
            "better": sum(gap > 0 for gap in significant),
            "worse": sum(gap < 0 for gap in significant),
            "won": int((second > first).sum()),
            "lost": int((second < first).sum()),
            "differing": accuracies.count_differing(grid, *pair),
        }
    return row


def _compare_grids(
    dataset: str, title: str, group: str, runs: Sequence[int], grids: Sequence[Grid], baseline: int
) -> ComparedDataset:
    """Compares the mean over grids of `runs`, which are the positions of the grids' runs."""

    def gap(first: int, second: int) -> dict[str, Any]:
        return accuracies.gap(grids, runs.index(first), runs.index(second))

    gaps = {pair: gap(*pair) for pair in itertools.combinations(runs, 2)}
    later = dict.fromkeys(("adjusted_p_value", "better", "worse", "won", "lost", "differing"))
    others = [run for run in runs if run != baseline] if baseline in runs else []
    return ComparedDataset(
        dataset=dataset,
        title=title,
        group=group,
        runs=tuple(runs),
        grids=grids,
        accuracies={run: accuracies.accuracy(grids, i) for i, run in enumerate(runs)},
        p_values={pair: columns["p_value"] for pair, columns in gaps.items()},
        differences={
            run: (gaps.get((baseline, run)) or gap(baseline, run)) | later for run in others
        },
    )


def _describe_omitted_prompts(
    dataset: str, runs: Mapping[str, Sequence[Mapping[str, RankedTask]]]
) -> list[str]:
    """Returns notes about prompts that are not in all runs, or are numbered in different ways.

    Args:
      dataset: the dataset's name.
      runs: name of a run -> for each of its seeds, the scored tasks of the dataset.
    """
    numbered = accuracies.collect_numberings([*runs.values()])
    notes = []
    for run, seeds in runs.items():
        left_out = sorted(set().union(*seeds) - numbered.keys())
        if left_out:
            examples = ", ".join(left_out[:3]) + (" ..." if len(left_out) > 3 else "")
            notes.append(
                f"{dataset}: {run} has prompts that not every run has: {examples} "
                f"({len(left_out)} in all). The {len(numbered)} prompts of all runs are compared."
            )
    left_out = [name for name, numberings in numbered.items() if len(numberings) > 1]
    if left_out:
        notes.append(
            f"{dataset}: {len(left_out)} prompts, such as {left_out[0]}, are left out, because "
            "some runs number their examples by row and others do not. Evaluate them again"
        )
    return notes


def _describe_omitted_examples(
    dataset: str, tasks: Sequence[RankedTask], grid: Grid, *, any_texts: bool
) -> list[str]:
    treatment = "are compared nonetheless" if any_texts else "are left out"
    notes = [
        f"{task.name}: {count:,} examples have different inputs or choices in the runs and "
        f"{treatment}. The runs had different versions of the prompt or of the rows."
        for task, count in zip(tasks, grid.other_texts, strict=True)
        if count
    ]
    rows = sum(grid.left_out)
    if rows:
        notes.append(
            f"{dataset}: {rows:,} of {rows + int(grid.present.sum()):,} examples (summed over "
            "prompts) are left out: not all runs scored them, or the runs have different right "
            "answers."
        )
    return notes


def _adjust_p_values(rows: Sequence[ComparedDataset]) -> None:
    """Adds the tied sets, and the p-values that are adjusted over all rows, to the rows."""
    differences = [difference for row in rows for difference in row.differences.values()]
    adjusted = _adjust([difference["p_value"] for difference in differences])
    for difference, value in zip(differences, adjusted, strict=True):
        difference["adjusted_p_value"] = value
    pair_p_values = iter(_adjust([p for row in rows for p in row.p_values.values()]))
    for row in rows:
        different = [pair for pair in row.p_values if next(pair_p_values) < SIGNIFICANT]
        row.tied = tied_sets(row.runs, different=different)


def _adjust(p_values: Sequence[float]) -> list[float]:
    """Adjusts the p-values of one table with the procedure of Benjamini and Hochberg."""
    from scipy import stats

    return stats.false_discovery_control(p_values).tolist() if p_values else []


# The rows of the tables, and the texts about them.


def comparison_rows(comparison: RunComparison) -> dict[str, list[Row]]:
    """Returns name of a table -> its rows, for the tables about a comparison."""

    def name(row: ComparedDataset, position: int) -> dict[str, Any]:
        run = comparison.runs[position]
        names = {"dataset": row.dataset, "title": row.title, "run": run.name}
        return names | {"label": run.name, MARK: run.mark}

    return {
        "accuracies": [_make_accuracy_row(comparison, row) for row in comparison.rows],
        "differences": [
            name(row, run) | difference
            for row in comparison.rows
            for run, difference in row.differences.items()
        ],
        "prompt_differences": [
            name(row, run) | prompt
            for row in comparison.rows
            for run, prompts in row.prompts.items()
            for prompt in prompts
        ],
    }


def _make_accuracy_row(comparison: RunComparison, row: ComparedDataset) -> dict[str, Any]:
    names = {run: comparison.runs[run].name for run in row.runs}
    return {
        "dataset": row.dataset,
        "title": row.title,
        "group": row.group,
        "prompts": row.number_of_prompts,
        "examples": row.number_of_examples,
        "accuracies": {names[run]: accuracy for run, accuracy in row.accuracies.items()},
        "tied_sets": [[names[run] for run in group] for group in row.tied],
        "letters": {names[run]: tied_letters(row, run) for run in row.runs},
    }


def legend_lines(comparison: RunComparison) -> list[str]:
    """Returns the lines that explain the letters and columns of the tables in the terminal."""
    lines = []
    for position, run in enumerate(comparison.runs):
        seeds = f" (mean of {len(run.seeds)} seeds)" if len(run.seeds) > 1 else ""
        base = " (baseline)" if position == comparison.baseline else ""
        lines.append(f"{run.mark.letter} {run.name}{seeds}{base}")
    if any(len(row.tied) > 1 for row in comparison.rows):
        lines.append("small letters: runs that share a letter do not differ significantly there")
    else:
        lines.append("no two runs differ significantly on any dataset")
    return [*lines, _LEGEND.format(baseline=comparison.baseline_letter)]


def tied_letters(row: ComparedDataset, run: int) -> str:
    """Returns the small letters of a run's tied sets; "" if one set contains all runs.

    The tied sets are ordered by the best accuracy in each set.
    """
    sets = sorted(
        row.tied, key=lambda group: -max(row.accuracies[member]["mean"] for member in group)
    )
    if len(sets) < 2:
        return ""
    return "".join(chr(ord("a") + position) for position, group in enumerate(sets) if run in group)
