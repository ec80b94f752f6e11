"""The file of predictions, where what an earlier run left is damaged or unfinished."""

import numpy as np
import pytest

from t0.caching.record_rows import RowSource
from t0.caching.row_numbers import ExampleRows
from t0.errors import UserError
from t0.evaluation.records import draw_numbers
from t0.inference.inputs import InferenceExample, InputSource
from t0.inference.predictions import (
    BatchPredictions,
    InferenceSettings,
    PredictionFile,
    _read_examples,
)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"lines": []}', '{"lines": {"a": "b"}, "counts": {}}', "[" * 9**5]
)
def test_prediction_file_damaged_batch_is_predicted_again(tmp_path, content):
    path = str(tmp_path / "out.jsonl")
    file = PredictionFile(path, {"seed": 1})
    file.save_batch(0, 0, BatchPredictions({3: "a line"}, {"tokens": 2}))
    again = PredictionFile(path, {"seed": 1})
    assert again.finished_batches == {(0, 0): {"tokens": 2}}
    (kept,) = (tmp_path / "out.jsonl.partial").glob("window-*-batch-*")
    kept.write_text(content)
    assert PredictionFile(path, {"seed": 1}).finished_batches == {}


def test_prediction_file_damaged_summary_is_refused(tmp_path):
    path = str(tmp_path / "out.jsonl")
    file = PredictionFile(path, {"seed": 1})
    file.save_batch(0, 0, BatchPredictions({0: "a"}, {}))
    file.finish([1])
    (tmp_path / "out.run.json").write_text('{"settings": 7}')
    with pytest.raises(UserError, match=r"exists without .*out\.run\.json"):
        PredictionFile(path, {"seed": 1})


def test_prediction_file_begun_by_an_earlier_version_keeps_its_numbers(tmp_path):
    path = str(tmp_path / "out.jsonl")
    assert PredictionFile(path, {"seed": 1, "numbered_by": "row"}).by_row
    PredictionFile(str(tmp_path / "old.jsonl"), {"seed": 1}).save_batch(
        0, 0, BatchPredictions({0: "a"}, {})
    )
    resumed = PredictionFile(str(tmp_path / "old.jsonl"), {"seed": 1, "numbered_by": "row"})
    assert not resumed.by_row
    assert resumed.finished_batches == {(0, 0): {}}
    resumed.finish([1])
    again = PredictionFile(str(tmp_path / "old.jsonl"), {"seed": 1, "numbered_by": "row"})
    assert again.summary["settings"] == {"seed": 1}


@pytest.mark.parametrize(
    ("by_row", "sample", "expected"),
    [
        (True, None, [(0, 0), (1, 2), (2, 5)]),
        (False, None, [(0, None), (1, None), (2, None)]),
        (True, 6, [(0, 0), (1, 2), (2, 5)]),
    ],
)
def test_predicted_examples_have_the_numbers_of_their_rows(by_row, sample, expected):
    def read(shard, shards):
        return (InferenceExample(n, "", None, []) for n in range(3) if n % shards == shard)

    prompt = RowSource("mine", None, "test", "a", False)
    rows = ExampleRows(6, np.array([0, 2, 5]), "rows.test.json", prompt)
    source = InputSource("task", 3, {}, read, rows=lambda: rows, sample=sample)
    found = [*_read_examples(source, InferenceSettings(), by_row=by_row)]
    assert [(example.number, example.row) for example in found] == expected
    # A sample is one of rows, so that it may have a dropped row.
    drawn = draw_numbers(6, 4)
    source = InputSource("task", 3, {}, read, rows=lambda: rows, sample=4)
    found = [*_read_examples(source, InferenceSettings(), by_row=True)]
    assert [example.row for example in found] == [row for row in drawn if row in (0, 2, 5)]
