import json

import pytest

from t0.errors import UserError
from t0.reports import write_report
from t0.reports.plots import new_figure
from t0.reports.training_curves import curve_panels, read_curves, smoothed, training_table


def test_training_curves_keep_the_last_value_of_each_step(tmp_path):
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
    assert read_curves([path, path]) == (curves,)
    path.write_text('{"step": 3, "lo\n' + text)
    with pytest.raises(UserError, match="line 1"):
        read_curves([path])
    with pytest.raises(UserError, match="does not exist"):
        read_curves([tmp_path / "absent.jsonl"])


@pytest.mark.usefixtures("rough_png")
def test_training_curves_mark_best_evaluation_and_early_stopping(evaluated, tmp_path):
    (curves,) = read_curves([evaluated])
    assert curves.best == ("validation_loss", 200)
    assert curves.stopped_early == 400
    assert "best_step" not in curves.points
    panels = curve_panels([curves])
    titles = ["T5 loss", "Tasks: accuracy", "Learning rate"]
    assert [panel.title for panel in panels] == titles
    axes = new_figure(3, 3).subplots()
    assert panels[0].draw(axes) == ["evaluated: best validation_loss 2.5, at step 200"]
    styles = [(line.get_linestyle(), line.get_marker()) for line in axes.lines]
    # The training loss, the held-out loss, where the run stopped, the best.
    assert styles == [("-", ""), ("-", "o"), (":", "None"), ("None", "*")]
    assert axes.lines[0].get_color() != axes.lines[1].get_color()
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["held-out", "training"]
    assert axes.lines[2].get_xdata() == [400, 400]
    assert (axes.lines[3].get_xdata(), axes.lines[3].get_ydata()) == ([200], [2.5])
    other = new_figure(3, 3).subplots()
    assert panels[1].draw(other) == []  # the accuracy did not judge
    paths = write_report([], tmp_path / "out", metrics_paths=[evaluated])
    note = (
        "Training run evaluated: the best validation_loss of 2.5 was at step 200; nothing "
        "better followed, and the run stopped early at step 400."
    )
    assert note in paths.html.read_text()
    assert "best validation_loss 2.5, at step 200" in paths.html.read_text()


def test_training_curves_of_nll_and_last_values(tmp_path):
    path = tmp_path / "model" / "metrics.jsonl"
    path.parent.mkdir()
    first = {"parameters": 1234, "batch_sequences": 8, "batch_tokens": 704}
    lines = [
        {
            "step": step, "loss": 2.0 / step, "loss_per_token": 8.0 / step,
            "learning_rate": 1 / step, "seconds_per_step": 0.5, **(first if step == 1 else {}),
        }
        for step in (1, 2, 3, 4)
    ]  # fmt: skip
    lines += [{"step": 2, "validation_loss_per_token": 4.5}, {"step": 4, "validation_loss": 5.0}]
    lines += [{"step": 4, "validation_loss_per_token": 6.0}]
    lines += [{"step": 4, "best_by": "validation_loss", "best_step": 4}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (curves,) = read_curves([path.parent])
    panels = curve_panels([curves])
    assert [panel.title for panel in panels] == ["Loss", "Learning rate"]
    table = dict(training_table([curves]))
    assert (table["steps"], table["parameters"], table["loss"]) == (["4"], ["1234"], ["0.5"])
    assert table["validation_loss_per_token"] == ["6"]
    (note,) = curves.notes
    assert "the best validation_loss of 5 (T5 loss; 6 nats per target token) was at step 4" in note


def test_training_curves_of_run_resumed_after_early_stopping(evaluated):
    with evaluated.open("a") as file:
        file.write(json.dumps({"step": 500, "best_by": "validation_loss", "best_step": 500}) + "\n")
    (curves,) = read_curves([evaluated])
    assert (curves.best, curves.stopped_early) == (("validation_loss", 500), None)


def test_training_curve_smoothing_keeps_a_straight_line():
    assert smoothed([1.0, 2.0, 6.0, 7.0], radius=1) == [1.0, 3.0, 5.0, 7.0]
    assert smoothed([3.0, 2.0, 1.0, 0.0], radius=2) == [3.0, 2.0, 1.0, 0.0]
