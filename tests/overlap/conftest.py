"""The small world of planted overlaps, laid out once."""

import pytest

from tests.overlap import planted


@pytest.fixture(scope="session")
def planted_data(tmp_path_factory):
    return planted.lay_out(tmp_path_factory.mktemp("planted"))


@pytest.fixture
def with_planted(planted_data, monkeypatch):
    """Names the data folder of the planted overlaps."""
    monkeypatch.setenv("T0_DATA_DIR", str(planted_data))
    return planted_data
