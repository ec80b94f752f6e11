"""The state of a split of a task while it is cached: its pieces, what they gave, how it ends.

    state = SplitState(spec, options, parts_dir)
    state.take_over(0, 500)        # True: the part is there, from a run that was killed
    state.add(500, info)           # what `PartWriter.finish` returned, or an `Outcome`
    state.conclusion()             # None: pieces are missing; else `JoinParts`, or an `Outcome`

A split is made in pieces: ranges of rows, or shards of its source. Each piece becomes a part (see
`parts`). When the last one is there, the counts of all decide whether the split may be published.
It may not with nothing at all, more dropped rows than allowed, targets that are all `<NO LABEL>`,
and in a task of rank evaluation withheld labels, and choices that never contain the target, where a
score would mean nothing. `exemptions.csv` lists where that is known and right.

What is sent to other processes (`SplitSpec`, `JoinParts`, `Outcome`) is plain data. Nothing here
imports TensorFlow.
"""

import csv
import dataclasses
import functools
import importlib.resources
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from t0.caching import parts
from t0.caching.cache_plan import Options, TaskSplit
from t0.files import paths
from t0.prompts import NO_LABEL
from t0.prompts.row_report import DROPPED, HIDDEN, NO_CHOICE, UNLABELLED

WRITTEN, EMPTY, ABSENT, FAILED, STOP = "written", "empty", "absent", "failed", "stop"

# What was counted in a part: see `parts.PartWriter.finish`.
PartInfo = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a split ended.

    Attributes:
      status: WRITTEN; EMPTY (no row gives an example, and that is right); ABSENT (no data);
        FAILED (this task cannot be cached); STOP (the output cannot be written: nothing can).
      stats: SeqIO's statistics.
      files: file name -> {"bytes", "sha256"}, and "examples" for the shards.
      counts: what the source counted: "rows", and rows that it dropped, or marked, by reason.
      over: feature -> examples longer than T0's sequence lengths (`LONGEST`).
      notes: what the user should know of a split that is written all the same.
      message: for the user, unless written.
      trace: the Python traceback of what is no mistake of the user's.
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
    """A row of `exemptions.csv`, as it concerns one split of a task.

    The table says what the templates of promptsource 0.1.0 do with the datasets of October 2021,
    by their own conditions.

    Attributes:
      kind: DROPS (the template renders nothing for some rows), HIDES (labels are withheld) or
        MISMATCHES (the template's answer choices never contain its target).
      reason: why that is right.
      rows: rows of the split in 2021, None if not recorded.
      kept: examples of the split in P3, as published, None if not recorded.
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
    """Returns what is known of a template over a split of a dataset; mostly nothing."""
    wanted = {"dataset": dataset, "subset": subset or "", "split": split}
    return tuple(
        Exemption(row["kind"], row["reason"], _number(row["rows"]), _number(row["kept"]))
        for row in _exemptions_table()
        if all(row[name] in (_ALL, value) for name, value in wanted.items())
        and (row["templates"] == _ALL or template in row["templates"].split("|"))
    )


def _number(text: str) -> int | None:
    return int(text) if text else None


@dataclasses.dataclass(frozen=True)
class SplitSpec:
    """What is made of a split, and in which pieces; sent with every job.

    Attributes:
      key: all that the records depend on, besides the piece: see `parts.part_name`.
      pieces: (first row or source shard, end) of each piece, in the order of the dataset.
      choices: one record for each answer choice (rank evaluation), else one for the row.
      hide_labels: see `t0.tasks.PromptedSource`.
      eos: whether inputs and targets end in EOS.
      answer_choices: whether the records of a row carry its choices.
      template: its name; empty of a task without.
      exemptions: from the rules of what may be published.
      source_shards: how many the task's source has, which SeqIO takes for the least number of
        files if `--min_shards` is given.
    """

    split: TaskSplit
    key: str
    pieces: tuple[tuple[int, int], ...]
    choices: bool = False
    hide_labels: bool = False
    eos: tuple[bool, bool] = (False, True)
    answer_choices: bool = False
    template: str = ""
    exemptions: tuple[Exemption, ...] = ()
    source_shards: int = 1

    def exempt(self, kind: str) -> Exemption | None:
        """Returns the exemption of a kind, if there is one."""
        return next((one for one in self.exemptions if one.kind == kind), None)

    def part_path(self, parts_dir: str, start: int, stop: int) -> str:
        """Returns where the part of a piece is."""
        return posixpath.join(parts_dir, parts.part_name(self.key, start, stop))


@dataclasses.dataclass(frozen=True)
class JoinParts:
    """A job: join the parts of a split, in the order of the dataset, to its final files.

    Attributes:
      infos: what was counted in each part.
      notes: go into the outcome.
    """

    spec: SplitSpec
    parts: tuple[str, ...]
    infos: tuple[PartInfo, ...]
    options: Options
    seqio_version: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.spec.split} (joining its {len(self.parts)} parts)"


class SplitState:
    """What a run knows of a split: the parts that are there, and how pieces ended without one."""

    def __init__(self, spec: SplitSpec, options: Options, parts_dir: str) -> None:
        self.spec = spec
        self._options = options
        self._parts_dir = parts_dir
        self._results: dict[int, PartInfo | Outcome] = {}

    def take_over(self, start: int, stop: int) -> bool:
        """Looks for a whole part of a piece, made before; returns whether it is there."""
        info = parts.read_info(self.spec.part_path(self._parts_dir, start, stop))
        if info is not None:
            self._results[start] = info
        return info is not None

    def add(self, start: int, result: PartInfo | Outcome) -> None:
        """Notes what was counted in the part of a piece, or how the split ends without it."""
        self._results[start] = result

    def results(self) -> Iterator[tuple[int, PartInfo | Outcome]]:
        """Yields (start, what was added) of the pieces that are done."""
        yield from self._results.items()

    def conclusion(self) -> JoinParts | Outcome | None:
        """Returns what follows when all pieces are done: joining them, or the split's end."""
        if len(self._results) < len(self.spec.pieces):
            return None
        in_order = [self._results[start] for start, _ in self.spec.pieces]
        for result in in_order:
            if isinstance(result, Outcome):
                return result
        return _joined_or_refused(self.spec, in_order, self._options, self._parts_dir)

    def so_far(self) -> tuple[int | None, int]:
        """Returns how many rows are done, if known, and the examples that they gave."""
        infos = [info for info in self._results.values() if not isinstance(info, Outcome)]
        rows = counted(infos).get("rows") if infos else None
        return rows, sum(info["records"] for info in infos)

    def forget(self) -> None:
        """Removes the parts, which nobody needs any more."""
        for start, stop in self.spec.pieces:
            paths.remove(self.spec.part_path(self._parts_dir, start, stop))


def _joined_or_refused(
    spec: SplitSpec, infos: Sequence[PartInfo], options: Options, parts_dir: str
) -> JoinParts | Outcome:
    verdict = _verdict(spec, infos, options)
    counts = counted(infos)
    if verdict.message:
        status = FAILED if counts.get("rows", 1) else ABSENT
        return Outcome(spec.split, status, counts=counts, message=verdict.message)
    if verdict.empty:
        return Outcome(spec.split, EMPTY, counts=counts, notes=verdict.notes)
    files = tuple(spec.part_path(parts_dir, *piece) for piece in spec.pieces)
    version = metadata.version("seqio")
    return JoinParts(spec, files, tuple(infos), options, version, verdict.notes)


def counted(infos: Iterable[PartInfo]) -> dict[str, int]:
    """Returns what was counted over all parts: "rows" if known, and rows by what became of them."""
    infos = list(infos)
    rows = [info["rows"] for info in infos]
    known = {} if None in rows else {"rows": sum(rows)}
    return {**known, **summed(infos, "counts")}


def summed(infos: Iterable[PartInfo], field: str) -> dict[str, int]:
    """Returns the sums over all parts of a field that holds counts by name."""
    sums: dict[str, int] = {}
    for info in infos:
        for name, count in info.get(field, {}).items():
            sums[name] = sums.get(name, 0) + count
    return sums


# Of a source that does not count its rows; one that has none says so.
_NOTHING = (
    "the data has rows, but no example came of any. Does the task's template or preprocessing fit "
    "the data?"
)


@dataclasses.dataclass(frozen=True)
class _Verdict:
    """`message` is empty where all is well; `empty` says that there is nothing, and rightly so."""

    message: str = ""
    notes: tuple[str, ...] = ()
    empty: bool = False


def _verdict(spec: SplitSpec, infos: Sequence[PartInfo], options: Options) -> _Verdict:
    """Says whether a split may be published, by the counts of all its parts."""
    counts = counted(infos)
    first: dict[str, int] = {}
    for info in infos:
        first = {**info.get("first", {}), **first}
    records = sum(info["records"] for info in infos)
    if "rows" not in counts:
        return _Verdict() if records else _Verdict(_NOTHING)
    verdict = _by_rows(spec, counts, first, records, options)
    if verdict.message or verdict.empty:
        return verdict
    labels = summed(infos, "labels")
    labelled = counts["rows"] - counts.get(DROPPED, 0) - counts.get(HIDDEN, 0)
    return _by_labels(verdict, spec, labels, labelled, first, options)


def _by_rows(
    spec: SplitSpec,
    counts: Mapping[str, int],
    first: Mapping[str, int],
    records: int,
    options: Options,
) -> _Verdict:
    """Judges by counts: what happened -> rows, what happened -> the first such row."""
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
    kept = rows - dropped
    if drops and drops.rows == rows and drops.kept not in (None, kept):
        notes.append(f"P3 has {drops.kept:,} of these rows, here are {kept:,}")
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


def _by_labels(
    verdict: _Verdict,
    spec: SplitSpec,
    labels: Mapping[str, int],
    labelled: int,
    first: Mapping[str, int],
    options: Options,
) -> _Verdict:
    """Refuses a split none of whose `labelled` rows has a target, or one among its choices."""
    if not labelled or options.allow_hidden_labels or spec.exempt(HIDES):
        return verdict
    if labels.get(UNLABELLED) == labelled:
        return _Verdict(
            f"the target of all {labelled:,} rows is {NO_LABEL}, from row {first[UNLABELLED]} on: "
            f"template '{spec.template}' prints nothing behind '|||'. Is the column of the "
            "label empty or withheld, or does the template not expect its values? Mend the template"
            " or the data, leave the split out (--splits=...), or keep it: --allow_hidden_labels"
        )
    if not spec.choices or labels.get(NO_CHOICE) != labelled:
        return verdict
    if known := spec.exempt(MISMATCHES):
        return dataclasses.replace(verdict, notes=(*verdict.notes, f"known: {known.reason}"))
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
        f"the data has {rows:,} rows, but no example came of any: {why}. "
        "Does the template fit the data?"
    )


def _rounded_up(share: float) -> str:
    return f"{min(1.0, int(share * 100 + 1) / 100):g}"
