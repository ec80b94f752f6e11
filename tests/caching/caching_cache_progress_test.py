"""The progress line and the summary."""

import io

from t0.caching.cache_plan import CachePlan, TaskPlan, TaskSplit
from t0.caching.cache_progress import Progress, print_summary
from t0.caching.split_state import SplitOutcome

SPLITS = (TaskSplit("a", "train", "/a", 100), TaskSplit("b", "train", "/b", 300))
PLAN = CachePlan(
    SPLITS, {n: TaskPlan(n, f"/{n}", f"/{n}.x", ("train",), {}) for n in ("a", "b")}, {}
)


def outcome(split, **changes):
    fields = {
        "stats": {"examples": 200, "inputs_tokens": 1000, "inputs_max_tokens": 9},
        "files": {"train.tfrecord-00000-of-00001": {"examples": 200}, "info.train.json": {}},
        "counts": {"rows": 110, "rendered nothing": 10},
        **changes,
    }
    return SplitOutcome(split, fields.pop("status", "written"), **fields)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_cache_progress_line_has_rows_time_left_and_tasks():
    progress = Progress(PLAN, io.StringIO())
    progress.begin_with(20)
    progress.finish(outcome(SPLITS[0]))
    line = progress.plain()
    # 110 rows, 20 of them of a run before.
    assert line.startswith("caching: 110 of 400 rows (28%), ")
    assert line.endswith(" left, 1/2 tasks, 200 examples")


def test_cache_progress_estimates_rows_from_examples():
    progress = Progress(PLAN, io.StringIO())
    progress.advance(SPLITS[1], examples=5000)
    assert "297 of 400 rows" in progress.plain()
    assert "5,000 examples" in progress.plain()


def test_cache_progress_line_before_anything_is_known():
    assert "? left" in Progress(PLAN, io.StringIO()).plain()


def test_cache_progress_plain_lines_when_not_a_terminal():
    log = io.StringIO()
    with Progress(PLAN, log) as progress:
        progress.advance(SPLITS[0], examples=5)
    assert log.getvalue().count("0/2 tasks") == 1
    assert "\x1b" not in log.getvalue()


def test_cache_progress_live_line_in_a_terminal():
    terminal = Terminal()
    with Progress(PLAN, terminal):
        pass
    assert "0/400" in terminal.getvalue()


def test_cache_summary_table_of_splits_and_counts():
    written = outcome(SPLITS[0], over={"inputs": 50}, notes=("known: it asks for some",))
    empty = outcome(SPLITS[0], status="empty", stats={}, files={}, notes=("as known",))
    log = io.StringIO()
    print_summary([outcome(SPLITS[1], status="failed"), written, empty], log)
    _, first, second, third = log.getvalue().splitlines()
    cells = ["a", "train", "110", "200", "10", "5.0", "9", "25.0%", "1"]
    assert first.split()[: len(cells)] == cells
    assert first.strip().endswith("10 rendered nothing (of 110 rows); known: it asks for some")
    assert second.split()[:5] == ["a", "train", "110", "0", "110"]
    assert "left out" in second
    assert "NOT WRITTEN (failed)" in third


def test_cache_summary_in_a_terminal_fits_80_columns_and_keeps_names_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name = "a_dataset_with_a_long_name_and_a_prompt_whose_name_is_even_longer_than_a_terminal_is"
    split = TaskSplit(name, "train", "/a", 100)
    terminal = Terminal()
    print_summary([outcome(split, notes=("known: it asks for some " * 5,))], terminal)
    first, *lines = terminal.getvalue().splitlines()
    assert first == name
    assert lines[0].startswith("    split: train; rows: 110; written: 200; dropped: 10; ")
    assert max(map(len, lines)) <= 80
