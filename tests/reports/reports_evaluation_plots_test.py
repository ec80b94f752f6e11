import pytest

from t0.reports import read_report, read_runs, write_report
from t0.reports.evaluation_plots import boxed_runs, draw_references, metric_panels
from t0.reports.evaluation_rows import decoded_results
from t0.reports.plots import new_figure
from tests.reports.made_up_evaluations import random_lines, recipes_decoded


def test_plot_of_many_checkpoints_shows_the_last_of_each_series(evaluation):
    lines = random_lines(5, [2], 1)
    for step in range(10):
        path = evaluation(step=step).add("a", "sciq", "q", lines).write()
    other = evaluation("other").add("a", "sciq", "q", lines).write()
    runs = read_runs([path.parent, other])
    assert boxed_runs(runs) == (9, 10)
    assert boxed_runs(runs[:8]) == tuple(range(8))


def test_plot_reference_lines_are_named():
    axes = new_figure(3.3, 2.8).subplots()
    draw_references(axes, {"chance": 50.0, "T0-3B": 50.7, "T0-11B": 51.0})
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["T0-11B 51.0", "T0-3B 50.7", "chance 50.0"]
    assert sorted(line.get_ydata()[0] for line in axes.lines) == [50.0, 50.7, 51.0]


def test_plot_metric_curves_over_checkpoint_steps(folder, tmp_path):
    for step in (10, 20):
        recipes_decoded(folder, step, step / 10).write()
    other = recipes_decoded(tmp_path / "other" / "eval", 20, 1.0).write()
    report = read_report([folder, other])
    titles = [panel.title for panel in metric_panels(report.rows("metrics"), report.runs)]
    assert titles[:3] == [
        "sni_def_pos_2: exact_match", "sni_def_pos_2: rougeL", "qa_squad: em",
    ]  # fmt: skip
    alone = read_report([other])
    assert metric_panels(alone.rows("metrics"), alone.runs) == []
    assert [len(one["files"]) for one in decoded_results(report.runs)[:3]] == [2, 2, 2]


@pytest.mark.usefixtures("rough_png")
def test_plot_titles_break_long_names(evaluation, tmp_path):
    name = "a_dataset_with_an_odd_name/and-a-very-long-configuration.v2.0.1"
    path = evaluation().add("a", name, "q", random_lines(9, [2], 1)).write()
    html = write_report([path], tmp_path / "out").html.read_text()
    lines = ["a_dataset_with_an_odd_name/and", "-a-very-long-", "configuration.v2.0.1"]
    assert all(f">{line}<" in html for line in lines)
