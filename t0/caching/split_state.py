"""Tracks the finished pieces of a split, and decides whether the split may be published.

    state = SplitState(spec, options, parts_dir)
    state.take_over(0, path)       # True: a killed run has left the part of the first piece
    state.add(500, info)           # the counts of a part, or a `SplitOutcome`
    state.conclusion()             # None: pieces are missing; else `JoinParts`, or a `SplitOutcome`

A split is made in pieces: ranges of rows, or shards of its source. Each piece becomes a part (see
`parts`). When all parts exist, their counts decide whether the split may be published. A split is
refused if

- it has no record, or more rows were dropped than allowed;
- all of its targets are empty or `<NO LABEL>`;
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from t0.absent_classes import warn_of_absent_classes
from t0.caching import parts
from t0.caching.cache_plan import RecordOptions, TaskSplit
from t0.caching.record_rows import RowSource
from t0.machine import installed_version
from t0.prompts import NO_LABEL
from t0.prompts.row_report import DROPPED, HIDDEN, NO_CHOICE, UNLABELLED

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
      over: feature -> the number of examples longer than T0's sequence lengths (`LONGEST`).
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
      hide_labels: see `t0.tasks.PromptedSource`.
      eos: whether inputs end in EOS, and whether targets end in EOS.
      answer_choices: whether the record of a row contains its choices.
      document: the column whose hash is the feature `document` in the record of a choice; None
        if there is no such feature.
      template: the template's name; "" for a task without a template.
      row_source: the dataset and the prompt of the records; None if it is not recorded.
      exemptions: the publication rules that this split may break.
      source_shards: the number of shards of the task's source. If `--min_shards` or `--max_shards`
        is set, the number of files depends on it (see `cache_files.shard_count`).
    """

    split: TaskSplit
    key: str
    pieces: tuple[tuple[int, int], ...]
    choices: bool = False
    hide_labels: bool = False
    eos: tuple[bool, bool] = (False, True)
    answer_choices: bool = False
    document: str | None = None
    template: str = ""
    row_source: RowSource | None = None
    exemptions: tuple[Exemption, ...] = ()
    source_shards: int = 1

    def exempt(self, kind: str) -> Exemption | None:
        """Returns the exemption of this kind; None if the split has none."""
        return next((exemption for exemption in self.exemptions if exemption.kind == kind), None)

    def part_path(self, parts_dir: str, start: int, stop: int) -> str:
        """Returns the path of the part of a piece."""
        return posixpath.join(parts_dir, parts.part_name(self.key, start, stop))


@dataclasses.dataclass(frozen=True)
class JoinParts:
    """A job: joins the parts of a split, in the order of the dataset, into its final files.

    Attributes:
      spec: the split.
      parts: the paths of the parts.
      infos: the counts of each part.
      options: how files are written.
      seqio_version: SeqIO's version, for `info.<split>.json`.
      notes: the notes for the user in the outcome of the split.
      directory: the directory to write the files into; None for the split's own directory.
    """

    spec: SplitSpec
    parts: tuple[str, ...]
    infos: tuple[PartInfo, ...]
    options: RecordOptions
    seqio_version: str
    notes: tuple[str, ...] = ()
    directory: str | None = None

    def __str__(self) -> str:
        return f"{self.spec.split} (joining its {len(self.parts)} parts)"


class SplitState:
    """The results of the finished pieces of a split.

    The result of a piece is a mapping with the counts of its part. If the part could not be made,
    the result is the outcome of the whole split.

    Args:
      spec: the split.
      options: the options, which contain the limits on dropped rows and withheld labels.
      parts_dir: the directory of the parts.
    """

    def __init__(self, spec: SplitSpec, options: RecordOptions, parts_dir: str) -> None:
        self.spec = spec
        self._options = options
        self._parts_dir = parts_dir
        self._results: dict[int, PartInfo | SplitOutcome] = {}

    def take_over(self, start: int, path: str) -> bool:
        """Adds the part that an earlier run made of a piece.

        Args:
          start: the start of the piece.
          path: the path of the part.

        Returns:
          whether the part is complete. An incomplete part is not added.
        """
        info = parts.read_info(path)
        if info is not None:
            self._results[start] = info
        return info is not None

    def add(self, start: int, result: PartInfo | SplitOutcome) -> None:
        """Adds the result of a piece.

        Args:
          start: the start of the piece.
          result: the counts of its part. If there is no part, the outcome of the split.
        """
        self._results[start] = result

    def results(self) -> Iterator[tuple[int, PartInfo | SplitOutcome]]:
        """Yields a pair for each finished piece: the start of the piece, and its result."""
        yield from self._results.items()

    def conclusion(self) -> JoinParts | SplitOutcome | None:
        """Decides what to do with the split when all its pieces are finished.

        Returns:
          None if pieces are missing. If all pieces are finished, the job that joins their parts, or
          the outcome of the split if it is empty, refused or failed.
        """
        if len(self._results) < len(self.spec.pieces):
            return None
        in_order = [self._results[start] for start, _ in self.spec.pieces]
        for result in in_order:
            if isinstance(result, SplitOutcome):
                return result
        return _joined_or_refused(self.spec, in_order, self._options, self._parts_dir)

    def so_far(self) -> tuple[int | None, int]:
        """Returns (finished rows, finished examples); the first is None if rows are not counted."""
        infos = [info for info in self._results.values() if not isinstance(info, SplitOutcome)]
        rows = sum_counts(infos).get("rows") if infos else None
        return rows, sum(info["records"] for info in infos)

    def part_paths(self) -> list[str]:
        """Returns the paths of the parts of all pieces."""
        return [self.spec.part_path(self._parts_dir, *piece) for piece in self.spec.pieces]


def _joined_or_refused(
    spec: SplitSpec, infos: Sequence[PartInfo], options: RecordOptions, parts_dir: str
) -> JoinParts | SplitOutcome:
    verdict = _decide_publication(spec, infos, options)
    counts = sum_counts(infos)
    if verdict.message:
        status = FAILED if counts.get("rows", 1) else ABSENT
        return SplitOutcome(spec.split, status, counts=counts, message=verdict.message)
    if verdict.empty:
        return SplitOutcome(spec.split, EMPTY, counts=counts, notes=verdict.notes)
    files = tuple(spec.part_path(parts_dir, *piece) for piece in spec.pieces)
    # pip installs SeqIO's nightly build, because T5 requires it. uv installs the release.
    version = installed_version("seqio", "seqio-nightly")
    return JoinParts(spec, files, tuple(infos), options, version, verdict.notes)


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


# The message for a source that has rows but does not count them.
_NOTHING = (
    "the data has rows, but none of them gave an example. Does the task's template or "
    "preprocessing fit the data?"
)


@dataclasses.dataclass(frozen=True)
class _Verdict:
    """The decision whether a split may be published.

    Attributes:
      message: the reason to refuse the split; "" if it may be published.
      notes: the notes for the user in the outcome of the split.
      empty: whether the split correctly has no example.
    """

    message: str = ""
    notes: tuple[str, ...] = ()
    empty: bool = False


def _decide_publication(
    spec: SplitSpec, infos: Sequence[PartInfo], options: RecordOptions
) -> _Verdict:
    """Decides from the counts of all parts whether a split may be published."""
    counts = sum_counts(infos)
    first: dict[str, int] = {}
    for info in infos:
        first = {**info.get("first", {}), **first}
    records = sum(info["records"] for info in infos)
    blank = summed(infos, "blank").get("targets")
    if records and blank == records and not (options.allow_hidden_labels or spec.exempt(HIDES)):
        return _Verdict(
            f"the targets of all {records:,} examples are empty. Does the task's preprocessing fit "
            "the data? Mend it, leave the split out (--splits=...), or keep it: "
            "--allow_hidden_labels"
        )
    if "rows" not in counts:
        return _Verdict() if records else _Verdict(_NOTHING)
    verdict = _judge_rows(spec, counts, first, records, options)
    if verdict.message or verdict.empty:
        return verdict
    labels = summed(infos, "labels")
    labelled = counts["rows"] - counts.get(DROPPED, 0) - counts.get(HIDDEN, 0)
    warning = warn_of_absent_classes(summed(infos, "answers"), spec.split.name)
    if warning and spec.choices:
        verdict = dataclasses.replace(verdict, notes=(*verdict.notes, f"WARNING: {warning}"))
    return _judge_labels(verdict, spec, labels, labelled, first, options)


def _judge_rows(
    spec: SplitSpec,
    counts: Mapping[str, int],
    first: Mapping[str, int],
    records: int,
    options: RecordOptions,
) -> _Verdict:
    """Decides from the numbers of dropped and marked rows whether a split may be published.

    Args:
      spec: the split.
      counts: "rows" -> the number of all rows; reason -> the number of rows dropped or marked for
        this reason.
      first: reason -> the number of the first row with this reason.
      records: the number of records.
      options: the options, which contain the limits on dropped rows and withheld labels.
    """
    rows, dropped = counts["rows"], counts.get(DROPPED, 0)
    drops = spec.exempt(DROPS)
    if not records:
        if drops and drops.kept == 0:
            return _Verdict(notes=(f"nothing, as known: {drops.reason}",), empty=True)
        return _Verdict(_why_nothing(spec, rows, dropped, first))
    if dropped > options.max_dropped_share * rows and not drops:
        return _Verdict(
            f"template '{spec.template}' rendered nothing for {dropped:,} of {rows:,} rows "
            f"({dropped / rows:.1%}), the first of them row {first[DROPPED]}. Mend the template "
            f"or the data, or allow it: --max_dropped_share={_rounded_up(dropped / rows)}"
        )
    notes = []
    if dropped and drops:
        notes.append(f"known: {drops.reason}")
    remaining = rows - dropped
    if drops and drops.rows == rows and drops.kept not in (None, remaining):
        notes.append(f"P3 has {drops.kept:,} of these rows, here are {remaining:,}")
    if counts.get(HIDDEN) and spec.choices:
        hides = spec.exempt(HIDES)
        if not hides and not options.allow_hidden_labels:
            return _Verdict(
                f"the label of {counts[HIDDEN]:,} of {rows:,} rows is withheld, the first of them "
                f"row {first[HIDDEN]}: nothing can be scored against it. Leave the split out "
                "(--splits=...), or keep the rows, with no choice correct: --allow_hidden_labels"
            )
        if hides:
            notes.append(f"known: {hides.reason}")
    return _Verdict(notes=tuple(notes))


def _judge_labels(
    verdict: _Verdict,
    spec: SplitSpec,
    labels: Mapping[str, int],
    labelled: int,
    first: Mapping[str, int],
    options: RecordOptions,
) -> _Verdict:
    """Refuses a split if no target was rendered or, in rank evaluation, no target is a choice.

    Args:
      verdict: the decision so far, which is returned if the split is not refused.
      spec: the split.
      labels: UNLABELLED -> the number of rows without a target; NO_CHOICE -> the number of rows
        whose target is not among their choices.
      labelled: the number of kept rows, except those whose label is withheld.
      first: reason -> the number of the first row with this reason.
      options: the options, which contain the limits on dropped rows and withheld labels.
    """
    if not labelled or options.allow_hidden_labels or spec.exempt(HIDES):
        return verdict
    if labels.get(UNLABELLED) == labelled:
        return _Verdict(
            f"the target of all {labelled:,} rows is {NO_LABEL}, from row {first[UNLABELLED]} on: "
            f"template '{spec.template}' prints nothing after '|||'. Is the column of the "
            "label empty or withheld, or does the template not expect its values? Mend the template"
            " or the data, leave the split out (--splits=...), or keep it: --allow_hidden_labels"
        )
    if not spec.choices or labels.get(NO_CHOICE) != labelled:
        return verdict
    if exemption := spec.exempt(MISMATCHES):
        return dataclasses.replace(verdict, notes=(*verdict.notes, f"known: {exemption.reason}"))
    return _Verdict(
        f"the target of none of {labelled:,} rows is among its answer choices, from row "
        f"{first[NO_CHOICE]} on: nothing can be scored. Does template '{spec.template}' spell "
        "its targets as its choices (case, spaces, 1.0 for 1)? Mend it, or leave the task out"
    )


def _why_nothing(spec: SplitSpec, rows: int, dropped: int, first: Mapping[str, int]) -> str:
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
