"""The gin file beside a converted checkpoint makes Mesh TensorFlow build the checkpoint's model."""

import numpy as np
import pytest

from t0 import compat
from t0.checkpoints import convert, open_source
from tests.checkpoints.tiny_checkpoints import BFLOAT16, V10, V11, model_shape, weights, write_mtf

compat.apply()

import gin  # noqa: E402
import mesh_tensorflow as mtf  # noqa: E402
from mesh_tensorflow.transformer import utils as mesh_utils  # noqa: E402

from t0.config import parse  # noqa: E402
from t0.evaluation.mesh_model import Placement  # noqa: E402
from t0.evaluation.scorer import MeshScorer  # noqa: E402
from tests.checkpoints.mesh_forward import mesh_logits  # noqa: E402

IDS = np.asarray([[5, 6, 7, 1]], np.int32)


pytestmark = pytest.mark.usefixtures("empty_gin")


@pytest.mark.parametrize(
    ("model", "dtype", "legacy_norms"),
    [
        pytest.param(V10, np.float32, True, marks=pytest.mark.slow),
        (V11, BFLOAT16, False),
        pytest.param(*(model_shape(shared_bias=False), np.float32, False), marks=pytest.mark.slow),
    ],
    ids=["1.0 of the first release", "1.1 in bfloat16", "own biases"],
)
def test_operative_config_builds_and_restores_the_model(tmp_path, model, dtype, legacy_norms):
    source = write_mtf(tmp_path / "source", weights(model, dtype), legacy_norms=legacy_norms)
    convert(source, tmp_path / "hf", to="hf")
    convert(tmp_path / "hf", tmp_path / "mtf", to="mtf")
    parse.parse([str(tmp_path / "mtf" / "operative_config.gin")], [])
    gin.bind_parameter("get_variable_dtype.activation_dtype", "float32")
    gin.bind_parameter("get_variable_dtype.slice_dtype", "float32")
    rows = model.vocabulary
    built = mesh_utils.build_model(
        input_vocab_size=rows, output_vocab_size=rows, layout_rules=None, mesh_shape=None
    )
    place = Placement(mtf.Shape([]), mtf.LayoutRules(set()), [""])
    scorer = MeshScorer(built, mesh_utils.get_variable_dtype(), place)
    prefix = open_source(tmp_path / "mtf").path
    assert scorer.restore(prefix) == len(weights(model))
    found = scorer.log_likelihoods(IDS, IDS[None])
    scorer.close()
    gin.clear_config()
    activation = "gelu" if model.gated else "relu"
    logits = mesh_logits(model, activation, open_source(source).path, IDS, IDS).astype(np.float64)
    normal = np.log(np.exp(logits).sum(-1, keepdims=True))
    wanted = np.take_along_axis(logits - normal, IDS[..., None], -1).sum()
    assert found[0, 0] == pytest.approx(wanted, abs=1e-3)
