"""One trainer at a time holds a model directory; the lock dies with its holder."""

import os
import signal

import pytest

from t0.errors import UserError
from t0.training.model_directory import LOCK_FILE, lock


def holder(folder, ready):
    """A forked process that holds the directory until it is killed."""
    pid = os.fork()
    if pid == 0:
        with lock(str(folder)):
            os.write(ready, b".")
            signal.pause()
        os._exit(0)
    return pid


@pytest.fixture
def other(tmp_path):
    """Another process that trains in the folder."""
    read, write = os.pipe()
    pid = holder(tmp_path, write)
    assert os.read(read, 1) == b"."
    yield pid
    for number in (read, write):
        os.close(number)


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_model_directory_lock_names_holder_and_ends_with_it(tmp_path, other):
    try:
        with (
            pytest.raises(
                UserError, match=rf"another training run \(process {other} on .*kill -TERM {other}"
            ),
            lock(str(tmp_path)),
        ):
            pass
    finally:
        end(other)
    with lock(str(tmp_path)):  # the file is still there
        assert f'"pid": {os.getpid()}' in (tmp_path / LOCK_FILE).read_text()


def test_model_directory_lock_with_damaged_file(tmp_path, other):
    (tmp_path / LOCK_FILE).write_text("{")
    try:
        with (
            pytest.raises(UserError, match="another process.*end it, or use another"),
            lock(str(tmp_path)),
        ):
            pass
    finally:
        end(other)


def test_model_directory_lock_makes_folder_and_is_released(tmp_path):
    for _ in range(2):
        with lock(str(tmp_path / "new")):
            pass
    with lock("gs://bucket/model"):
        pass
