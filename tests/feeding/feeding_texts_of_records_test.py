"""The texts of TFRecord files, read in bulk, held against TensorFlow's own reading."""

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from t0.feeding.token_files import texts_of
from t0.files.protobuf_wire import field

NAMES = ("inputs_pretokenized", "targets_pretokenized")
TEXT = st.binary(max_size=300)


def record(features):
    example = tf.train.Example()
    for name, value in features.items():
        feature = example.features.feature[name]
        if isinstance(value, list):
            feature.int64_list.value.extend(value)
        else:
            feature.bytes_list.value.append(value)
    return example.SerializeToString()


@settings(max_examples=30)
@given(
    st.lists(
        st.fixed_dictionaries(
            {}, optional={**dict.fromkeys(NAMES, TEXT), "inputs": st.just([3, 4]), "other": TEXT}
        ),
        min_size=1,
        max_size=9,
    )
)
def test_record_texts_equal_the_written_texts(examples):
    found = texts_of([record(example) for example in examples], NAMES)
    assert found == {name: [example.get(name) for example in examples] for name in NAMES}


def test_record_texts_of_other_protobuf_layouts():
    key, value = field(1, NAMES[0].encode()), field(2, field(1, field(1, b"some text")))
    usual = record({NAMES[0]: b"some text"})
    swapped = field(1, field(1, value + key))
    without_list = field(1, field(1, key))
    integers = record({NAMES[0]: [1, 2]})
    records = [usual, swapped, without_list, integers, b""]
    assert texts_of(records, NAMES[:1])[NAMES[0]] == [b"some text", b"some text", None, None, None]
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        texts_of([b"\xff\xff"], NAMES)
