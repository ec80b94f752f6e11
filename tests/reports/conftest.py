"""Fixtures of the report tests: evaluations of made-up models."""

import html
import json

import pytest

from t0.reports import report, write_report
from tests.reports.made_up_evaluations import Evaluation, recipes_decoded, two_models, write_metrics


@pytest.fixture
def evaluation(tmp_path):
    """Returns a maker of evaluations, each of its own model."""

    def make(model="tiny", step=100, **run):
        return Evaluation(tmp_path / model / "eval", step, **run)

    return make


@pytest.fixture
def rough_png(monkeypatch):
    """A picture is the number of its panels; those of the page are drawn."""
    monkeypatch.setattr(
        report, "panel_pictures", lambda panels, **_: {"png": str(len(panels)).encode()}
    )


@pytest.fixture
def rough_pictures(rough_png, monkeypatch):
    """A panel is its title, and a picture the number of its panels: drawing takes seconds."""
    monkeypatch.setattr(
        report, "panel_svg", lambda panel, _: f"<svg>{html.escape(panel.title)}</svg>"
    )


@pytest.fixture
def two_runs(tmp_path):
    return two_models(tmp_path)


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """The report of two runs and their training, with its pictures: drawn once for all tests."""
    folder = tmp_path_factory.mktemp("drawn")
    results = two_models(folder)
    training = write_metrics(folder / "first" / "metrics.jsonl")
    notes = ["This is a toy."]
    return write_report(
        results, folder / "out", title="My runs", notes=notes, metrics_paths=[training]
    )


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tiny" / "eval"


@pytest.fixture
def decoded(folder):
    return recipes_decoded(folder, 3000, 1.5).write()


@pytest.fixture
def metrics(tmp_path):
    return write_metrics(tmp_path / "first" / "metrics.jsonl")


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
