"""What --checkpoint and the configuration name, as arguments of a run."""

import sys
import types
from pathlib import Path

import pytest

from t0 import compat

compat.apply()

import gin  # noqa: E402
from mesh_tensorflow.transformer import utils as mesh_utils  # noqa: E402

from t0.checkpoints import checkpoint_files, convert  # noqa: E402
from t0.cli import weights as command  # noqa: E402
from t0.errors import UserError  # noqa: E402
from t0.training import config  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checkpoints"))
from tiny_checkpoints import BFLOAT16, V11, loaded, weights, write_mtf  # noqa: E402


@pytest.fixture(autouse=True)
def untouched(monkeypatch):
    for name in ("get_checkpoint_iterator", "get_step_from_checkpoint_path"):
        monkeypatch.setattr(mesh_utils, name, getattr(mesh_utils, name))
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture
def source(tmp_path):
    return write_mtf(tmp_path / "source", weights(V11, BFLOAT16), step=30)


@pytest.fixture
def hf(source, tmp_path):
    convert(source, tmp_path / "hf", to="hf", progress=False)
    return tmp_path / "hf"


def find(folder, *params, checkpoint=None):
    config.parse([], list(params))
    flags = types.SimpleNamespace(checkpoint=checkpoint and str(checkpoint), model_dir=str(folder))
    return command.find(flags)


@pytest.mark.parametrize("name", ["run.init_checkpoint", "tpu_estimator_model_fn.init_checkpoint"])
def test_initial_checkpoint_of_the_configuration(tmp_path, source, hf, name):
    assert find(tmp_path / "run") == ({}, None)
    prefix = str(source / "model.ckpt-30")
    assert find(tmp_path / "run", f"{name} = '{prefix}'") == ({}, None)
    assert find(tmp_path / "run", f"{name} = '{source}'") == ({"init_checkpoint": prefix}, None)
    arguments, _ = find(tmp_path / "run", f"{name} = '{hf}'")
    assert arguments["init_checkpoint"].startswith(f"{tmp_path}/run/converted/hf-")
    assert loaded(arguments["init_checkpoint"]) == loaded(source)


def test_flag_wins_over_the_configuration(tmp_path, source):
    given = "run.init_checkpoint = '/no/model.ckpt-3'"
    prefix = str(source / "model.ckpt-30")
    assert find(tmp_path, given, checkpoint=source) == ({"init_checkpoint": prefix}, None)
    with pytest.raises(UserError, match="/no/model.ckpt-3 does not exist"):
        find(tmp_path, given)


def test_a_run_that_goes_on_reads_no_other(tmp_path, source):
    (source / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-30"\n')
    for checkpoint in (None, "/no/such"):
        given = find(source, "run.init_checkpoint = '/no/model.ckpt-3'", checkpoint=checkpoint)
        assert given == ({}, None)


def test_other_modes_read_it_whatever_step_they_ask_for(tmp_path, hf):
    # As infer.gin does; the macro needs no value where a checkpoint is named.
    given = ["run.mode = 'infer'", "run.eval_checkpoint_step = %infer_checkpoint_step"]
    arguments, checkpoint = find(tmp_path / "run", *given, checkpoint=hf)
    assert arguments == {"eval_checkpoint_step": -1, "export_checkpoint_step": -1}
    assert checkpoint.endswith("/model.ckpt-30")
    assert list(mesh_utils.get_checkpoint_iterator("all", "/models/other")) == [checkpoint]
    assert mesh_utils.get_step_from_checkpoint_path(checkpoint) == 30
    assert config.bound("get_variable_dtype.master_dtype") == "bfloat16"


def test_step_is_the_checkpoints_whatever_it_is_called(tmp_path, source):
    for path in source.glob("model.ckpt-30.*"):
        path.rename(source / path.name.replace("model.ckpt-30", "best"))
    _, checkpoint = find(tmp_path, "run.mode = 'infer'", checkpoint=source / "best")
    assert checkpoint == str(source / "best")
    assert mesh_utils.get_step_from_checkpoint_path(checkpoint) == 30


def test_other_modes_read_the_model_directory_by_default(tmp_path):
    published = mesh_utils.get_checkpoint_iterator
    assert find(tmp_path, "run.mode = 'score_eval'") == ({}, None)
    assert mesh_utils.get_checkpoint_iterator is published


def test_checkpoint_of_a_run_file(tmp_path, source, hf):
    def found(path):
        return find(tmp_path / "run", "run.mode = 'eval'", f"CHECKPOINT_PATH = '{path}'")[1]

    assert found(hf).startswith(f"{tmp_path}/run/converted/hf-")
    # Mesh TensorFlow's own, missing and remote ones are the run file's to take apart.
    for path in (source / "model.ckpt-30", "/no/such", "gs://b/model.ckpt-3"):
        assert found(path) is None


def test_dtype_of_weights(tmp_path, source):
    assert checkpoint_files.weights_dtype(str(source / "model.ckpt-30")) == "bfloat16"
    mixed = weights(V11) | {"shared/embedding": weights(V11, BFLOAT16)["shared/embedding"]}
    write_mtf(tmp_path / "mixed", mixed)
    assert checkpoint_files.weights_dtype(str(tmp_path / "mixed" / "model.ckpt-1000")) is None
