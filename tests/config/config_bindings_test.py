"""What macros stand for, which of them must be set, and where each binding was written."""

import json
from pathlib import Path

import gin
import pytest
from gin import config as gin_config

from t0.config import parse
from t0.config.bindings import bound, read_arguments
from t0.errors import UserError
from t0.run import run_files
from t0.training import checkpointing, model_directory

RUN = """
A = %gin.REQUIRED
B = %gin.REQUIRED
ALSO_B = %B
UNUSED = %gin.REQUIRED

run.train_steps = %A
run:
  init_checkpoint = %ALSO_B
  sequence_length = {'inputs': %LENGTH, 'targets': 8}
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Parses RUN with some bindings after it."""
    (tmp_path / "run.gin").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    return lambda *params: parse.parse(["run.gin"], params)


def test_gin_macros_are_resolved_to_values(read):
    read("A = 5", "LENGTH = %A")
    assert bound("run.train_steps", evaluate=False) == 5
    assert bound("run.sequence_length", evaluate=False) == {"inputs": 5, "targets": 8}
    assert bound("run.init_checkpoint", evaluate=False) is gin.REQUIRED
    assert bound("run.eval_summary_dir", "none", evaluate=False) == "none"
    assert bound("%NONE", evaluate=False) is None
    # A call stays a reference: nothing has run.
    assert repr(bound("run.mesh_shape", evaluate=False)).endswith("tpu_mesh_shape()")
    assert "LENGTH" not in gin.operative_config_str()


def test_gin_missing_macros_are_named_with_file_and_line(read):
    parsed = read()
    with pytest.raises(UserError) as error:
        parse.check_required(parsed)
    assert str(error.value) == (
        "the gin configuration needs A (run.gin:2), B (run.gin:3) and LENGTH (run.gin:10), and "
        "nothing sets them: --gin.A=... --gin.B=... --gin.LENGTH=..."
    )
    with pytest.raises(UserError, match=r"needs B \(run.gin:3\), and nothing sets it"):
        parse.check_required(parsed, except_for={"A"}, undefined=False)


@pytest.mark.parametrize("name", ["B", "ALSO_B"])
def test_gin_macro_chain_may_be_set_by_either_name(read, name):
    parsed = read("A = 1", "LENGTH = 2", f"{name} = '/x'")
    assert parsed.unread_macros == ()
    parse.check_required(parsed)
    assert bound("run.init_checkpoint", evaluate=False) == "/x"
    gin.finalize()  # which would complain of a mark that is left


def test_gin_macro_set_by_a_flag_may_be_missing(read):
    parsed = read("B = '/x'", "LENGTH = 2")
    parse.check_required(parsed, except_for={"A"})
    assert bound("run.train_steps", "unset", evaluate=False) is None


def test_gin_binding_origin_is_the_last_statement(read, tmp_path):
    (tmp_path / "more.gin").write_text("include 'models/t5.1.1.tiny.gin'\n\nC = 1\nd_ff = 3\n")
    parsed = parse.parse(["run.gin", "more.gin"], ["C = 2", "unknown.x = 1"], skip_all_unknown=True)
    found = parse.origins(parsed)
    assert found["C", "gin.macro", "value"] == "the command line"
    assert found["d_ff", "gin.macro", "value"] == "more.gin:4"
    assert found["d_model", "gin.macro", "value"].startswith("models/t5.1.1.tiny.gin:")
    (run,) = (selector for _, selector in gin_config._CONFIG if selector.endswith(".run"))
    assert found["", run, "init_checkpoint"] == "run.gin:9"
    assert found["", run, "optimizer"].startswith("defaults.gin:")
    paths = dict.fromkeys(x.location.filename for x in parsed.statements if x.location.filename)
    names = [Path(path).name for path in paths]
    assert names.index("run.gin") < names.index("more.gin") < names.index("t5.1.1.tiny.gin")
    assert all(Path(path).is_file() for path in paths)


@pytest.mark.parametrize(
    ("flag", "macro", "folder"),
    [
        ("/m", None, "/m"),
        (None, "'/m'", "/m"),
        ("/m/", "'/m'", "/m"),
        ("/m", "%gin.REQUIRED", "/m"),
        (None, None, None),
        (None, "@t0.folder_of_checkpoint()", "/c"),
    ],
)
def test_model_directory_from_flag_or_macro(flag, macro, folder):
    bindings = ["t0.folder_of_checkpoint.checkpoint = '/c/model.ckpt-3'"]
    parse.parse([], [*bindings, *([f"MODEL_DIR = {macro}"] if macro else [])])
    assert run_files.model_dir(flag) == folder
    if flag and macro != "'/m'":
        assert bound("%MODEL_DIR", evaluate=False) == flag
    # Who takes the operative config for another run gets no folder with it.
    if macro and "@" not in macro:
        assert "MODEL_DIR" not in gin.operative_config_str()


@pytest.mark.parametrize(
    ("flag", "macro", "message"),
    [
        ("/a", "'/b'", "--model_dir=/a and the gin macro MODEL_DIR = '/b' differ"),
        (None, "3", "MODEL_DIR is 3; expected the path of a folder"),
        (None, "''", "MODEL_DIR is ''; expected the path"),
    ],
)
def test_model_directory_that_is_wrong_is_refused(flag, macro, message):
    parse.parse([], [f"MODEL_DIR = {macro}"])
    with pytest.raises(UserError, match=message):
        run_files.model_dir(flag)


def test_checkpoint_path_is_split_into_folder_and_step(tmp_path):
    for step in (3, 20):
        (tmp_path / f"model.ckpt-{step}.index").write_text("")
    for checkpoint, step in ((tmp_path / "model.ckpt-3", 3), (tmp_path, 20)):
        assert run_files.folder_of_checkpoint(str(checkpoint)) == str(tmp_path)
        assert run_files.step_of_checkpoint(str(checkpoint)) == step
    assert run_files.folder_of_checkpoint("model.ckpt-3.index") == "."
    with pytest.raises(UserError, match="has checkpoints of the steps: 3, 20"):
        run_files.step_of_checkpoint(str(tmp_path / "model.ckpt-4"))
    with pytest.raises(UserError, match="steps: none"):
        run_files.step_of_checkpoint(str(tmp_path / "no"))
    with pytest.raises(UserError, match="CHECKPOINT_PATH is None; expected a path in quotes"):
        run_files.folder_of_checkpoint(None)


def test_configuration_comparison_ignores_macros_that_may_differ(tmp_path):
    values = {
        "TRAIN_STEPS": "5",
        "run.train_steps": "%TRAIN_STEPS",
        "BATCH": "%ROWS",
        "ROWS": "8",
        "run.batch_size": "('sequences_per_batch', %BATCH)",
        "should_load_variable.filter_fn": "None",
    }
    (tmp_path / "configuration.json").write_text(json.dumps(values))
    lines = model_directory.check_same(str(tmp_path), checkpointing.configuration(), allowed=True)
    found = {line.split()[0].rstrip(":") for line in lines}
    assert found == {"BATCH", "ROWS", "run.batch_size"}


def test_read_arguments_equal_a_call_and_keep_operative_config(empty_gin):
    from mesh_tensorflow.transformer import utils

    gin.parse_config(
        "run.mesh_shape = ''\nrun.layout_rules = ''\nSTEPS = 7\nrun.train_steps = %STEPS\n"
        "run.optimizer = @AdafactorOptimizer\nAdafactorOptimizer.decay_rate = 0.5"
    )
    before = dict(gin_config._REGISTRY.items())
    found = read_arguments(
        utils.run, tpu_job_name="", tpu="", gcp_project="", tpu_zone="", model_dir="/m", mode="eval"
    )
    assert (found["train_steps"], found["mode"], found["batch_size"]) == (
        7, "eval", ("tokens_per_replica", 2048),
    )  # fmt: skip
    assert found["optimizer"].__name__ == "AdafactorOptimizer"
    assert found["eval_dataset_fn"] is None
    operative = gin.operative_config_str()
    assert "run.train_steps = %STEPS" in operative
    assert "run.model_dir" not in operative
    assert dict(gin_config._REGISTRY.items()) == before


def test_read_arguments_with_missing_required_values_are_refused(empty_gin):
    from mesh_tensorflow.transformer import utils

    places = dict.fromkeys(("tpu_job_name", "tpu", "gcp_project", "tpu_zone", "model_dir"), "")
    with pytest.raises(RuntimeError, match="Required bindings for `run` not provided"):
        read_arguments(utils.run, **places)
    with pytest.raises(TypeError):
        read_arguments(utils.run, nonsense=1, mesh_shape="", layout_rules="", **places)
