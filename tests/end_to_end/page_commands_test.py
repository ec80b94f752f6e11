"""The commands of the tutorial and of the README run as they are printed."""

import csv
import dataclasses
import re
import shlex
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ABSENT = "/models/"  # weights that a test does not have


@pytest.fixture
def here(world, tmp_path):
    """The tutorial's rows and vocabulary, and commands in their folder."""
    texts = [f"much rain today in place {number}" for number in range(60)]
    for name, rows in (
        ("reviews.csv", [("text", "stars"), *((text, i % 2) for i, text in enumerate(texts))]),
        ("new.csv", [("text",), *((text,) for text in texts[:3])]),
    ):
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    shutil.copy(world.folder / "vocab.model", tmp_path / "t5.spiece.model")
    # Not through the server of commands: it has imported the tasks of another folder.
    settings = {"HF_HUB_OFFLINE": "1", "T0_DATA_DIR": "", "T0_VOCAB": ""}
    return dataclasses.replace(world, folder=tmp_path, environment=world.environment | settings)


@pytest.mark.exhaustive
def test_tutorial_commands_run_as_printed(here):
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").replace("\\\n", "")
    lines = re.findall(r"^    ((?:t0|t5_mesh_transformer|seqio_cache_tasks) .+)$", text, re.M)
    lines = [line for line in lines if ABSENT not in line]
    assert len(lines) == 11
    for line in lines:
        done = here.run(*shlex.split(line))
        assert done.returncode == 0, line + done.stdout + done.stderr
        if line.startswith("t0 init"):
            train = here.folder / "reviews" / "train.gin"
            train.write_text(train.read_text().replace("TRAIN_STEPS = 400", "TRAIN_STEPS = 2"))
    evaluated = here.folder / "reviews" / "eval" / "model" / "report"
    assert "reviews" in (evaluated / "report.csv").read_text()
    with (here.folder / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]] == ["text", "prediction", "probability"] and len(rows) == 3


@pytest.mark.slow
def test_readme_commands_run_or_say_that_there_is_no_network(here):
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Five first")[2]
    lines = re.findall(r"`((?:t0|python) .+?)`", table.partition("\n\n`t0 init`")[0])
    names = [" ".join(line.split()[:2]) for line in lines]
    assert names == ["t0 eval", "t0 init", "t0 plan", "t0 eval", "python -c"]
    for line in lines:
        done = here.run(*shlex.split(line))
        assert "Traceback" not in done.stderr
        if "bigscience/" in line:
            assert done.returncode == 1 and "bigscience/T0_3B" in done.stderr.splitlines()[-1]
        else:
            assert done.returncode == 0, line + done.stdout + done.stderr
    assert done.stdout == "464\n"
