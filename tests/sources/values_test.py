import math

import pytest

from t0.sources.known import features
from t0.sources.values import converter

LABEL = {"names": ["entailment", "neutral", "0"], "_type": "ClassLabel"}
TEXT = {"dtype": "string", "_type": "Value"}
RECORDS = {"feature": {"text": TEXT, "label": LABEL}, "length": -1, "_type": "Sequence"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("neutral", 1), (1, 1), ("1", 1), (1.0, 1), (-1, -1), ("-1", -1), (None, None), ("", None)]
    + [("1.0", 1), (math.nan, None)]
    + [("0", 2)],  # a name before a number
)
def test_class_labels_become_integers(given, wanted):
    got = converter(LABEL)(given)
    assert got == wanted
    assert type(got) is type(wanted)


def test_boolean_labels():
    convert = converter(features("super_glue", "boolq")["label"])
    assert [convert(value) for value in (True, False, "True", 1)] == [1, 0, 1, 1]


@pytest.mark.parametrize("given", ["Neutral", 3, -2, "7", 0.5, [1]])
def test_a_value_that_is_no_label_lists_those_that_are(given):
    with pytest.raises(ValueError, match="0=entailment, 1=neutral"):
        converter(LABEL)(given)


def test_plain_columns_need_nothing():
    assert converter({"dtype": "float32", "_type": "Value"}) is None
    assert converter({"dtype": "bool", "_type": "Value"}) is None


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(3, 3), (3.0, 3), ("3", 3), ("3.0", 3), (-1.0, -1), (math.nan, None), ("", None)],
)
def test_columns_of_integers(given, wanted):
    got = converter({"dtype": "int32", "_type": "Value"})(given)
    assert got == wanted
    assert type(got) is type(wanted)


@pytest.mark.parametrize("given", ["three", 0.5, [3]])
def test_a_value_that_is_no_integer(given):
    with pytest.raises(ValueError, match="is no whole number"):
        converter({"dtype": "int32", "_type": "Value"})(given)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("1", "1"), (1, "1"), (1.0, "1"), (0.5, "0.5"), ("1.0", "1.0"), (math.nan, None), ("", "")]
    + [(None, None)],
)
def test_columns_of_text(given, wanted):
    assert converter(TEXT)(given) == wanted


def test_a_sequence_of_records_is_a_dict_of_lists():
    convert = converter(RECORDS)
    wanted = {"text": ["a", "b"], "label": [1, 0]}
    assert convert([{"text": "a", "label": "neutral"}, {"text": "b", "label": 0}]) == wanted
    assert convert({"text": ["a", "b"], "label": ["neutral", 0]}) == wanted
    assert convert([]) == {"text": [], "label": []}
    assert convert(None) is None


def test_nested_columns_of_text_files_are_json():
    assert converter(RECORDS)('{"text": ["a"], "label": ["neutral"]}') == {
        "text": ["a"],
        "label": [1],
    }
    with pytest.raises(ValueError, match="not JSON"):
        converter(RECORDS)("{'text': array(['a'])}")


def test_labels_deep_inside():
    convert = converter(features("crows_pairs")["annotations"])
    assert convert([["gender"], [0, "age"]]) == [[2], [0, 8]]
    convert = converter(features("kilt_tasks", "hotpotqa")["output"])
    answer = [{"answer": "x", "meta": {"score": 1}, "provenance": [{"title": "y"}]}]
    assert convert(answer) == answer
