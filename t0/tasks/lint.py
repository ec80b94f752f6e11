"""Looks at what a prompt makes of sample rows, before hours are spent on it.

    report = lint(task.source, "train", rows=200)
    report.counts     # {"no correct choice": 200}
    report.first      # {"no correct choice": 0}: the first such row
    faults_of(report, max_share=0.1)   # {"no correct choice": "200 of 200 rows, first row 0"}

The sample is taken in a few stretches over the whole split, since datasets are often sorted.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from t0.errors import UserError
from t0.prompts import NO_LABEL, Example
from t0.sources import SplitRows, hidden_label
from t0.tasks.prompted_tasks import PromptedSource

# T0's sequence lengths, in tokens with EOS.
LONGEST_INPUTS, LONGEST_TARGETS = 1024, 256
STRETCHES = 5

NOTHING = "rendered nothing"
EMPTY = "empty target"
NONE_CORRECT = "no correct choice"
SEVERAL_CORRECT = "several correct choices"
DUPLICATES = "duplicate choices"
HIDDEN = "hidden label"
LONG_INPUTS, LONG_TARGETS = f"inputs over {LONGEST_INPUTS}", f"targets over {LONGEST_TARGETS}"
CHECKS = (NOTHING, EMPTY, NONE_CORRECT, SEVERAL_CORRECT, DUPLICATES, HIDDEN)
LENGTHS = (LONG_INPUTS, LONG_TARGETS)
# What more than the allowed share of rows makes a fault. The others are only counted: cut texts and
# withheld labels are mostly meant.
FAULTS = (NOTHING, EMPTY, NONE_CORRECT, SEVERAL_CORRECT, DUPLICATES)

# Text -> number of its tokens, without EOS.
Count = Callable[[str], int]


@dataclasses.dataclass(frozen=True)
class Report:
    """What a template makes of the sampled rows of one split.

    Attributes:
      rows: sampled rows.
      counts: check -> rows that it found; `LENGTHS` only if tokens were counted.
      first: check -> the first such row of the split.
      draws: whether the template draws at random: seeded here by task and row, by chance in
        promptsource.
      failure: why rendering stopped, empty if it did not.
    """

    rows: int
    counts: Mapping[str, int]
    first: Mapping[str, int]
    draws: bool
    failure: str = ""


def lint(
    source: PromptedSource, split: str, *, rows: int, count_tokens: Count | None = None
) -> Report:
    """Renders up to `rows` rows of a split and counts what is odd.

    Raises:
      AbsentData: if the split's data is nowhere.
      UserError: if it cannot be read.
    """
    opened = source.open(split)
    counts: dict[str, int] = {}
    first: dict[str, int] = {}
    seen, failure = 0, ""
    for index, row in sample(opened, rows):
        seen += 1
        try:
            example = source.compiled.example(row, index)
        except UserError as error:
            failure = str(error)
            break
        for check in oddities(example, hidden_label(source.dataset, row), count_tokens):
            counts[check] = counts.get(check, 0) + 1
            first.setdefault(check, index)
    return Report(seen, counts, first, source.compiled.is_random, failure)


def sample(opened: SplitRows, rows: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields (number, row) of up to `rows` rows, in `STRETCHES` stretches over the split."""
    total = opened.num_rows
    if total <= rows:
        yield from enumerate(opened.rows())
        return
    pieces = min(STRETCHES, rows)
    for piece in range(pieces):
        start = total * piece // pieces
        size = rows * (piece + 1) // pieces - rows * piece // pieces
        yield from enumerate(opened.rows(start, min(start + size, total)), start=start)


def oddities(example: Example | None, hidden: bool, count_tokens: Count | None) -> Iterator[str]:
    """Yields the checks that a rendered row does not pass."""
    if example is None:
        yield NOTHING
        return
    if hidden:
        yield HIDDEN
    elif example.targets == NO_LABEL:
        yield EMPTY
    if example.choices:
        yield from _odd_choices(example.choices, None if hidden else example.targets)
    if count_tokens:
        if count_tokens(example.inputs) > LONGEST_INPUTS:
            yield LONG_INPUTS
        # Targets end in EOS.
        if count_tokens(example.targets) + 1 > LONGEST_TARGETS:
            yield LONG_TARGETS


def _odd_choices(choices: Sequence[str], target: str | None) -> Iterator[str]:
    if len(set(choices)) < len(choices):
        yield DUPLICATES
    if target is not None:
        correct = choices.count(target)
        if not correct:
            yield NONE_CORRECT
        elif correct > 1:
            yield SEVERAL_CORRECT


def faults_of(
    report: Report, *, max_share: float, excused: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns check -> what is wrong; nothing of a template that is sound.

    Args:
      max_share: rows that a check may find, as a share of the sample, 0 to 1.
      excused: checks that are known to find rows, with the reason.
    """
    if report.failure:
        return {"fails": report.failure}
    wrong = {}
    for check in FAULTS:
        found = report.counts.get(check, 0)
        if found > max_share * report.rows and check not in (excused or {}):
            wrong[check] = f"{found} of {report.rows} rows, the first is row {report.first[check]}"
    if not report.rows:
        wrong["no rows"] = "the split is empty"
    return wrong
