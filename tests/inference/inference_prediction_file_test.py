"""The file of predictions, where what an earlier run left is damaged or unfinished."""

import pytest

from t0.errors import UserError
from t0.inference.predictions import BatchPredictions, PredictionFile


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
