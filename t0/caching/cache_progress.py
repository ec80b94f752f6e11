"""Shows the progress of a run: one live line while it works, a table at its end.

    with Progress(plan, Console()) as progress:
        progress.advance(split, examples=1200, rows=600)
        progress.finished(outcome)
    console.print(summary(outcomes))

On a terminal the line is redrawn twice a second. Elsewhere, such as in a log file, a line is
printed every ten seconds.
"""

import contextlib
import time
from collections.abc import Iterable

import psutil
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from t0.caching.cache_plan import LONGEST, CachePlan, TaskSplit
from t0.caching.split_state import EMPTY, WRITTEN, Outcome
from t0.prompts.row_report import DROPPED

PLAIN_SECONDS = 10.0
LIVE_SECONDS = 0.5


class Progress:
    """Counts the rows and examples that are done, and shows them."""

    def __init__(self, plan: CachePlan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._started = time.monotonic()
        self._shown = self._started
        self._examples: dict[TaskSplit, int] = {}
        self._rows: dict[TaskSplit, int] = {}
        self._done: set[TaskSplit] = set()
        self._of_earlier_runs = 0
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._live.start()
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def advance(
        self, split: TaskSplit | None, *, examples: int = 0, rows: int | None = None
    ) -> None:
        """Sets the counts of a split, and shows the line if that is due.

        Args:
          split: the split, or None to set nothing.
          examples: the number of examples that are done.
          rows: the number of input rows that are done, None if it is unknown.
        """
        if split:
            self._examples[split] = examples
            if rows is not None:
                self._rows[split] = rows
        interval = LIVE_SECONDS if self._console.is_terminal else PLAIN_SECONDS
        if time.monotonic() - self._shown >= interval:
            self._show()

    def begin_with(self, rows: int) -> None:
        """Sets the number of rows that an earlier run has done: they do not count for the speed."""
        self._of_earlier_runs = rows

    def finished(self, outcome: Outcome) -> None:
        """Counts a finished split."""
        self._done.add(outcome.split)
        rows = outcome.counts.get("rows", outcome.split.rows)
        self.advance(outcome.split, examples=outcome.stats.get("examples", 0), rows=rows)

    def _show(self) -> None:
        self._shown = time.monotonic()
        line = self.line(self._shown - self._started)
        if self._console.is_terminal:
            self._live.update(Text(line, overflow="ellipsis", no_wrap=True), refresh=True)
        else:
            self._console.print(line, highlight=False, soft_wrap=True)

    def line(self, elapsed_seconds: float) -> str:
        """Returns the line: tasks done, rows and their rate, time left, memory.

        A row of a dataset counts once for each task that uses it.
        """
        left = {split.task for split in self._plan.splits if split not in self._done}
        total = len(self._plan.tasks)
        rows = sum(self._rows_done(split) for split in self._plan.splits)
        examples = sum(self._examples.values())
        rate = max(0.0, rows - self._of_earlier_runs) / elapsed_seconds if elapsed_seconds else 0.0
        return (
            f"caching: {total - len(left)}/{total} tasks, {rows:,.0f} rows, {rate:,.0f} rows/s, "
            f"{examples:,} examples, ETA {self._time_left(rate)}, "
            f"memory {tree_memory_bytes() / 1e9:.1f} GB"
        )

    def _rows_done(self, split: TaskSplit) -> float:
        if split in self._rows:
            return self._rows[split]
        # The rows are unknown: they are estimated by the examples, and are fewer than all rows.
        examples = self._examples.get(split, 0)
        return min(examples, 0.99 * split.rows) if split.rows else examples

    def _time_left(self, rows_per_second: float) -> str:
        open_rows = sum(
            max(0, (split.rows or 0) - self._rows_done(split))
            for split in self._plan.splits
            if split not in self._done
        )
        return _clock(open_rows / rows_per_second) if rows_per_second else "?"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def tree_memory_bytes() -> int:
    """Returns the memory of this process and its descendants in bytes.

    Pages that processes share are counted once on Linux, elsewhere once for each process.
    """
    process = psutil.Process()
    total = 0
    for member in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += _own_share_bytes(member)
    return total


def _own_share_bytes(process: psutil.Process) -> int:
    try:
        with open(f"/proc/{process.pid}/smaps_rollup") as file:
            share = next(line for line in file if line.startswith("Pss:"))
        return int(share.split()[1]) * 1024
    except (OSError, StopIteration):
        return process.memory_info().rss


_NUMBERS = (
    *("rows", "written", "dropped", "inputs mean", "max", f"over {LONGEST['inputs']}"),
    *("targets mean", "max", f"over {LONGEST['targets']}", "files"),
)


def summary(outcomes: Iterable[Outcome]) -> Table:
    """Returns the table of the outcomes, with one row for each split.

    Token counts leave out EOS. The columns "over" have the share of examples that are longer than
    T0's lengths, which include EOS.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("task", overflow="fold")
    table.add_column("split")
    for numbers in _NUMBERS:
        table.add_column(numbers, justify="right")
    table.add_column("why, and notes", overflow="fold")
    for outcome in sorted(outcomes, key=lambda o: (o.split.task, o.split.name)):
        cells = [""] * len(_NUMBERS)
        note = f"NOT WRITTEN ({outcome.status})"
        if outcome.status == WRITTEN:
            cells, note = _cells(outcome), ""
        elif outcome.status == EMPTY:
            cells[:3] = f"{outcome.counts['rows']:,}", "0", f"{outcome.counts['rows']:,}"
            note = "left out"
        why = "; ".join(filter(None, [note, _reasons(outcome), *outcome.notes]))
        table.add_row(outcome.split.task, outcome.split.name, *cells, why)
    return table


def _cells(outcome: Outcome) -> list[str]:
    rows = outcome.counts.get("rows", outcome.split.rows)
    dropped = outcome.counts.get(DROPPED, 0) if "rows" in outcome.counts else None
    files = sum("examples" in entry for entry in outcome.files.values())
    return [
        "" if rows is None else f"{rows:,}",
        f"{outcome.stats['examples']:,}",
        "" if dropped is None else f"{dropped:,}",
        *(cell for feature in LONGEST for cell in _token_cells(outcome, feature)),
        str(files),
    ]


def _token_cells(outcome: Outcome, feature: str) -> tuple[str, str, str]:
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


def _reasons(outcome: Outcome) -> str:
    reasons = [f"{count:,} {what}" for what, count in outcome.counts.items() if what != "rows"]
    rows = outcome.counts.get("rows")
    return ", ".join(reasons) + (f" (of {rows:,} rows)" if reasons and rows else "")
