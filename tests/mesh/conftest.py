"""Makes Mesh TensorFlow importable before the tests of this folder import it; forgets gin after."""

import gin
import pytest

from t0 import compat

compat.apply()


@pytest.fixture(autouse=True)
def forget_gin():
    """Leaves no binding behind for the tests of other rooms."""
    yield
    gin.clear_config()
