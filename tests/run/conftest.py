"""Tests of runs use the tiny models of training and of checkpoints, each without gin bindings."""

import pytest

from t0 import compat

compat.apply()


@pytest.fixture(autouse=True)
def always_empty_gin(empty_gin):
    """For tests that do not say that they bind."""
