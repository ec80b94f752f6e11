"""An initial checkpoint of Mesh TensorFlow that lacks variables of the model."""

import pytest

torch = pytest.importorskip("torch")

from t0.config.model_spec import Dropout, T5Spec  # noqa: E402
from t0.errors import UserError  # noqa: E402
from t0.torch import checkpointing as engine_weights  # noqa: E402
from t0.torch import optimizers, processes, sharding  # noqa: E402
from tests.checkpoints.tiny_checkpoints import V11, weights, write_mtf  # noqa: E402

LACKING = "decoder/logits/kernel"


@pytest.fixture(scope="module")
def model():
    spec = T5Spec(V11, "gelu", Dropout(), label_smoothing=0.0, z_loss=0.0, loss_denominator=None)
    with processes.join_processes("cpu") as joined:
        yield sharding.sharded(spec, joined, activations=torch.float32), joined


@pytest.fixture(scope="module")
def tensors():
    return weights(V11)


@pytest.fixture
def start(model, tensors, tmp_path):
    write_mtf(tmp_path, {name: x for name, x in tensors.items() if name != LACKING}, step=7)

    def begin(**given):
        optimizer = optimizers.AdamW([], model[1].all_reduce_sum, None)
        return engine_weights.warm_start(model[0], optimizer, str(tmp_path), model[1], **given)

    return begin


def test_warm_start_missing_variables_stay_random_if_named(model, tensors, start):
    step, lines = start(unfilled=("logits",), seed=3)
    assert step == 7
    assert f"left random: {LACKING}" in lines
    assert f"restored {len(tensors) - 1} of {len(tensors)} variables" in lines[0]
    found = {
        name: sharding.local_rows(parameter).clone()
        for name, parameter in sharding.names_and_parameters(model[0]).items()
    }
    engine_weights.fill_at_random(model[0], 3, model[1])
    drawn = sharding.local_rows(sharding.names_and_parameters(model[0])[LACKING])
    assert torch.equal(found[LACKING], drawn)
    name = "shared/embedding"
    assert torch.equal(found[name], torch.from_numpy(tensors[name]))


def test_warm_start_missing_variables_are_refused_unless_named(start):
    with pytest.raises(UserError, match="leaves 1 of the model's .* such as decoder/logits/kernel"):
        start(unfilled=("encoder",))
    with pytest.raises(UserError):
        start()


@pytest.mark.parametrize(
    ("name", "deviation", "truncated"),
    [
        ("encoder/block_000/layer_001/DenseReluDense/wi_0/kernel", "d_model", True),
        ("encoder/block_000/layer_001/DenseReluDense/wo/kernel", "d_ff", True),
        ("decoder/logits/kernel", "d_model", True),
        ("encoder/block_000/layer_000/SelfAttention/k", "d_model", False),
    ],
)
def test_random_initialization_has_mesh_tensorflow_distribution(model, name, deviation, truncated):
    engine_weights.fill_at_random(model[0], 3, model[1])
    drawn = sharding.local_rows(sharding.names_and_parameters(model[0])[name])
    scale = getattr(V11, deviation) ** -0.5
    assert (drawn.abs().max() <= 2 * scale) == truncated
    # The deviation of a normal distribution that is cut at two of its deviations.
    assert drawn.std().item() == pytest.approx(scale * (0.8796 if truncated else 1.0), rel=0.1)
