"""Fixtures of the report tests: evaluations of made-up models."""

import html
import json

import pytest
from made_up_evaluations import Evaluation, recipes_decoded, two_models

from t0.reports import report


@pytest.fixture
def evaluation(tmp_path):
    """Returns a maker of evaluations, each of its own model."""

    def make(model="tiny", step=100, **run):
        return Evaluation(tmp_path / model / "eval", step, **run)

    return make


@pytest.fixture
def rough_pictures(monkeypatch):
    """A panel is its title, and a picture the number of its panels: drawing takes seconds."""
    monkeypatch.setattr(
        report, "panel_svg", lambda panel, _: f"<svg>{html.escape(panel.title)}</svg>"
    )
    monkeypatch.setattr(report, "panels_png", lambda panels, **_: str(len(panels)).encode())


@pytest.fixture
def two_runs(tmp_path):
    return two_models(tmp_path)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tiny" / "eval"


@pytest.fixture
def decoded(folder):
    return recipes_decoded(folder, 3000, 1.5).write()


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
