import math
import pickle
import subprocess
import sys

import pytest

from t0.errors import UserError
from t0.sources import hidden_label
from t0.sources.schema import DRIFTS, converter, features, other_names, row_view, split_sizes


def test_split_sizes_of_known_datasets():
    assert split_sizes("super_glue", "cb") == {"test": 250, "train": 250, "validation": 56}
    assert split_sizes("trec") == split_sizes("trec", "default") == {"test": 500, "train": 5452}
    assert split_sizes("anli", None)["train_r3"] == 100459


def test_split_sizes_cannot_be_changed_from_outside():
    split_sizes("trec")["train"] = 1
    assert split_sizes("trec")["train"] == 5452


def test_split_sizes_unknown_dataset_suggests_the_nearest():
    with pytest.raises(UserError, match="'super_glue/cb'"):
        split_sizes("superglue", "cb")
    with pytest.raises(UserError, match=r"wsc\.fixed"):
        split_sizes("super_glue", "wsc")


def test_dataset_features_of_known_and_unknown_datasets():
    assert list(features("trec")) == ["label-coarse", "label-fine", "text"]
    assert len(features("trec", "default")["label-fine"]["names"]) == 47
    assert features("no_such_dataset", None) is None
    assert features("super_glue", "no_such_subset") is None


def test_sources_import_is_light():
    code = (
        "import sys, t0.sources; t0.sources.split_sizes('trec');"
        "print([m for m in ('tensorflow', 'datasets', 't5', 'seqio', 'httpx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


LABEL = {"names": ["entailment", "neutral", "0"], "_type": "ClassLabel"}
TEXT = {"dtype": "string", "_type": "Value"}
RECORDS = {"feature": {"text": TEXT, "label": LABEL}, "length": -1, "_type": "Sequence"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("neutral", 1), (1, 1), ("1", 1), (1.0, 1), (-1, -1), ("-1", -1), (None, None), ("", None)]
    + [("1.0", 1), (math.nan, None)]
    + [("0", 2)],  # a name before a number
)
def test_schema_class_labels_become_integers(given, wanted):
    got = converter(LABEL)(given)
    assert got == wanted
    assert type(got) is type(wanted)


def test_schema_boolean_labels_become_integers():
    convert = converter(features("super_glue", "boolq")["label"])
    assert [convert(value) for value in (True, False, "True", 1)] == [1, 0, 1, 1]


@pytest.mark.parametrize("given", ["Neutral", 3, -2, "7", 0.5, [1]])
def test_schema_unknown_label_lists_the_valid_labels(given):
    with pytest.raises(ValueError, match="0=entailment, 1=neutral"):
        converter(LABEL)(given)


def test_schema_plain_columns_need_no_conversion():
    assert converter({"dtype": "float32", "_type": "Value"}) is None


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(3, 3), (3.0, 3), ("3", 3), ("3.0", 3), (-1.0, -1), (math.nan, None), ("", None)],
)
def test_schema_integer_columns(given, wanted):
    got = converter({"dtype": "int32", "_type": "Value"})(given)
    assert got == wanted
    assert type(got) is type(wanted)


@pytest.mark.parametrize("given", ["three", 0.5, [3]])
def test_schema_integer_column_refuses_other_values(given):
    with pytest.raises(ValueError, match="is no whole number"):
        converter({"dtype": "int32", "_type": "Value"})(given)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("1", "1"), (1, "1"), (1.0, "1"), (0.5, "0.5"), ("1.0", "1.0"), (math.nan, None), ("", "")]
    + [(None, None)],
)
def test_schema_text_columns(given, wanted):
    assert converter(TEXT)(given) == wanted


def test_schema_boolean_columns():
    convert = converter({"dtype": "bool", "_type": "Value"})
    given = [True, "true", "False", "FALSE", "1", "0", "", None]
    assert [convert(v) for v in given] == [True, True, False, False, True, False, None, None]
    with pytest.raises(ValueError, match="'NA' is neither true nor false"):
        convert("NA")


def test_schema_sequence_of_records_becomes_dict_of_lists():
    convert = converter(RECORDS)
    wanted = {"text": ["a", "b"], "label": [1, 0]}
    assert convert([{"text": "a", "label": "neutral"}, {"text": "b", "label": 0}]) == wanted
    assert convert({"text": ["a", "b"], "label": ["neutral", 0]}) == wanted
    assert convert([]) == {"text": [], "label": []}
    assert convert(None) is None


def test_schema_nested_columns_of_text_files_are_json():
    assert converter(RECORDS)('{"text": ["a"], "label": ["neutral"]}') == {
        "text": ["a"],
        "label": [1],
    }
    with pytest.raises(ValueError, match="not JSON"):
        converter(RECORDS)("{'text': array(['a'])}")


def test_schema_nested_labels_become_integers():
    convert = converter(features("crows_pairs")["annotations"])
    assert convert([["gender"], [0, "age"]]) == [[2], [0, 8]]
    convert = converter(features("kilt_tasks", "hotpotqa")["output"])
    answer = [{"answer": "x", "meta": {"score": 1}, "provenance": [{"title": "y"}]}]
    assert convert(answer) == answer


NEW_TREC = ("text", "coarse_label", "fine_label")


def test_schema_unknown_dataset_columns_stay_unchanged():
    view = row_view("mine", None, ("b", "a-b"))
    assert view.columns == ("b", "a-b")
    assert view.row({"b": "-1", "a-b": [1]}) == {"b": "-1", "a-b": [1]}
    assert view.missing == ()


@pytest.mark.parametrize(
    ("coarse", "fine", "names"),
    [
        (2, 26, ("DESC", "manner")),
        (1, 5, ("ENTY", "cremat")),
        (0, 0, ("ABBR", "abb")),
        (3, 31, ("HUM", "desc")),
        (4, 35, ("LOC", "other")),
        (5, 44, ("NUM", "period")),
        (5, 49, ("NUM", "weight")),
        ("NUM", "NUM:dist", ("NUM", "dist")),
    ],
)
def test_trec_new_labels_map_to_the_old_order(coarse, fine, names):
    view = row_view("trec", None, NEW_TREC)
    assert view.columns == ("label-coarse", "label-fine", "text")
    row = view.row({"text": "q", "coarse_label": coarse, "fine_label": fine})
    assert list(row) == list(view.columns)
    old = features("trec")
    got = tuple(old[c]["names"][row[c]] for c in ("label-coarse", "label-fine"))
    assert got == names


def test_trec_every_new_label_has_an_old_one():
    labels = next(d for d in DRIFTS if d.dataset == "trec").label_names["label-fine"]
    assert len(labels) == 50
    view = row_view("trec", None, NEW_TREC)
    got = {
        view.row({"text": "", "coarse_label": 0, "fine_label": i})["label-fine"] for i in range(50)
    }
    assert got == set(range(47))


def test_trec_old_labels_stay_unchanged():
    view = row_view("trec", None, ("label-coarse", "label-fine", "text"))
    row = {"label-coarse": 4, "label-fine": 40, "text": "q"}
    assert view.row(dict(row)) == row


def test_trec_label_out_of_range_names_the_column():
    with pytest.raises(ValueError, match="column 'label-fine': 50"):
        row_view("trec", None, NEW_TREC).row({"text": "", "coarse_label": 0, "fine_label": 50})


def test_schema_glue_rte_stands_in_for_super_glue_rte():
    assert other_names("super_glue", "rte") == [("glue", "rte")]
    view = row_view("super_glue", "rte", ("sentence1", "sentence2", "label", "idx"))
    row = view.row({"sentence1": "p", "sentence2": "h", "label": "not_entailment", "idx": 3})
    assert row == {"premise": "p", "hypothesis": "h", "idx": 3, "label": 1}
    assert list(row) == list(features("super_glue", "rte"))


def test_schema_missing_columns_are_listed():
    assert row_view("super_glue", "rte", ("sentence1", "sentence2")).missing == ("idx", "label")


def test_schema_drift_table_names_known_datasets():
    for drift in DRIFTS:
        assert split_sizes(drift.dataset, drift.subset)
        assert set(drift.columns.values()) <= set(features(drift.dataset, drift.subset))


def test_schema_row_view_can_be_pickled():
    view = pickle.loads(pickle.dumps(row_view("trec", None, NEW_TREC)))
    assert view.row({"text": "", "coarse_label": 2, "fine_label": 26})["label-fine"] == 0


WITHHELD = [
    ("super_glue", {"premise": "a", "label": -1}),
    ("super_glue", {"query": "a", "answers": []}),
    ("piqa", {"goal": "a", "label": -1}),
    ("hellaswag", {"ctx": "a", "label": ""}),
    ("own", {"label": "-1"}),
    ("own", {"label": None}),
    ("own", {"label": math.nan}),
    ("own", {"label": -1.0}),
    ("winogrande", {"sentence": "a", "answer": ""}),
    ("common_gen", {"target": ""}),
    ("qasc", {"answerKey": ""}),
    ("ropes", {"answers": {"text": []}}),
    ("ropes", {"answers": {"text": [""]}}),
    ("adversarial_qa", {"answers": {"text": [], "answer_start": []}}),
    ("kilt_tasks", {"output": []}),
    ("kilt_tasks", {"output": [{"answer": "", "provenance": []}]}),
    ("trivia_qa", {"answer": {"value": "<unk>", "aliases": []}}),
]
GIVEN = [
    ("super_glue", {"premise": "a", "label": 0}),
    ("super_glue", {"query": "a", "answers": ["x"]}),
    ("super_glue", {"answer": "", "label": 1}),
    ("hellaswag", {"label": "0"}),
    ("own", {"label": "no"}),
    ("own", {"label": False}),
    ("own", {"label": [1, 0]}),
    ("own", {"text": "no label column", "answer": ""}),
    ("winogrande", {"answer": "2"}),
    ("squad_v2", {"answers": {"text": [], "answer_start": []}}),
    ("duorc", {"answers": [], "no_answer": True}),
    ("ropes", {"answers": {"text": ["x"]}}),
    ("kilt_tasks", {"output": [{"answer": "x"}]}),
    ("trivia_qa", {"answer": {"value": "x"}}),
    ("trec", {"label-coarse": 0}),
]


@pytest.mark.parametrize(("dataset", "row"), WITHHELD)
def test_hidden_label_of_withheld_rows(dataset, row):
    assert hidden_label(dataset, row) is True


@pytest.mark.parametrize(("dataset", "row"), GIVEN)
def test_hidden_label_is_false_for_labeled_rows(dataset, row):
    assert hidden_label(dataset, row) is False
