"""Checks a prompt on sample rows, before hours of caching or training are spent on it.

    report = lint(task, "train", rows=200)
    report.counts     # {"no correct choice": 200}
    report.first      # {"no correct choice": 0}: the first such row
    faults_of(report, max_share=0.1)   # {"no correct choice": "200 of 200 rows, first row 0"}

The sample is a few ranges of rows, spread over the whole split, since datasets are often sorted.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from t0.catalogue.prompted_task import PromptedRows
from t0.catalogue.shown import T0_LENGTHS
from t0.errors import UserError
from t0.prompts import NO_LABEL, Example
from t0.sources import SplitRows, hidden_label

# T0's sequence lengths, in tokens with EOS.
LONGEST_INPUTS, LONGEST_TARGETS = T0_LENGTHS["inputs"], T0_LENGTHS["targets"]
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
# The checks that are faults if more than the allowed share of rows fails them. The others are only
# counted: truncated texts and withheld labels are mostly intended.
FAULTS = (NOTHING, EMPTY, NONE_CORRECT, SEVERAL_CORRECT, DUPLICATES)

# Text -> number of its tokens, without EOS.
Count = Callable[[str], int]


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of the checks on the sampled rows of one split.

    Attributes:
      rows: the number of sampled rows.
      counts: check -> number of rows that fail it; `LENGTHS` only if tokens were counted.
      first: check -> index of the first row that fails it.
      draws: whether the template draws at random (seeded by task and row here, unseeded in
        promptsource).
      failure: why rendering stopped; empty if it did not.
    """

    rows: int
    counts: Mapping[str, int]
    first: Mapping[str, int]
    draws: bool
    failure: str = ""


def lint(
    source: PromptedRows, split: str, *, rows: int, count_tokens: Count | None = None
) -> Report:
    """Renders up to `rows` rows of a split, and counts those that fail the checks.

    Args:
      source: the task, or its data source.
      split: the task's split.
      rows: the most rows to sample.
      count_tokens: counts the tokens of a text without EOS; None to skip the checks `LENGTHS`.

    Raises:
      AbsentData: if the split's data was not found.
      UserError: if the data cannot be read.
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
    """Yields (index, row) of up to `rows` rows, in `STRETCHES` ranges spread over the split."""
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
    """Yields the checks that a rendered row fails."""
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
    """Returns check -> what is wrong; empty if the template has no faults.

    Args:
      report: the results of `lint`.
      max_share: the share of the sample, 0 to 1, that may fail a check.
      excused: checks that are known to fail -> the reason.
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
