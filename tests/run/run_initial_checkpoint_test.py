"""What --checkpoint and the configuration name, as arguments of a run."""

import sys
import types

import pytest

from t0 import testing
from t0.checkpoints import ConversionOptions, checkpoint_files, convert
from t0.compat import mesh_utils
from t0.config import parse
from t0.config.bindings import bound
from t0.config.flags import from_values
from t0.errors import UserError
from t0.run import initial_checkpoint as weights_of_run
from t0.run import mesh_modes
from t0.run.checkpoint_checks import check_checkpoint_vocabulary
from t0.run.parsed_run import ParsedRun, run_mode
from tests.checkpoints.tiny_checkpoints import (
    BFLOAT16,
    V11,
    loaded,
    model_shape,
    train_pieces,
    weights,
    with_sentinels,
    write_mtf,
)

SIZES = [
    *(f"{name} = {getattr(V11, name)}" for name in ("d_model", "d_ff", "d_kv")),
    *(f"num_heads = {V11.heads}", f"num_layers = {V11.encoder_layers}"),
]


@pytest.fixture
def source(tmp_path):
    return write_mtf(tmp_path / "source", weights(V11, BFLOAT16), step=30)


@pytest.fixture
def hf(source, tmp_path):
    convert(source, tmp_path / "hf", to="hf")
    return tmp_path / "hf"


def find(folder, *params, checkpoint=None, vocabulary=None, vocab=None):
    parse.parse([], [*SIZES, *params])
    values = {"checkpoint": checkpoint and str(checkpoint), "model_dir": str(folder)}
    run = ParsedRun(from_values({**values, "vocab": vocab}), run_mode())
    if vocabulary:
        run.__dict__["vocabulary"] = vocabulary
        for note in check_checkpoint_vocabulary(run):
            print(note, file=sys.stderr)
    return weights_of_run.find(run)


def seen_by_mesh(checkpoint):
    """What Mesh TensorFlow's modes find while one of them reads `checkpoint`."""
    with mesh_modes.reading(checkpoint):
        found = list(mesh_utils.get_checkpoint_iterator("all", "/models/other"))
        return found, mesh_utils.get_step_from_checkpoint_path(checkpoint)


@pytest.mark.parametrize("name", ["run.init_checkpoint", "tpu_estimator_model_fn.init_checkpoint"])
def test_initial_checkpoint_from_gin_is_converted_if_needed(tmp_path, source, hf, name):
    assert find(tmp_path / "run") == ({}, None)
    prefix = str(source / "model.ckpt-30")
    assert find(tmp_path / "run", f"{name} = '{prefix}'") == ({}, None)
    assert find(tmp_path / "run", f"{name} = '{source}'") == ({"init_checkpoint": prefix}, None)
    arguments, _ = find(tmp_path / "run", f"{name} = '{hf}'")
    assert arguments["init_checkpoint"].startswith(f"{tmp_path}/run/converted/hf-")
    assert loaded(arguments["init_checkpoint"]) == loaded(source)


def test_checkpoint_flag_overrides_the_gin_configuration(tmp_path, source):
    given = "run.init_checkpoint = '/no/model.ckpt-3'"
    prefix = str(source / "model.ckpt-30")
    assert find(tmp_path, given, checkpoint=source) == ({"init_checkpoint": prefix}, None)
    with pytest.raises(UserError, match="/no/model.ckpt-3 does not exist"):
        find(tmp_path, given)


def test_resume_ignores_checkpoint_flag_and_gin_checkpoint(tmp_path, source):
    (source / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-30"\n')
    for checkpoint in (None, "/no/such"):
        given = find(source, "run.init_checkpoint = '/no/model.ckpt-3'", checkpoint=checkpoint)
        assert given == ({}, None)


def test_checkpoint_flag_is_read_by_other_modes_at_any_step(tmp_path, hf):
    # As infer.gin does; the macro needs no value where a checkpoint is named.
    given = ["run.mode = 'infer'", "run.eval_checkpoint_step = %infer_checkpoint_step"]
    arguments, checkpoint = find(tmp_path / "run", *given, checkpoint=hf)
    assert arguments == {"eval_checkpoint_step": -1, "export_checkpoint_step": -1}
    assert checkpoint.endswith("/model.ckpt-30")
    assert seen_by_mesh(checkpoint) == ([checkpoint], 30)
    assert bound("get_variable_dtype.master_dtype") == "bfloat16"


def test_checkpoint_step_comes_from_its_content_not_its_name(tmp_path, source):
    for path in source.glob("model.ckpt-30.*"):
        path.rename(source / path.name.replace("model.ckpt-30", "best"))
    _, checkpoint = find(tmp_path, "run.mode = 'infer'", checkpoint=source / "best")
    assert checkpoint == str(source / "best")
    assert seen_by_mesh(checkpoint) == ([checkpoint], 30)


def test_checkpoint_default_of_other_modes_is_model_directory(tmp_path):
    assert find(tmp_path, "run.mode = 'score_eval'") == ({}, None)


def test_checkpoint_path_of_a_run_file_is_converted(tmp_path, source, hf):
    def found(path):
        return find(tmp_path / "run", "run.mode = 'eval'", f"CHECKPOINT_PATH = '{path}'")[1]

    assert found(hf).startswith(f"{tmp_path}/run/converted/hf-")
    # Mesh TensorFlow's own, missing and remote ones are the run file's to take apart.
    for path in (source / "model.ckpt-30", "/no/such", "gs://b/model.ckpt-3"):
        assert found(path) is None


def test_checkpoint_weights_dtype(tmp_path, source):
    assert checkpoint_files.weights_dtype(str(source / "model.ckpt-30")) == "bfloat16"
    mixed = weights(V11) | {"shared/embedding": weights(V11, BFLOAT16)["shared/embedding"]}
    write_mtf(tmp_path / "mixed", mixed)
    assert checkpoint_files.weights_dtype(str(tmp_path / "mixed" / "model.ckpt-1000")) is None


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("kept", ["spiece.model", "tokenizer.json"])
def test_vocabulary_must_be_the_one_of_the_checkpoint(tmp_path, capsys, mode, kept):
    own = train_pieces(tmp_path / "own")
    other = testing.train_vocabulary(tmp_path / "other.model", ["snow and wind"] * 9)
    wider = model_shape(vocabulary=256)
    source, hf = write_mtf(tmp_path / "mtf", weights(wider)), tmp_path / "hf"
    convert(source, hf, to="hf", options=ConversionOptions(tokenizer=own))
    for name in {"spiece.model", "tokenizer.json"} - {kept}:
        (hf / name).unlink()

    def found(path, **flags):
        vocabulary = types.SimpleNamespace(sentencepiece_model_file=str(path), vocab_size=256)
        params = f"run.mode = '{mode}'"
        return find(tmp_path / "run", params, checkpoint=hf, vocabulary=vocabulary, **flags)

    for path in (own, with_sentinels(own)):
        assert found(path)
    assert "note" not in capsys.readouterr().err
    with pytest.raises(UserError) as caught:
        found(other)
    for part in (
        f"vocabulary {other} is not the checkpoint's own, {hf}/{kept}",
        f"--vocab={other}",
    ):
        assert part in str(caught.value)
    assert found(other, vocab=str(other))
    assert "is not the checkpoint's own" in capsys.readouterr().err
