"""Tests for what all formats share: the bytes of arrays in files."""

import io
import re

import numpy as np
import pytest

from t0.checkpoints import formats
from t0.checkpoints.formats import pieces, read_into
from t0.errors import UserError


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (5,), (4, 3), (2, 3, 2)])
def test_checkpoint_array_is_written_in_pieces(monkeypatch, shape):
    monkeypatch.setattr(formats, "_PIECE_BYTES", 10)
    array = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    found = list(pieces(array))
    assert b"".join(piece.tobytes() for piece in found) == array.tobytes()
    assert all(0 < piece.size <= 10 for piece in found)


class Dripping(io.BytesIO):
    """A file that gives at most three bytes at a time, as a network does."""

    def readinto(self, buffer):
        return super().readinto(memoryview(buffer)[:3])


@pytest.mark.parametrize("kind", [io.BytesIO, Dripping])
def test_checkpoint_array_is_read_from_the_file_position(kind, tmp_path):
    wanted = np.arange(12, dtype=np.float32).reshape(3, 4)
    file = kind(b"before" + wanted.tobytes() + b"after")
    file.seek(6)
    array = np.empty_like(wanted)
    read_into(file, array, tmp_path)
    np.testing.assert_array_equal(array, wanted)
    assert file.read() == b"after"


def test_checkpoint_truncated_file_is_named(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(15))
    with path.open("rb") as file, pytest.raises(UserError, match=re.escape(f"{path} is truncated")):
        read_into(file, np.empty(4, np.float32), path)
