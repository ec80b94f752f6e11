"""Reads the batches of a stream with TensorFlow's own operations, which a TPU's hosts support.

    stream = open_stream("gs://bucket/tuned/stream")
    dataset = stream_dataset(stream, step=100)       # the batches of steps 101, 102, ...

The step may be a tensor, such as the global step. Then the dataset begins at the value that the
tensor has when the iterator is initialized. So if the session is restarted, the batches continue at
the restored checkpoint.
"""

import posixpath
import re
from typing import Any

import numpy as np

from t0.compat import tf1 as tf
from t0.feeding.batch_stream import Stream
from t0.feeding.training_data import open_training_data

_READ_BYTES = 8 << 20
_FIELD = re.compile("_(segmentation|position)$")


def stream_dataset(stream: Stream, step: Any) -> tf.data.Dataset:
    """Returns the batches that follow a step: feature -> int32 [sequences, length].

    Args:
      stream: a stream that has the batches of the following steps.
      step: the number of completed steps, a number or a scalar tensor.
    """
    batch, lengths = stream.manifest.batch, stream.manifest.data.lengths
    files = [posixpath.join(stream.folder, file.name) for file in stream.files]
    step = tf.cast(step, tf.int64)
    lasts = tf.constant(np.array([file.last for file in stream.files], np.int64))
    befores = tf.constant(np.array([file.first - 1 for file in stream.files], np.int64))
    index = tf.searchsorted(lasts, step[None], side="right")[0]
    # After the last step of the stream, `index` is the number of files, which is no valid index.
    before = tf.gather(befores, tf.minimum(index, len(files) - 1))
    features = {
        name: tf.io.FixedLenFeature([lengths[_FIELD.sub("", name)]], tf.int64)
        for name in open_training_data(stream.manifest.data).features
    }

    def parse(records: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(records, features)
        return {name: tf.cast(value, tf.int32) for name, value in parsed.items()}

    dataset = tf.data.Dataset.from_tensor_slices(files).skip(tf.cast(index, tf.int64))
    dataset = dataset.flat_map(lambda file: tf.data.TFRecordDataset(file, buffer_size=_READ_BYTES))
    dataset = dataset.skip((step - before) * batch).batch(batch, drop_remainder=True)
    return dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
