"""The lock of a model directory, which dies with its holder, and the choice of a checkpoint."""

import json
import os
import signal

import pytest

from t0.errors import UserError
from t0.training.model_directory import LOCK_FILE, check_same, choose_best_checkpoint, lock


def holder(folder, ready):
    """A forked process that holds the directory until it is killed."""
    pid = os.fork()
    if pid == 0:
        with lock(str(folder)):
            os.write(ready, b".")
            signal.pause()
        os._exit(0)
    return pid


@pytest.fixture
def other(tmp_path):
    """Another process that trains in the folder."""
    read, write = os.pipe()
    pid = holder(tmp_path, write)
    assert os.read(read, 1) == b"."
    yield pid
    for number in (read, write):
        os.close(number)


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_model_directory_lock_names_holder_and_ends_with_it(tmp_path, other):
    try:
        with (
            pytest.raises(
                UserError, match=rf"another training run \(process {other} on .*kill -TERM {other}"
            ),
            lock(str(tmp_path)),
        ):
            pass
    finally:
        end(other)
    with lock(str(tmp_path)):  # the file is still there
        assert f'"pid": {os.getpid()}' in (tmp_path / LOCK_FILE).read_text()


def test_model_directory_lock_with_damaged_file(tmp_path, other):
    (tmp_path / LOCK_FILE).write_text("{")
    try:
        with (
            pytest.raises(UserError, match="another process.*end it, or use another"),
            lock(str(tmp_path)),
        ):
            pass
    finally:
        end(other)


def test_model_directory_lock_makes_folder_and_is_released(tmp_path):
    for _ in range(2):
        with lock(str(tmp_path / "new")):
            pass
    with lock("gs://bucket/model"):
        pass


def write_run(folder, kind, *lines):
    """A model directory with checkpoints of the steps 10, 20 and 30 and these metrics."""
    folder.mkdir()
    for step in (10, 20, 30):
        if kind == "mtf":
            (folder / f"model.ckpt-{step}.index").touch()
        else:
            (folder / f"torch.ckpt-{step}").mkdir()
            (folder / f"torch.ckpt-{step}" / "resume.json").write_text("{}")
        if kind == "adapter":
            (folder / f"torch.ckpt-{step}" / "adapter_config.json").write_text("{}")
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "metrics.jsonl").write_text("".join(f"{text}\n" for text in texts))
    return str(folder)


def best(step, metric="validation_loss"):
    return {"step": 30, "best_by": metric, "best_step": step}


@pytest.mark.parametrize(
    ("kind", "name"), [("mtf", "model.ckpt"), ("torch", "torch.ckpt"), ("adapter", "torch.ckpt")]
)
def test_model_directory_best_checkpoint_is_chosen_and_named(tmp_path, capsys, kind, name):
    model = write_run(tmp_path / "model", kind, best(10), best(20), {"step": 30, "loss": 1.5})
    assert choose_best_checkpoint(model) == f"{model}/{name}-20"
    assert capsys.readouterr().err == (
        f"using {model}/{name}-20, the best by validation_loss. "
        f"To use the latest: {model}/{name}-30\n"
    )
    # A checkpoint that is named is taken as it is.
    assert choose_best_checkpoint(f"{model}/{name}-10") == f"{model}/{name}-10"
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [{"step": 30, "loss": 1.5}],
        [best(30)],  # it is also the latest
        [best(15)],  # it was not kept
        ["[1]", "{", best("20"), best(True), best(20, metric=None)],
    ],
)
def test_model_directory_without_a_kept_best_checkpoint(tmp_path, capsys, lines):
    model = write_run(tmp_path / "model", "mtf", *lines)
    assert choose_best_checkpoint(model) == model
    assert not capsys.readouterr().err


def test_model_directory_of_an_earlier_version_continues_with_its_configuration(tmp_path):
    """That version had neither other averages of the loss nor losses over answer choices."""
    (tmp_path / "configuration.json").write_text('{"run.batch_size": "4"}')
    now = {"run.batch_size": "4", "train_loop.loss_average": "'positions'"}
    now |= {f"choice_losses.{n}": "0.0" for n in ("likelihood", "unlikelihood")}
    now["choice_losses.length_normalized"] = "0.0"
    assert check_same(str(tmp_path), now, allowed=False) == []
    for name, value in (("train_loop.loss_average", "'tokens'"), ("run.batch_size", "8")):
        with pytest.raises(UserError, match=f"{name}: was .*, is {value}"):
            check_same(str(tmp_path), now | {name: value}, allowed=False)
