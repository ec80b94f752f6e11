"""Checks a prompt on sample rows before hours of caching or training.

    report = lint(task, "train", rows=200)
    report.counts     # {"no correct choice": 200}
    report.first      # {"no correct choice": 0}, the index of the first such row
    faults_of(report, max_share=0.1)   # {"no correct choice": "200 of 200 rows, first row 0"}

Datasets are often sorted. Therefore the sample consists of a few ranges of rows that are spread
over the whole split.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from t0.catalogue.prompted_task import PromptedRows
from t0.catalogue.row_preview import T0_LENGTHS, list_answers
from t0.catalogue.sentence_pieces import UNKNOWN, Tokens, vocabulary_notes
from t0.errors import UserError
from t0.prompts import Example
from t0.prompts.row_report import BLANK, CUT, MISSING
from t0.sources import SplitRows, hidden_label

STRETCHES = 5
_IDS_KEPT = 1000  # the number of texts whose token ids stay in memory

NOTHING = "rendered nothing"
EMPTY = "empty target"
NONE_CORRECT = "no correct choice"
SEVERAL_CORRECT = "several correct choices"
DUPLICATES = "duplicate choices"
HIDDEN = "hidden label"
NESTED = "prints a list"
SEPARATOR = "'|||' kept as text, where promptsource would split"
WORDS = "prints None, nan, [] or {}"
# These checks are not faults. Rows that fail them are only counted, for a note.
NOTED = (SEPARATOR, WORDS, MISSING, *BLANK.values())
UNKNOWN_TOKENS = "unknown tokens"
RIGHT_EQUALS_WRONG = "right choice has a wrong one's tokens"
ALL_EQUAL = "all choices have the same tokens"
UNKNOWN_METRIC = "unknown metric"
# If the share of rows that fail one of these checks is above a limit, the template has a fault. For
# other checks, failing rows are only counted, because truncated texts and withheld labels are
# usually intended.
FAULTS = (NOTHING, EMPTY, NONE_CORRECT, SEVERAL_CORRECT, DUPLICATES, NESTED, RIGHT_EQUALS_WRONG)

# A function that takes a text, and returns its token ids without EOS.
Ids = Callable[[str], Sequence[int]]


@dataclasses.dataclass(frozen=True)
class LintReport:
    """The results of the checks on the sampled rows of one split.

    Attributes:
      rows: the number of sampled rows.
      counts: check -> number of rows that fail the check. The checks that need tokens are only made
        if there is a vocabulary.
      first: check -> index of the first row that fails the check.
      draws: whether the template makes random draws. In this project, the task and the row
        determine the seed of the draws. In promptsource, the draws have no seed.
      failure: the reason why rendering stopped early; empty if all sampled rows were rendered.
      notes: notes about the first row with `UNKNOWN_TOKENS`. They name the characters and choices
        that the vocabulary cannot express.
      unknown: unknown character -> number of rows whose inputs have it; "" counts such rows.
    """

    rows: int
    counts: Mapping[str, int]
    first: Mapping[str, int]
    draws: bool
    failure: str = ""
    notes: Sequence[str] = ()
    unknown: Mapping[str, int] = dataclasses.field(default_factory=dict)


def checks_of_lengths(lengths: Mapping[str, int]) -> tuple[str, str]:
    """Returns the names of the checks whether inputs and targets are truncated.

    Args:
      lengths: feature -> maximum number of tokens, including EOS.
    """
    return f"inputs over {lengths['inputs']}", f"targets over {lengths['targets']}"


def lint(
    source: PromptedRows,
    split: str,
    *,
    rows: int,
    tokens: Tokens | None = None,
    lengths: Mapping[str, int] = T0_LENGTHS,
) -> LintReport:
    """Renders up to `rows` rows of a split, and counts the rows that fail each check.

    Args:
      source: the task, or the task's data source.
      split: the task's split.
      rows: the maximum number of rows to sample.
      tokens: the vocabulary; None to skip the checks that need tokens.
      lengths: feature -> maximum number of tokens, including EOS.

    Raises:
      AbsentData: the split's data was not found.
      UserError: the data cannot be read.
    """
    opened = source.open(split)
    opened.check_texts()
    counts: dict[str, int] = {}
    first: dict[str, int] = {}
    unknown: Counter[str] = Counter()
    seen, failure, notes = 0, "", []
    ids = tokens and functools.lru_cache(_IDS_KEPT)(tokens.ids)
    for index, row in sample(opened, rows):
        seen += 1
        try:
            example = source.compiled.example(row, index)
        except UserError as error:
            failure = str(error)
            break
        if example is not None and ids and UNKNOWN in ids(example.inputs):
            tokens.characters.count(example.inputs, unknown)
        hidden = hidden_label(source.dataset, row)
        failed = [*oddities(example, hidden, ids, lengths)]
        # Some published templates print lists, and T0 was trained with these templates.
        if not source.template.published and source.compiled.prints_nested(row, index):
            failed.append(NESTED)
        if not source.template.published and EMPTY in failed:  # the row is left out
            failed = [check for check in failed if check != NONE_CORRECT]
        if source.compiled.keeps_separators(row):
            failed.append(SEPARATOR)
        if NESTED not in failed and source.compiled.prints_words(row, index):
            failed.append(WORDS)
        for check in failed:
            counts[check] = counts.get(check, 0) + 1
            first.setdefault(check, index)
            if check == UNKNOWN_TOKENS and not notes:
                notes = vocabulary_notes(tokens, list_answers(example, hidden))
    return LintReport(seen, counts, first, source.compiled.is_random, failure, notes, unknown)


def sample(opened: SplitRows, rows: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields (index, row) for up to `rows` rows of a split.

    The rows are in `STRETCHES` ranges that are spread over the split.
    """
    total = opened.num_rows
    if total <= rows:
        yield from enumerate(opened.rows())
        return
    pieces = min(STRETCHES, rows)
    for piece in range(pieces):
        start = total * piece // pieces
        size = rows * (piece + 1) // pieces - rows * piece // pieces
        yield from enumerate(opened.rows(start, min(start + size, total)), start=start)


def oddities(
    example: Example | None, hidden: bool, ids: Ids | None, lengths: Mapping[str, int] = T0_LENGTHS
) -> Iterator[str]:
    """Yields the checks that a rendered row fails.

    Args:
      example: the rendered row; None if it did not render to inputs and a target.
      hidden: whether the label of the row is withheld.
      ids: a function that returns the token ids of a text without EOS; None to skip the checks that
        need tokens.
      lengths: see `lint`.
    """
    if example is None:
        yield NOTHING
        return
    if hidden:
        yield HIDDEN
    elif not example.has_target:
        yield EMPTY
    if example.choices:
        yield from _check_choices(example.choices, None if hidden else example.targets)
    if example.cut:
        yield CUT
    if example.missing:
        yield MISSING
    if example.blank:
        yield BLANK["" not in example.choices]
    if ids:
        long_inputs, long_targets = checks_of_lengths(lengths)
        if len(ids(example.inputs)) > lengths["inputs"]:
            yield long_inputs
        # Add 1, because targets end in EOS.
        if len(ids(example.targets)) + 1 > lengths["targets"]:
            yield long_targets
        yield from _check_tokens(example, hidden, ids)


def _check_tokens(example: Example, hidden: bool, ids: Ids) -> Iterator[str]:
    if any(UNKNOWN in ids(text) for text in list_answers(example, hidden)):
        yield UNKNOWN_TOKENS
    choices = [tuple(ids(choice)) for choice in example.choices or ()]
    if len(choices) > 1 and len(set(choices)) == 1:
        yield ALL_EQUAL
    elif not hidden and (example.choices or []).count(example.targets) == 1:
        right = choices[example.choices.index(example.targets)]
        if choices.count(right) > 1:
            yield RIGHT_EQUALS_WRONG


def _check_choices(choices: Sequence[str], target: str | None) -> Iterator[str]:
    if len(set(choices)) < len(choices):
        yield DUPLICATES
    if target not in (None, *choices):
        yield NONE_CORRECT
    elif choices.count(target) > 1:
        yield SEVERAL_CORRECT


def faults_of(
    report: LintReport,
    *,
    max_share: float,
    excused: Mapping[str, str] | None = None,
    lengths: Mapping[str, int] = T0_LENGTHS,
    truncates: bool = True,
) -> dict[str, str]:
    """Returns the faults of a template: check -> description of the fault.

    Args:
      report: the results of `lint`.
      max_share: the largest share of the sampled rows, 0 to 1, that may fail a check.
      excused: check -> the reason why rows may fail this check.
      lengths: the lengths of the report.
      truncates: whether truncated texts are usual, as with T0's lengths. They are not with lengths
        that were measured for this data.
    """
    if report.failure:
        return {"fails": report.failure}
    wrong = {}
    long_inputs, long_targets = checks_of_lengths(lengths)
    for check in (*FAULTS, *(() if truncates else (long_inputs, long_targets))):
        count = report.counts.get(check, 0)
        if count > max_share * report.rows and check not in (excused or {}):
            wrong[check] = _describe_count(report, check)
    if report.counts.get(ALL_EQUAL):
        wrong[ALL_EQUAL] = _describe_count(report, ALL_EQUAL)
    rendered = report.rows - report.counts.get(NOTHING, 0)
    if rendered and report.counts.get(long_targets) == rendered:
        wrong[long_targets] = f"every target is cut at {lengths['targets']} tokens"
    if not report.rows:
        wrong["no rows"] = "the split is empty"
    return wrong


def _describe_count(report: LintReport, check: str) -> str:
    return f"{report.counts[check]} of {report.rows} rows, the first is row {report.first[check]}"
