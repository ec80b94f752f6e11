"""T5X's spelling of gin bindings on the command line; nothing here needs TensorFlow."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t0.cli import main, plan
from t0.config import flags as mesh_flags
from t0.config.flags import masked, without_secrets
from t0.errors import UserError

COMMAND = "t5_mesh_transformer"


def params(*words):
    return mesh_flags.parse([COMMAND, *words]).gin_param


def test_bindings_keep_the_order_of_the_command_line():
    words = ["--gin.A=1", "--gin_param=A = 2", "--gin.run.train_steps=5", "-gin.enc/d.x = 'a b'"]
    assert params(*words) == ["A=1", "A = 2", "run.train_steps=5", "enc/d.x= 'a b'"]


def test_value_may_be_the_next_word():
    given = mesh_flags.parse([COMMAND, "--gin.B", "-3", "--model_dir=/m", "--gin.C", "{'a': 1}"])
    assert given.gin_param == ["B=-3", "C={'a': 1}"]
    assert given.model_dir == "/m"


@pytest.mark.parametrize("words", [["--gin.A"], ["--gin.A", "--tpu=x"], ["--gin.=3"]])
def test_binding_without_name_or_value(words):
    with pytest.raises(UserError, match="--gin.* needs a name and a value.*TRAIN_STEPS=1000"):
        params(*words)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12)))
def test_other_words_are_left_alone(words):
    others = [word for word in words if not word.lstrip("-").startswith("gin.")]
    assert list(mesh_flags.gin_words_as_params(others)) == others


def test_folders_for_gin_files():
    given = mesh_flags.parse(
        [COMMAND, "--gin_search_paths=/c,/d", "--gin_location_prefix=/a,/b", "--dry_run"]
    )
    assert mesh_flags.gin_folders(given) == ["/a", "/b", "/c", "/d"]
    assert given.dry_run


def test_flags_stand_for_macros():
    given = mesh_flags.parse([COMMAND, "--model_dir=/m", "--epochs=2"])
    assert {"MODEL_DIR", "TRAIN_STEPS"} <= mesh_flags.macros_said(given)
    assert not mesh_flags.macros_said(mesh_flags.parse([COMMAND]))


@pytest.mark.parametrize(
    ("words", "recorded"),
    [
        (["--gin.wandb.api_key='abc'"], ["--gin.wandb.api_key=***"]),
        (["--gin.my/hub.token", "abc"], ["--gin.my/hub.token", "***"]),
        (["--gin.PASSWORD = 'abc'"], ["--gin.PASSWORD = ***"]),
        (["--gin.URL='s3://me:abc@host'"], ["--gin.URL='s3://***@host'"]),
        (["--gin.TOKENS_PER_BATCH=4"], ["--gin.TOKENS_PER_BATCH=4"]),
        (["--gin.TRAIN_STEPS", "4"], ["--gin.TRAIN_STEPS", "4"]),
    ],
)
def test_secrets_are_left_out_of_the_record(words, recorded):
    assert shlex.split(masked([COMMAND, *words])) == [COMMAND, *recorded]


def test_secrets_are_left_out_of_a_dry_run():
    line = "hub.token = 'abc'  # the command line"
    assert without_secrets(line) == "hub.token = ***"


def test_plan_takes_the_same_words(monkeypatch):
    kept = []
    monkeypatch.setattr(plan, "main", lambda args: kept.append(args) or 0)
    words = ["--gin.A=1", "--gin.B", "2", "--gin_param=C = 3", "--gin_search_paths=/x", "--dry_run"]
    assert main.main(["plan", *words, "--fast"]) == 0
    (args,) = kept
    assert args.gin_param == ["--gin_param=A=1", "--gin_param=B=2", "--gin_param=C = 3"]
    assert args.gin_search_paths == ["--gin_search_paths=/x"]
    assert args.fast
