"""Every test of training starts and ends without gin bindings."""

import pytest

from t0 import compat

compat.apply()

from t0.rehearsal.virtual_pod import disable_graph_rewrites  # noqa: E402
from t0.training import mesh_session  # noqa: E402

SESSION_CONFIG = mesh_session.session_config


@pytest.fixture(autouse=True)
def always_empty_gin(empty_gin):
    """For tests that do not say that they bind."""


@pytest.fixture(autouse=True)
def graphs_run_as_written(monkeypatch):
    """TensorFlow's optimiser of graphs takes longer than the few steps of a tiny model.

    Tests of whole commands train with it, and those that take `as_in_commands`.
    """

    monkeypatch.setattr(
        mesh_session,
        "session_config",
        lambda devices: disable_graph_rewrites(SESSION_CONFIG(devices)),
    )


@pytest.fixture
def as_in_commands(graphs_run_as_written, monkeypatch):
    """For tests of the last bit: as written, some sums are in no fixed order."""
    monkeypatch.setattr(mesh_session, "session_config", SESSION_CONFIG)
