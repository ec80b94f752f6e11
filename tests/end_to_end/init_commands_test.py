"""The commands of the tutorial run as printed: from a CSV file to a second prompt and two seeds."""

import csv
import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


def tutorial_commands():
    """Returns section -> the words of its commands, except those that need a download."""
    sections = re.split(r"^## ", TUTORIAL.read_text(encoding="utf-8"), flags=re.M)[1:]
    found = {}
    for section in sections:
        code = re.sub(r"\\\n", " ", section)
        lines = re.findall(r"^    ((?:t0|t5_mesh_transformer|seqio_cache_tasks) .*)", code, re.M)
        words = [shlex.split(line) for line in lines]
        found[section.partition("\n")[0]] = [w for w in words if "--checkpoint" not in str(w)]
    return {title: words for title, words in found.items() if words}


@pytest.mark.exhaustive
def test_init_commands_of_the_tutorial_run_as_printed(world, tmp_path):
    with (tmp_path / "reviews.csv").open("w", newline="") as file:
        rows = [(f"much rain today in place {i}", i % 2) for i in range(60)]
        csv.writer(file).writerows([("text", "stars"), *rows])
    (tmp_path / "new.csv").write_text("text\nmuch snow today\n")
    shutil.copy(world.folder / "vocab.model", tmp_path / "t5.spiece.model")
    # Not through the server of commands: it has imported the tasks of another folder.
    here = dataclasses.replace(world, folder=tmp_path)
    printed = []
    for title, commands in tutorial_commands().items():
        if title.startswith("7."):
            templates = tmp_path / "reviews" / "data" / "reviews" / "templates.yaml"
            longer = "the question is long " * 20
            templates.write_text(templates.read_text().replace("Which", f"{longer} Which"))
        for words in commands:
            done = here.run(*words)
            assert done.returncode == 0, shlex.join(words) + done.stdout + done.stderr
            if words[1] == "init":
                printed = [line for line in done.stdout.splitlines() if line[0] != "#"]
                train = tmp_path / "reviews" / "train.gin"
                text = train.read_text()
                for name, value in (("TRAIN_STEPS", 4), ("EVAL_PERIOD", 2)):
                    text = re.sub(rf"^{name} = \d+$", f"{name} = {value}", text, flags=re.M)
                train.write_text(text)
            if shlex.join(words) in printed:
                printed.remove(shlex.join(words))
        if title.startswith("5."):
            reviews = tmp_path / "reviews"
            assert (reviews / "eval" / "model" / "report" / "report.html").is_file()
            assert "reviews" in (reviews / "eval" / "model" / "report" / "report.csv").read_text()
            metrics = map(json.loads, (reviews / "model" / "metrics.jsonl").open())
            best = [record["best_step"] for record in metrics if "best_step" in record][-1]
            assert (reviews / "eval" / "model" / f"results_{best}.json").is_file()
        if title.startswith("6."):
            header, row = csv.reader((tmp_path / "predictions.csv").open())
            assert header == ["text", "prediction", "probability"]
            assert row[1] in ("bad", "good")
        if title.startswith("7."):
            lengths = [
                json.loads((reviews / model / "prompts.json").read_text())["lengths"]["inputs"]
                for model in ("model", "second")
            ]
            assert lengths[1] > lengths[0] + 60
            assert (
                lengths[1]
                == json.loads((reviews / "starter.json").read_text())["lengths"]["inputs"]
            )
            assert "second_predictions.csv" in {path.name for path in tmp_path.iterdir()}
    assert not printed  # the tutorial has all commands that `t0 init` prints
    assert {"seed_1", "seed_2"} <= {path.name for path in (tmp_path / "reviews").iterdir()}
    assert "seed_1" in done.stdout and "seed_2" in done.stdout
