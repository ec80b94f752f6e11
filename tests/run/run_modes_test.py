"""Which program carries out a mode: ours, or Mesh TensorFlow's `run`."""

import inspect
import types

import numpy as np
import pytest

from t0.compat import gin, mesh_utils
from t0.config.flag_table import GIN_MODES
from t0.errors import UserError
from t0.prompts.model_prompts import ModelPrompts, RecordedPrompt, read_model_prompts
from t0.prompts.templates import Template
from t0.run import mesh_modes, modes, run_arguments
from t0.run.modes import ConfiguredRun
from t0.training import mesh_session
from tests.checkpoints.tiny_checkpoints import write_mtf

LENGTHS = {"inputs": 64, "targets": 8}
PLACES = dict.fromkeys(("tpu_job_name", "tpu", "gcp_project", "tpu_zone"))
ARGUMENTS = {"model_dir": "/m", "vocabulary": "v", "mesh_shape": "", "mesh_devices": [""], **PLACES}


@pytest.fixture
def called(monkeypatch, empty_gin):
    """What was called, each with its arguments; nothing is carried out."""
    calls = []
    gin.parse_config("run.layout_rules = ''\nrun.sequence_length = 8\nrun.batch_size = 4")
    gin.parse_config("run.train_steps = 5")
    monkeypatch.setattr(mesh_utils, "run", lambda **given: calls.append(("mesh", given)))
    monkeypatch.setattr(
        modes.text_decoder, "predict", lambda *given: calls.append(("ours", *given))
    )
    return calls


def test_modes_table_has_every_gin_mode():
    assert set(modes.MODES) == set(GIN_MODES)


def test_infer_mode_of_encoder_decoder_builds_no_estimator(monkeypatch, called):
    monkeypatch.undo()
    gin.parse_config("run.mode = 'infer'")
    calls = []
    monkeypatch.setattr(modes.text_decoder, "predict", lambda *given: calls.append(given))
    modes.carry_out(ConfiguredRun("infer", ARGUMENTS, "/checkpoint"))
    ((given, _, checkpoint),) = calls
    assert given["model_type"] == "bitransformer"
    assert checkpoint == "/checkpoint"
    assert given["sequence_length"] == {"inputs": 8, "targets": 8}
    assert given["batch_size"] == 4


def test_infer_mode_of_language_model_does_not_wait_for_checkpoint(monkeypatch, called):
    gin.parse_config("run.model_type = 'lm'")
    steps = []
    monkeypatch.setattr(mesh_utils, "infer_model", lambda *args: steps.append(args[-1]))
    monkeypatch.setattr(mesh_utils, "run", lambda **given: mesh_utils.infer_model("e", None))
    modes.carry_out(ConfiguredRun("infer", ARGUMENTS))
    assert steps == [-1]


def test_resume_writes_the_missing_checkpoint_file(tmp_path, capsys):
    weights = {"shared/embedding": np.zeros([8, 2], np.float32)}
    write_mtf(tmp_path, weights, step=5)
    spec = types.SimpleNamespace(model_dir=str(tmp_path), sequence_length=LENGTHS)
    mesh_session.train(spec, mesh_session.LoopOptions(5), None)
    said = capsys.readouterr().out
    assert f"checkpoint is missing: resuming from {tmp_path}/model.ckpt-5, the newest" in said
    assert "nothing to train" in said
    assert 'model_checkpoint_path: "model.ckpt-5"' in (tmp_path / "checkpoint").read_text()


def test_finished_run_without_recorded_prompts_records_them(tmp_path, monkeypatch):
    write_mtf(tmp_path, {"shared/embedding": np.zeros([8, 2], np.float32)}, step=5)
    template = Template("say", "{{text}} ||| {{label}}", None, "", True, True, (), "say")
    prompts = (RecordedPrompt("reviews_say", "reviews", False, template),)
    monkeypatch.setattr(
        mesh_session.checkpointing,
        "prompts_of_mixture",
        lambda mixture, lengths: ModelPrompts(lengths, "/v.model", prompts),
    )
    spec = types.SimpleNamespace(model_dir=str(tmp_path), sequence_length=LENGTHS)
    mesh_session.train(spec, mesh_session.LoopOptions(5), None)
    file = tmp_path / "prompts.json"
    assert read_model_prompts(str(tmp_path)).lengths == LENGTHS
    file.write_text("the prompts of the training")
    mesh_session.train(spec, mesh_session.LoopOptions(5), None)
    assert file.read_text() == "the prompts of the training"


def test_replaced_functions_are_restored_after_a_run(monkeypatch, called):
    before = dict(vars(mesh_utils))
    seen = []
    monkeypatch.setattr(
        mesh_utils, "run", lambda **given: seen.append(mesh_utils.get_checkpoint_iterator(5, "/m"))
    )
    modes.carry_out(ConfiguredRun("perplexity_eval", ARGUMENTS, "/other/model.ckpt-7"))
    assert seen == [["/other/model.ckpt-7"]]
    assert {n: v for n, v in vars(mesh_utils).items() if n != "run"} == {
        n: v for n, v in before.items() if n != "run"
    }


@pytest.mark.parametrize("mode", GIN_MODES)
def test_tpu_modes_use_mesh_tensorflow_run(mode, called):
    arguments = {**ARGUMENTS, "tpu": "my-tpu"}
    modes.carry_out(ConfiguredRun(mode, arguments))
    assert called == [("mesh", arguments)]


def test_run_arguments_read_from_gin_match_run_signature(empty_gin):
    gin.parse_config(
        "run.layout_rules = 'batch:batch'\nrun.sequence_length = {'inputs': 8, 'targets': 4}\n"
        "run.batch_size = ('sequences_per_batch', 6)\nrun.train_steps = 9\n"
        "run.learning_rate_schedule = @constant_learning_rate\nrun.mode = 'score_eval'\n"
        "run.ensemble_inputs = 3"
    )
    found = run_arguments.read(ARGUMENTS)
    assert found.keys() == inspect.signature(mesh_utils.run).parameters.keys()
    assert (found["batch_size"], found["train_steps"]) == (6, 9)
    assert found["ensemble_inputs"] is None  # of training alone
    assert found["learning_rate_schedule"].keywords == {"total_train_steps": 9}
    assert found["mesh_shape"].size == 1


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Cannot find any TPU cores in the system (master address ). This", "found no TPU cores"),
        ("Missing runtime dependency on the Google API client. Run", "bin/setup --with tpu"),
        ('TPU "my-tpu" is not yet ready; state: "CREATING"', "may have been preempted"),
    ],
)
def test_tpu_error_message_of_tensorflow_is_one_line(monkeypatch, called, said, remedy):
    def fail(**given):
        raise RuntimeError(said + "\nmore")

    monkeypatch.setattr(mesh_utils, "run", fail)
    with pytest.raises(UserError, match=f"^--tpu=my-tpu: .*{remedy}.*\\)$"):
        modes.carry_out(ConfiguredRun("score_eval", {**ARGUMENTS, "tpu": "my-tpu"}))


def test_tpu_other_errors_keep_their_traceback(monkeypatch, called):
    def fail(**given):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(mesh_utils, "run", fail)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        modes.carry_out(ConfiguredRun("train", {**ARGUMENTS, "tpu": "my-tpu"}))


def test_tpu_lost_during_training_exits_as_resumable(monkeypatch, called, capsys):
    def fail(**given):
        raise mesh_modes.tf.errors.UnavailableError(
            None, None, "failed to connect to all addresses"
        )

    monkeypatch.setattr(mesh_utils, "run", fail)
    with pytest.raises(SystemExit) as ended:
        modes.carry_out(ConfiguredRun("train", {**ARGUMENTS, "tpu": "my-tpu"}))
    assert ended.value.code == 75
    assert "the TPU was lost; the last checkpoint is saved" in capsys.readouterr().err
