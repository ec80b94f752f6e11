"""Fixtures of the tests of checkpoints; what they are made with is in tiny_checkpoints.py."""

import tarfile
from pathlib import Path

import pytest

from tests.checkpoints.tiny_checkpoints import V11, weights, write_mtf

ROOT = Path(__file__).resolve().parents[2]
T5X_CHECKPOINTS = {
    "written by T5X": ROOT.parent / "shared" / "facts" / "t5x_checkpoint.tar.gz",
    "of the fixtures": ROOT / "tests" / "fixtures" / "t5x_checkpoint.tar.gz",
}


@pytest.fixture
def mtf_v11(tmp_path):
    return write_mtf(tmp_path / "v11", weights(V11))


@pytest.fixture(scope="session", params=T5X_CHECKPOINTS)
def facts(request, tmp_path_factory):
    """A checkpoint as T5X writes it, with its parameters and logits."""
    packed = T5X_CHECKPOINTS[request.param]
    if not packed.is_file():
        pytest.skip(f"needs {packed}, which is not part of this project")
    folder = tmp_path_factory.mktemp("facts")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return folder / "t5x_checkpoint"
