"""Decides whether a split may be published when all its pieces are finished.

    conclude(spec, {0: info}, RecordOptions(), parts_dir)   # None: pieces are missing
    conclude(spec, {0: info, 500: more}, RecordOptions(), parts_dir)   # `JoinParts`, or the outcome

A split is made in pieces: ranges of rows, or shards of its source. Each piece becomes a part (see
`parts`). When all parts exist, their counts decide whether the split may be published. A split is
refused if

- it has no record, or more rows were dropped than allowed;
- all of its targets are empty or `<NO LABEL>`, or all rows were left out for this reason;
- it is for rank evaluation, but a score would mean nothing. This is the case if some labels are
  withheld, or if no row has its target among its choices.

`exemptions.csv` lists splits that correctly have one of these properties. They are not refused.

The classes that are sent to other processes (`SplitSpec`, `JoinParts`, `SplitOutcome`) are plain
data. This module does not import TensorFlow.
"""

import csv
import dataclasses
import functools
import importlib.resources
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t0.absent_classes import warn_of_absent_classes
from t0.caching import parts
from t0.caching.cache_plan import RecordOptions, TaskSplit
from t0.caching.record_rows import RowSource
from t0.prompts import NO_LABEL
from t0.prompts.few_shot import describe_exemplars
from t0.prompts.row_report import (
    DROPPED,
    HIDDEN,
    NO_CHOICE,
    NO_EXEMPLAR,
    NO_TARGET,
    TOO_LONG,
    UNLABELLED,
)

WRITTEN, EMPTY, ABSENT, FAILED, STOP = "written", "empty", "absent", "failed", "stop"

# The counts of a part: see `parts.PartWriter.finish`.
PartInfo = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class SplitOutcome:
    """The outcome of a split.

    Attributes:
      split: the split.
      status: WRITTEN; EMPTY (it has no example, which is not an error); ABSENT (its data cannot be
        found); FAILED (this task cannot be cached); STOP (the output cannot be written, so no task
        can be cached).
      stats: the statistics for SeqIO's `stats.<split>.json`.
      files: file name -> its "bytes", "crc32c" and "sha256"; for a file with records, also the
        number of its "examples".
      counts: "rows" -> the number of rows; reason -> the number of rows dropped or marked for this
        reason.
      over: feature -> the number of examples longer than T0's sequence lengths (`T0_LENGTHS`).
      truncated: feature -> the number of examples longer than `SplitSpec.lengths`.
      unknown: character that is not in the vocabulary -> the number of rows with this character in
        their inputs; "" counts such rows.
      notes: notes for the user about a split that is written.
      message: the message for the user about a split that is not written.
      trace: the Python traceback of an unexpected error; "" for a mistake of the user.
    """

    split: TaskSplit
    status: str
    stats: Mapping[str, int] = dataclasses.field(default_factory=dict)
    files: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    over: Mapping[str, int] = dataclasses.field(default_factory=dict)
    truncated: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unknown: Mapping[str, int] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    message: str = ""
    trace: str = ""


@dataclasses.dataclass(frozen=True)
class Exemption:
    """A row of `exemptions.csv`: a rule that one split of a task may break.

    The table describes the templates of promptsource 0.1.0 on the datasets of October 2021.

    Attributes:
      kind: DROPS (the template renders nothing for some rows), HIDES (labels are withheld) or
        MISMATCHES (no row has its target among its answer choices).
      reason: the reason why the split may break the rule.
      rows: the number of rows of the split in 2021; None if it is not recorded.
      kept: the number of examples of the split in the published P3; None if it is not recorded.
    """

    kind: str
    reason: str
    rows: int | None = None
    kept: int | None = None


DROPS, HIDES, MISMATCHES = "drops", "hides", "mismatches"
_ALL = "*"


@functools.cache
def _exemptions_table() -> tuple[dict[str, str], ...]:
    file = importlib.resources.files("t0.caching").joinpath("exemptions.csv")
    return tuple(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def exemptions(
    dataset: str, subset: str | None, split: str, template: str
) -> tuple[Exemption, ...]:
    """Returns the exemptions of a template on a split of a dataset."""
    split_names = {"dataset": dataset, "subset": subset or "", "split": split}
    return tuple(
        Exemption(row["kind"], row["reason"], _number(row["rows"]), _number(row["kept"]))
        for row in _exemptions_table()
        if all(row[name] in (_ALL, value) for name, value in split_names.items())
        and (row["templates"] == _ALL or template in row["templates"].split("|"))
    )


def _number(text: str) -> int | None:
    return int(text) if text else None


@dataclasses.dataclass(frozen=True)
class SplitSpec:
    """The specification of a split: the form of its records, and its pieces.

    Every job contains the specifications of its splits.

    Attributes:
      split: the split.
      key: a text that identifies everything that the records depend on, except the number of the
        piece; see `parts.part_name`.
      pieces: for each piece, the numbers of its first row and of the row after its last row, or the
        same numbers of source shards; in the order of the dataset.
      choices: whether each row has a record for each of its answer choices, for rank evaluation.
        Otherwise, each row has a single record.
      hide_labels, keeps_unlabelled: see `t0.tasks.PromptedSource`.
      eos: whether inputs end in EOS, and whether targets end in EOS.
      lengths: see `RecordOptions`.
      answer_choices: whether the record of a row contains its choices.
      document: the column whose hash is the feature `document` in the record of a choice; None
        if there is no such feature.
      template: the template's name; "" for a task without a template.
      row_source: the dataset and the prompt of the records; None if it is not recorded.
      exemptions: the publication rules that this split may break.
      notes: notes for the user, if the split is written.
      source_shards: the number of shards of the task's source. If `--min_shards` or `--max_shards`
        is set, the number of files depends on it (see `cache_files.shard_count`).
    """

    split: TaskSplit
    key: str
    pieces: tuple[tuple[int, int], ...]
    choices: bool = False
    hide_labels: bool = False
    keeps_unlabelled: bool = True
    eos: tuple[bool, bool] = (False, True)
    lengths: tuple[int, int] = RecordOptions.lengths
    answer_choices: bool = False
    document: str | None = None
    template: str = ""
    row_source: RowSource | None = None
    exemptions: tuple[Exemption, ...] = ()
    notes: tuple[str, ...] = ()
    source_shards: int = 1

    def exempt(self, kind: str) -> Exemption | None:
        """Returns the exemption of this kind; None if the split has none."""
        return next((exemption for exemption in self.exemptions if exemption.kind == kind), None)

    def part_path(self, parts_dir: str, start: int, stop: int) -> str:
        """Returns the path of the part of a piece."""
        return posixpath.join(parts_dir, parts.part_name(self.key, start, stop))

    def part_paths(self, parts_dir: str) -> tuple[str, ...]:
        """Returns the paths of the parts of all pieces."""
        return tuple(self.part_path(parts_dir, *piece) for piece in self.pieces)


@dataclasses.dataclass(frozen=True)
class JoinParts:
    """A job: joins the parts of a split, in the order of the dataset, into its final files.

    Attributes:
      spec: the split.
      parts: the paths of the parts.
      infos: the counts of each part.
      options: how files are written.
      notes: the notes for the user in the outcome of the split.
    """

    spec: SplitSpec
    parts: tuple[str, ...]
    infos: tuple[PartInfo, ...]
    options: RecordOptions
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.spec.split} (joining its {len(self.parts)} parts)"


def conclude(
    spec: SplitSpec,
    results: Mapping[int, PartInfo | SplitOutcome],
    options: RecordOptions,
    parts_dir: str,
) -> JoinParts | SplitOutcome | None:
    """Decides what to do with a split.

    Args:
      spec: the split.
      results: start of a finished piece -> the counts of its part. If the part could not be made,
        the outcome of the whole split.
      options: the options, which contain the limits on dropped rows and withheld labels.
      parts_dir: the directory of the parts.

    Returns:
      None if pieces are missing. If all pieces are finished, the job that joins their parts, or the
      outcome of the split if it is empty, refused or failed.
    """
    if len(results) < len(spec.pieces):
        return None
    infos = tuple(results[start] for start, _ in spec.pieces)
    for info in infos:
        if isinstance(info, SplitOutcome):
            return info
    refusal, notes = _judge(spec, infos, options)
    counts = sum_counts(infos)
    if refusal:
        status = FAILED if counts.get("rows", 1) else ABSENT
        return SplitOutcome(spec.split, status, counts=counts, message=refusal)
    if not any(info["records"] for info in infos):
        return SplitOutcome(spec.split, EMPTY, counts=counts, notes=notes)
    return JoinParts(spec, spec.part_paths(parts_dir), infos, options, notes)


def sum_counts(infos: Iterable[PartInfo]) -> dict[str, int]:
    """Sums the counts of all parts: reason -> number of rows, and "rows" if all parts know it."""
    infos = list(infos)
    rows = [info["rows"] for info in infos]
    row_count = {} if None in rows else {"rows": sum(rows)}
    return {**row_count, **summed(infos, "counts")}


def summed(infos: Iterable[PartInfo], field: str) -> dict[str, int]:
    """Returns the sums, over all parts, of a field that maps names to counts."""
    sums: dict[str, int] = {}
    for info in infos:
        for name, count in info.get(field, {}).items():
            sums[name] = sums.get(name, 0) + count
    return sums


def _judge(
    spec: SplitSpec, infos: Sequence[PartInfo], options: RecordOptions
) -> tuple[str, tuple[str, ...]]:
    """Decides from the counts of all parts whether a split may be published.

    Returns:
      the reason to refuse the split, or "", and the notes for the user.
    """
    counts, records = sum_counts(infos), sum(info["records"] for info in infos)
    first: dict[str, int] = {}
    for info in infos:
        first = {**info.get("first", {}), **first}
    unlabelled_allowed = options.allow_hidden_labels or spec.exempt(HIDES)
    if records and summed(infos, "blank").get("targets") == records and not unlabelled_allowed:
        return (
            f"the targets of all {records:,} examples are empty. Does the task's preprocessing fit "
            "the data? Mend it, leave the split out (--splits=...), or keep it: "
            "--allow_hidden_labels"
        ), ()
    if "rows" not in counts:
        return "" if records else _why_nothing(spec, None, 0, first), ()
    rows, dropped, hidden = counts["rows"], counts.get(DROPPED, 0), counts.get(HIDDEN, 0)
    untargeted = counts.get(NO_TARGET, 0)
    drops, hides, mismatches = map(spec.exempt, (DROPS, HIDES, MISMATCHES))
    exemplars = {int(k): count for k, count in summed(infos, "exemplars").items()}
    if refusal := _judge_exemplars(rows, counts, first, exemplars, options.max_dropped_share):
        return refusal, ()
    if not records:
        if drops and drops.kept == 0:
            return "", (f"nothing, as known: {drops.reason}",)
        if untargeted and untargeted + dropped == rows:
            return _why_unlabelled(spec, untargeted, first[NO_TARGET]), ()
        return _why_nothing(spec, rows, dropped, first), ()
    if dropped > options.max_dropped_share * rows and not drops:
        return (
            f"template '{spec.template}' rendered nothing for {dropped:,} of {rows:,} rows "
            f"({dropped / rows:.1%}), the first of them row {first[DROPPED]}. Mend the template "
            f"or the data, or allow it: --max_dropped_share={_rounded_up(dropped / rows)}"
        ), ()
    if hidden and spec.choices and not unlabelled_allowed:
        return (
            f"the label of {hidden:,} of {rows:,} rows is withheld, the first of them "
            f"row {first[HIDDEN]}: nothing can be scored against it. Leave the split out "
            "(--splits=...), or keep the rows, with no choice correct: --allow_hidden_labels"
        ), ()
    labelled, labels = rows - dropped - hidden - untargeted, summed(infos, "labels")
    judged = labelled and not unlabelled_allowed
    if judged and labels.get(UNLABELLED) == labelled:
        return _why_unlabelled(spec, labelled, first[UNLABELLED]), ()
    mismatched = judged and spec.choices and labels.get(NO_CHOICE) == labelled
    if mismatched and not mismatches:
        return (
            f"the target of none of {labelled:,} rows is among its answer choices, from row "
            f"{first[NO_CHOICE]} on: nothing can be scored. Does template '{spec.template}' spell "
            "its targets as its choices (case, spaces, 1.0 for 1)? Mend it, or leave the task out"
        ), ()
    notes = [*spec.notes]
    if len(exemplars) > 1:
        notes.append(describe_exemplars(exemplars))
    if dropped and drops:
        notes.append(f"known: {drops.reason}")
    if drops and drops.rows == rows and drops.kept not in (None, rows - dropped):
        notes.append(f"P3 has {drops.kept:,} of these rows, here are {rows - dropped:,}")
    if hidden and spec.choices and hides:
        notes.append(f"known: {hides.reason}")
    warning = warn_of_absent_classes(summed(infos, "answers"), spec.split.name)
    if warning and spec.choices:
        notes.append(f"WARNING: {warning}")
    if mismatched:
        notes.append(f"known: {mismatches.reason}")
    return "", tuple(notes)


def _judge_exemplars(
    rows: int,
    counts: Mapping[str, int],
    first: Mapping[str, int],
    exemplars: Mapping[int, int],
    max_share: float,
) -> str:
    """Returns the reason to refuse a few-shot split; "" if there is none."""
    if exemplars.keys() == {0}:
        return (
            f"no exemplar fits before any of {rows:,} rows: set a larger `length` or `budget` in "
            "few_shot, or leave the task out"
        )
    reasons = [reason for reason in (NO_EXEMPLAR, TOO_LONG) if counts.get(reason)]
    count = sum(counts[reason] for reason in reasons)
    if count <= max_share * rows:
        return ""
    return (
        f"{count:,} of {rows:,} rows ({count / rows:.1%}) are {' or '.join(reasons)}, the first of "
        f"them row {min(first[reason] for reason in reasons)}. Set a larger `length` or `budget` in "
        f"few_shot, or allow it: --max_dropped_share={_rounded_up(count / rows)}"
    )


def _why_unlabelled(spec: SplitSpec, rows: int, first: int) -> str:
    return (
        f"the target of all {rows:,} rows is {NO_LABEL}, from row {first} on: "
        f"template '{spec.template}' prints nothing after '|||'. Is the column of the "
        "label empty or withheld, or does the template not expect its values? Mend the template"
        " or the data, leave the split out (--splits=...), or keep it: --allow_hidden_labels"
    )


def _why_nothing(spec: SplitSpec, rows: int | None, dropped: int, first: Mapping[str, int]) -> str:
    if rows is None:  # the source has rows, but does not count them
        return (
            "the data has rows, but none of them gave an example. Does the task's template or "
            "preprocessing fit the data?"
        )
    if not rows:
        return f"the data of split '{spec.split.name}' has no rows at all"
    if dropped == rows:
        why = f"template '{spec.template}' renders nothing for any, from row {first[DROPPED]} on"
    else:
        why = f"template '{spec.template}' has no answer choice for any"
    return (
        f"the data has {rows:,} rows, but none of them gave an example: {why}. "
        "Does the template fit the data?"
    )


def _rounded_up(share: float) -> str:
    return f"{min(1.0, int(share * 100 + 1) / 100):g}"
