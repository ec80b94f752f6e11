"""Other ways to judge beside T0's sum, and reliability diagrams."""

import json

import numpy as np
import pytest

from t0.errors import UserError
from t0.reports import read_report, read_runs
from t0.reports.diagnosis import reliability_panels, reliability_rows
from t0.reports.evaluation_rows import normalization_rows
from t0.reports.plots import new_figure
from t0.reports.statistics import calibration_interval
from tests.reports.made_up_evaluations import example_line, random_lines


def lines_of(lengths, likelihoods, gold):
    """A line for each example, whose choices have the lengths (tokens, characters)."""
    found = []
    for idx, (given, values, right) in enumerate(zip(lengths, likelihoods, gold, strict=True)):
        line = example_line(idx, values, right)
        for choice, (tokens, characters) in zip(line["choices"], given, strict=True):
            choice |= {"tokens": tokens, "characters": characters}
        found.append(line)
    return found


def write_answers(folder, name, rows, step=100):
    (folder / "answers").mkdir(exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "answers" / f"{name}_{step}.jsonl").write_text(text)


@pytest.fixture
def judged(evaluation):
    """Ten examples: all right by the sum, half by tokens, none by characters."""
    lengths = [[(1, 10), (3, 50)], [(4, 10), (3, 50)]] * 5
    lines = lines_of(lengths, [[-2.0, -3.0]] * 10, [0] * 10)
    decoded = {"exact_match": 70.0, "normalisation": "lower case"}
    one = evaluation().add("rte_a", "super_glue/rte", "a", lines, decoded=decoded)
    return one.write(), one.folder


@pytest.mark.usefixtures("rough_pictures")
def test_length_normalization_by_tokens_and_characters(judged, tmp_path):
    # -2/1 < -3/3, -2/4 > -3/3; -2/10 < -3/50.
    (row,) = normalization_rows(read_runs([judged[0]]))
    assert (row["sum"], row["tokens"], row["characters"]) == (100.0, 50.0, 0.0)
    assert row["decoded"] is None
    assert row["tokens_low"] < 50 < row["tokens_high"]
    report = read_report([judged[0]])
    paths = report.write(tmp_path / "out")
    assert ["dataset", "sum", "by", "tokens", "by", "characters"] in map(str.split, report.lines())
    assert 'data-label="By characters"' in paths.html.read_text()
    data = json.loads(paths.json.read_text())
    assert data["ways"][0]["tokens"] == 50.0
    assert "accuracy_by_tokens_percent" in paths.csv[0].read_text().splitlines()[0]


def test_length_normalization_without_token_counts(evaluation):
    lines = [example_line(0, [-1.0, -2.0], 1, texts=["x", "a long one"])]
    for line in lines:
        for choice in line["choices"]:
            del choice["tokens"]
    path = evaluation().add("rte_a", "super_glue/rte", "a", lines).write()
    (row,) = normalization_rows(read_runs([path]))
    # Characters are counted in the texts.
    assert (row["sum"], row["tokens"], row["characters"]) == (0.0, None, 100.0)


def test_decoded_answers_are_reported_next_to_ranking(judged, tmp_path):
    path, folder = judged
    rows = [{"idx": idx, "answer": "x", "exact_match": idx < 7} for idx in range(10)]
    write_answers(folder, "rte_a", reversed(rows))
    (row,) = normalization_rows(read_runs([path]))
    assert row["decoded"] == pytest.approx(70)
    write_answers(folder, "rte_a", rows[:-1])
    with pytest.raises(UserError, match="rte_a_100.jsonl has no answer for idx 9, which .*scores"):
        read_runs([path])
    write_answers(folder, "rte_a", [{"idx": 0, "answer": "x", "exact_match": 1}])
    with pytest.raises(UserError, match="line 1: exact_match is 1; expected True or False"):
        read_runs([path])


def test_calibration_error_is_over_all_prompts_of_a_dataset(evaluation):
    one = evaluation()
    for prompt in range(3):
        one.add(f"rte_{prompt}", "super_glue/rte", str(prompt), random_lines(80, [2], prompt))
    runs = read_runs([one.write()])
    (found,) = reliability_rows(runs)
    scores = [task.scores for task in runs[0].tasks]
    confidence = np.concatenate([s.confidence for s in scores])
    right = np.concatenate([s.correct for s in scores])
    assert sum(count for *_, count in found["bins"]) == 240
    shares = sum(count * abs(100 * c - a) for c, a, count in found["bins"]) / 240
    assert found["error"] == pytest.approx(shares, abs=1e-2)
    assert 0 <= found["low"] <= found["error"] <= found["high"] <= 100
    # The same examples three times say no more than once.
    thrice = calibration_interval(
        np.tile(confidence[:80], 3), np.tile(right[:80], 3), clusters=np.tile(np.arange(80), 3)
    )
    once = calibration_interval(confidence[:80], right[:80])
    assert thrice.high == pytest.approx(once.high, abs=1e-6)
    assert thrice.low == pytest.approx(once.low, abs=1e-6)


def test_reliability_diagram_shows_calibration_error_of_runs(two_runs):
    found = reliability_rows(read_runs(two_runs))
    panels = reliability_panels(found, [1])
    assert len(panels) == 3
    for panel, row in zip(panels, [row for row in found if row["run"] == 1], strict=True):
        words = f"ECE {row['error']:.1f} ({row['low']:.1f} to {row['high']:.1f})"
        assert words in panel.description
        axes = new_figure(3, 3).subplots()
        assert len(panel.draw(axes)) == len(row["bins"])
        assert [text.get_text() for text in axes.get_legend().get_texts()] == [words]
    both = new_figure(3, 3).subplots()
    reliability_panels(found, [0, 1])[0].draw(both)
    labels = [text.get_text()[:6] for text in both.get_legend().get_texts()]
    assert labels == ["A ECE ", "B ECE "]
