"""TFRecord files of token ids, read in bulk, held against TensorFlow's own reading."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from t0.errors import UserError
from t0.feeding import token_files
from t0.feeding.reading import CachedSource
from t0.files import tfrecord
from t0.files.protobuf_wire import field, sized, varint

NAMES = ("inputs", "targets")
IDS = st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 40_000), max_size=6)


def record(features):
    """A `tf.train.Example`; lists of bytes and of floats are features of those kinds."""
    example = tf.train.Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        if values and isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif values and isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    return example.SerializeToString()


def by_tensorflow(records, names=NAMES):
    spec = {name: tf.io.RaggedFeature(tf.int64) for name in names}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        parsed = tf.io.parse_example(tf.constant(records), spec)
        ids = {n: (tf.cast(p.flat_values, tf.int32), p.row_lengths()) for n, p in parsed.items()}
        return {n: listed(v, np.cumsum([0, *k])) for n, (v, k) in session.run(ids).items()}


def listed(values, ends):
    return [values[a:b].tolist() for a, b in itertools.pairwise(ends)]


def by_us(records, names=NAMES):
    found = token_files.ids_of(records, names)
    for ids in found.values():
        assert ids.values.dtype == np.int32
    return {name: listed(ids.values, ids.ends) for name, ids in found.items()}


@settings(max_examples=30)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "inputs": IDS,
                "targets": IDS,
                "idx": IDS,
                "weight": st.just([1.0]),
                "inputs_pretokenized": st.lists(st.binary(max_size=200), max_size=2),
            },
        ),
        min_size=1,
        max_size=9,
    )
)
def test_token_records_are_decoded_like_tensorflow(examples):
    records = [record(example) for example in examples]
    assert by_us(records) == by_tensorflow(records)


def unusual_records():
    ids = b"".join(map(varint, (5, 300, 70_000)))
    key, other = field(1, b"inputs"), field(1, b"targets")
    packed = field(2, field(3, field(1, ids)))
    yield "value before key", field(1, field(1, packed + key))
    one_by_one = b"".join(field(1, number) for number in (5, 300, 70_000))
    yield "not packed", field(1, field(1, key + field(2, field(3, one_by_one))))
    yield (
        "two messages of features",
        (field(1, field(1, key + packed)) + field(1, field(1, other + packed))),
    )
    yield "an unknown field", field(1, field(1, key + packed)) + field(9, 4)
    long = field(1, b"x" * 300) + field(2, field(1, field(1, b"y" * 20_000)))
    yield "a long name", field(1, field(1, long) + field(1, key + packed))
    yield "given twice", field(1, field(1, key + field(2, b"")) + field(1, key + packed))
    yield "no kind", field(1, field(1, key + field(2, b"")))
    yield "nothing", b""
    yield "no features", field(1, b"")
    many = b"".join(field(1, field(1, str(n).encode()) + packed) for n in range(400))
    yield "many features", field(1, many + field(1, key + packed))


@pytest.mark.parametrize("unusual", [pytest.param(r, id=what) for what, r in unusual_records()])
def test_token_records_of_other_layouts_are_decoded(unusual):
    records = [record({"inputs": [7, 8], "targets": [1]}), unusual, record({"inputs": [9]})]
    assert by_us(records) == by_tensorflow(records)


def test_token_records_with_integers_in_parts_are_read():
    # TensorFlow reads the first part only.
    parts = field(1, varint(5)) + field(1, varint(300) + varint(70_000))
    entry = field(1, b"inputs") + field(2, field(3, parts))
    assert by_us([field(1, field(1, entry))], ("inputs",)) == {"inputs": [[5, 300, 70_000]]}


@pytest.mark.parametrize(
    ("features", "why"),
    [
        ({"inputs": [b"text"]}, "feature 'inputs' holds no integers"),
        ({"inputs": [2.0]}, "feature 'inputs' holds no integers"),
    ],
)
def test_token_records_without_integers_are_refused(features, why):
    with pytest.raises(ValueError, match=why):
        by_us([record({"inputs": [1]}), record(features)])


@settings(max_examples=200)
@given(st.binary(max_size=80), st.integers(0, 3))
def test_token_records_of_random_bytes_are_decoded_or_refused(junk, depth):
    for _ in range(depth):
        junk = sized(b"\x0a", junk)
    try:
        found = by_us([record({"inputs": [3]}), junk])
    except ValueError:
        return
    assert found["inputs"][0] == [3]


def write(path, records):
    path.write_bytes(b"".join(tfrecord.framed(one) for one in records))
    return str(path)


@pytest.mark.parametrize(
    "counts", [[3], [2, 0, 5], [0, 0], [4, 1, 0, 0, 3, 7, 2, 2, 9, 0, 1, 5, 6], [1] * 20 + [30]]
)
def test_token_files_are_interleaved_like_tf_data(counts, tmp_path):
    number, files = 0, []
    for place, count in enumerate(counts):
        records = [record({"inputs": [number + n]}) for n in range(count)]
        number += count
        files.append(write(tmp_path / f"part-{place:03d}", records))
    dataset = tf.data.Dataset.from_tensor_slices(files).interleave(
        tf.data.TFRecordDataset, cycle_length=8, num_parallel_calls=8, deterministic=True
    )
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = tf.data.Dataset.from_tensor_slices(files).interleave(
            tf.data.TFRecordDataset, cycle_length=8, num_parallel_calls=8, deterministic=True
        )
        following = tf.compat.v1.data.make_one_shot_iterator(dataset.batch(10**6)).get_next()
        theirs = session.run(following).tolist() if sum(counts) else []
    ours = token_files.read_ids(files, ("inputs",))["inputs"].values.tolist()
    wanted = by_tensorflow(theirs, ("inputs",))["inputs"] if theirs else []
    assert ours == [ids[0] for ids in wanted]


def test_token_file_damage_names_task_and_file(tmp_path):
    file = tmp_path / "train.tfrecord-00000-of-00001"
    write(file, [record({"inputs": [n]}) for n in range(9)])
    whole = file.read_bytes()

    def read():
        source = CachedSource("toy", (str(file),), 9, ("inputs",))
        return list(source.blocks(epoch=0, first=0, seed=None))

    assert len(read()[0]) == 9
    damages = {
        whole[:-1]: "file ends within record 8",
        whole[:30] + bytes([whole[30] ^ 1]) + whole[31:]: "record 0 is damaged",
        bytes([whole[0] ^ 1]) + whole[1:]: "length of record 0 is damaged",
        whole + tfrecord.framed(b"no example"): "record is not a tf.train.Example",
    }
    for damaged, why in damages.items():
        file.write_bytes(damaged)
        with pytest.raises(
            UserError, match=f"task toy: .*{file.name}.*{why}.*t0 verify {tmp_path}"
        ):
            read()
    file.unlink()
    with pytest.raises(UserError, match=f"task toy: .*{file.name}.*No such file"):
        read()
