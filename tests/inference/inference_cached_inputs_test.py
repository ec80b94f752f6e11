"""A cache's inputs without TensorFlow: SeqIO's order, texts, shards; what it refuses."""

import pytest
import tensorflow as tf

from t0.errors import UserError
from t0.inference.cached_inputs import open_cache


class Numbers:
    """A vocabulary whose words are numbers."""

    def decode(self, ids):
        return " ".join(map(str, ids))


def record(number, **texts):
    ids = tf.train.Int64List(value=[number, 1])
    features = {"inputs": tf.train.Feature(int64_list=ids)}
    for name, text in texts.items():
        if isinstance(text, str):
            value = tf.train.BytesList(value=[text.encode()])
            features[name] = tf.train.Feature(bytes_list=value)
        else:
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=text))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for each in records:
            writer.write(each)
    return str(path)


def cache(files, total=None):
    return open_cache("qa", "test", files, total=total, vocabularies=(Numbers(), Numbers()))


def test_cached_inputs_have_the_order_of_seqio(tmp_path):
    counts = [3, 17, 0, 16, 40, 1, *[7] * 14, 33]
    files = [
        write(tmp_path / f"test.tfrecord-{n:05d}", [record(1000 * n + i) for i in range(count)])
        for n, count in enumerate(counts)
    ]
    # As `seqio.FileDataSource` reads the files of a cache.
    dataset = tf.data.Dataset.from_tensor_slices(files).interleave(
        tf.data.TFRecordDataset,
        cycle_length=16,
        block_length=16,
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    expected = [tf.train.Example.FromString(each).features for each in dataset.as_numpy_iterator()]
    expected = [each.feature["inputs"].int64_list.value[0] for each in expected]
    found = list(cache(files).read(0, 1))
    assert [example.tokens[0] for example in found] == expected
    assert [example.number for example in found] == list(range(sum(counts)))
    shard = list(cache(files).read(1, 3))
    assert shard == found[1::3]


def test_cached_inputs_texts_come_from_records_or_decoding(tmp_path):
    given = {"inputs_pretokenized": "Wer?", "targets_pretokenized": "Ada"}
    file = write(tmp_path / "f", [record(5, **given), record(6, targets=[8, 1]), record(7)])
    found = list(cache([file], total=3).read(0, 1))
    assert [(one.inputs, one.targets) for one in found] == [
        ("Wer?", "Ada"),
        ("6 1", "8 1"),
        ("7 1", None),
    ]
    assert cache([file], total=3).facts == {"task": "qa", "split": "test"}


def test_cached_inputs_of_rank_tasks_or_damaged_files_are_refused(tmp_path):
    choices = write(tmp_path / "choices", [record(5, is_correct=[1])])
    with pytest.raises(UserError, match="task qa is for rank evaluation"):
        list(cache([choices]).read(0, 1))
    broken = tmp_path / "broken"
    broken.write_bytes(b"0" * 50)
    with pytest.raises(UserError, match="broken cannot be read"):
        list(cache([str(broken)]).read(0, 1))
