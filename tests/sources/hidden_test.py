import math

import pytest

from t0.sources import hidden_label

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
def test_withheld(dataset, row):
    assert hidden_label(dataset, row) is True


@pytest.mark.parametrize(("dataset", "row"), GIVEN)
def test_given(dataset, row):
    assert hidden_label(dataset, row) is False
