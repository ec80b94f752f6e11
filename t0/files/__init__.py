"""Files on this machine or in an object store: reading, listing, and publishing them whole.

    from t0.files import paths, publishing
    from t0.files.names import checked_name, path_inside

    paths.read_text("gs://bucket/cache/toy/info.train.json")
    publishing.write_whole(path_inside("/out", "results.json"), text)

    paths           reads and lists local paths and those with `://`; every failure is an `OSError`
    publishing      makes a file or folder appear whole or not at all; removes unfinished ones
    any_path        one type for both, with `pathlib.Path`'s methods
    object_facts    sizes and checksums of an object store's files, and where a bucket is
    names           checks names that come from data; joined paths never leave their folder
    untrusted       parses JSON and YAML that others wrote, bounded in size and depth
    tfrecord        frames of records, masked CRC-32C
    tf_examples     bytes of `tf.train.Example` messages
    protobuf_wire   varints and fields of protocol buffers

Nothing here imports TensorFlow, except for paths with `://` in them.
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
