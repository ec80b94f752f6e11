"""Every test of configuration knows the names that commands know, and ends without gin bindings."""

import pytest

from t0.run import configure


@pytest.fixture(autouse=True, scope="session")
def names_known_to_gin():
    configure.register()


@pytest.fixture(autouse=True)
def always_empty_gin(empty_gin):
    """For tests that do not say that they bind."""
