"""Tests of runs use the tiny models of training and of checkpoints, each without gin bindings."""

import sys
from pathlib import Path

import pytest

from t0 import compat

compat.apply()
sys.path += [
    str(Path(__file__).resolve().parents[1] / name)
    for name in ("training", "checkpoints", "feeding")
]


@pytest.fixture(autouse=True)
def always_empty_gin(empty_gin):
    """For tests that do not say that they bind."""
