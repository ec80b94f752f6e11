import csv
import io
import json

import numpy as np
import pytest
from made_up_evaluations import random_lines
from PIL import Image
from rich.console import Console

from t0.cli import main as t0_main
from t0.errors import UserError
from t0.reports import console_tables, write_report
from t0.reports.boxes import boxed_runs, swarm
from t0.reports.curves import read_curves
from t0.reports.figures import new_figure
from t0.reports.lines import curve_panels
from t0.reports.plots import draw_references, limit_percent
from t0.reports.read import read_runs


@pytest.fixture
def metrics(tmp_path):
    path = tmp_path / "first" / "metrics.jsonl"
    path.parent.mkdir(exist_ok=True)
    records = [
        {"step": s, "loss": 9 - s / 100, "learning_rate": 0.001, "tokens_per_second": 5e3}
        for s in range(1, 400)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_files_and_pictures(two_runs, metrics, tmp_path):
    paths = write_report(two_runs, tmp_path / "out", metrics_paths=[metrics])
    assert [p.name for p in paths.plots] == ["accuracy.png", "training.png"]
    written = {p.name for p in (tmp_path / "out").iterdir()}
    assert written == {
        "report.html", "report.md", "report.csv", "report.json", "accuracy.png", "training.png",
    }  # fmt: skip
    for plot in paths.plots:
        image = Image.open(plot)
        image.verify()
        pixels = np.array(Image.open(plot).convert("RGB"))
        assert pixels.shape[0] > 300
        assert pixels.shape[1] > 700
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20
        for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
            assert edge.min() == 255  # nothing is cut off at the edge of the picture


@pytest.fixture
def evaluated(tmp_path):
    """A run that was evaluated while it trained, and stopped early."""
    path = tmp_path / "evaluated" / "metrics.jsonl"
    path.parent.mkdir()
    lines = []
    for step, loss in ((100, 4.0), (200, 2.5), (300, 3.0), (400, 3.5)):
        lines.append({"step": step, "loss": loss - 0.5, "learning_rate": 0.001})
        fields = {"validation_loss": loss, "eval/accuracy": 10 * loss, "eval/rte/accuracy": 1.0}
        lines.append({"step": step, **fields})
        lines.append({"step": step, "best_by": "validation_loss", "best_step": min(step, 200)})
    lines[-1]["stopped_early"] = True
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_evaluations_of_a_training_run_are_drawn_with_their_best(evaluated, two_runs, tmp_path):
    (curves,) = read_curves([evaluated])
    assert curves.best == ("validation_loss", 200)
    assert curves.stopped_early == 400
    assert "best_step" not in curves.points
    panels = curve_panels([curves], ["#0072b2"])
    assert [panel.title for panel in panels] == [
        "Training loss",
        "Tasks: accuracy",
        "Learning rate",
    ]
    axes = new_figure(3, 3).subplots()
    assert panels[0].draw(axes) == ["evaluated: best validation_loss 2.5, at step 200"]
    styles = [(line.get_linestyle(), line.get_marker()) for line in axes.lines]
    # The training loss, the held-out loss, where the run stopped, the best.
    assert styles == [("-", ""), ("--", "o"), (":", "None"), ("None", "*")]
    assert axes.lines[2].get_xdata() == [400, 400]
    assert (axes.lines[3].get_xdata(), axes.lines[3].get_ydata()) == ([200], [2.5])
    other = new_figure(3, 3).subplots()
    assert panels[1].draw(other) == []  # the accuracy did not judge
    paths = write_report(two_runs, tmp_path / "out", metrics_paths=[evaluated])
    note = (
        "Training run evaluated: the best validation_loss of 2.5 was at step 200; none better "
        "came, and it stopped early at step 400."
    )
    assert note in paths.html.read_text()
    assert "best validation_loss 2.5, at step 200" in paths.html.read_text()


def test_training_runs_alone_make_a_report(evaluated, metrics, tmp_path, capsys):
    words = ["report", "--metrics", str(evaluated), str(metrics.parent), "--output"]
    assert t0_main.main([*words, str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<title>Training runs</title>" in page
    assert "Training curves" in page
    assert all(f'id="{name}"' not in page for name in ("runs", "datasets", "prompts", "method"))
    text = (tmp_path / "out" / "report.md").read_text()
    assert "![Training curves](training.png)" in text
    assert "## Datasets" not in text
    assert "training.png" in capsys.readouterr().out
    with pytest.raises(UserError, match="nothing to report on"):
        write_report([], tmp_path / "none")


def test_run_that_went_on_after_an_early_stop_is_not_stopped(evaluated):
    with evaluated.open("a") as file:
        file.write(json.dumps({"step": 500, "best_by": "validation_loss", "best_step": 500}) + "\n")
    (curves,) = read_curves([evaluated])
    assert (curves.best, curves.stopped_early) == (("validation_loss", 500), None)


def test_csv_and_json_agree_with_the_results(two_runs, tmp_path):
    paths = write_report(two_runs, tmp_path / "out")
    rows = list(csv.DictReader(io.StringIO(paths.csv.read_text())))
    expected = {(run.label, task.name): task for run in read_runs(two_runs) for task in run.tasks}
    assert len(rows) == len(expected) == 18
    for row in rows:
        task = expected[row["run"], row["task"]]
        assert float(row["accuracy_percent"]) == task.accuracy
        assert float(row["chance_percent"]) == task.chance
        assert float(row["interval_low_percent"]) <= task.accuracy
    data = json.loads(paths.json.read_text())
    assert data["schema"] == 1
    assert [len(d["prompts"]) for d in data["datasets"]] == [3, 3, 4, 4, 2, 2]
    assert data["comparisons"][0]["second"] == "second, step 100"
    assert len(data["comparisons"][0]["datasets"]) == 3


def test_same_input_same_bytes(two_runs, metrics, tmp_path):
    for name in ("a", "b"):
        write_report(two_runs, tmp_path / name, metrics_paths=[metrics])
    for file in sorted((tmp_path / "a").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_checkpoints_make_a_plot_against_step(evaluation, tmp_path):
    for step in (10, 20, 30):
        lines = random_lines(30, [3], step, skill=step / 10)
        evaluation(step=step).add("cb_a", "super_glue/cb", "a", lines).write()
    paths = write_report([tmp_path / "tiny"], tmp_path / "out")
    assert [p.name for p in paths.plots] == ["accuracy.png", "accuracy_by_step.png"]
    assert "Accuracy against step" in paths.html.read_text()
    # An earlier plot that the new report has not must not be taken for a part of it.
    write_report([tmp_path / "tiny" / "eval" / "results_10.json"], tmp_path / "out")
    assert not (tmp_path / "out" / "accuracy_by_step.png").exists()


def test_bad_input_leaves_the_earlier_report_alone(two_runs, tmp_path):
    paths = write_report(two_runs, tmp_path / "out")
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    content = json.loads(two_runs[0].read_text())
    content["tasks"]["rte_0_score_eval"]["metrics"]["accuracy"] = float("nan")
    two_runs[0].write_text(json.dumps(content))
    with pytest.raises(UserError, match="finite"):
        write_report(two_runs, paths.html.parent)
    with pytest.raises(UserError, match="finite"):
        write_report(two_runs, tmp_path / "new")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before
    assert not (tmp_path / "new").exists()


def test_unwritable_output_is_a_user_error(two_runs, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the report"):
        write_report(two_runs, tmp_path / "file" / "out")


def test_many_checkpoints_show_the_last_of_each_series(evaluation):
    lines = random_lines(5, [2], 1)
    for step in range(10):
        path = evaluation(step=step).add("a", "sciq", "q", lines).write()
    other = evaluation("other").add("a", "sciq", "q", lines).write()
    runs = read_runs([path.parent, other])
    assert boxed_runs(runs) == (9, 10)
    assert boxed_runs(runs[:8]) == tuple(range(8))


def test_swarm_keeps_equal_points_apart():
    assert swarm([50.0, 50.0, 50.0, 50.4, 70.0]) == [0.0, 0.1, -0.1, 0.2, 0.0]
    # None is hidden by the diamond of the mean.
    assert swarm([38.5, 51.5, 52.5, 61.75], mean=52.0) == [0.0, 0.1, 0.1, 0.0]
    assert swarm([50.0], mean=50.0) == [0.1]


@pytest.mark.parametrize("width", [50, 80, 140])
def test_console_table_keeps_every_number(two_runs, width):
    console = Console(width=width, file=io.StringIO(), record=True)
    (table,) = console_tables(two_runs[:1], width=width)
    console.print(table)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    (run,) = read_runs(two_runs[:1])
    rte = [task.accuracy for task in run.tasks if task.dataset == "super_glue/rte"]
    assert f"{np.mean(rte):.1f}" in text
    assert f"{min(rte):.1f}–{max(rte):.1f}" in text
    assert "50.0" in text
    assert "…" not in text


def test_command(two_runs, metrics, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["report", *map(str, two_runs), "--output", str(out), "--metrics", str(metrics)]
    assert t0_main.main([*words, "--title", "My runs", "--note", "Toy."]) == 0
    printed = capsys.readouterr().out
    assert str(out / "report.html") in printed
    assert "super_glue/rte" in printed
    assert "My runs" in (out / "report.html").read_text()


def test_command_reports_a_missing_file_without_traceback(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        t0_main.main(["report", str(tmp_path / "no.json"), "--output", str(tmp_path / "out")])
    assert caught.value.code == 2
    assert "does not exist" in capsys.readouterr().err


def test_reference_names_stay_apart_and_inside():
    figure = new_figure(3.3, 2.8)
    axes = figure.subplots()
    lines = {"T0-3B": 50.7, "chance": 50.0, "T0-11B": 51.0}
    limit_percent(axes, [20.0, *lines.values()])
    draw_references(axes, lines)
    low, high = axes.get_ylim()
    places = [note.xy[1] for note in axes.texts]
    assert [note.get_text() for note in axes.texts] == ["chance 50.0", "T0-3B 50.7", "T0-11B 51.0"]
    assert min(np.diff(places)) > 0.07 * (high - low)
    assert max(places) <= high
    assert [line.get_ydata()[0] for line in axes.lines] == [50.0, 50.7, 51.0]
