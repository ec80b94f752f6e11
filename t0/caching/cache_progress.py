"""Shows the progress of a caching run: a live line during the run, and a table at the end.

with Progress(plan, sys.stdout) as progress:
    progress.advance(split, examples=1200, rows=600)
    progress.finish(outcome)
print_summary(outcomes, sys.stdout)
"""

from collections.abc import Iterable
from typing import TextIO

from t0.caching.cache_plan import LONGEST, CachePlan, TaskSplit
from t0.caching.split_state import EMPTY, WRITTEN, SplitOutcome
from t0.progress import ProgressLine
from t0.prompts.row_report import DROPPED
from t0.text_tables import print_table


class Progress:
    """Shows in a live line how many rows and examples are done.

    A row of a dataset counts once for each task that uses it.

    Args:
      plan: the plan of the run.
      file: the terminal or log file to which the line is printed.
    """

    def __init__(self, plan: CachePlan, file: TextIO) -> None:
        self._plan = plan
        all_counted = all(split.rows for split in plan.splits)
        total = sum(split.rows for split in plan.splits) if all_counted else None
        self._line = ProgressLine(total, unit="row", doing="caching", file=file)
        self._examples: dict[TaskSplit, int] = {}
        self._rows = 0
        self._rows_of_splits: dict[TaskSplit, int] = {}
        self._finished: set[TaskSplit] = set()

    def __enter__(self) -> "Progress":
        self.advance(None)
        self._line.show()
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    def advance(
        self, split: TaskSplit | None, *, examples: int = 0, rows: int | None = None
    ) -> None:
        """Sets the counts of a split, and updates the line if the last update is old enough.

        Args:
          split: the split; None to only update the line.
          examples: the number of examples that are done.
          rows: the number of input rows that are done; None to estimate it from the examples.
        """
        if split:
            self._examples[split] = examples
            if rows is None:
                rows = min(examples, int(0.99 * split.rows)) if split.rows else examples
            self._rows_of_splits[split] = rows
        now = sum(self._rows_of_splits.values())
        added, self._rows = now - self._rows, now
        self._line.count(added, note=self._note())

    def begin_with(self, rows: int) -> None:
        """Sets the number of rows that an earlier run has done. The speed does not include them."""
        self._line.count_before(rows)
        self._rows = rows

    def finish(self, outcome: SplitOutcome) -> None:
        """Counts a finished split."""
        self._finished.add(outcome.split)
        rows = outcome.counts.get("rows", outcome.split.rows)
        self.advance(outcome.split, examples=outcome.stats.get("examples", 0), rows=rows)

    def plain(self) -> str:
        """Returns the line as plain text: rows, rows per second, remaining time, finished tasks."""
        return self._line.plain()

    def _note(self) -> str:
        total = len(self._plan.tasks)
        remaining = len({split.task for split in self._plan.splits if split not in self._finished})
        return f"{total - remaining}/{total} tasks, {sum(self._examples.values()):,} examples"


_NUMBERS = (
    *("rows", "written", "dropped"),
    *(
        f"{feature} {number}"
        for feature, most in LONGEST.items()
        for number in ("mean", "max", f"over {most}")
    ),
    "files",
)


def print_summary(outcomes: Iterable[SplitOutcome], file: TextIO) -> None:
    """Prints the table of the outcomes, with one row for each split.

    Token counts do not include EOS. The columns "over" show the share of examples that are longer
    than T0's sequence lengths. In this comparison, EOS counts as a token.
    """
    rows = []
    for outcome in sorted(outcomes, key=lambda o: (o.split.task, o.split.name)):
        cells = [""] * len(_NUMBERS)
        note = f"NOT WRITTEN ({outcome.status})"
        if outcome.status == WRITTEN:
            cells, note = _format_cells(outcome), ""
        elif outcome.status == EMPTY:
            cells[:3] = f"{outcome.counts['rows']:,}", "0", f"{outcome.counts['rows']:,}"
            note = "left out"
        why = "; ".join(filter(None, [note, _join_reasons(outcome), *outcome.notes]))
        rows.append((outcome.split.task, outcome.split.name, *cells, why))
    print_table(("task", "split", *_NUMBERS, "notes"), rows, _NUMBERS, file)


def _format_cells(outcome: SplitOutcome) -> list[str]:
    rows = outcome.counts.get("rows", outcome.split.rows)
    dropped = outcome.counts.get(DROPPED, 0) if "rows" in outcome.counts else None
    files = sum("examples" in entry for entry in outcome.files.values())
    return [
        "" if rows is None else f"{rows:,}",
        f"{outcome.stats['examples']:,}",
        "" if dropped is None else f"{dropped:,}",
        *(cell for feature in LONGEST for cell in _format_token_cells(outcome, feature)),
        str(files),
    ]


def _format_token_cells(outcome: SplitOutcome, feature: str) -> tuple[str, str, str]:
    tokens = outcome.stats.get(f"{feature}_tokens")
    if tokens is None:
        return "", "", ""
    examples = outcome.stats["examples"]
    over = outcome.over.get(feature, 0)
    return (
        f"{tokens / examples:.1f}",
        f"{outcome.stats[f'{feature}_max_tokens']:,}",
        f"{over / examples:.1%}" if over else "0",
    )


def _join_reasons(outcome: SplitOutcome) -> str:
    reasons = [
        f"{count:,} {reason}" for reason, count in outcome.counts.items() if reason != "rows"
    ]
    rows = outcome.counts.get("rows")
    return ", ".join(reasons) + (f" (of {rows:,} rows)" if reasons and rows else "")
