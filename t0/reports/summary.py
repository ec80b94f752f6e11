"""Turns runs into the rows that every form of the report shows.

    runs -> DatasetRow (a dataset in a run), PromptRow (a prompt in a run), Comparison (two runs)

Datasets come in the order held-out, training, others, each by name; runs in the order given. The
first run with scores to rank is the baseline that every other one is compared with.

Assumptions: a task with the same name is the same prompt of the same dataset in every run.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from t0.reports.published import Published, published
from t0.reports.read import Run, Task
from t0.reports.statistics import (
    Difference,
    Interval,
    McNemar,
    Spread,
    bootstrap,
    difference,
    mcnemar,
    pair,
    spread,
)

_GROUP_ORDER = {"held-out": 0, "training": 1}
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class PromptRow:
    """One prompt of one dataset in one run, with the interval of its accuracy (percent)."""

    run: int
    dataset: str
    group: str
    task: Task
    interval: Interval | None

    @property
    def ties(self) -> int | None:
        """Number of examples whose best score is shared, None without scores."""
        return None if self.task.scores is None else int(self.task.scores.tied.sum())


@dataclass(frozen=True)
class DatasetRow:
    """One dataset in one run: accuracies over prompts (percent), counts summed over prompts.

    Attributes:
        examples: smallest and largest number of examples of a prompt.
        interval: of the mean over prompts, None unless every prompt has its scores.
        chance: mean over prompts.
        ties, truncated_inputs, truncated_targets: None where no prompt states them.
    """

    run: int
    dataset: str
    title: str
    group: str
    spread: Spread
    interval: Interval | None
    prompts: tuple[PromptRow, ...]
    examples: tuple[int, int]
    scored: int
    chance: float | None
    ties: int | None
    truncated_inputs: int | None
    truncated_targets: int | None
    excluded: Mapping[str, int]
    published: Published | None


@dataclass(frozen=True)
class PromptComparison:
    """One prompt in two runs, on the examples that both scored."""

    task: Task
    difference: Difference
    test: McNemar


@dataclass(frozen=True)
class DatasetComparison:
    """One dataset in two runs: the difference of mean accuracies, and its prompts."""

    dataset: str
    title: str
    difference: Difference
    prompts: tuple[PromptComparison, ...]

    @property
    def better(self) -> int:
        """Number of prompts where the second run is better with p below `SIGNIFICANT`."""
        return sum(self._is_clear(p) and p.difference.difference > 0 for p in self.prompts)

    @property
    def worse(self) -> int:
        """Number of prompts where the second run is worse with p below `SIGNIFICANT`."""
        return sum(self._is_clear(p) and p.difference.difference < 0 for p in self.prompts)

    def _is_clear(self, prompt: PromptComparison) -> bool:
        return prompt.test.p_value < SIGNIFICANT


@dataclass(frozen=True)
class Comparison:
    """Two runs, by their positions in the report."""

    first: int
    second: int
    datasets: tuple[DatasetComparison, ...]


def dataset_rows(runs: Sequence[Run], *, with_intervals: bool = True) -> tuple[DatasetRow, ...]:
    """Returns a row for each dataset and run, datasets first, then runs."""
    groups: dict[str, set[str]] = {}
    for run in runs:
        for task in run.tasks:
            groups.setdefault(task.dataset, set()).add(task.group)
    names = {name: " / ".join(sorted(filter(None, found))) for name, found in groups.items()}
    ordered = sorted(names, key=lambda name: (_GROUP_ORDER.get(names[name], 2), names[name], name))
    return tuple(
        _dataset_row(index, dataset, group=names[dataset], tasks=tasks, bootstrapped=with_intervals)
        for dataset in ordered
        for index, run in enumerate(runs)
        if (tasks := [task for task in run.tasks if task.dataset == dataset])
    )


def _dataset_row(
    run: int, dataset: str, *, group: str, tasks: Sequence[Task], bootstrapped: bool
) -> DatasetRow:
    intervals: dict[str, Interval] = {}
    overall = None
    scored = [task for task in tasks if task.scores is not None and len(task.scores)]
    if scored and bootstrapped:
        each, overall = bootstrap([task.scores for task in scored], dataset)
        intervals = dict(zip((task.name for task in scored), each, strict=True))
    prompts = tuple(
        PromptRow(run, dataset, group, task, intervals.get(task.name)) for task in tasks
    )
    facts = published().get(dataset)
    chances = [task.chance for task in tasks if task.chance is not None]
    counts = [task.examples for task in tasks]
    return DatasetRow(
        run=run,
        dataset=dataset,
        title=facts.title if facts else dataset,
        group=group,
        spread=spread([task.accuracy for task in tasks]),
        interval=overall if len(scored) == len(tasks) else None,
        prompts=prompts,
        examples=(min(counts), max(counts)),
        scored=sum(counts),
        chance=sum(chances) / len(chances) if chances else None,
        ties=_total(row.ties for row in prompts),
        truncated_inputs=_total(task.truncated_inputs for task in tasks),
        truncated_targets=_total(task.truncated_targets for task in tasks),
        excluded=dict(sorted(sum((Counter(t.excluded) for t in tasks), Counter()).items())),
        published=facts,
    )


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def comparisons(runs: Sequence[Run], rows: Sequence[DatasetRow]) -> tuple[Comparison, ...]:
    """Compares the first ranked run with every other, where both have scores of the same examples.

    Args:
        runs: two or more; fewer give no comparison.
        rows: their dataset rows, whose order of datasets is kept.
    """
    order = list(dict.fromkeys(row.dataset for row in rows))
    first, *others = [i for i, run in enumerate(runs) if run.tasks] or [0]
    found = (_compare(runs, first, i, order=order) for i in others)
    return tuple(comparison for comparison in found if comparison.datasets)


def _compare(runs: Sequence[Run], one: int, other: int, *, order: Sequence[str]) -> Comparison:
    first, second = runs[one], runs[other]
    seconds = {task.name: task for task in second.tasks if task.scores is not None}
    paired: dict[str, list] = {}
    for task in first.tasks:
        match = seconds.get(task.name)
        if task.scores is None or match is None or match.dataset != task.dataset:
            continue
        rows = pair(task.scores, match.scores)
        if len(rows[0]):
            paired.setdefault(task.dataset, []).append((task, rows))
    datasets = []
    for dataset in filter(paired.__contains__, order):
        entries = paired[dataset]
        each, overall = difference([rows for _, rows in entries], dataset)
        prompts = tuple(
            PromptComparison(task, gap, mcnemar(rows[1], rows[2]))
            for (task, rows), gap in zip(entries, each, strict=True)
        )
        facts = published().get(dataset)
        title = facts.title if facts else dataset
        datasets.append(DatasetComparison(dataset, title, overall, prompts))
    return Comparison(one, other, tuple(datasets))
