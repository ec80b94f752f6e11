"""TensorBoard's event files, of training and of evaluations, in a local folder or a bucket.

    with EventFile("/models/tiny/validation_eval", suffix=".1000") as events:
        events.add(1_000, {"eval/super_glue_rte_must_be_true_score_eval/accuracy": 54.15})

An event file is a TFRecord file of `tensorflow.Event` messages, the first of which names the
format's version. It has TensorFlow's name, with the second in which it was begun, and is begun with
the first event. A bucket's objects are written whole: the file grows in a temporary folder, and
`publish` copies it. There, two files of one second in one folder must have different suffixes.
"""

import os
import socket
import tempfile
import time
from collections.abc import Mapping
from typing import IO, Any

from t0.files import paths
from t0.files.protobuf_wire import double_field, field, float_field
from t0.files.tfrecord import framed

_VERSION = b"brain.Event:2"
# The fields of `tensorflow.Event`.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
_START = field(1, 1)  # SessionLog.status


class EventFile:
    """One event file.

    Args:
      folder: the folder, which is made where it is absent.
      suffix: the end of the file's name.
      restarted_at: the first step of a run that continues another; TensorBoard leaves out what the
        folder's earlier files have from this step on. None for a new run.

    Raises:
      OSError: if it cannot be written; also its methods.
    """

    def __init__(self, folder: str, *, suffix: str = "", restarted_at: int | None = None) -> None:
        self._folder = folder.rstrip("/")
        self._suffix = suffix
        self._local = tempfile.TemporaryDirectory() if paths.is_remote(folder) else None
        self._file: IO[bytes] | None = None
        if self._local is None:
            paths.make_folder(folder)
        if restarted_at is not None:
            self._write(_step(restarted_at) + field(_SESSION_LOG, _START))

    def __enter__(self) -> "EventFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds numbers of a step, name -> value; a local file has them at once."""
        found = (
            field(1, name.encode()) + float_field(2, float(value)) for name, value in values.items()
        )
        summary = b"".join(field(1, value) for value in found)
        self._write(_step(step) + field(_SUMMARY, summary))

    def _write(self, fields: bytes) -> None:
        if self._file is None:
            self._file = _new_file(self._local.name if self._local else self._folder, self._suffix)
            self._file.write(framed(_now() + field(_FILE_VERSION, _VERSION)))
        self._file.write(framed(_now() + fields))
        self._file.flush()

    def publish(self) -> None:
        """Copies what was added to the bucket; nothing for a local folder."""
        if self._local is not None and self._file is not None:
            name = os.path.basename(self._file.name)  # noqa: PTH119
            paths.copy(self._file.name, f"{self._folder}/{name}")

    def close(self) -> None:
        """Closes the file, and copies it to the bucket if it is there."""
        if self._file is not None and not self._file.closed:
            self._file.close()
            self.publish()
        if self._local is not None:
            self._local.cleanup()


def _now() -> bytes:
    return double_field(_WALL_TIME, time.time())


def _step(step: int) -> bytes:
    return field(_STEP, int(step)) if step else b""


def _new_file(folder: str, suffix: str) -> IO[bytes]:
    """Opens a file of TensorFlow's name for this second, or for the next where that is taken."""
    seconds = int(time.time())
    while True:
        name = f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}{suffix}"
        try:
            return open(os.path.join(folder, name), "xb")  # noqa: PTH118, SIM115
        except FileExistsError:
            seconds += 1
