"""Kinds of columns: what the training data has, and how other files are read as the same kinds."""

import json

import pytest

from t0.sources import set_data_dirs
from t0.sources.column_kinds import find_kinds, make_converters, read_as, source_kinds


def test_column_kinds_of_rows():
    rows = [
        {
            "t": "a",
            "n": 1,
            "f": 0.5,
            "b": True,
            "l": ["x"],
            "o": {"k": 1},
            "mixed": 1,
            "no-ne": None,
        },
        {"t": "", "n": None, "f": 2, "b": False, "l": [], "o": {}, "mixed": "b", "no-ne": None},
    ]
    expected = {"t": "text", "n": "number", "f": "number", "b": "truth value", "l": "list"}
    assert find_kinds(rows) == expected | {"o": "object"}
    assert find_kinds([{"a-b": "x"}]) == {"a_b": "text"}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("list", '["red", "bl\\u0075e"]', ["red", "blue"]),
        ("list", ["red"], ["red"]),
        ("list", "", None),
        ("list", " ", None),
        ("list", "null", None),
        ("object", '{"stem": "red"}', {"stem": "red"}),
        ("truth value", "false", False),
        ("truth value", " TRUE", True),
        ("truth value", 0, False),
        ("number", "3", 3),
        ("number", "0.5", 0.5),
        ("number", "n/a", "n/a"),
        ("text", 1000, "1000"),
        ("text", 0, "0"),
        ("text", "", ""),
        ("text", '["red"]', '["red"]'),
        ("text", None, None),
    ],
)
def test_column_kinds_read_values_as_in_training(kind, value, expected):
    result = read_as(kind, value)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("list", "['red', 'blue']"),  # as pandas writes a list
        ("list", "red;blue"),
        ("list", '{"a": 1}'),
        ("list", 3),
        ("object", '["red"]'),
        ("truth value", "maybe"),
        ("text", ["red"]),
        ("number", [1]),
    ],
)
def test_column_kinds_refuse_other_values(kind, value):
    with pytest.raises(ValueError, match=f"expected a {kind}, as in the training data.*got "):
        read_as(kind, value)


def test_column_kinds_without_a_record_are_read_from_json_text():
    read = make_converters("quiz", {}, ["options"])["options"]
    assert read('["red"]') == ["red"]
    assert read("spell me") == "spell me"
    with pytest.raises(ValueError, match="expected a list or object"):
        read("['red']")


def test_column_kinds_of_t0_datasets_are_their_recorded_types():
    read = make_converters("hellaswag", {}, ["endings"])
    assert read["endings"]('["a", "b"]') == ["a", "b"]
    assert read["ctx"](5) == "5"
    read = make_converters("super_glue/rte", {}, [])
    assert read["label"]("entailment") == 0
    assert source_kinds("hellaswag", None, "train") == {}


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_column_kinds_of_an_own_dataset(tmp_path, form, monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", "")
    (tmp_path / "quiz").mkdir()
    if form == "jsonl":
        text = json.dumps({"code": "010", "flag": True, "options": ["a"]}) + "\n"
        expected = {"code": "text", "flag": "truth value", "options": "list"}
    else:
        text = 'code,flag,options\n010,true,"[""a""]"\n20,false,"[""b""]"\n'
        expected = {"code": "text", "flag": "text", "options": "text"}
    (tmp_path / "quiz" / f"train.{form}").write_text(text)
    set_data_dirs(tmp_path)
    assert source_kinds("quiz", None, "train") == expected
    assert source_kinds("quiz", None, "test") == {}
    (tmp_path / "quiz" / f"train.{form}").write_text("{")
    assert source_kinds("quiz", None, "train") == {}
