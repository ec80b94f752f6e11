"""Resume state by itself; through whole checkpoints in training_checkpointing_test."""

import numpy as np
import pytest

from t0.errors import UserError
from t0.training import resume_file

RECORD = {"began": 4, "seed": None, "position": {"row": 3}, "own": [2, 8], "seconds": 1.5}


def test_what_is_written_is_read(tmp_path):
    path = str(tmp_path / "model.ckpt-8")
    assert resume_file.record(path) is None
    with resume_file.opened(path) as content:
        assert content is None
    resume_file.write(path, RECORD)
    assert resume_file.record(path) == RECORD
    with resume_file.opened(path) as content:
        assert content.files == ["record"]
        assert resume_file.record_in(content) == RECORD
    resume_file.write(path, RECORD, {"low/w/0": np.ones(3, np.int16)})
    with resume_file.opened(path) as content:
        assert resume_file.record_in(content) == RECORD
        assert content["low/w/0"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("wrong", [{"began": "4"}, {"position": 3}, {"own": None}, {"seed": 0.5}])
def test_a_record_of_other_types_is_damaged(tmp_path, wrong):
    for step in (3, 8):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    resume_file.write(str(tmp_path / "model.ckpt-3"), RECORD)
    path = str(tmp_path / "model.ckpt-8")
    resume_file.write(path, RECORD | wrong)
    (name,) = wrong
    with (
        pytest.raises(UserError, match=rf"is damaged \(ValueError: its {name} .*ckpt-3, write"),
        resume_file.opened(path) as content,
    ):
        resume_file.record_in(content)


def test_faults_of_the_block_that_the_caller_names(tmp_path):
    path = str(tmp_path / "model.ckpt-8")
    resume_file.write(path, RECORD)

    class OtherError(Exception):
        """Such as TensorFlow's."""

    with pytest.raises(OtherError), resume_file.opened(path):
        raise OtherError
    with (
        pytest.raises(UserError, match="No older checkpoint"),
        resume_file.opened(path, OtherError),
    ):
        raise OtherError
