"""Whole reports: which files are written, what is in them, and the command."""

import collections
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from t0.cli import main as t0_main
from t0.errors import UserError
from t0.files.publishing import unfinished_tag
from t0.reports import report, result_files, write_report
from t0.reports.evaluation_plots import MOST_PANELS
from t0.reports.evaluations import read_runs
from tests.reports.made_up_evaluations import SIGNATURE, random_lines, recipes_decoded


def test_report_writes_csv_json_and_plots(drawn):
    names = ["accuracy.png", "reliability.png", "training.png"]
    names += ["run_differences.png"]
    assert [p.name for p in drawn.plots] == names
    assert [path.name for path in drawn.csv] == [
        "report.csv",
        "report_datasets.csv",
        "report_classes.csv",
        "report_differences.csv",
        "report_prompt_differences.csv",
    ]
    written = {p.name for p in drawn.html.parent.iterdir()}
    vectors = [plot.with_suffix(ending) for plot in drawn.plots for ending in (".pdf", ".svg")]
    assert written == {
        "report.html", "report.json", *(path.name for path in (*drawn.csv, *vectors)), *names,
    }  # fmt: skip
    for plot in drawn.plots:
        image = Image.open(plot)
        image.verify()
        pixels = np.array(Image.open(plot).convert("RGB"))
        assert pixels.shape[0] > 300
        assert pixels.shape[1] > 700
        assert len(np.unique(pixels @ np.array([1, 2**8, 2**16]))) > 20  # colours
        for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
            assert edge.min() == 255  # nothing is cut off at the edge of the picture
        pdf = plot.with_suffix(".pdf").read_bytes()
        assert pdf.startswith(b"%PDF-") and b"/Type3" not in pdf and b"CreationDate" not in pdf
        svg = ElementTree.parse(plot.with_suffix(".svg")).getroot()
        assert svg.tag.endswith("}svg") and not list(svg.iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.usefixtures("rough_pictures")
def test_report_of_training_runs_only(evaluated, metrics, tmp_path, capsys):
    words = ["report", "--metrics", str(evaluated), str(metrics.parent), "--output"]
    assert t0_main.main([*words, str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<title>Training runs</title>" in page
    assert "Training curves" in page
    assert all(f'id="{name}"' not in page for name in ("runs", "datasets", "prompts", "method"))
    assert "training.png" in capsys.readouterr().out
    with pytest.raises(UserError, match="nothing to report on"):
        write_report([], tmp_path / "none")


@pytest.mark.usefixtures("rough_pictures")
def test_report_of_checkpoints_plots_accuracy_by_step(evaluation, tmp_path):
    for step in (10, 20, 30):
        lines = random_lines(30, [3], step, skill=step / 10)
        evaluation(step=step).add("cb_a", "super_glue/cb", "a", lines).write()
    paths = write_report([tmp_path / "tiny"], tmp_path / "out")
    names = ["accuracy.png", "reliability.png", "accuracy_by_step.png"]
    assert [p.name for p in paths.plots] == names
    assert "Accuracy against step" in paths.html.read_text()
    # An earlier plot that the new report has not must not be taken for a part of it.
    (tmp_path / "out" / "accuracy_by_step.pdf").touch()
    write_report([tmp_path / "tiny" / "eval" / "results_10.json"], tmp_path / "out")
    assert not [*(tmp_path / "out").glob("accuracy_by_step.*")]


@pytest.mark.usefixtures("rough_pictures")
def test_report_of_invalid_results_keeps_the_earlier_report(two_runs, tmp_path):
    paths = write_report(two_runs, tmp_path / "out")
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    content = json.loads(two_runs[0].read_text())
    content["tasks"]["rte_0_score_eval"]["metrics"]["accuracy"] = float("nan")
    two_runs[0].write_text(json.dumps(content))
    with pytest.raises(UserError, match="accuracy is nan"):
        write_report(two_runs, paths.html.parent)
    with pytest.raises(UserError, match="accuracy is nan"):
        write_report(two_runs, tmp_path / "new")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("rough_pictures")
def test_report_unwritable_output_is_a_user_error(two_runs, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_report(two_runs, tmp_path / "file" / "out")


def test_report_command_writes_the_same_bytes_as_the_function(drawn, tmp_path, capsys):
    folder, out = drawn.html.parent.parent, tmp_path / "out"
    results = [str(folder / model / "eval") for model in ("first", "second")]
    words = ["report", *results, "--output", str(out), "--metrics"]
    words.append(str(folder / "first" / "metrics.jsonl"))
    assert t0_main.main([*words, "--title", "My runs", "--note", "This is a toy."]) == 0
    printed = capsys.readouterr().out
    assert str(out / "report.html") in printed
    assert "RTE  " in printed and "Difference from A" in printed
    assert "My runs" in (out / "report.html").read_text()
    for file in sorted(drawn.html.parent.iterdir()):
        assert file.read_bytes() == (out / file.name).read_bytes(), file.name


def test_report_command_missing_file_has_no_traceback(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        t0_main.main(["report", str(tmp_path / "no.json"), "--output", str(tmp_path / "out")])
    assert caught.value.code == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.usefixtures("rough_pictures")
def test_report_of_decoded_results_only(folder, tmp_path, capsys):
    for step in (1000, 2000, 3000):
        recipes_decoded(folder, step, step / 2000).write()
    out = tmp_path / "out"
    assert t0_main.main(["report", str(folder), "--output", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "Metrics of the tasks" in printed
    assert "A.3 tiny, step 3,000" in printed and "46.50" in printed
    assert str(out / "report_metrics.csv") in printed
    assert "Accuracy (%) over prompts" not in printed
    names = {file.name for file in out.iterdir()}
    assert {"metrics_by_step.png", "report_metrics.csv"} < names
    assert "accuracy.png" not in names
    page = (out / "report.html").read_text()
    assert "<title>T0 evaluation</title>" in page
    assert 'id="generation"' in page
    assert all(f'id="{name}"' not in page for name in ("datasets", "prompts", "method", "answer"))
    assert SIGNATURE.replace("|", "|<wbr>") in page
    assert "data_to_text" in page


@pytest.mark.usefixtures("rough_pictures")
def test_report_joins_ranked_and_decoded_results_of_a_checkpoint(folder, evaluation, tmp_path):
    recipes_decoded(folder, 3000, 1.0, split="validation").write()
    ranked = evaluation(step=3000, split="validation")
    ranked.add("rte_a", "super_glue/rte", "a", random_lines(20, [2], 1)).write()
    (run,) = read_runs([folder])
    assert (len(run.tasks), len(run.decoded)) == (1, 4)
    assert run.files == "results_3000.json, decoded_3000.json"
    paths = write_report([folder], tmp_path / "out")
    page = paths.html.read_text()
    assert "<title>T0 evaluation</title>" in page
    assert all(f'id="{name}"' in page for name in ("datasets", "generation", "prompts"))
    # Of another split it is another run, told apart by it.
    recipes_decoded(folder, 3000, 1.0, split="test").write()
    labels = [run.label for run in read_runs([folder])]
    assert labels == ["tiny, step 3,000, test", "tiny, step 3,000, validation"]


@pytest.mark.usefixtures("rough_pictures")
def test_report_removes_files_of_a_killed_report(evaluation, tmp_path):
    path = evaluation().add("a", "sciq", "q", random_lines(5, [2], 1)).write()
    of_this_host = unfinished_tag().rsplit("-", 2)[0]
    left = tmp_path / "out" / f"report.{of_this_host}-999999999-1"
    left.mkdir(parents=True)
    (left / "report.html").write_text("half")
    write_report([path], tmp_path / "out")
    assert not [file for file in (tmp_path / "out").iterdir() if "incomplete" in file.name]


@pytest.mark.usefixtures("rough_pictures")
def test_plot_with_too_many_panels_shows_the_first(evaluation, tmp_path, monkeypatch):
    one = evaluation()
    for number in range(MOST_PANELS + 1):
        one.add(f"d{number}_a", f"data/d{number:03}", "a", random_lines(3, [3], number))
    one.write()
    for plot in report.write_report([tmp_path / "tiny"], tmp_path / "out").plots:
        assert plot.read_bytes() == b"%d" % MOST_PANELS
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"The first {MOST_PANELS} of {MOST_PANELS + 1}; the tables have all." in page
    assert f"data/d{MOST_PANELS:03}" in (tmp_path / "out" / "report.csv").read_text()


def test_report_reads_each_score_file_twice_and_shows_progress(
    two_runs, rough_pictures, tmp_path, monkeypatch, capsys
):
    opened = collections.Counter()
    read_lines = result_files.read_lines

    def counting(path):
        opened[path.parent.name, path.parents[2].name, path.name] += 1
        return read_lines(path)

    monkeypatch.setattr(result_files, "read_lines", counting)
    monkeypatch.setattr("t0.progress.PLAIN_SECONDS", 0)
    words = [*map(str, two_runs), "--output", str(tmp_path / "out")]
    assert t0_main.main(["report", *words]) == 0
    times = {name: count for name, count in opened.items() if name[0] == "scores"}
    assert len(times) > 3 and set(times.values()) == {2}
    said = capsys.readouterr()
    assert "Compared accuracy (%)" in said.out
    # Progress, in a log a line every ten seconds.
    lines = [line.partition(",")[0] for line in said.err.splitlines()]
    for doing in ("reading scores", "collecting examples"):
        assert any(re.fullmatch(rf"{doing}: \d of \d tasks \(100%\)", line) for line in lines)
