"""Mistakes on a command line and in gin files, and T5X's names of gin files."""

import pytest

from t0.config import flags as command_flags
from t0.config import gin_files, parse
from t0.errors import UserError

FINETUNE = "--gin_file=runs/finetune.gin"


def said(*words):
    """The error message for these words."""
    with pytest.raises(UserError) as raised:
        given = command_flags.parse(["t5_mesh_transformer", *words])
        files, params = given.gin_file or [], given.gin_param or []
        parse.parse(files, params, location_prefixes=command_flags.gin_folders(given))
    return str(raised.value)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--gin_file=models/t5.1.1.smal.gin"], ["not found", "models/t5.1.1.small.gin"]),
        (["--gin_fil=dataset.gin"], ["unknown flag '--gin_fil'", "'--gin_file'"]),
        ([FINETUNE, "--gin.TRAIN_STEP=5"], ["macro 'TRAIN_STEP'", "Did you mean TRAIN_STEPS?"]),
        (["--gin.MIXTURE_NAMES='x'"], ["Did you mean MIXTURE_NAME?"]),
        (
            [FINETUNE, "--gin.MIXTURE_OR_TASK_NAME=qa"],
            ["Text needs a second pair of quotes", "--gin.MIXTURE_OR_TASK_NAME=\"'qa'\""],
        ),
        (["--gin_param=run.train_steps = "], ["cannot be read at --gin_param='run.train_steps ="]),
    ],
)
def test_gin_parsing_finds_mistakes_on_the_command_line(words, parts):
    text = said(*words)
    for part in parts:
        assert part in text


def test_gin_parsing_finds_mistakes_in_own_gin_file(tmp_path):
    mine = tmp_path / "mine.gin"
    mine.write_text("include 'dataset.gin'\nOPTIMIZER = @adafactor.Adafactor()\n")
    assert f"({mine}:2)" in said(f"--gin_file={mine}")
    mine.write_text("include 'datset.gin'\n")
    assert "gin file not found: datset.gin. Did you mean dataset.gin" in said(f"--gin_file={mine}")
    mine.write_text("run.train_steps = ]\n")
    assert "mine.gin" in said(f"--gin_file={mine}")
    mine.write_text(f"include '{mine}'\n")
    assert "include each other in a cycle" in said(f"--gin_file={mine}")


def test_gin_macros_that_no_other_macro_resembles_are_accepted():
    params = ["TRAIN_STEPS = 3", "tokens_per_batch = 4", "MY_OWN = 'x'", "run.model_dir = %MY_OWN"]
    parse.parse(["runs/finetune.gin", "models/t5.1.1.small.gin"], params)


@pytest.mark.parametrize(
    ("run", "param"), [("eval", "RANDOM_SEED = 1"), ("t0_3b", "MIXTURE_OR_TASK_NAME = 't0_train'")]
)
def test_gin_macros_of_other_modes_and_of_t5x_are_accepted(run, param):
    parsed = parse.parse([f"runs/{run}.gin"], [param])
    assert parsed.unread_macros == (param.partition(" ")[0],)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("t5_1_1/small.gin", "models/t5.1.1.small.gin"),
        ("t5x/examples/t5/t5_1_1/xxl.gin", "models/t5.1.1.xxl.gin"),
        ("t5x/examples/t5/mt5/base.gin", "models/mt5.base.gin"),
        ("mt5/small.gin", "models/mt5.small.gin"),
        ("t5_1_0/3B.gin", "models/t5.1.0.3B.gin"),
        ("t5x/configs/runs/pretrain.gin", "runs/pretrain.gin"),
        ("mine/pretrain.gin", "mine/pretrain.gin"),
    ],
)
def test_t5x_gin_file_names_are_translated(theirs, ours):
    assert gin_files.resolved_names([theirs], []) == [ours]
    if theirs != ours:
        parse.parse([theirs], [])


def test_t5x_gin_file_name_that_exists_is_not_translated(tmp_path):
    (tmp_path / "mt5").mkdir()
    (tmp_path / "mt5" / "small.gin").write_text("")
    assert gin_files.resolved_names(["mt5/small.gin"], [str(tmp_path)]) == ["mt5/small.gin"]
