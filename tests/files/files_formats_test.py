"""The wire formats equal TensorFlow's."""

import io
import struct

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from t0.files import protobuf_wire as wire
from t0.files import tf_examples, tfrecord

numbers = st.integers(0, 2**63 - 1)


@given(numbers, st.binary(max_size=3))
def test_protobuf_varint_round_trip(value, behind):
    data = wire.varint(value)
    assert wire.read_varint(b"x" + data + behind, 1) == (value, 1 + len(data))
    message = tf.train.Int64List(value=[value])
    assert tf.train.Int64List.FromString(wire.field(1, data)) == message


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "ends within a number"), (b"\xff\x80", "ends within"), (b"\xff" * 11, "too long")],
)
def test_protobuf_broken_varint_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        wire.read_varint(data, 0)


def test_protobuf_fields_are_read():
    message = (
        wire.field(1, 300)
        + wire.field(16, b"text")
        + wire.varint(6 << 3 | wire.FIXED32)
        + struct.pack("<I", 2**32 - 1)
        + wire.varint(3 << 3 | wire.FIXED64)
        + struct.pack("<Q", 7)
    )
    assert list(wire.fields(message)) == [(1, 300), (16, b"text"), (6, 2**32 - 1), (3, 7)]


@given(st.binary(max_size=40))
def test_protobuf_fields_of_any_bytes_read_or_refused(data):
    try:
        for number, value in wire.fields(data):
            assert number >= 0
            assert isinstance(value, int | bytes)
    except ValueError:
        pass


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x0d\x01", b"\x0b", b"\x80"])
def test_protobuf_broken_fields_are_refused(data):
    with pytest.raises(ValueError, match=r"ends within|kind 3"):
        list(wire.fields(data))


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_tfrecord_round_trip(records):
    data = b"".join(map(tfrecord.framed, records))
    assert list(tfrecord.unframed(io.BytesIO(data))) == records
    for record in records:
        assert tfrecord.record_of(tfrecord.framed(record)) == record


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=3), st.data())
def test_tfrecord_checksum_finds_a_damaged_byte(records, data):
    framed = bytearray(b"".join(map(tfrecord.framed, records)))
    place = data.draw(st.integers(0, len(framed) - 1))
    framed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="record [0-2]"):
        list(tfrecord.unframed(io.BytesIO(bytes(framed))))


def test_tfrecord_is_read_by_tensorflow(tmp_path):
    records = [b"", b"one", bytes(range(256)) * 50]
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"".join(map(tfrecord.framed, records)))
    assert [r.numpy() for r in tf.data.TFRecordDataset(str(path))] == records
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    with path.open("rb") as file:
        assert list(tfrecord.unframed(file)) == records


names = st.text(max_size=5)


@given(names, st.lists(numbers, max_size=5), names, st.lists(st.binary(max_size=5), max_size=3))
def test_tf_example_equals_tensorflow(name, ints, other, texts):
    entries = tf_examples.ints_entry(name, ints) + tf_examples.bytes_entry("b" + other, texts)
    entries += tf_examples.float_entry("f" * 200, 1.5)
    features = tf.train.Example.FromString(tf_examples.example(entries)).features.feature
    assert features["f" * 200].float_list.value == [1.5]
    assert features["b" + other].bytes_list.value == texts
    if name not in ("b" + other, "f" * 200):
        assert features[name].int64_list.value == ints
