"""The report's tables as CSV and JSON, and for the terminal."""

import csv
import io
import json

import numpy as np
import pytest

from t0.reports import read_report, tables, write_report
from t0.reports.evaluations import read_runs
from tests.reports.made_up_evaluations import SIGNATURE, change


@pytest.mark.parametrize("name", ["nan", "null"])
def test_report_table_shows_undefined_metric_as_a_dash(decoded, tmp_path, name):
    value = float("nan") if name == "nan" else None
    change(decoded, lambda content: content["tasks"]["my_task"]["metrics"].update(accuracy=value))
    paths = write_report([decoded], tmp_path / "out")
    data = json.loads(paths.json.read_text())
    found = {(row["task"], row["metric"]): row["value"] for row in data["metrics"]}
    assert (found["my_task", "accuracy"], found["my_task", "edit_distance"]) == (None, 3.25)
    assert 'data-label="Value" data-sort="">–</td>' in paths.html.read_text()


def test_report_csv_has_every_metric_value(decoded, tmp_path):
    paths = write_report([decoded], tmp_path / "out")
    rows = list(csv.DictReader(io.StringIO(paths.csv[0].read_text())))
    found = {(row["task"], row["group"], row["metric"]): row["value"] for row in rows}
    assert found["mt_en_de", "", "bleu"] == "32.25"
    assert found["sni_def_pos_2", "task1301_rte_weather", "rougeL"] == "49.5"
    assert len(rows) == 2 + 4 * 2 + 2 + 1 + 2
    (bleu,) = (row for row in rows if row["metric"] == "bleu")
    assert (bleu["signature"], bleu["examples"], bleu["truncated_targets"]) == (
        SIGNATURE,
        "24",
        "4",
    )


@pytest.mark.usefixtures("rough_pictures")
def test_report_csv_and_json_agree_with_the_results(two_runs, tmp_path):
    paths = write_report(two_runs, tmp_path / "out")
    rows = list(csv.DictReader(io.StringIO(paths.csv[0].read_text())))
    expected = {(run.label, task.name): task for run in read_runs(two_runs) for task in run.tasks}
    assert len(rows) == len(expected) == 18
    for row in rows:
        task = expected[row["run"], row["task"]]
        assert float(row["accuracy_percent"]) == task.accuracy
        assert float(row["chance_percent"]) == task.chance
        assert float(row["interval_low_percent"]) <= task.accuracy
    data = json.loads(paths.json.read_text())
    assert data["schema"] == 2
    assert [row["prompts"] for row in data["datasets"]] == [3, 3, 4, 4, 2, 2]
    assert [row["accuracy_percent"] for row in data["prompts"]] == [
        float(row["accuracy_percent"]) for row in rows
    ]
    assert {row["run"] for row in data["differences"]} == {"second, step 100"}
    assert len(data["differences"]) == 3 + 1  # and the mean


@pytest.mark.parametrize("width", [50, 80, None])
def test_report_terminal_table_shows_every_number(two_runs, width):
    lines = read_report(two_runs[:1]).lines(width)
    table = lines[lines.index("Accuracy (%) over prompts") :]
    assert width is None or max(map(len, table)) <= width
    text = "\n".join(table)
    (run,) = read_runs(two_runs[:1])
    rte = [task.accuracy for task in run.tasks if task.dataset == "super_glue/rte"]
    assert f"{np.mean(rte):.1f}" in text
    assert f"{min(rte):.1f}–{max(rte):.1f}" in text
    assert "50.0" in text
    assert "…" not in text


def test_report_number_formats():
    assert tables.signed(-0.04) == "0.0"
    assert tables.p_value(0.0004) == "< 0.001"
    assert tables.p_value(0.0312) == "0.031"
    assert (
        tables.fact({"inputs": 1024, "eos": True, "none": None}) == "inputs 1024, eos yes, none –"
    )
