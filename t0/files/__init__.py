"""Files, of this machine or of an object store: read, listed, and published whole.

    from t0.files import paths, publishing
    from t0.files.names import checked_name, path_inside

    paths.read_text("gs://bucket/cache/toy/info.train.json")
    publishing.write_whole(path_inside("/out", "results.json"), text)

paths           a path, local or `://` -> bytes, listings; whatever goes wrong is an `OSError`
publishing      a file or a folder appears whole or not at all; what dead processes left
names           names that come from data are checked; joined, they never leave their folder
tfrecord        frames of records, masked CRC-32C
tf_examples     bytes of `tf.train.Example` messages
protobuf_wire   varints and fields of protocol buffers

Nothing here imports TensorFlow but for paths with `://` in them.
"""

from t0.files.names import checked_name, path_inside
from t0.files.publishing import OutputError, publish_folder, whole_file, write_whole, writing

__all__ = [
    "OutputError",
    "checked_name",
    "path_inside",
    "publish_folder",
    "whole_file",
    "write_whole",
    "writing",
]
