import json

import pytest

from t0.errors import UserError
from t0.reports import write_report
from t0.reports.plots import new_figure
from t0.reports.training_curves import curve_panels, read_curves, smoothed


def test_curves_keep_the_last_value_of_a_step_and_a_cut_last_line(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    path.parent.mkdir()
    records = [
        {"step": 2, "loss": 3.0, "note": "x"},
        {"step": 1, "loss": 4.0},
        {"step": 2, "loss": 2},
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(text + '{"step": 3, "loss": NaN}\n{"step": 4, "lo')
    (curves,) = read_curves([path.parent])
    assert curves.points == {"loss": ((1, 4.0), (2, 2.0))}
    assert (curves.label, curves.not_finite) == ("run", 1)
    assert [c.label for c in read_curves([path, path])] == ["run", "run #2"]
    path.write_text('{"step": 3, "lo\n' + text)
    with pytest.raises(UserError, match="line 1"):
        read_curves([path])
    with pytest.raises(UserError, match="does not exist"):
        read_curves([tmp_path / "absent.jsonl"])


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


def test_run_that_went_on_after_an_early_stop_is_not_stopped(evaluated):
    with evaluated.open("a") as file:
        file.write(json.dumps({"step": 500, "best_by": "validation_loss", "best_step": 500}) + "\n")
    (curves,) = read_curves([evaluated])
    assert (curves.best, curves.stopped_early) == (("validation_loss", 500), None)


def test_smoothing_keeps_a_straight_line():
    assert smoothed([1.0, 2.0, 6.0, 7.0], radius=1) == [1.0, 3.0, 5.0, 7.0]
    assert smoothed([3.0, 2.0, 1.0, 0.0], radius=2) == [3.0, 2.0, 1.0, 0.0]
