"""Says whether a split of a task may be published, by what was counted on the way.

    verdict = judge(target, infos, Options(max_dropped_share=0.1))
    verdict.message    # "60 of 100 rows gave no example ..., the first is row 3": it may not
    verdict.notes      # for the summary: what is known and no fault

Not published are: nothing at all, more dropped rows than allowed, targets that are all
`<NO LABEL>`, and in a task of rank evaluation withheld labels and choices that never contain the
target, where a score would mean nothing. `known.csv` says where that is known and right.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from t0.caching.known import DROPS, HIDES, MISMATCHES, Behaviour
from t0.caching.merge import Target, counted
from t0.caching.unit import Options
from t0.prompts import NO_LABEL
from t0.prompts.row_report import DROPPED as NOTHING
from t0.prompts.row_report import HIDDEN, NO_CHOICE, UNLABELLED

# Of a source that does not count its rows; one that has none says so.
_NOTHING = (
    "the data has rows, but no example came of any. Does the task's template or preprocessing fit "
    "the data?"
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`message` is empty where all is well; `empty` says that there is nothing, and rightly so."""

    message: str = ""
    notes: tuple[str, ...] = ()
    empty: bool = False


def judge(target: Target, infos: Sequence[Mapping[str, Any]], options: Options) -> Verdict:
    """Judges one split of a task by the counts of all its parts."""
    counts = counted(infos)
    first: dict[str, int] = {}
    for info in infos:
        first = {**info.get("first", {}), **first}
    records = sum(info["records"] for info in infos)
    if "rows" not in counts:
        return Verdict() if records else Verdict(_NOTHING)
    verdict = _verdict(counts, first, records, target, options)
    if verdict.message or verdict.empty:
        return verdict
    labels = Counter()
    for info in infos:
        labels.update(info.get("labels", {}))
    labelled = counts["rows"] - counts.get(NOTHING, 0) - counts.get(HIDDEN, 0)
    return _judged_by_labels(verdict, labels, labelled, first, target, options)


def _verdict(
    counts: Mapping[str, int],
    first: Mapping[str, int],
    records: int,
    target: Target,
    options: Options,
) -> Verdict:
    """Judges by counts: what happened -> rows, what happened -> the first such row."""
    rows, dropped = counts["rows"], counts.get(NOTHING, 0)
    drops = _known(target, DROPS)
    if not records:
        if drops and drops.kept == 0:
            return Verdict(notes=(f"nothing, as known: {drops.reason}",), empty=True)
        return Verdict(_nothing(target, rows, dropped, first))
    if dropped > options.max_dropped_share * rows and not drops:
        return Verdict(
            f"template '{target.template}' rendered nothing for {dropped:,} of {rows:,} rows "
            f"({dropped / rows:.1%}), the first of them row {first[NOTHING]}. Mend the template "
            f"or the data, or allow it: --max_dropped_share={_rounded_up(dropped / rows)}"
        )
    notes = []
    if dropped and drops:
        notes.append(f"known: {drops.reason}")
    kept = rows - dropped
    if drops and drops.rows == rows and drops.kept not in (None, kept):
        notes.append(f"P3 has {drops.kept:,} of these rows, here are {kept:,}")
    if counts.get(HIDDEN) and target.output.choices:
        hides = _known(target, HIDES)
        if not hides and not options.allow_hidden_labels:
            return Verdict(
                f"the label of {counts[HIDDEN]:,} of {rows:,} rows is withheld, the first of them "
                f"row {first[HIDDEN]}: nothing can be scored against it. Leave the split out "
                "(--splits=...), or keep the rows, with no choice correct: --allow_hidden_labels"
            )
        if hides:
            notes.append(f"known: {hides.reason}")
    return Verdict(notes=tuple(notes))


def _judged_by_labels(
    verdict: Verdict,
    labels: Mapping[str, int],
    labelled: int,
    first: Mapping[str, int],
    target: Target,
    options: Options,
) -> Verdict:
    """Refuses a split none of whose `labelled` rows has a target, or one among its choices."""
    if not labelled or options.allow_hidden_labels or _known(target, HIDES):
        return verdict
    if labels.get(UNLABELLED) == labelled:
        return Verdict(
            f"the target of all {labelled:,} rows is {NO_LABEL}, from row {first[UNLABELLED]} on: "
            f"template '{target.template}' prints nothing behind '|||'. Is the column of the "
            "label empty or withheld, or does the template not expect its values? Mend the template"
            " or the data, leave the split out (--splits=...), or keep it: --allow_hidden_labels"
        )
    if not target.output.choices or labels.get(NO_CHOICE) != labelled:
        return verdict
    if known := _known(target, MISMATCHES):
        return dataclasses.replace(verdict, notes=(*verdict.notes, f"known: {known.reason}"))
    return Verdict(
        f"the target of none of {labelled:,} rows is among its answer choices, from row "
        f"{first[NO_CHOICE]} on: nothing can be scored. Does template '{target.template}' spell "
        "its targets as its choices (case, spaces, 1.0 for 1)? Mend it, or leave the task out"
    )


def _known(target: Target, kind: str) -> Behaviour | None:
    return next((b for b in target.behaviours if b.kind == kind), None)


def _nothing(target: Target, rows: int, dropped: int, first: Mapping[str, int]) -> str:
    if not rows:
        return f"the data of split '{target.output.unit.split}' has no rows at all"
    if dropped == rows:
        why = f"template '{target.template}' renders nothing for any, from row {first[NOTHING]} on"
    else:
        why = f"template '{target.template}' has no answer choice for any"
    return (
        f"the data has {rows:,} rows, but no example came of any: {why}. "
        "Does the template fit the data?"
    )


def _rounded_up(share: float) -> str:
    return f"{min(1.0, int(share * 100 + 1) / 100):g}"
