"""Each patch mends what it says, and what it mends is still broken as published.

What the patches do to whole runs is tested in end_to_end/modes_test.py.
"""

import importlib
import importlib.util
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from t0 import compat
from t0.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
ROWS = {patch.apply.__name__: patch.apply for patch in compat.PATCHES}


@pytest.fixture(autouse=True)
def patched():
    compat.apply()


def test_patches_are_named_once_and_have_reasons():
    assert len(ROWS) == len(compat.PATCHES)
    assert all(patch.why for patch in compat.PATCHES)


def test_compat_attribute_is_the_module_that_it_names():
    assert compat.mesh_utils is importlib.import_module("mesh_tensorflow.transformer.utils")
    for name, path in compat.DOORS.items():
        assert (
            getattr(compat, name)
            .__name__.removesuffix("._api.v2.v2")
            .endswith(path.rpartition(".")[2])
        ), name


def test_compat_unknown_module_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'mesh_tensorflow'"):
        compat.mesh_tensorflow  # noqa: B018


def test_compat_import_does_not_import_the_packages():
    code = (
        "import sys; from t0 import compat; "
        "print({path.partition('.')[0] for path in compat.DOORS.values()} & sys.modules.keys())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "set()\n"


def test_patches_applied_twice_patch_once():
    from mesh_tensorflow.transformer import utils

    patched = utils.get_estimator
    compat.apply()
    assert utils.get_estimator is patched


def test_compat_import_prints_nothing():
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    code = "from t0.compat import seqio; print('imported')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("imported\n", "")


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A machine without a firmware's product name, nor variables about Google's."""
    names = ("NO_GCE_CHECK", "GCS_METADATA_REQUEST_TIMEOUT_SECS", *compat._GOOGLE_VARIABLES)
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compat, "_PRODUCT_NAME", str(tmp_path / "product_name"))
    return tmp_path / "product_name"


def test_patch_for_google_cloud_keeps_user_environment_variables(elsewhere, monkeypatch):
    patch = ROWS["_skip_metadata_server"]
    monkeypatch.setenv("GCS_REQUEST_CONNECTION_TIMEOUT_SECS", "77")
    patch()
    assert os.environ["NO_GCE_CHECK"] == "true"
    assert os.environ["GCS_METADATA_REQUEST_TIMEOUT_SECS"] == "10"
    assert os.environ["GCS_REQUEST_CONNECTION_TIMEOUT_SECS"] == "77"
    monkeypatch.setenv("NO_GCE_CHECK", "false")
    patch()
    assert os.environ["NO_GCE_CHECK"] == "false"


@pytest.mark.parametrize(
    ("product", "variable", "asks"),
    [
        (None, None, False),
        ("Standard PC (Q35 + ICH9, 2009)", None, False),
        ("Google Compute Engine", None, True),
        ("Google", None, True),
        (None, "TPU_NAME", True),
        ("OptiPlex", "GCE_METADATA_HOST", True),
    ],
)
def test_patch_metadata_server_is_used_on_google_machines(
    elsewhere, monkeypatch, product, variable, asks
):
    # Without the question gs:// is anonymous on a TPU VM whose credentials are the metadata
    # server's; with it, it hangs elsewhere.
    if product:
        elsewhere.write_text(product + "\n")
    if variable:
        monkeypatch.setenv(variable, "mine")
    ROWS["_skip_metadata_server"]()
    assert ("NO_GCE_CHECK" not in os.environ) == asks


def test_patch_function_that_mesh_tensorflow_needs_is_restored(monkeypatch):
    from tensorflow.python.framework import ops

    source = Path(importlib.util.find_spec("mesh_tensorflow").origin).parent / "tpu_variables.py"
    assert "ops.register_tensor_conversion_function" in source.read_text()
    monkeypatch.delattr(ops, "register_tensor_conversion_function")
    assert "def register_tensor_conversion_function" not in Path(ops.__file__).read_text()
    ROWS["_add_tensor_conversion_function"]()
    assert callable(ops.register_tensor_conversion_function)


def test_patch_t5_models_import_without_pytorch():
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        pytest.skip("PyTorch and transformers are installed: nothing stands in for them")
    import t5.models

    source = Path(t5.models.__file__).parent
    assert "hf_model" in (source / "__init__.py").read_text()
    assert "import torch" in (source / "hf_model.py").read_text()
    with pytest.raises(UserError, match="bin/setup --with hf"):
        t5.models.HfPyTorchModel("t5-small", "/m", "cpu")


@pytest.mark.parametrize(
    "name", ["t5.data.sentencepiece_vocabulary", "seqio.sentencepiece_vocabulary"]
)
def test_patch_modules_of_old_gin_files_can_be_imported(name):
    package, _, module = name.rpartition(".")
    folder = Path(importlib.import_module(package).__file__).parent
    assert not (folder / f"{module}.py").exists()
    importlib.import_module(name)


def test_patch_t0_vocab_replaces_default_t5_vocabulary(monkeypatch):
    import t5.data

    utils = sys.modules["t5.data.utils"]
    monkeypatch.setattr(utils, "DEFAULT_SPM_PATH", "gs://published")
    ROWS["_set_vocabulary_of_t5"]()
    assert t5.data.get_default_vocabulary().sentencepiece_model_file == "gs://published"
    monkeypatch.setenv("T0_VOCAB", "/v/my.model")
    ROWS["_set_vocabulary_of_t5"]()
    assert t5.data.get_default_vocabulary().sentencepiece_model_file == "/v/my.model"


def test_patch_prediction_lines_are_written_as_text(tmp_path):
    from mesh_tensorflow.transformer import utils as mesh_utils
    from t5.models import utils as t5_utils

    for number, utils in enumerate((mesh_utils, t5_utils)):
        path = tmp_path / str(number) / "lines"
        utils.write_lines_to_file(["Köln".encode(), "Paris", 3, b"\xff"], str(path))
        assert path.read_text(encoding="utf-8") == "Köln\nParis\n3\n\ufffd\n"


def test_patch_loss_is_not_printed_for_each_step(capfd):
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default(), tf.Session() as session:
        loss = tf.Print(tf.constant(2.5), [tf.constant(2.5)], "step, tf_loss")
        assert session.run(loss) == 2.5
    assert "tf_loss" not in capfd.readouterr().err


class Vocabulary:
    vocab_size = 9

    def decode_tf(self, ids):
        return f"text of {ids}"


class Estimator:
    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def texts(self):
        several = self.vocabulary if isinstance(self.vocabulary, tuple) else (self.vocabulary,)
        assert all(one.vocab_size == 9 for one in several)
        return [one.decode_tf(1) for one in several if hasattr(one, "decode_tf")]

    def export_saved_model(self, folder):
        return folder, self.texts()


@pytest.mark.parametrize("vocabulary", [Vocabulary(), (Vocabulary(), Vocabulary())])
def test_patch_scoring_gets_ids_and_exported_model_gets_text(monkeypatch, vocabulary):
    from mesh_tensorflow.transformer import utils

    def published(*, vocabulary, score_in_predict_mode):
        return Estimator(vocabulary)

    monkeypatch.setattr(utils, "get_estimator", published)
    ROWS["_keep_ids_for_scoring"]()
    scoring = utils.get_estimator(vocabulary=vocabulary, score_in_predict_mode=True)
    count = len(vocabulary) if isinstance(vocabulary, tuple) else 1
    assert scoring.texts() == []
    assert scoring.export_saved_model("f") == ("f", ["text of 1"] * count)
    decoding = utils.get_estimator(vocabulary=vocabulary, score_in_predict_mode=False)
    assert decoding.vocabulary is vocabulary


def test_replaced_function_is_temporary_and_nested():
    from mesh_tensorflow.transformer import utils

    published = utils.infer_model
    with compat.replaced("mesh_utils.infer_model", print) as outer:
        assert utils.infer_model is print
        with compat.replaced("mesh_utils.infer_model", repr) as inner:
            assert (outer, inner, utils.infer_model) == (published, print, repr)
        assert utils.infer_model is print
    assert utils.infer_model is published


def test_replaced_function_is_restored_after_an_error():
    from mesh_tensorflow.transformer import utils

    published = utils.infer_model
    with pytest.raises(OSError), compat.replaced("mesh_utils.infer_model", print):
        raise OSError
    assert utils.infer_model is published


@pytest.mark.parametrize("name", ["mesh_utils.run", "mesh_tensorflow.decode", "decode"])
def test_replaced_function_must_have_a_row(name):
    with pytest.raises(ValueError, match="mesh_utils.eval_model"), compat.replaced(name, print):
        pass


def test_replaceable_rows_name_existing_functions_and_reasons():
    for name, why in compat.REPLACEABLE.items():
        assert pkgutil.resolve_name(f"t0.compat:{name}") and why


def test_replaceable_rows_are_all_used():
    texts = [path.read_text() for path in (ROOT / "t0").rglob("*.py") if path.name != "compat.py"]
    assert not [name for name in compat.REPLACEABLE if not any(f'"{name}"' in t for t in texts)]
