"""Reads, lists and atomically writes files on this machine or in an object store.

    from t0.files import paths, publishing
    from t0.files.untrusted import checked_name, path_inside

    paths.read_text("gs://bucket/cache/toy/info.train.json")
    publishing.write_whole(path_inside("/out", "results.json"), text)

    paths           reads and lists local and `://` paths; every failure is an `OSError`
    publishing      writes files and folders atomically; removes unfinished ones
    any_path        paths in an object store, with the methods of `pathlib.Path`
    object_facts    sizes and checksums of objects in a bucket, and the bucket's region
    untrusted       parses JSON and YAML from others, with limits on size and depth; checks names in
                    data, so that a joined path never leaves its folder
    table_files     writes rows as CSV, TSV, JSON Lines or Parquet
    tfrecord        frames of records, masked CRC-32C
    tf_examples     bytes of `tf.train.Example` messages
    protobuf_wire   varints and fields of protocol buffers

This package imports TensorFlow only for paths with `://` in them.
"""

from t0.files.publishing import OutputError, publish_folder, whole_file, write_whole, writing
from t0.files.untrusted import checked_name, path_inside

__all__ = [
    "OutputError",
    "checked_name",
    "path_inside",
    "publish_folder",
    "whole_file",
    "write_whole",
    "writing",
]
