"""What several commands' tests read."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checkpoints"))
from tiny_checkpoints import V11, slots, weights, write_mtf  # noqa: E402


@pytest.fixture
def source(tmp_path):
    """A Mesh TensorFlow checkpoint with the optimizer's state."""
    tensors = weights(V11)
    return write_mtf(tmp_path / "source", tensors | slots(tensors))
