"""The file of predictions, where what an earlier run left is damaged or unfinished."""

import os
from pathlib import Path

import pytest

from t0.errors import UserError
from t0.files.publishing import UnfinishedFile
from t0.inference.prediction_file import BatchPredictions, PredictionFile


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


def test_prediction_file_unfinished_summary_is_removed(tmp_path):
    path = tmp_path / "out.jsonl"
    child = os.fork()
    if not child:  # with the name that this process's unfinished files have
        Path(UnfinishedFile(str(tmp_path / "out.run.json")).path).write_text("{")
        os._exit(0)
    os.waitpid(child, 0)
    mine = Path(UnfinishedFile(str(path)).path)
    mine.write_text("{")
    assert len(list(tmp_path.iterdir())) == 2
    PredictionFile(str(path), {"seed": 1})
    assert {p.name for p in tmp_path.iterdir()} == {"out.jsonl.partial", mine.name}
