"""The progress line counts, prints lines that stay, and keeps logs readable."""

import sys

from t0 import progress
from t0.progress import ProgressLine, count_units


def test_progress_line_keeps_printed_lines_and_no_live_line_in_log(capsys):
    with ProgressLine(10, unit="choice", doing="scoring") as progress:
        progress.count_before(4)
        progress.count_before(2)
        progress.count(3, note="7 tokens/s")
        progress.print("rte: done")
    printed = capsys.readouterr()
    assert printed.out == "rte: done\n"
    assert printed.err == ""
    assert progress.before == 6
    assert progress.seconds > 0


def test_progress_line_in_a_log_every_ten_seconds(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr("t0.progress.time.monotonic", lambda: now)
    with ProgressLine(100, unit="example", doing="scoring") as progress:
        progress.count_before(10)
        for _ in range(30):
            now += 1
            progress.count(1, note="rte 50.0%")
    assert capsys.readouterr().err.splitlines() == [
        "scoring: 20 of 100 examples (20%), 1 examples/s, 01:20 left, rte 50.0%",
        "scoring: 30 of 100 examples (30%), 1 examples/s, 01:10 left, rte 50.0%",
        "scoring: 40 of 100 examples (40%), 1 examples/s, 01:00 left, rte 50.0%",
    ]


def test_progress_line_without_total_has_no_time_left(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr("t0.progress.time.monotonic", lambda: now)
    with ProgressLine(None, unit="input", doing="predicting") as progress:
        now = 20.0
        progress.count(500)
    assert capsys.readouterr().err == "predicting: 500 inputs, 25 inputs/s\n"


def test_progress_line_above_its_total_has_no_total_and_no_negative_time(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr("t0.progress.time.monotonic", lambda: now)
    with ProgressLine(400, unit="row", doing="caching") as progress:
        now = 20.0
        progress.count(500)
    assert capsys.readouterr().err == "caching: 500 rows, 25 rows/s\n"


def test_progress_line_of_unknown_size_only_after_many_units(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    assert list(count_units(range(999), unit="row", doing="reading")) == [*range(999)]
    assert capsys.readouterr().err == ""
    assert list(count_units(range(2500), unit="row", doing="reading")) == [*range(2500)]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[:2] for line in lines] == [
        ["reading: 1", "000 rows"],
        ["reading: 2", "000 rows"],
    ]


def test_hidden_progress_prints_nothing_but_errors(capsys, monkeypatch):
    monkeypatch.setattr("t0.progress.PLAIN_SECONDS", 0.0)
    with ProgressLine.hidden():
        print("not shown")
        with ProgressLine(2, unit="choice", doing="scoring") as line:
            line.count(1)
            line.print("not shown")
        print("shown", file=sys.stderr)
    with ProgressLine.hidden(hides=False), ProgressLine(2, unit="row", doing="reading") as line:
        line.count(1)
        print("a result")
    captured = capsys.readouterr()
    assert captured.out == "a result\n"
    assert captured.err.splitlines()[0] == "shown"
    assert captured.err.splitlines()[1].startswith("reading: 1 of 2 rows")
