"""Which examples share a document."""

import json

import pytest

from t0.errors import AbsentData
from t0.scoring import documents
from t0.scoring.documents import documents_of
from t0.scoring.reading import AnswerChoice, MultipleChoiceExample
from t0.scoring.results import score_line


class Source:
    """Rows of a dataset, of which none may be there."""

    split_mapping = {"validation": "validation"}
    subset = None

    def __init__(self, dataset, column, values):
        self.dataset, self._values = dataset, values
        self.columns = ("label", column)
        self._column = column

    def open(self, split):
        if self._values is None:
            raise AbsentData(f"no {split}")
        self.num_rows = len(self._values)
        return self

    def rows(self):
        return ({"label": 0, self._column: value} for value in self._values)


@pytest.mark.parametrize(
    ("dataset", "column", "values", "wanted"),
    [
        ("anli", "premise", ["a", "b", "a", "b", "c"], (0, 1, 0, 1, 4)),
        ("mine", "document_id", [7, 7, 8], (0, 0, 2)),
        ("mine", "text", ["a", "a"], None),  # no column that is a document
        ("anli", "premise", ["a", "b"], None),  # none is shared
        ("anli", "premise", None, None),  # the rows are not there
    ],
)
def test_documents_are_the_first_row_of_the_same(dataset, column, values, wanted):
    source = Source(dataset, column, values)
    examples = len(values or ())
    assert documents_of(source, "validation", examples, only_local=False) == wanted
    # Where rows were dropped, an example's row is not known.
    assert documents_of(source, "validation", examples + 1, only_local=False) is None


def test_rows_elsewhere_are_not_fetched_for_a_cached_task(monkeypatch):
    source = Source("anli", "premise", ["a", "a"])
    monkeypatch.setattr(documents, "available_splits", lambda *_: {})
    assert documents_of(source, "validation", 2, only_local=True) is None
    monkeypatch.setattr(documents, "available_splits", lambda *_: {"validation": "a place"})
    assert documents_of(source, "validation", 2, only_local=True) == (0, 0)


def test_a_line_has_the_document_where_it_is_known():
    choice = AnswerChoice(text="yes", tokens=[1], is_correct=True, inputs=[3])
    lines = [
        score_line(MultipleChoiceExample(5, (choice,), "in", document), [-1.0])
        for document in (None, 3)
    ]
    assert "document" not in lines[0]
    assert lines[1]["document"] == 3
    assert json.loads(json.dumps(lines[1]))["prediction"] == 0
