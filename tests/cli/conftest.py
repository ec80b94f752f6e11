"""What several commands' tests read."""

import pytest

from tests.checkpoints.tiny_checkpoints import V11, slots, weights, write_mtf


@pytest.fixture
def source(tmp_path):
    """A Mesh TensorFlow checkpoint with the optimizer's state."""
    tensors = weights(V11)
    return write_mtf(tmp_path / "source", tensors | slots(tensors))
