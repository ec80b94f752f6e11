"""Precision, recall and F1 of each class, and the means over classes, in every format."""

import csv
import json
import math

import numpy as np
import pytest

from t0.absent_classes import warn_of_absent_classes
from t0.cli import main as t0_main
from t0.evaluation.rank_metrics import RankClassification, RankMetrics
from t0.evaluation.ranked_examples import AnswerChoice, MultipleChoiceExample
from t0.measures.rank_measures import CLASS_MEASURES
from t0.reports import read_report
from tests.reports.made_up_evaluations import example_line

KINDS = ["billing", "technical", "other"]


def lines_of(pairs):
    """Lines whose gold and predicted choices are the pairs."""
    likelihoods = {p: [-1.0 if p == n else -2.0 - n for n in range(3)] for p in range(3)}
    return [
        example_line(n, likelihoods[predicted], gold, texts=KINDS)
        for n, (gold, predicted) in enumerate(pairs)
    ]


PAIRS = [(0, 0)] * 6 + [(0, 1)] * 2 + [(1, 1)] * 3 + [(1, 2)]


@pytest.fixture
def tickets(evaluation):
    made = evaluation(name="tickets/model")
    for prompt in ("say", "which"):
        made.add(f"tickets_{prompt}", "tickets", prompt, lines_of(PAIRS))
    lines = [example_line(n, [-1.0, -2.0][: 1 + n], 0) for n in (0, 1)]
    made.add("ragged_a", "ragged", "a", lines)
    return made.write()


def test_class_metrics_in_terminal_csv_json_and_page(tickets, tmp_path, capsys, rough_pictures):
    assert t0_main.main(["report", str(tickets), "--output", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("Note: tickets has no example of the class 'other'")
    start = shown.index("Metrics per class (%)")
    assert shown[start + 2].split() == [
        "tickets",
        "say",
        "billing",
        "100.0",
        "75.0",
        "85.7",
        "8",
        "6",
    ]
    assert shown[start + 4].split() == ["tickets", "say", "other", "0.0", "–", "0.0", "0", "1"]
    # F1: 6/7, 2/3; over all choices also 0.
    start = shown.index("Macro F1 and balanced accuracy (%)")
    assert shown[start + 2].split() == ["tickets", "76.2", "50.8", "75.0", "55.2"]
    assert not any("ragged" in line for line in shown[start:])

    with (tmp_path / "out" / "report_classes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert (rows[1]["class"], rows[1]["support"], rows[1]["recall"]) == ("technical", "4", "75.0")
    assert rows[2]["recall"] == ""
    content = json.loads((tmp_path / "out" / "report.json").read_text())
    assert content["classes"][0] == {
        "run": "tickets/model, step 100",
        "step": 100,
        "dataset": "tickets",
        "prompt": "say",
        "task": "tickets_say",
        "class": "billing",
        "precision": 100.0,
        "recall": 75.0,
        "f1": pytest.approx(600 / 7),
        "support": 8,
        "predicted": 6,
    }
    prompts = {row["prompt"]: row for row in content["prompts"]}
    assert prompts["say"]["balanced_accuracy_percent"] == 75.0
    assert [prompts["a"][measure.column] for measure in CLASS_MEASURES] == [None] * 4
    page = (tmp_path / "out" / "report.html").read_text()
    assert '<section id="classes">' in page
    assert '<section id="class_means">' in page


def test_many_classes_are_on_the_page_but_not_in_the_terminal(evaluation):
    kinds = [f"kind {n}" for n in range(41)]
    line = example_line(0, [-1.0 - n for n in range(41)], 0, texts=kinds)
    report = read_report([evaluation().add("tickets_say", "tickets", "say", [line]).write()])
    assert len(report.rows("classes")) == 41
    assert "Metrics per class (%)" not in report.lines()
    headings = [column.heading for column in report.tables["classes"].columns]
    assert headings[:3] == ["Dataset", "Prompt", "Class"]  # one run needs no column of runs


def test_metrics_of_a_user_in_terminal_csv_json_and_page(
    evaluation, tmp_path, capsys, rough_pictures
):
    def brier(targets, scores):
        return {"brier": 0.25, "choices": len(targets), "undefined": math.nan}

    lines = lines_of(PAIRS)
    computed = RankMetrics([RankClassification(None), brier])
    for line in lines:
        choices = tuple(
            AnswerChoice(
                text, tokens=np.array([n, 1]), is_correct=n == line["gold"], inputs=np.ones(1)
            )
            for n, text in enumerate(KINDS)
        )
        scores = np.array([choice["log_likelihood"] for choice in line["choices"]], np.float32)
        list(computed.accumulate([(MultipleChoiceExample(line["idx"], choices), scores)]))
    made = evaluation().add("tickets_say", "tickets", "say", lines, metrics=computed.compute("t"))
    out = tmp_path / "out"
    assert t0_main.main(["report", str(made.write()), "--output", str(out)]) == 0
    shown = capsys.readouterr().out.splitlines()
    start = shown.index("Metrics of the ranked tasks")
    assert [line.split() for line in shown[start + 2 : start + 5]] == [
        ["tickets", "say", "brier", "0.25"],
        ["tickets", "say", "choices", "36.00"],
        ["tickets", "say", "undefined", "–"],
    ]
    with (out / "report_rank_metrics.csv").open() as file:
        assert [(r["metric"], r["value"]) for r in csv.DictReader(file)] == [
            ("brier", "0.25"),
            ("choices", "36.0"),
            ("undefined", ""),
        ]
    rows = json.loads((out / "report.json").read_text())["rank_metrics"]
    assert [row["metric"] for row in rows] == ["brier", "choices", "undefined"]
    page = (out / "report.html").read_text()
    assert '<section id="rank_metrics">' in page and '<a href="#rank_metrics">' in page


def test_warning_of_many_absent_classes_names_the_first():
    counts = {f"c{n}": int(n > 6) for n in range(150)}
    assert warn_of_absent_classes(counts, "validation") == (
        "validation has no example of the classes 'c0', 'c1', 'c2', 'c3', 'c4' and 2 more, so it "
        "cannot measure their recall"
    )


def test_class_metrics_of_many_prompts_are_not_in_the_terminal(evaluation):
    made = evaluation()
    for number in range(14):
        made.add(f"tickets_{number}", "tickets", str(number), lines_of(PAIRS))
    report = read_report([made.write()])
    assert len(report.tables["classes"].rows) == 42
    assert "Metrics per class (%)" not in report.lines()
    assert "Macro F1 and balanced accuracy (%)" in report.lines()


def test_names_that_the_user_typed_are_shown(evaluation):
    names = ["tickets/model", "bigscience/T0_3B", "/very/long/path/t0_3b", "gs://bucket/other", 7]
    runs = [
        evaluation(f"m{n}", name=name).add("t_a", "t", "a", lines_of(PAIRS)).write()
        for n, name in enumerate(names)
    ]
    report = read_report(runs)
    assert [run.name for run in report.runs] == [
        "tickets/model", "bigscience/T0_3B", "t0_3b", "other", "m4",
    ]  # fmt: skip
