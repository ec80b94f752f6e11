"""Commands take data, vocabulary and cache from the starter folder that a path is in."""

import argparse

import pytest

from t0.cli import arguments, cache_tasks, eval, run_flags
from t0.config import flags
from t0.config.starter_settings import StarterSettings, find_starter_folder
from t0.errors import UserError
from t0.prompts.model_prompts import ModelPrompts, RecordedPrompt
from t0.prompts.templates import Template


@pytest.fixture
def starter(tmp_path, monkeypatch):
    """A starter folder `tickets` in the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "tickets"
    for name in ("data", "cache", "model"):
        (folder / name).mkdir(parents=True)
    settings = StarterSettings(
        str(folder), "tickets", "/v/spiece.model", {"inputs": 80, "targets": 16}
    )
    (folder / "starter.json").write_text(settings.text())
    return folder


@pytest.mark.parametrize(
    ("inside", "path", "found"),
    [
        (".", "tickets", "tickets"),
        (".", "tickets/model", "tickets"),
        (".", "tickets/model/model.ckpt-4", "tickets"),
        ("tickets", "model", "."),
        (".", "other/model", None),
        (".", "gs://tickets/model", None),
        (".", "~nobody/" + "x" * 5000, None),
    ],
)
def test_starter_folder_is_found_by_path(starter, monkeypatch, inside, path, found):
    monkeypatch.chdir(inside)
    settings = find_starter_folder(path)
    assert (settings.folder if settings else None) == found
    if settings:
        assert (settings.name, settings.lengths["inputs"]) == ("tickets", 80)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"name": 3, "vocabulary": null, "lengths": {}}',
        '{"name": "x"}',
        '{"name": "x", "vocabulary": null, "lengths": {"inputs": "80"}}',
    ],
)
def test_starter_folder_malformed_settings_are_an_error(starter, text):
    (starter / "starter.json").write_text(text)
    with pytest.raises(UserError, match=r"tickets/starter\.json is malformed"):
        find_starter_folder("tickets/model")


def test_starter_folder_names_no_bucket(starter, monkeypatch):
    settings = StarterSettings(str(starter), "tickets", "gs://theirs/v.model", {"inputs": 64})
    (starter / "starter.json").write_text(settings.text())
    monkeypatch.setattr("sys.argv", ["t0", "eval", str(starter / "model")])
    with pytest.raises(UserError, match="only the command line names buckets.*add --vocab=gs://th"):
        find_starter_folder(starter)
    monkeypatch.setattr("sys.argv", ["t0", "eval", "--vocab=gs://theirs/v.model"])
    assert find_starter_folder(starter) == settings


def test_starter_folder_fills_flags_of_training(starter):
    values = flags.parse(["t5_mesh_transformer", "--gin_file=tickets/train.gin"])
    run_flags.apply_starter_folder(values)
    assert values.model_dir == "tickets/model"
    assert values.additional_task_cache_dirs == ["tickets/cache"]
    assert (values.data_dir, values.module_import) == (["tickets/data"], ["t0.seqio_tasks"])
    assert (values.vocab, values["vocab"].present) == ("/v/spiece.model", 1)
    words = ["--model_dir=tickets/seed_1", "--vocab=mine", "--data_dir=a", "--data_dir=b"]
    values = flags.parse(["t5_mesh_transformer", *words])
    run_flags.apply_starter_folder(values)
    assert (values.model_dir, values.vocab) == ("tickets/seed_1", "mine")
    assert values.data_dir == ["a", "b"]


def test_starter_folder_fills_flags_of_caching(starter):
    values = cache_tasks.parse(["seqio_cache_tasks", "--output_cache_dir=tickets/cache"])
    assert values.tasks == ["tickets_train", "tickets_rank"]
    assert (values.data_dir, values.vocab) == (["tickets/data"], "/v/spiece.model")
    one = ["seqio_cache_tasks", "--tasks=tickets_say", "--output_cache_dir=tickets/cache"]
    assert cache_tasks.parse(one).tasks == ["tickets_say"]


def test_starter_folder_fills_arguments_of_eval(starter):
    parser = argparse.ArgumentParser()
    eval.add_arguments(parser)
    (starter / "model" / "metrics.jsonl").touch()
    args = parser.parse_args(["tickets/model"])
    eval._apply_starter_folder(args)
    assert (args.tasks, args.output) == ("tickets_rank", "tickets/eval/model")
    assert (args.cache_dirs, args.lengths) == ("tickets/cache", "inputs=80,targets=16")
    assert [str(path) for path in args.metrics] == ["tickets/model"]
    outputs = []
    for checkpoint in ("tickets/seed_1/model.ckpt-4", "tickets/seed_2/model.ckpt-4"):
        args = parser.parse_args([checkpoint])
        eval._apply_starter_folder(args)
        outputs.append(args.output)
    assert outputs == ["tickets/eval/seed_1_model.ckpt-4", "tickets/eval/seed_2_model.ckpt-4"]
    args = parser.parse_args(["tickets/model", "--tasks=super_glue_.*"])
    eval._apply_starter_folder(args)
    assert (args.tasks, args.output, args.cache_dirs) == ("super_glue_.*", None, "")


def test_starter_folder_eval_renders_few_shot_prompts_without_the_cache(starter):
    parser = argparse.ArgumentParser()
    eval.add_arguments(parser)
    args = parser.parse_args(["tickets/model", "--num_fewshot=2"])
    eval._apply_starter_folder(args)
    assert (args.tasks, args.cache_dirs) == ("tickets_rank", "")
    assert args.output == "tickets/eval/model_2shot"


def test_starter_folder_eval_reads_the_lengths_that_the_model_was_trained_with(starter):
    parser = argparse.ArgumentParser()
    eval.add_arguments(parser)
    template = Template("say", "{{text}} ||| {{label}}", None, "", True, True, (), "say")
    prompts = (RecordedPrompt("tickets_say", "tickets", False, template),)
    recorded = ModelPrompts({"inputs": 128, "targets": 8}, "/v/spiece.model", prompts)
    (starter / "model" / "prompts.json").write_text(recorded.to_json())
    args = parser.parse_args(["tickets/model/model.ckpt-4"])
    eval._apply_starter_folder(args)
    assert args.lengths == "inputs=128,targets=8"


@pytest.mark.parametrize(
    ("word", "tasks"),
    [("tickets", "tickets_.*"), (".", "tickets_.*"), ("tickets_say", "tickets_say")],
)
def test_starter_folder_is_applied_to_its_own_tasks(starter, monkeypatch, word, tasks):
    monkeypatch.chdir(starter)
    args = argparse.Namespace(task=word, data_dir=None, vocab=None)
    assert arguments.find_starter_tasks(args, "task")
    assert (args.task, args.data_dir, args.vocab) == (tasks, ["data"], "/v/spiece.model")


def test_starter_folder_is_not_applied_to_other_names(starter, monkeypatch):
    monkeypatch.chdir(starter)
    args = argparse.Namespace(task="super_glue_rte_.*", data_dir=None, vocab=None)
    assert arguments.find_starter_tasks(args, "task") is None
    assert args.data_dir is None
    parser = argparse.ArgumentParser()
    eval.add_arguments(parser)
    args = parser.parse_args(["bigscience/T0_3B"])
    eval._apply_starter_folder(args)
    assert (args.tasks, args.vocab, args.data_dir) == (None, None, None)
