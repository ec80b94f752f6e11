"""The table of outcomes."""

import io

from t0.caching.cache_plan import TaskSplit
from t0.caching.split_state import SplitOutcome
from t0.caching.split_table import print_outcomes

SPLITS = (TaskSplit("a", "train", "/a", 100), TaskSplit("b", "train", "/b", 300))


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


def test_cache_summary_table_of_splits_and_counts():
    written = outcome(SPLITS[0], truncated={"inputs": 50}, notes=("known: it asks for some",))
    empty = outcome(SPLITS[0], status="empty", stats={}, files={}, notes=("as known",))
    log = io.StringIO()
    print_outcomes([outcome(SPLITS[1], status="failed"), written, empty], log)
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
    print_outcomes([outcome(split, notes=("known: it asks for some " * 5,))], terminal)
    first, *lines = terminal.getvalue().splitlines()
    assert first == name
    assert lines[0].startswith("    split: train; rows: 110; written: 200; dropped: 10; ")
    assert max(map(len, lines)) <= 80


def test_cache_summary_has_the_lengths_of_the_run_and_unknown_characters():
    counted = outcome(
        SPLITS[0], over={"inputs": 1}, truncated={"inputs": 150}, unknown={"": 40, "☂": 7, "😀": 39}
    )
    log = io.StringIO()
    print_outcomes([counted], log, (48, 16))
    header, row = log.getvalue().splitlines()
    assert "inputs over 48 " in header and "targets over 16 " in header
    assert "75.0%" in row
    assert row.endswith("40 have characters that are not in the vocabulary: '😀' (39), '☂' (7)")
