"""Every test of the examples starts and ends without gin bindings, which are global."""

import pytest

from t0 import compat

compat.apply_to_mesh()

import gin  # noqa: E402
from gin import config as gin_config  # noqa: E402


@pytest.fixture
def empty_gin():
    before = list(gin_config._LOCATION_PREFIXES)
    gin.clear_config()
    yield
    gin.clear_config()
    gin_config._LOCATION_PREFIXES[:] = before
