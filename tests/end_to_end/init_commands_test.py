"""The commands that `t0 init` prints run as printed: from a CSV file to a report."""

import csv
import dataclasses
import shlex

import pytest


@pytest.mark.exhaustive
def test_init_commands_run_as_printed(world, tmp_path):
    with (tmp_path / "mails.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "spam"])
        writer.writerows([f"much rain today in place {i}", f"{i % 2}.0"] for i in range(60))
    words = ["mails", "mails.csv", "--choices=no,yes", f"--vocab={world.folder / 'vocab.model'}"]
    # Not through the server of commands: it has imported the tasks of another folder.
    here = dataclasses.replace(world, folder=tmp_path)
    done = here.run("t0", "init", *words)
    assert done.returncode == 0, done.stderr
    train = tmp_path / "mails" / "train.gin"
    train.write_text(train.read_text().replace("TRAIN_STEPS = 400", "TRAIN_STEPS = 2"))
    *lines, predicts = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert (len(lines), predicts.split()[1]) == (4, "predict")
    for line in lines:
        done = here.run(*shlex.split(line))
        assert done.returncode == 0, line + done.stdout + done.stderr
    report = tmp_path / "mails" / "eval" / "model" / "report"
    assert (report / "report.html").is_file()
    assert "mails" in (report / "report.csv").read_text()
