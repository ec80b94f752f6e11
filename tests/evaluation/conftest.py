"""gin is global: every test of scoring starts and ends with none."""

import pytest


@pytest.fixture(autouse=True)
def always_empty_gin(empty_gin):
    """For tests that do not say that they bind."""
