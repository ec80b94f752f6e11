"""TensorBoard's event files, of training and of evaluations, in a local folder or a bucket.

    with EventFile("/models/tiny/validation_eval", suffix=".1000") as events:
        events.add(1_000, {"eval/super_glue_rte_must_be_true_score_eval/accuracy": 54.15})

A bucket's objects are written whole: the file grows in a temporary folder, and `publish` copies it.
Two files of one second in one folder must have different suffixes: TensorFlow names them by second.
"""

import tempfile
from collections.abc import Mapping
from typing import Any

from t0.compat import tf1 as tf
from t0.files import paths, publishing


class EventFile:
    """One event file.

    Args:
      folder: the folder, which is made where it is absent.
      suffix: the end of the file's name.
      restarted_at: the first step of a run that continues another; TensorBoard leaves out what the
        folder's earlier files have from this step on. None for a new run.
    """

    def __init__(self, folder: str, *, suffix: str = "", restarted_at: int | None = None) -> None:
        self._folder = folder.rstrip("/")
        # TensorFlow would rewrite an object when it likes.
        self._local = tempfile.TemporaryDirectory() if paths.is_remote(folder) else None
        with tf.Graph().as_default():
            self._writer = tf.summary.FileWriter(
                self._local.name if self._local else folder, filename_suffix=suffix
            )
        if restarted_at is not None:
            self._writer.add_session_log(
                tf.SessionLog(status=tf.SessionLog.START), global_step=restarted_at
            )

    def __enter__(self) -> "EventFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds numbers of a step, name -> value; a local file has them at once."""
        found = [tf.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_summary(tf.Summary(value=found), step)
        if self._local is None:
            self._writer.flush()

    def publish(self) -> None:
        """Copies what was added to the bucket; nothing for a local folder."""
        if self._local is not None:
            self._writer.flush()
            for name in paths.list_names(self._local.name):
                publishing.put(f"{self._local.name}/{name}", f"{self._folder}/{name}")

    def close(self) -> None:
        """Closes the file, and copies it to the bucket if it is there."""
        self._writer.close()
        self.publish()
        if self._local is not None:
            self._local.cleanup()
