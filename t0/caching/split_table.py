"""Prints the table of a caching run's outcomes, with one row for each split.

print_outcomes(outcomes, sys.stdout)
"""

from collections.abc import Iterable, Sequence
from typing import TextIO

from t0.caching.cache_plan import RecordOptions
from t0.caching.split_state import EMPTY, WRITTEN, SplitOutcome
from t0.catalogue.row_preview import T0_LENGTHS
from t0.catalogue.sentence_pieces import describe_unknown
from t0.prompts.row_report import DROPPED, NO_EXEMPLAR, NO_TARGET
from t0.text_tables import print_table


def print_outcomes(
    outcomes: Iterable[SplitOutcome], file: TextIO, lengths: Sequence[int] = RecordOptions.lengths
) -> None:
    """Prints the table of the outcomes, with one row for each split.

    Token counts do not include EOS. The columns "over" show the share of examples that are longer
    than the sequence lengths. In this comparison, EOS counts as a token.
    """
    numbers = ["rows", "written", "dropped"]
    for feature, most in zip(T0_LENGTHS, lengths, strict=True):
        numbers += [f"{feature} {number}" for number in ("mean", "max", f"over {most}")]
    numbers.append("files")
    rows = []
    for outcome in sorted(outcomes, key=lambda o: (o.split.task, o.split.name)):
        cells = [""] * len(numbers)
        note = f"NOT WRITTEN ({outcome.status})"
        if outcome.status == WRITTEN:
            cells, note = _format_cells(outcome), ""
        elif outcome.status == EMPTY:
            cells[:3] = f"{outcome.counts['rows']:,}", "0", f"{outcome.counts['rows']:,}"
            note = "left out"
        unknown = f"inputs: {describe_unknown(outcome.unknown)}" if outcome.unknown else ""
        why = "; ".join(filter(None, [note, _join_reasons(outcome), *outcome.notes, unknown]))
        rows.append((outcome.split.task, outcome.split.name, *cells, why))
    print_table(("task", "split", *numbers, "notes"), rows, numbers, file)


def _format_cells(outcome: SplitOutcome) -> list[str]:
    stats, rows = outcome.stats, outcome.counts.get("rows", outcome.split.rows)
    dropped = sum(outcome.counts.get(reason, 0) for reason in (DROPPED, NO_TARGET, NO_EXEMPLAR))
    dropped = dropped if "rows" in outcome.counts else None
    cells = ["" if rows is None else f"{rows:,}", f"{stats['examples']:,}"]
    cells.append("" if dropped is None else f"{dropped:,}")
    for feature in T0_LENGTHS:
        if f"{feature}_tokens" not in stats:
            cells += ["", "", ""]
            continue
        over = outcome.truncated.get(feature, 0) / stats["examples"]
        cells.append(f"{stats[f'{feature}_tokens'] / stats['examples']:.1f}")
        cells += [f"{stats[f'{feature}_max_tokens']:,}", f"{over:.1%}" if over else "0"]
    return [*cells, str(sum("examples" in entry for entry in outcome.files.values()))]


def _join_reasons(outcome: SplitOutcome) -> str:
    reasons = [
        f"{count:,} {reason}" for reason, count in outcome.counts.items() if reason != "rows"
    ]
    rows = outcome.counts.get("rows")
    return ", ".join(reasons) + (f" (of {rows:,} rows)" if reasons and rows else "")
