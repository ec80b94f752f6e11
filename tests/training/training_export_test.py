"""The export of a finished run, on a checkpoint and a configuration made by hand."""

import json

import pytest
import tensorflow.compat.v1 as tf

from t0.compat import gin
from t0.errors import UserError
from t0.testing import train_vocabulary
from t0.training import export
from tests.checkpoints.tiny_checkpoints import (
    bits,
    loaded,
    model_shape,
    slots,
    train_pieces,
    weights,
    write_mtf,
)
from tests.training import tiny_training as tiny

MODEL = model_shape(
    d_model=8, d_ff=16, inner=8, heads=2, encoder_layers=1, decoder_layers=1, vocabulary=256
)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    return train_pieces(tmp_path_factory.mktemp("pieces"))


class Vocabulary:
    vocab_size = 160

    def __init__(self, path=None):
        if path:
            self.sentencepiece_model_file = str(path)


@pytest.fixture
def model_dir(tmp_path):
    tensors = weights(MODEL)
    for step in (10, 20):
        write_mtf(tmp_path / "model", tensors | slots(tensors, factored_from=8), step=step)
    state = 'model_checkpoint_path: "model.ckpt-10"\n'  # the checkpoint that training resumes from
    (tmp_path / "model" / "checkpoint").write_text(state)
    (tmp_path / "model" / "operative_config.gin").write_text("dropout_rate = 0.05\n")
    return tmp_path / "model"


def test_hugging_face_export_refuses_bpe_vocabulary_and_epsilon(tmp_path):
    tiny.training_spec(tmp_path)
    text = [f"rain and snow in {i} places" for i in range(99)]
    other = train_vocabulary(tmp_path / "other.model", text, size=60, model_type="bpe")
    with pytest.raises(UserError, match="--export_hf: the vocabulary .* is a BPE model"):
        export.check(str(tmp_path / "hf"), vocabulary=Vocabulary(other))
    gin.bind_parameter("sublayer_rms_norm.epsilon", 1e-5)
    with pytest.raises(UserError, match="--export_hf: the run says .*epsilon = 1e-05"):
        export.check(str(tmp_path / "hf"), vocabulary=Vocabulary())


def test_hugging_face_export_of_last_checkpoint_with_tokenizer(model_dir, tmp_path, pieces, capsys):
    place = {"model_dir": str(model_dir), "vocabulary": Vocabulary(pieces)}
    tiny.training_spec(model_dir)
    export.check(str(tmp_path / "hf"), vocabulary=place["vocabulary"])
    assert not (tmp_path / "hf").exists()
    export.export(str(tmp_path / "hf"), **place)
    assert loaded(tmp_path / "hf") == {name: bits(a) for name, a in weights(MODEL).items()}
    assert (tmp_path / "hf" / "spiece.model").read_bytes() == pieces.read_bytes()
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dropout_rate"] == 0.05
    out = capsys.readouterr().out
    assert out.startswith(f"exported {model_dir}/model.ckpt-10 to {tmp_path}/hf: ")
    assert "no tokenizer" not in out


def test_hugging_face_export_copies_remote_tokenizer(model_dir, tmp_path, pieces):
    with tf.io.gfile.GFile("ram://vocabulary/spiece.model", "wb") as file:
        file.write(pieces.read_bytes())
    vocabulary = (Vocabulary("ram://vocabulary/spiece.model"), Vocabulary())
    export.export(str(tmp_path / "hf"), model_dir=str(model_dir), vocabulary=vocabulary)
    assert (tmp_path / "hf" / "spiece.model").read_bytes() == pieces.read_bytes()


def test_hugging_face_export_without_tokenizer(model_dir, tmp_path, capsys):
    export.export(str(tmp_path / "hf"), model_dir=str(model_dir), vocabulary=Vocabulary())
    assert capsys.readouterr().out.endswith("GB, no tokenizer\n")
    assert not list((tmp_path / "hf").glob("*token*"))


def test_hugging_face_export_checks_folder_and_disk_first(model_dir, tmp_path, monkeypatch):
    def check(folder=tmp_path / "hf"):
        export.check(str(folder), vocabulary=Vocabulary())

    tiny.training_spec(model_dir)
    check()
    with pytest.raises(UserError, match="exists and is not empty"):
        check(model_dir)
    usage = type("Usage", (), {"free": 63 << 20})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(UserError, match="the checkpoint needs 0.07 GB, but the disk of"):
        check()


def test_hugging_face_export_without_checkpoint_is_refused(model_dir, tmp_path):
    tiny.training_spec(model_dir)
    with pytest.raises(UserError, match="holds no checkpoint"):
        export.export(str(tmp_path / "hf"), model_dir=str(tmp_path), vocabulary=Vocabulary())
