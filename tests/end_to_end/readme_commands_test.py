"""The README's first commands run as they are printed, or say that there is no network."""

import dataclasses
import re
import shlex
import shutil
from pathlib import Path

import pytest

VERBS = ("eval", "init", "predict", "train", "plan", "eval")
README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.slow
def test_readme_commands_run_or_say_that_there_is_no_network(world, tmp_path):
    rows = [f"much rain today in place {number},{number % 2}" for number in range(60)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,stars", *rows]))
    shutil.copy(world.folder / "vocab.model", tmp_path / "t5.spiece.model")
    settings = {"HF_HUB_OFFLINE": "1", "T0_DATA_DIR": "", "T0_VOCAB": ""}
    # Not through the server of commands: it has imported the tasks of another folder.
    here = dataclasses.replace(world, folder=tmp_path, environment=world.environment | settings)
    table = README.read_text(encoding="utf-8").partition("## First commands")[2]
    lines = re.findall(r"`((?:t0|python) .+?)`", table.partition("\n\n`t0 eval")[0])
    names = [" ".join(line.split()[:2]) for line in lines]
    assert names == ["t0 " + verb for verb in VERBS] + ["python -c"]
    lines = [line for line in lines if "predict" not in line]  # it needs a model
    for line in lines:
        done = here.run(*shlex.split(line))
        assert "Traceback" not in done.stderr
        if model := re.search(r"(?:bigscience|google)/\S+", line):  # on the hub
            assert done.returncode == 2 and model[0] in done.stderr.splitlines()[-1]
        else:
            assert done.returncode == 0, line + done.stdout + done.stderr
    assert done.stdout == "464\n"
