"""What is wrong with a command line, said before TensorFlow is imported; and T5X's names."""

import os
import subprocess
import sys

import pytest

from t0.config import early_checks, gin_files
from t0.config import flags as command_flags
from t0.errors import UserError

FINETUNE = "--gin_file=runs/finetune.gin"


def said(*words):
    """What the command says of these words, without carrying anything out."""
    with pytest.raises(UserError) as raised:
        given = command_flags.parse(["t5_mesh_transformer", *words])
        files, params = given.gin_file or [], given.gin_param or []
        early_checks.check(files, params, command_flags.gin_folders(given))
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
def test_early_checks_find_mistakes_on_the_command_line(words, parts):
    text = said(*words)
    for part in parts:
        assert part in text


def test_early_checks_find_mistakes_in_own_gin_file(tmp_path):
    mine = tmp_path / "mine.gin"
    mine.write_text("include 'dataset.gin'\nOPTIMIZER = @adafactor.Adafactor()\n")
    assert f"({mine}:2)" in said(f"--gin_file={mine}")
    mine.write_text("include 'datset.gin'\n")
    assert "gin file not found: datset.gin. Did you mean dataset.gin" in said(f"--gin_file={mine}")
    mine.write_text("run.train_steps = ]\n")
    assert "mine.gin" in said(f"--gin_file={mine}")
    mine.write_text(f"include '{mine}'\n")
    assert "include each other in a cycle" in said(f"--gin_file={mine}")


def test_early_checks_accept_a_correct_configuration(tmp_path):
    (tmp_path / "mine.gin").write_text("include 'gs://bucket/theirs.gin'\n")
    early_checks.check([str(tmp_path / "mine.gin")], ["tokens_per_batch = 3"])
    params = ["TRAIN_STEPS = 3", "tokens_per_batch = 4", "MY_OWN = 'x'", "run.seed = %MY_OWN"]
    early_checks.check(["runs/finetune.gin", "models/t5.1.1.small.gin"], params)


def test_early_checks_accept_every_gin_file_of_the_project():
    for path in sorted(gin_files.gin_folder().rglob("*.gin")):
        early_checks.check([str(path.relative_to(gin_files.gin_folder()))], [])


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
        early_checks.check([theirs], [])


def test_t5x_gin_file_name_that_exists_is_not_translated(tmp_path):
    (tmp_path / "mt5").mkdir()
    (tmp_path / "mt5" / "small.gin").write_text("")
    assert gin_files.resolved_names(["mt5/small.gin"], [str(tmp_path)]) == ["mt5/small.gin"]


def test_early_checks_do_not_import_tensorflow():
    code = (
        "import sys\nfrom t0.cli.mesh_transformer import main\nfrom t0.errors import UserError\n"
        "for word in sys.argv[1:]:\n"
        "  try: main(['t5_mesh_transformer', '--gin_file=runs/finetune.gin', word])\n"
        "  except UserError as error: print(error)\n"
        "  else: raise AssertionError(word)\n"
        "assert not {'tensorflow', 'seqio', 't5', 'mesh_tensorflow', 'jax'} & set(sys.modules)\n"
    )
    words = ["--gin_file=no.gin", "--gin.TRAIN_STEP=5", "--gin.MIXTURE_OR_TASK_NAME=qa", "--modell"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(words)
