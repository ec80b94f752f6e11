"""Any record of a cache: TensorFlow's values, in any layout; damage is named."""

import json
import pickle

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t0.caching import record_rows
from t0.errors import UserError
from t0.feeding import random_access
from t0.feeding.random_access import CachedRecords, rows_as_read
from t0.files import protobuf_wire, tf_examples, tfrecord


def example(number):
    feature = tf.train.Feature
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                "inputs": feature(int64_list=tf.train.Int64List(value=[number, 2**40, -1])),
                "weight": feature(float_list=tf.train.FloatList(value=[number / 3, -1e30])),
                "choices": feature(bytes_list=tf.train.BytesList(value=[b"", b"\xff %d" % number])),
                "none": feature(int64_list=tf.train.Int64List()),
                "unset": feature(),
            }
        )
    ).SerializeToString()


def write(folder, counts, split="train"):
    folder.mkdir(exist_ok=True)
    number = 0
    for index, count in enumerate(counts):
        path = folder / f"{split}.tfrecord-{index:05d}-of-{len(counts):05d}"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for _ in range(count):
                writer.write(example(number))
                number += 1
    return str(folder)


def check(found, number):
    assert found.keys() == {"choices", "inputs", "none", "unset", "weight"}
    assert found["inputs"].tolist() == [number, 2**40, -1]
    assert found["inputs"].dtype == found["none"].dtype == np.int64
    assert found["weight"].tolist() == np.array([number / 3, -1e30], np.float32).tolist()
    assert found["choices"] == [b"", b"\xff %d" % number]
    assert found["none"].size == found["unset"].size == 0


def test_random_access_records_equal_tensorflow(tmp_path):
    records = CachedRecords(write(tmp_path / "toy", [3, 0, 4, 1]), "train")
    assert len(records) == 8
    for number in (0, 2, 3, 6, 7):
        check(records[number], number)
    check(records[-1], 7)
    check(records[np.int64(5)], 5)
    check(pickle.loads(pickle.dumps(records))[4], 4)
    for number, record in zip(range(1, 8, 3), records[1::3], strict=True):
        check(record, number)
    assert len([*records]) == 8
    for number in (8, -9):
        with pytest.raises(IndexError, match=f"record {number} of 8"):
            records[number]
    with pytest.raises(TypeError):
        records["inputs"]


def test_random_access_index_is_built_once(tmp_path, monkeypatch):
    opened = []
    binary = random_access.binary
    monkeypatch.setattr(random_access, "binary", lambda path: opened.append(path) or binary(path))
    records = CachedRecords(write(tmp_path / "toy", [2, 2]), "train")
    assert not opened
    assert len(records) == 4
    assert len(opened) == 2
    records[3]
    assert len(opened) == 3


def test_random_access_reads_unpacked_numbers(tmp_path):
    """Numbers that are not packed, as protocol buffers allow."""
    ints = b"".join(protobuf_wire.field(1, n) for n in (7, 300))
    floats = protobuf_wire.float_field(1, 1.5)
    entries = b"".join(
        protobuf_wire.field(
            1,
            protobuf_wire.field(1, name)
            + protobuf_wire.field(2, protobuf_wire.field(kind, content)),
        )
        for name, kind, content in ((b"ints", 3, ints), (b"floats", 2, floats))
    )
    path = tmp_path / "train.tfrecord-00000-of-00001"
    path.write_bytes(tfrecord.framed(protobuf_wire.field(1, entries)))
    found = CachedRecords(str(tmp_path))[0]
    assert found["ints"].tolist() == [7, 300]
    assert found["floats"].tolist() == [1.5]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("train.tfrecord-00000-of-00002", "has 1 of its files of split 'train'"),
        ("train.tfrecord-00001-of-00001", "has 1 of its files of split 'train'"),
        ("validation.tfrecord-00000-of-00001", "has none of its files of split 'train'"),
    ],
)
def test_random_access_folder_without_the_split_is_named(tmp_path, name, said):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match=f"{tmp_path} {said}"):
        CachedRecords(str(tmp_path), "train")
    with pytest.raises(UserError, match="no/folder has none of its files"):
        CachedRecords(str(tmp_path / "no" / "folder"), "train")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_access_damaged_file_is_a_user_error(tmp_path, data):
    whole = tfrecord.framed(tf_examples.example(tf_examples.ints_entry("inputs", [1, 300]))) * 3
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.booleans())
    path = tmp_path / "train.tfrecord-00000-of-00001"
    path.write_bytes(whole[:place] if cut else bytes(changed))
    try:
        found = [record["inputs"].tolist() for record in CachedRecords(str(tmp_path))]
    except UserError as error:
        assert f"{path}: cannot be read" in str(error)
    else:
        assert cut
        assert found == [[1, 300]] * (place // (len(whole) // 3))


def test_random_access_frame_without_example_is_a_user_error(tmp_path):
    path = tmp_path / "train.tfrecord-00000-of-00001"
    for content in (b"\x0a\xff", b"\x08\x01\x0b", b"\x0a\x02\x08\x01"):
        path.write_bytes(tfrecord.framed(content))
        with pytest.raises(UserError, match="cannot be read"):
            CachedRecords(str(tmp_path))[0]


def test_random_access_reads_records_in_a_bucket(bucket, tmp_path):
    write(tmp_path / "toy", [3, 2])
    for path in (tmp_path / "toy").iterdir():
        bucket.put("b", f"toy/{path.name}", path.read_bytes())
    records = CachedRecords("gs://b/toy", "train")
    assert len(records) == 5
    check(records[4], 4)


def test_rows_of_several_files_have_the_order_in_which_seqio_reads(tmp_path):
    write(tmp_path, [20, 3, 18])
    kept = [row for row in range(82) if row % 2]  # 41 of 82 rows
    source = record_rows.RowSource("mine", None, "train", "a", False)
    part = {record_rows.MASK: record_rows.pack_rows(kept, 0, 82), "start": 0, "stop": 82}
    described = tmp_path / "rows.train.json"
    described.write_text(json.dumps(record_rows.content_of(source, [part])))
    files = sorted(map(str, tmp_path.glob("train.tfrecord-*")))
    rows = rows_as_read(files)()
    # SeqIO reads 16 records of each file, and then the rest.
    order = [*range(16), *range(20, 39), *range(16, 20), *range(39, 41)]
    assert rows.numbers.tolist() == [kept[record] for record in order]
    assert (rows.count, rows.of(16)) == (82, kept[20])
    assert rows_as_read(files[:1])().numbers.tolist() == kept
    with pytest.raises(UserError, match="rows.train.json has 41 rows and no row of example"):
        rows_as_read(files[:2])()
    described.unlink()
    assert rows_as_read(files) is None
