"""`t0 train` from a Hugging Face folder, and the command that it prints: the same weights."""

import shlex

import pytest

from t0.checkpoints import convert
from tests.checkpoints.tiny_checkpoints import loaded


@pytest.mark.slow
def test_train_and_the_command_that_it_prints_give_the_same_weights(
    pretrained, server, world, tmp_path
):
    convert(pretrained, tmp_path / "hf", to="hf")
    done = server.run(
        *("train", "--checkpoint=hf", "--mixture=weather_train", "--output=run", "--steps=2"),
        *("--batch-size=4", "--lr=0.01", "--seed=3", "--lengths=inputs=96,targets=32"),
        *(f"--cache-dirs={world.cache}", "--activation_dtype=float32"),
        program="t0",
        cwd=tmp_path,
    )
    assert done.status == 0, done.err
    assert "training from step 1 to 3: 4 sequences a step, inputs 96, targets 32" in done.out
    command = done.out.partition("\n")[2].replace("\\\n", " ").partition("\n")[0]
    words = [word.replace("--model_dir=run", "--model_dir=again") for word in shlex.split(command)]
    again = server.run(*words[1:], program=words[0], cwd=tmp_path)
    assert again.status == 0, again.err
    converted = next((tmp_path / "run" / "converted").glob("*/model.ckpt-1.index"))
    ours, theirs, before = (
        {name: value for name, value in loaded(path).items() if "_slot_" not in name}
        for path in (
            tmp_path / "run" / "model.ckpt-3",
            tmp_path / "again" / "model.ckpt-3",
            converted.with_suffix(""),
        )
    )
    assert ours == theirs
    assert ours.keys() == before.keys() and ours != before
