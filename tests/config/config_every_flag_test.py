"""No flag is ignored: every flag of every command has a row that says what it changes.

A row names what can be observed without computing: a note, a refusal, a gin parameter, or where the
value is read. A flag without a row fails the test, and so does a row without a flag.
"""

import argparse
import ast
import importlib
import itertools
import re
from pathlib import Path

import pytest

from t0.cli import cache_tasks
from t0.cli.main import VERBS
from t0.config import flags
from t0.config.flag_table import GIN_MODES, LIBRARY_FLAGS, MODEL_API_MODES, TABLE, by_name
from t0.errors import UserError
from tests.helpers.cases import as_subtests

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "t5_mesh_transformer"
# Kind of a flag -> a word that gives it a value other than the default.
VALUES = {"string": "x", "multi_string": "x", "list": "x,y", "integer": "7", "float": "0.25"}
BOTH = ("train", "infer")

# Flag of t5_mesh_transformer -> the file that reads it as an attribute or by name, for flags that
# every run reads, whatever its mode.
READ_BY_ALL = {
    "model_dir": "t0/run/command.py",
    "gin_file": "t0/run/configure.py",
    "gin_param": "t0/run/configure.py",
    "gin_location_prefix": "t0/config/flags.py",
    "gin_search_paths": "t0/config/flags.py",
    "dry_run": "t0/run/command.py",
    "save_spec": "t0/run/command.py",
    "module_import": "t0/run/configure.py",
    "additional_task_cache_dirs": "t0/run/command.py",
    "additional_deprecated_gin_references": "t0/run/configure.py",
    "skip_all_gin_unknowns": "t0/run/configure.py",
    "data_dir": "t0/run/configure.py",
    "skip_bad_rows": "t0/run/configure.py",
    "vocab": "t0/run/configure.py",
    "t5_tfds_data_dir": "t0/run/configure.py",
    "tfds_data_dir": "t0/run/configure.py",
    "engine": "t0/run/flag_checks.py",
    "tpu": "t0/run/command.py",
    "checkpoint": "t0/run/parsed_run.py",
    "export_hf": "t0/run/initial_checkpoint.py",
    "use_model_api": "t0/run/command.py",
}


def word_for(name):
    """A word of a command line that gives a flag a value other than its default."""
    kind, _, default, _, choices, *_ = by_name(name)
    if kind == "boolean":
        return f"--no{name}" if default else f"--{name}"
    if kind == "enum":
        return f"--{name}={next(value for value in choices if value != default)}"
    return f"--{name}={VALUES[kind]}"


def checked(mode, *words):
    """The notes of a run's flags, or the message of the refusal."""
    try:
        return " ".join(flags.check_mode(flags.parse([COMMAND, *words]), mode))
    except UserError as error:
        return str(error)


OF_MODES = [flag.name for flag in TABLE if flag.modes]
OF_MODEL_API = [flag.name for flag in TABLE if flag.api]
OF_TPUS = [flag.name for flag in TABLE if flag.tpu == "only"]


def test_flags_of_a_run_have_one_row_each():
    rows = [*READ_BY_ALL, *OF_MODES, *OF_MODEL_API, *LIBRARY_FLAGS]
    rows += [name for name in OF_TPUS if name not in rows]
    assert sorted(rows) == sorted(flag.name for flag in TABLE)


@as_subtests("name", READ_BY_ALL)
def test_flag_of_every_run_is_read_in_its_file(name):
    text = (ROOT / READ_BY_ALL[name]).read_text()
    assert re.search(rf"(flags|flag_values|values)(\.{name}\b|\[\"{name}\"\])", text)
    given = flags.parse([COMMAND, word_for(name)])
    assert given[name].present
    assert given[name].value != flags.command_flags()[name].value


NO_PARAMETER = ("adapter", "allow_stale_cache", "epochs", "finetune_steps", "stream_steps")
NO_PARAMETER += ("write_stream",)


@as_subtests("name, mode", itertools.product(OF_MODES, GIN_MODES))
def test_flag_of_some_modes_has_an_effect_or_is_refused(name, mode):
    word = word_for(name)
    said = checked(mode, word)
    if mode not in by_name(name).modes:
        assert f"--{name} belongs to" in said
        return
    assert said == ""
    parameter = by_name(name).modes[mode]
    found = flags.gin_parameters(flags.parse([COMMAND, word]), mode)
    if parameter:
        assert list(found) == [parameter]
        assert found[parameter][0] != flags.command_flags()[name].value
    else:
        # Tests of adapters, of train_steps, of provenance and of streams have their effect.
        assert name in NO_PARAMETER


@as_subtests("name", OF_MODEL_API)
def test_flag_of_the_model_api_has_an_effect_or_a_note(name):
    assert f"--{name} is read with --use_model_api only" in checked("train", word_for(name)) or (
        name == "mode"
    )
    source = (ROOT / "t0/run/model_api.py").read_text()
    assert re.search(rf"flags\.{name}\b", source)
    for one, mode in MODEL_API_MODES.items():
        said = checked(mode, word_for(name), "--tpu=t", "--use_model_api")
        assert (f"--{name} is read with" in said) == (one not in by_name(name).api)


@as_subtests("name", OF_TPUS)
def test_flag_of_tpus_has_a_note_without_tpu(name):
    mode = MODEL_API_MODES["train"] if name in OF_MODEL_API else "train"
    assert f"--{name} is read with --tpu only" in checked(mode, word_for(name))
    assert checked(mode, word_for(name), "--tpu=t") == ""
    assert checked(mode, f"--{name}=") == "" if by_name(name).kind == "string" else True


@pytest.mark.parametrize("name", LIBRARY_FLAGS)
def test_flag_of_a_library_is_passed_to_it(name, monkeypatch):
    class Global(dict):
        def __missing__(self, key):
            self[key] = argparse.Namespace(value=None)
            return self[key]

    found = Global()
    monkeypatch.setattr(flags.flags, "FLAGS", found)
    monkeypatch.setattr(flags.importlib, "import_module", lambda module: None)
    given = flags.command_flags()
    given(["run", word_for(name)])
    flags.set_library_flags(given)
    assert found[name].value == given[name].value != flags.command_flags()[name].value


PLAN_READS = ("engine", "finetune_steps", "checkpoint", "base")


@as_subtests(
    "command, name", itertools.product(["t0 plan", "t0 rehearse"], [flag.name for flag in TABLE])
)
def test_flags_are_read_noted_or_refused_by_plan_and_rehearse(command, name):
    more = PLAN_READS if command == "t0 plan" else ("engine",)
    given = flags.parse([COMMAND, word_for(name)])
    try:
        flags.check_planned(given, command, more)
    except UserError as error:
        assert f"{command} does not read --{name}, which changes a run" in str(error)
        assert name not in more and by_name(name).plan == "refuses"


def test_flags_that_plan_reads_equal_the_table():
    from t0.cli import plan

    assert plan._READ == PLAN_READS
    text = Path(plan.__file__).read_text()
    assert all(f"flag_values.{name}" in text for name in PLAN_READS)


@pytest.mark.parametrize(
    ("table", "parse"),
    [
        (TABLE, lambda words: flags.parse([COMMAND, *words])),
        (cache_tasks.FLAGS, lambda words: _cache_flags(words)),
    ],
)
def test_flag_list_given_twice_has_the_values_of_both(table, parse):
    names = [row[1] for row in table if row[0] in ("list", "multi_string")]
    assert names
    for name in names:
        given = parse([f"--{name}=a", f"--{name}=b"])
        assert given[name].value == ["a", "b"], name


def _cache_flags(words):
    given = cache_tasks.command_flags()
    given(["seqio_cache_tasks", *words])
    return given


def test_flags_of_caching_are_settings_or_read():
    from dataclasses import fields

    from t0.caching import CacheSelection, RecordOptions, Setup

    settings = {
        field.name for kind in (RecordOptions, CacheSelection, Setup) for field in fields(kind)
    }
    text = Path(cache_tasks.__file__).read_text()
    for row in cache_tasks.FLAGS:
        read = re.search(rf"flag_values(\.{row[1]}\b|\[\"{row[1]}\"\])", text)
        assert row[1] in settings or read, row[1]


def actions_of(verb):
    parser = argparse.ArgumentParser()
    importlib.import_module(VERBS[verb][0]).add_arguments(parser)
    return [action for action in parser._actions if action.dest != "help"]


@as_subtests("verb", VERBS)
def test_verb_arguments_are_all_read(verb):
    read = {"data_dir", "skip_bad_rows"}  # by apply_shared, for every verb
    name = VERBS[verb][0]
    for module in (name, "t0.cli.main", "t0.cli.plan"):
        tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "args":
                read.add(node.attr)
            if isinstance(node, ast.Constant):
                read.add(node.value)
    for action in actions_of(verb):
        only_one_value = action.required and len(action.choices or ()) == 1
        assert action.dest in read or only_one_value, action.dest


@as_subtests("verb", VERBS)
def test_verb_argument_given_twice_keeps_all_values(verb):
    for action in actions_of(verb):
        several = action.nargs == "+" or "comma-separated" in (action.help or "")
        if not action.option_strings or not several or action.dest == "run_words":
            continue
        parser = argparse.ArgumentParser()
        kept = argparse.ArgumentParser()
        importlib.import_module(VERBS[verb][0]).add_arguments(parser)
        kept._add_action(next(a for a in parser._actions if a.dest == action.dest))
        word = action.option_strings[0]
        found = getattr(kept.parse_args([word, "a", word, "b"]), action.dest)
        assert list(map(str, found)) == ["a", "b"] or found == "a,b", action.dest


# Verb and words -> a part of the refusal: flags that would have no effect beside others.
REFUSED = {
    "show t --rows=2 --row=3": "--rows and --row",
    "lint --max_share=2": "--max_share is 2; expected a number from 0 to 1",
    "convert a b --to=hf --scan_layers": "--scan_layers is for --to t5x, got --to hf",
    "convert a b --check --dtype=float32": "--dtype is for conversions",
    "convert a b --check --drop_slots": "--drop_slots is for conversions",
    "convert a b --check --vocab=v": "--vocab is for conversions",
    "compare a b --title=x": "--title is for the page that --output writes",
    "report --overlap=x --output=o --metrics=m": "--overlap needs evaluated examples",
    "doctor --zone=z": "--zone needs --tpu=NAME",
    "doctor --project=p --model_dir=/m": "--project needs --tpu=NAME",
    "eval c --skip_absent --cache_dirs=d": "--skip_absent is about datasets",
    "eval c --shard_id=1": "expected both",
    "plan --gpu=t4": "--gpu is for plans of GPUs with PyTorch: add --engine=torch",
    "plan --gpus=2": "--gpus is for plans of GPUs",
    "plan --engine=torch --gpu=t4 --start_step=5": "--start_step is for plans of TPUs",
    "plan --engine=torch --gpu=t4 --sweep tpu=v3-8": "--sweep is for plans of TPUs",
    "plan --sweep tpu=v3-8 --exact": "--exact cannot be used with --sweep",
    "plan --epochs=2": "t0 plan does not read --epochs",
    "rehearse --finetune_steps=2": "t0 rehearse does not read --finetune_steps",
    "rehearse --engine=torch": "leave out --engine",
}


@as_subtests("line", REFUSED)
def test_verb_flags_without_effect_are_refused(line):
    verb, *words = line.split()
    module = importlib.import_module(VERBS[verb][0])
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    with pytest.raises(UserError, match=re.escape(REFUSED[line])):
        module.main(parser.parse_args(words))
