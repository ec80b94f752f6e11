"""gin is global: every test of inference starts and ends with none."""

import sys
from pathlib import Path

import pytest

# Tiny models, and the forward pass that knows nothing of Mesh TensorFlow.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scoring"))


@pytest.fixture(autouse=True)
def always_empty_gin(empty_gin):
    """For tests that do not say that they bind."""
