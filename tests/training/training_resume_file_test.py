"""Resume state by itself; through whole checkpoints in training_checkpointing_test."""

import numpy as np
import pytest

from t0.errors import UserError
from t0.training import resume_file

RECORD = {"began": 4, "seed": None, "position": {"row": 3}, "own": [2, 8], "seconds": 1.5}


def test_resume_file_is_read_as_written(tmp_path):
    path = str(tmp_path / "model.ckpt-8")
    assert resume_file.record(path) is None
    with resume_file.open_arrays(path) as content:
        assert content is None
    resume_file.write(path, RECORD)
    assert resume_file.record(path) == RECORD
    with resume_file.open_arrays(path) as content:
        assert content.files == ["record"]
        assert resume_file.record_in(content) == RECORD
    resume_file.write(path, RECORD, {"low/w/0": np.ones(3, np.int16)})
    with resume_file.open_arrays(path) as content:
        assert resume_file.record_in(content) == RECORD
        assert content["low/w/0"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"began": "4"},
        {"began": -1},
        {"position": 3},
        {"own": None},
        {"own": ["2"]},
        {"seed": 0.5},
        {"seconds": float("nan")},
        {"judge": {"metric": "loss", "value": None, "step": 2, "since": 0}},
        {"evaluated": "yes"},
    ],
)
def test_resume_file_record_of_other_types_is_damaged(tmp_path, wrong):
    for step in (3, 8):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    resume_file.write(str(tmp_path / "model.ckpt-3"), RECORD)
    path = str(tmp_path / "model.ckpt-8")
    resume_file.write(path, RECORD | wrong)
    (name,) = wrong
    with (
        pytest.raises(UserError, match=rf"is damaged \(ValueError: its {name}.*remove .*ckpt-8"),
        resume_file.open_arrays(path) as content,
    ):
        resume_file.record_in(content)


def test_resume_file_reports_errors_that_the_caller_names(tmp_path):
    path = str(tmp_path / "model.ckpt-8")
    resume_file.write(path, RECORD)

    class OtherError(Exception):
        """Such as TensorFlow's."""

    with pytest.raises(OtherError), resume_file.open_arrays(path):
        raise OtherError
    with (
        pytest.raises(UserError, match="To resume from an older checkpoint, remove"),
        resume_file.open_arrays(path, OtherError),
    ):
        raise OtherError


def rounded(weight):
    """The nearest bfloat16 numbers, as float32."""
    import ml_dtypes

    return weight.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("type_", ["bfloat16", "other"])
def test_resume_file_of_replicas_makes_the_exact_weight(devices, type_):
    weight = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
    weight.view(np.uint32)[0, 0] = 0x3F80_8000  # halfway between two bfloat16 numbers
    content = {}
    for number in range(devices):
        key, narrow = f"w/{number}", type_ == "bfloat16"
        content |= resume_file.low_halves(key, weight) if narrow else {f"wide/{key}": weight}
    found = resume_file.wide_weight(content, "w", rounded(weight))
    assert found.tobytes() == weight.tobytes()
    assert found.tobytes() != rounded(weight).tobytes()
    assert resume_file.wide_weight(content, "v", weight) is None


def test_resume_file_slices_that_do_not_fit_are_refused():
    weight = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
    content = {f"wide/w/{n}": weight[:, 3 * n : 3 * n + 3] for n in range(2)}  # of a split mesh
    with pytest.raises(ValueError, match="w/0 has the shape .* as if of another mesh"):
        resume_file.wide_weight(content, "w", weight)


def test_resume_file_of_one_device_on_a_larger_mesh():
    weight = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
    content = resume_file.low_halves("w/0", weight)
    assert np.array_equal(resume_file.wide_slice(content, "w/1", rounded(weight)), weight)
