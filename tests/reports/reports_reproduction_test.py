"""T0's table: a run's means beside the published values."""

import pytest

from t0.reports import read_runs
from t0.reports.held_out import reproduction, reproduction_table
from tests.reports.made_up_evaluations import example_line


def lines_of(share, count=200):
    return [
        example_line(i, [-1.0, -2.0] if i < share * count else [-2.0, -1.0], 0)
        for i in range(count)
    ]


@pytest.fixture
def rows(evaluation):
    one = evaluation()
    for prompt, share in (("a", 0.60), ("b", 0.70)):
        one.add(f"rte_{prompt}", "super_glue/rte", prompt, lines_of(share))
    for number in (1, 2, 3):
        one.add(f"anli_r{number}", f"anli/r{number}", "a", lines_of(0.3))
    one.add("cb_a", "super_glue/cb", "a", lines_of(0.5), with_scores=False)
    (run,) = read_runs([one.write()])
    return {row["title"]: row for row in reproduction(run)}


def test_reproduction_marks_differences_outside_the_interval(rows):
    rte = rows["RTE"]
    assert (rte["prompts"], rte["examples"], rte["mean"]) == (2, 200, pytest.approx(65))
    assert rte["low"] < 64.6 < 65 < rte["high"] < 81.0
    assert rte["models"]["T0-3B"] == {
        "value": 64.6,
        "difference": pytest.approx(0.4),
        "within": True,
    }
    assert rte["models"]["T0-11B"]["within"] is False


def test_reproduction_table_joins_three_anli_rounds(rows):
    anli = rows["ANLI R1, ANLI R2, ANLI R3"]
    assert (anli["prompts"], anli["examples"], anli["mean"]) == (3, 600, pytest.approx(30))
    # Three times the examples of one round: about 30 +- 1.96 * sqrt(0.21 / 600).
    assert anli["high"] - anli["low"] == pytest.approx(200 * 1.96 * (0.21 / 600) ** 0.5, rel=0.05)


def test_reproduction_table_marks_missing_datasets(rows):
    assert (rows["CB"]["mean"], rows["CB"]["low"]) == (pytest.approx(50), None)
    assert rows["CB"]["models"]["T0-3B"]["within"] is None
    assert rows["COPA"]["mean"] is None
    mean = rows["mean of 5 of 11"]
    assert mean["mean"] == pytest.approx((65 + 3 * 30 + 50) / 5)
    assert mean["models"]["T0-3B"]["value"] == pytest.approx((64.6 + 3 * 33.4 + 45.4) / 5)
    text = "\n".join(reproduction_table([*rows.values()]).lines())
    assert "not evaluated" in text
    (line,) = [line for line in text.splitlines() if line.startswith("RTE ")]
    assert line.split()[-6:] == ["64.6", "+0.4", "within", "81.0", "-16.0", "OUTSIDE"]
