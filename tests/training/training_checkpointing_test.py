import json
import random
import re

import gin
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from t0.checkpoints import checkpoint_files
from t0.errors import UserError
from t0.training import checkpointing, model_directory, resume_file
from t0.training.checkpointing import Checkpoints, Keep
from t0.training.model_directory import select_retained_steps
from tests.helpers.processes import Killed
from tests.training import tiny_training as tiny

ALL = Keep()
RESUME = {"began": 0, "seed": 0, "position": None}


def test_keep_checkpoints_last_every_steps_and_best():
    steps = [10, 20, 30, 40, 50]
    assert select_retained_steps(steps, Keep()) == steps
    assert select_retained_steps(steps, Keep(last=0, every_steps=20), best=10) == steps
    assert select_retained_steps(steps, Keep(last=2)) == [40, 50]
    assert select_retained_steps(steps, Keep(last=1, every_steps=20)) == [20, 40, 50]
    assert select_retained_steps(steps, Keep(last=1), best=10) == [10, 50]


def test_keep_checkpoints_gin_binding_leaves_plain_class_alone():
    gin.bind_parameter("keep_checkpoints.best_by", "eval/accuracy")
    assert Keep(2) == model_directory.Keep(last=2, best_by="eval/accuracy")
    assert model_directory.Keep(2).best_by is None
    names = re.findall(r"^(\S+) = ", gin.operative_config_str(), re.MULTILINE)
    assert names == [
        f"keep_checkpoints.{n}" for n in ("best_by", "every_steps", "smaller_is_better")
    ]
    with pytest.raises(ValueError, match="last"):
        gin.bind_parameter("t0.keep_checkpoints.last", 3)


@given(arrays.arrays(np.uint32, 20, elements=st.integers(0, 2**32 - 1)))
def test_resume_file_low_halves_restore_float32_weights(bits):
    finite = bits & ~np.uint32(0x4000_0000)  # no infinities, nor what rounds to one
    wide = finite.view(np.float32)
    low, ties = resume_file.split_halves(wide)
    assert low.dtype == np.int16
    nearest = _cast(wide)
    difference = wide.view(np.int32).astype(np.int64) - nearest.view(np.int32)
    assert (low.astype(np.int64)[difference < 1 << 15] == difference[difference < 1 << 15]).all()
    assert ties.tolist() == np.flatnonzero(difference == 1 << 15).tolist()
    back = resume_file.join_halves(nearest, low, ties)
    assert back.tobytes() == wide.tobytes()


def _cast(wide):
    return wide.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)


def test_resume_file_restores_weights_rounded_at_ties():
    wide = np.array([0x3F808000, 0x3F818000, 0x3F817FFF], np.uint32).view(np.float32)
    low, ties = resume_file.split_halves(wide)
    assert ties.tolist() == [0]
    assert resume_file.join_halves(_cast(wide), low, ties).tobytes() == wide.tobytes()


@pytest.fixture(scope="module")
def steps():
    return tiny.Steps(tiny.training_spec())


@pytest.fixture
def checkpoints(steps, tmp_path):
    return lambda keep=ALL: Checkpoints(str(tmp_path), steps.graph, steps.session, keep)


def test_keep_checkpoints_deletes_all_but_last_kept_and_best(checkpoints, tmp_path):
    saver = checkpoints(Keep(last=2, every_steps=3, best_by="validation_loss"))
    for step in range(1, 7):
        saver.save(step, RESUME, best=min(step, 2))
    assert checkpoint_files.steps(str(tmp_path)) == [2, 3, 5, 6]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-6")
    assert not list(tmp_path.glob("model.ckpt-4*"))
    assert not list(tmp_path.glob(".saving*"))
    # What another run left here is none of ours to delete.
    other = checkpoints(Keep(last=1))
    other.save(9, RESUME)
    other.save(10, RESUME)
    assert checkpoint_files.steps(str(tmp_path)) == [2, 3, 5, 6, 10]


def test_full_disk_leaves_the_last_checkpoint_intact(checkpoints, tmp_path, monkeypatch):
    saver = checkpoints()
    saver.save(1, RESUME)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saver, "low_halves", full)
    with pytest.raises(
        UserError,
        match="^checkpoint .* cannot be saved: the disk is full. The last.*ckpt-1, is int",
    ):
        saver.save(2, RESUME)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_atomic_write_of_checkpoint_killed_while_publishing(checkpoints, tmp_path, monkeypatch):
    saver = checkpoints()
    saver.save(1, RESUME)
    rename = tf.io.gfile.rename

    def killed_at_the_index(source, target, overwrite=False):
        if target.endswith(".index"):
            raise Killed
        rename(source, target, overwrite=overwrite)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpointing.tf.io.gfile, "rename", killed_at_the_index)
        saver.save(2, RESUME)
    assert list(tmp_path.glob("model.ckpt-2*"))
    assert checkpoint_files.steps(str(tmp_path)) == [1]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-1")
    saver.save(3, RESUME)
    assert not list(tmp_path.glob("model.ckpt-2*"))
    assert not list(tmp_path.glob(".saving*"))


def test_resume_file_damage_names_the_earlier_checkpoint(checkpoints, tmp_path):
    saver = checkpoints()
    for step in (1, 2, 3):
        saver.save(step, RESUME | {"began": step})
    latest = str(tmp_path / "model.ckpt-3")
    whole = (tmp_path / "model.ckpt-3.resume.npz").read_bytes()
    damaged = tmp_path / "model.ckpt-3.resume.npz"
    (tmp_path / "model.ckpt-2.resume.npz").write_bytes(b"")

    rng = random.Random(7)
    contents = [b"", b"PK", b"text", whole[:-1], whole[: len(whole) // 2], whole[40:]]
    for _ in range(60):
        content = bytearray(whole)
        content[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        contents.append(bytes(content))
    refused = 0
    for content in contents:
        damaged.write_bytes(content)
        try:
            resume = saver.restore(latest)
        except UserError as error:
            refused += 1
            assert str(error).startswith(f"{damaged} is damaged (")
            assert f"To resume from an older checkpoint, remove {latest}.*" in str(error)
            with pytest.raises(UserError, match="is damaged"):
                resume_file.record(latest)
        else:  # a byte that says nothing, of a date
            assert resume == RESUME | {"began": 3}
    assert refused > 40
    # Both ways that the message names work.
    damaged.unlink()
    assert saver.restore(latest) is None
    for step in (3, 2):
        for file in list(tmp_path.glob(f"model.ckpt-{step}.*")):
            file.unlink()
    assert checkpoint_files.latest(str(tmp_path)) == str(tmp_path / "model.ckpt-1")
    assert saver.restore(str(tmp_path / "model.ckpt-1")) == RESUME | {"began": 1}


def test_checkpoint_state_file_is_written_again_if_missing(checkpoints, tmp_path, capsys):
    saver = checkpoints()
    checkpointing.repair_latest_checkpoint_file(str(tmp_path))
    for step in (1, 2, 3):
        saver.save(step, RESUME)
    path = tmp_path / "checkpoint"
    whole = path.read_text()
    checkpointing.repair_latest_checkpoint_file(str(tmp_path))
    assert not capsys.readouterr().out
    path.unlink()
    checkpointing.repair_latest_checkpoint_file(str(tmp_path))
    latest = tmp_path / "model.ckpt-3"
    (line,) = capsys.readouterr().out.splitlines()
    assert line == f"{path} is missing: resuming from {latest}, the newest whose files are complete"
    assert path.read_text() == whole
    for file in tmp_path.glob("model.ckpt-3.*"):
        file.unlink()
    checkpointing.repair_latest_checkpoint_file(str(tmp_path))
    assert capsys.readouterr().out.startswith(
        f"{path} does not name a checkpoint that is complete: resuming from"
    )
    # Stock tools find the same, and older checkpoints.
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert state.model_checkpoint_path == str(tmp_path / "model.ckpt-2")
    assert [str(tmp_path / f"model.ckpt-{step}") for step in (1, 2)] == [
        *state.all_model_checkpoint_paths
    ]
    checkpointing.repair_latest_checkpoint_file(str(tmp_path))
    assert not capsys.readouterr().out


def test_keep_checkpoints_does_not_count_deleted_ones(checkpoints, tmp_path):
    saver = checkpoints(Keep(last=3))
    for step in (1, 2, 3):
        saver.save(step, RESUME)
    for file in tmp_path.glob("model.ckpt-2.*"):
        file.unlink()
    again = checkpoints(Keep(last=3))
    again.restore(str(tmp_path / "model.ckpt-3"))
    again.save(4, RESUME)
    assert checkpoint_files.steps(str(tmp_path)) == [1, 3, 4]


@pytest.mark.parametrize("content", [b"[1]", b'{"a": 1}', b"{", b"[" * 9**5, b"\xff", None])
def test_configuration_record_that_is_damaged_is_refused(tmp_path, content):
    path = tmp_path / "configuration.json"
    path.write_bytes(content) if content else path.mkdir()
    with pytest.raises(UserError, match=r"configuration\.json is damaged: .* remove it$"):
        model_directory.check_same(str(tmp_path), checkpointing.configuration(), allowed=True)


def test_resume_file_that_is_compressed_is_refused(tmp_path):
    checkpoint = str(tmp_path / "model.ckpt-3")
    arrays = {"low/x/0": np.zeros(10**7, np.int16)}
    resume_file.write(checkpoint, RESUME, arrays)
    with resume_file.open_arrays(checkpoint) as content:
        assert np.array_equal(content["low/x/0"], arrays["low/x/0"])
    np.savez_compressed(f"{checkpoint}.resume.npz", record=np.array(json.dumps(RESUME)), **arrays)
    with pytest.raises(UserError, match="is damaged .*it is compressed"):
        resume_file.record(checkpoint)
