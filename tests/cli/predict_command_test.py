"""`t0 predict`: what it refuses, in one line and without leaving a file."""

import contextlib
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from t0.cli import main as cli
from t0.errors import UserError
from t0.prompts.model_prompts import ModelPrompts, RecordedPrompt, read_model_prompts
from t0.prompts.templates import Template
from t0.training import model_directory


def recorded(task, dataset="reviews", choices="bad ||| good"):
    name = task.removeprefix(f"{dataset}_")
    jinja = "{{text}} ||| {{answer_choices[label]}}"
    template = Template(name, jinja, choices, "", True, True, (), name)
    return RecordedPrompt(task, dataset, False, template)


ONE_DATASET = (
    recorded("reviews_ask", choices=None),
    recorded("reviews_say"),
    recorded("reviews_which"),
)


def write_model(folder, prompts=ONE_DATASET):
    folder.mkdir()
    text = ModelPrompts({"inputs": 64, "targets": 16}, "v.model", prompts).to_json()
    (folder / "prompts.json").write_text(text)
    return folder


@pytest.fixture
def predict(tmp_path, capsys, monkeypatch):
    """Runs `t0 predict` in a folder with a model's prompts and rows; returns (status, errors)."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    (tmp_path / "rows.csv").write_text("text\nfine\n")

    def run(*words):
        try:
            status = cli.main(["predict", *words])
        except SystemExit as ended:
            status = ended.code
        return status, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "rows.csv", "--output=out.csv"], "nowhere"),
        (["bare", "rows.csv", "--output=out.csv"], "bare has no recorded prompts"),
        (["model", "none.csv", "--output=out.csv"], "none.csv does not exist"),
        (["model", "empty.csv", "--output=out.csv"], "empty.csv has no rows"),
        (["model", "other.csv", "--output=out.csv"], "has no column text, which the prompt"),
        (["model", "rows.csv", "--output=out.xlsx"], "tables are written as .csv"),
        (
            ["model", "rows.csv", "--output=rows.csv"],
            "rows.csv exists already: replace it with --ov",
        ),
        (["model", "rows.csv", "--output=rows.csv", "--overwrite"], "is the file of the rows"),
        (["model", "rows.csv", "--output=no/out.csv"], "the folder no does not exist"),
        (["model", "rows.csv", "--output=out.csv", "--prompt=wich"], "Did you mean"),
        (["model", "rows.csv", "--output=out.csv", "--batch_tokens=0"], "a whole number from 1"),
    ],
)
def test_predict_mistakes_are_one_line(predict, tmp_path, words, message):
    (tmp_path / "bare").mkdir()
    (tmp_path / "empty.csv").write_text("text\n")
    (tmp_path / "other.csv").write_text("words\nfine\n")
    before = sorted(tmp_path.iterdir())
    status, errors = predict(*words)
    assert status == 2
    assert message in errors and len(errors.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_predict_output_that_another_process_writes(predict, tmp_path):
    hold = (
        "import sys; from t0.training.model_directory import lock\n"
        "with lock('out.csv.partial'): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        status, errors = predict("model", "rows.csv", "--output=out.csv")
        other.stdin.close()
    assert status == 2
    assert f"out.csv is being written by process {other.pid}" in errors
    assert not (tmp_path / "out.csv").exists()


def test_predict_output_that_another_process_has_just_written(predict, tmp_path, monkeypatch):
    @contextlib.contextmanager
    def lock(folder, busy):
        (tmp_path / "out.csv.partial").mkdir()
        (tmp_path / "out.csv").write_text("of the other process")
        yield

    monkeypatch.setattr(model_directory, "lock", lock)
    status, errors = predict("model", "rows.csv", "--output=out.csv")
    assert status == 2
    assert "out.csv exists already" in errors
    assert (tmp_path / "out.csv").read_text() == "of the other process"
    assert not (tmp_path / "out.csv.partial").exists()


def test_predict_overwrites_only_with_the_flag(predict, tmp_path, monkeypatch):
    (tmp_path / "out.csv").write_text("before")

    def write(task, lines, output, *, all_choices):
        Path(output).write_text("after")
        return []

    monkeypatch.setattr("t0.cli.predict._write_lines", lambda *_: "lines")
    monkeypatch.setattr("t0.inference.row_predictions.write_predictions", write)
    words = ["model", "rows.csv", "--output=out.csv"]
    assert predict(*words)[0] == 2 and (tmp_path / "out.csv").read_text() == "before"
    assert predict(*words, "--overwrite")[0] == 0 and (tmp_path / "out.csv").read_text() == "after"


def test_predict_chooses_the_first_ranked_prompt_of_one_dataset(tmp_path):
    prompts = read_model_prompts(str(write_model(tmp_path / "one")))
    assert prompts.choose(None).task == "reviews_say"
    assert prompts.choose("which").task == prompts.choose("reviews_which").task == "reviews_which"
    two = write_model(tmp_path / "two", (*ONE_DATASET, recorded("films_say", "films")))
    with pytest.raises(UserError, match="which of the model's 4 prompts.*--prompt=NAME"):
        read_model_prompts(str(two)).choose(None)
    with pytest.raises(UserError, match="which of the model's 2 prompts"):
        read_model_prompts(str(two)).choose("say")


@pytest.mark.parametrize(
    "fault", ["{", '{"prompts": 3}', json.dumps({"lengths": {}, "prompts": []})]
)
def test_predict_prompts_that_are_malformed(tmp_path, fault):
    (tmp_path / "prompts.json").write_text(fault)
    with pytest.raises(UserError, match="prompts.json cannot be read"):
        read_model_prompts(str(tmp_path))


def test_predict_published_prompts_of_a_model_are_metered(predict, tmp_path, monkeypatch):
    monkeypatch.setenv("T0_TEMPLATE_CHARACTERS", "1000")
    prompt = recorded("reviews_say")
    jinja = "{% set x = 'a' * 5000 %} ||| {{answer_choices[label]}}"
    template = dataclasses.replace(prompt.template, jinja=jinja, published=True)
    write_model(tmp_path / "hostile", (dataclasses.replace(prompt, template=template),))
    status, errors = predict("hostile", "rows.csv", "--output=out.csv")
    assert status == 2
    assert "more than 1,000 characters (T0_TEMPLATE_CHARACTERS sets the limit)" in errors


def test_predict_vocabulary_in_a_bucket_must_be_on_the_command_line(predict, tmp_path):
    text = ModelPrompts({"inputs": 64, "targets": 16}, "gs://theirs/v.model", ONE_DATASET).to_json()
    (tmp_path / "model" / "prompts.json").write_text(text)
    status, errors = predict("model", "rows.csv", "--output=out.csv")
    assert status == 2
    assert "add --vocab=gs://theirs/v.model" in errors
    assert errors.count("\n") == 1
