"""Makes Mesh TensorFlow importable before the tests of this folder import it; no gin bindings."""

import pytest

from t0 import compat

compat.apply()


@pytest.fixture(autouse=True)
def always_empty_gin(empty_gin):
    """For tests that do not say that they bind."""
