"""gin is global: every test of inference starts and ends with none."""

import pytest

# Tiny models, and the forward pass that knows nothing of Mesh TensorFlow.


@pytest.fixture(autouse=True)
def always_empty_gin(empty_gin):
    """For tests that do not say that they bind."""
