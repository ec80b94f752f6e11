"""Which inference `t5_mesh_transformer` runs: ours, or Mesh TensorFlow's with its estimator."""

import pytest

from t0 import compat

compat.apply()

import gin  # noqa: E402
from mesh_tensorflow.transformer import utils as mesh_utils  # noqa: E402

from t0.cli import launch  # noqa: E402
from t0.inference import predict  # noqa: E402

ARGUMENTS = ("vocabulary", {"inputs": 8, "targets": 8}, 4, "type", "/model")


@pytest.fixture
def called(monkeypatch):
    gin.clear_config()
    gin.bind_parameter("run.mode", "infer")
    calls = []
    monkeypatch.setattr(mesh_utils, "get_estimator", lambda **keywords: ("estimator", keywords))
    monkeypatch.setattr(mesh_utils, "infer_model", lambda *args: calls.append(("mesh", *args)))
    monkeypatch.setattr(predict, "infer_model", lambda *a, **k: calls.append(("ours", *a, k)))
    launch._infer_here("/checkpoint")
    yield calls
    gin.clear_config()


def test_an_encoder_decoder_is_ours_and_builds_no_estimator(called):
    estimator = mesh_utils.get_estimator(model_type="bitransformer")
    mesh_utils.infer_model(estimator, *ARGUMENTS, None)
    ((who, given, *rest),) = called
    assert (who, given) == ("ours", estimator)
    assert given.keywords == {"model_type": "bitransformer"}
    assert rest == [*ARGUMENTS, None, {"checkpoint": "/checkpoint"}]


def test_a_language_model_is_mesh_tensorflows_and_waits_for_no_checkpoint(called):
    mesh_utils.infer_model(mesh_utils.get_estimator(model_type="lm"), *ARGUMENTS, None)
    assert called == [("mesh", ("estimator", {"model_type": "lm"}), *ARGUMENTS, -1)]
