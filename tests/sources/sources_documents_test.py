"""Which rows of a split share a document."""

import pytest

from t0.errors import AbsentData, UserError
from t0.sources import documents
from t0.sources.documents import document_key, documents_in_rows, ids_in_rows


class Rows:
    """Rows of a dataset with a column."""

    def __init__(self, column, values):
        self.columns, self._column, self._values = ("label", column), column, values
        self.num_rows = len(values)

    def rows(self, start=0, stop=None):
        return ({"label": 0, self._column: value} for value in self._values[start:stop])


@pytest.fixture
def on_this_machine(monkeypatch):
    """Puts rows on this machine; None for a split that is absent after all."""

    def put(dataset, column, values):
        def open_split(*place):
            assert place == (dataset, None, "validation")
            if values is None:
                raise AbsentData("no validation")
            return Rows(column, values)

        monkeypatch.setattr(documents, "available_splits", lambda *_: {"validation": "a place"})
        monkeypatch.setattr(documents, "open_split", open_split)

    return put


@pytest.mark.parametrize(
    ("dataset", "column", "values", "known"),
    [
        ("anli", "premise", ["a", "b", "a", "b", "c"], True),
        ("mine", "document_id", [7, 7, 8], True),
        ("mine", "text", ["a", "a"], False),  # no column that is a document
        ("anli", "premise", None, False),  # the rows are not there
    ],
)
def test_document_keys_of_rows_come_from_a_column(on_this_machine, dataset, column, values, known):
    on_this_machine(dataset, column, values)
    examples = len(values or ())
    expected = [document_key(value) for value in values] if known else None
    assert documents_in_rows(dataset, None, "validation", examples) == expected
    # If rows were dropped, an example's row is unknown.
    assert documents_in_rows(dataset, None, "validation", examples + 1) is None


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [("id", ["T-1", "T-2"], ["T-1", "T-2"]), ("ID", [7, None], ["7", "1"]), ("idx", [0, 1], None)],
)
def test_ids_of_rows_come_from_a_column(on_this_machine, column, values, expected):
    on_this_machine("mine", column, values)
    assert ids_in_rows("mine", None, "validation", 2) == expected
    assert ids_in_rows("mine", None, "validation", 1) is None  # a sample, or rows were dropped


def test_ids_of_rows_that_cannot_be_read_are_unknown(monkeypatch):
    def available_splits(*_):
        raise UserError("the data folder does not exist")

    monkeypatch.setattr(documents, "available_splits", available_splits)
    assert ids_in_rows("mine", None, "validation", 2) is None


def test_document_keys_do_not_download_rows(monkeypatch):
    monkeypatch.setattr(documents, "available_splits", lambda *_: {})
    monkeypatch.setattr(documents, "open_split", None)
    assert documents_in_rows("anli", None, "validation", 2) is None


def test_document_keys_differ_with_the_text():
    keys = {document_key(text) for text in ("a", "b", "7", "half \ud800 of a pair", None)}
    assert len(keys) == 5
    assert document_key(7) == document_key("7")
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in keys)


def test_ids_of_some_rows_are_those_of_their_numbers(on_this_machine):
    on_this_machine("mine", "id", [f"T-{n}" for n in range(9)])
    assert ids_in_rows("mine", None, "validation", 9, [0, 2, 8]) == ["T-0", "T-2", "T-8"]
    assert ids_in_rows("mine", None, "validation", 9, [8]) == ["T-8"]  # a sample
    assert ids_in_rows("mine", None, "validation", 8, [0]) is None  # other rows
