"""Turns tasks of mode `eval` into what every form of the report shows of them.

    runs -> Generation (a task in all runs) -> MetricRow, GroupRow, Card

Tasks come in the order of their files, runs in the order given. A group is a category or a task
within a task, where a metric has them (Super-NaturalInstructions). Cards show what the last
checkpoint of each series wrote for the same few examples.

Assumptions: metrics of T5's are between 0 and 100, most of them percent; of a metric that is not in
`UNITS` nothing is known.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from t0.reports.decoded import DecodedTask, is_instruction_task
from t0.reports.read import Run

# Measures whose values are from 0 to 100, and how their axes are labelled.
UNITS = {
    **dict.fromkeys(("accuracy", "sequence_accuracy", "exact_match", "em", "f1"), "%"),
    **dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), "F measure, %"),
    "bleu": "0 to 100",
}


@dataclass(frozen=True)
class MetricRow:
    """One measure of one task in one run; `value` is None where it is undefined."""

    run: int
    task: DecodedTask
    measure: str
    value: float | None


@dataclass(frozen=True)
class GroupRow:
    """All measures of one group of a task in one run, in the order of `Generation.measures`."""

    run: int
    group: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Card:
    """One example, and what some runs wrote for it: (run, text)."""

    heading: str
    inputs: str
    targets: tuple[str, ...]
    answers: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Generation:
    """One task in all runs that have it.

    Attributes:
        measures: of the whole task, in the order of the files.
        rows: a row for each run and measure.
        categories, parts: groups that are categories, and such as are tasks, by name, then run.
        files: where all predictions of the cards' runs are.
    """

    task: str
    measures: tuple[str, ...]
    rows: tuple[MetricRow, ...]
    categories: tuple[GroupRow, ...]
    parts: tuple[GroupRow, ...]
    cards: tuple[Card, ...]
    files: tuple[str, ...]


def generations(runs: Sequence[Run]) -> tuple[Generation, ...]:
    """Returns what mode `eval` found, for each task that some run has."""
    by_task: dict[str, dict[int, DecodedTask]] = {}
    for position, run in enumerate(runs):
        for task in run.decoded:
            by_task.setdefault(task.name, {})[position] = task
    last = set(last_of_series(runs))
    return tuple(
        _generation(name, tasks, [run for run in tasks if run in last])
        for name, tasks in by_task.items()
    )


def last_of_series(runs: Sequence[Run]) -> tuple[int, ...]:
    """Returns the positions of each series' last checkpoint in mode `eval`."""
    last: dict[str, int] = {}
    for position, run in enumerate(runs):
        best = last.get(run.series)
        if run.decoded and (best is None or (run.step or 0) >= (runs[best].step or 0)):
            last[run.series] = position
    return tuple(sorted(last.values()))


def _generation(
    name: str, tasks: Mapping[int, DecodedTask], read_from: Sequence[int]
) -> Generation:
    measures = tuple(dict.fromkeys(m for task in tasks.values() for m in task.metrics))
    rows = [
        MetricRow(run, task, measure, task.metrics[measure])
        for measure in measures
        for run, task in tasks.items()
        if measure in task.metrics
    ]
    names = sorted({group for task in tasks.values() for group in task.groups})
    groups = [
        GroupRow(run, group, tuple(task.groups[group].get(measure) for measure in measures))
        for group in names
        for run, task in tasks.items()
        if group in task.groups
    ]
    files = [tasks[run].predictions_file for run in read_from]
    return Generation(
        task=name,
        measures=measures,
        rows=tuple(rows),
        categories=tuple(row for row in groups if not is_instruction_task(row.group)),
        parts=tuple(row for row in groups if is_instruction_task(row.group)),
        cards=_cards({run: tasks[run] for run in read_from}),
        files=tuple(str(file) for file in files if file),
    )


def _cards(tasks: Mapping[int, DecodedTask]) -> tuple[Card, ...]:
    # Two examples may read the same: they are told apart by which of them comes first.
    found: dict[tuple[str, str, tuple[str, ...], int], list[tuple[int, str]]] = {}
    for run, task in tasks.items():
        seen: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
        for one in task.predictions:
            key = (one.heading, one.inputs, one.targets)
            found.setdefault((*key, seen[key]), []).append((run, one.prediction))
            seen[key] += 1
    return tuple(Card(*key[:3], tuple(answers)) for key, answers in found.items())


def signature_notes(found: Sequence[Generation]) -> list[str]:
    """Returns a note for each measure whose values are not comparable between the runs."""
    notes = []
    for generation in found:
        for measure in generation.measures:
            signatures = {
                row.task.signatures.get(measure)
                for row in generation.rows
                if row.measure == measure
            }
            if len(signatures) > 1:
                notes.append(
                    f"{generation.task}: {measure} was computed in different ways "
                    f"({'; '.join(sorted(str(s) for s in signatures))}): do not compare its values."
                )
    return notes


def axis_label(measure: str) -> str:
    """Returns a measure with its unit, where that is known.

    >>> axis_label("em"), axis_label("edit_distance")
    ('em (%)', 'edit_distance')
    """
    return f"{measure} ({UNITS[measure]})" if measure in UNITS else measure
