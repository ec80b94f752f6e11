"""Makes Mesh TensorFlow importable before the tests of this folder import it; no gin bindings."""

import sys
from pathlib import Path

import pytest

from t0 import compat

compat.apply()
sys.path.append(str(Path(__file__).resolve().parents[1] / "mesh"))  # for planning.py


@pytest.fixture(autouse=True)
def always_empty_gin(empty_gin):
    """For tests that do not say that they bind."""
