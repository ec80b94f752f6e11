import pytest
from hypothesis import given
from hypothesis import strategies as st

from t0.checkpoints import names
from t0.checkpoints.shape import expected_shapes, read_shape
from t0.errors import UserError
from tests.checkpoints.tiny_checkpoints import V10, V11, model_shape

BLOCKS = st.integers(0, 1200)


@given(st.sampled_from(names.ROWS), BLOCKS)
def test_checkpoint_names_convert_in_both_directions(row, block):
    name = row.mtf.format(b=block)
    assert names.from_mtf(name) == name
    assert names.from_hf(names.hf_name(name)) == name
    assert names.from_t5x(names.t5x_name(name)) == name
    assert names.from_mtf(names.to_mtf(name, legacy_norms=True)) == name


def test_checkpoint_names_are_unique():
    for column in ("mtf", "hf", "t5x"):
        assert len({getattr(row, column) for row in names.ROWS}) == len(names.ROWS)


@pytest.mark.parametrize(
    ("mtf", "hf", "t5x"),
    [
        ("shared/embedding", "shared.weight", "token_embedder/embedding"),
        (
            "encoder/block_011/layer_000/SelfAttention/q",
            "encoder.block.11.layer.0.SelfAttention.q.weight",
            "encoder/layers_11/attention/query/kernel",
        ),
        (
            "decoder/block_000/layer_001/EncDecAttention/o",
            "decoder.block.0.layer.1.EncDecAttention.o.weight",
            "decoder/layers_0/encoder_decoder_attention/out/kernel",
        ),
        (
            "decoder/block_002/layer_001/rms_norm/scale",
            "decoder.block.2.layer.1.layer_norm.weight",
            "decoder/layers_2/pre_cross_attention_layer_norm/scale",
        ),
        (
            "encoder/block_000/layer_001/DenseReluDense/wi_1/kernel",
            "encoder.block.0.layer.1.DenseReluDense.wi_1.weight",
            "encoder/layers_0/mlp/wi_1/kernel",
        ),
        (
            "decoder/block_000/layer_002/DenseReluDense/wo/kernel",
            "decoder.block.0.layer.2.DenseReluDense.wo.weight",
            "decoder/layers_0/mlp/wo/kernel",
        ),
        ("decoder/rms_norm/scale", "decoder.final_layer_norm.weight", "decoder/decoder_norm/scale"),
        ("decoder/logits/kernel", "lm_head.weight", "decoder/logits_dense/kernel"),
    ],
)
def test_checkpoint_names_of_published_checkpoints(mtf, hf, t5x):
    assert (names.hf_name(mtf), names.t5x_name(mtf)) == (hf, t5x)


@pytest.mark.parametrize(
    ("legacy", "current"),
    [
        ("encoder/final_layer_norm/scale", "encoder/rms_norm/scale"),
        (
            "decoder/block_000/layer_001/layer_norm/scale_slot_v",
            "decoder/block_000/layer_001/rms_norm/scale_slot_v",
        ),
    ],
)
def test_checkpoint_names_legacy_layer_norms(legacy, current):
    assert names.from_mtf(legacy) == current
    assert names.to_mtf(current, legacy_norms=True) == legacy


@pytest.mark.parametrize(
    "name",
    [
        "encoder/block_0/layer_000/SelfAttention/q",
        "encoder/block_000/layer_001/SelfAttention/q",
        "encoder/block_000/layer_000/SelfAttention/q/bias",
        "shared/embedding_slot_x",
        "model.layers.0.self_attn.q_proj.weight",
        "",
    ],
)
def test_checkpoint_names_unknown_give_none(name):
    assert names.from_mtf(name) is None
    assert names.from_hf(name) is None
    assert names.from_t5x(name) is None


SIZES = st.integers(1, 4)


@given(
    st.builds(
        model_shape,
        encoder_layers=SIZES,
        decoder_layers=st.integers(2, 4),
        gated=st.booleans(),
        tied=st.booleans(),
        shared_bias=st.booleans(),
        inner=st.sampled_from([2, 16, 32]),
    )
)
def test_checkpoint_model_shape_is_read_back(model):
    assert read_shape(expected_shapes(model)) == model


def test_checkpoint_parameter_count_of_t5_1_1_small():
    small = model_shape(
        vocabulary=32128,
        d_model=512,
        d_ff=1024,
        inner=384,
        heads=6,
        encoder_layers=8,
        decoder_layers=8,
    )
    count = sum(a[0] * (a[1] if len(a) > 1 else 1) for a in expected_shapes(small).values())
    assert count == 76_961_152  # T5 1.1 small


@pytest.mark.parametrize("model", [V10, V11])
def test_checkpoint_model_shape_missing_tensor_is_named(model):
    shapes = expected_shapes(model)
    for name in shapes:
        rest = {n: s for n, s in shapes.items() if n != name}
        if name == "decoder/logits/kernel":  # without it the model is a tied one
            assert read_shape(rest).tied
            continue
        with pytest.raises(UserError, match=name):
            read_shape(rest)


def test_checkpoint_model_shape_contradicting_tensors_are_named():
    shapes = expected_shapes(V11)
    shapes["decoder/block_001/layer_002/DenseReluDense/wo/kernel"] = (47, 32)
    with pytest.raises(UserError, match=r"DenseReluDense/wo/kernel.*\[47, 32\].*d_ff is 48"):
        read_shape(shapes)
    shapes = expected_shapes(V11) | {
        "encoder/block_000/layer_001/DenseReluDense/wi/kernel": (32, 48)
    }
    with pytest.raises(UserError, match="that a T5 does not have"):
        read_shape(shapes)
    with pytest.raises(UserError, match="not a T5"):
        read_shape({"shared/embedding": (128, 32)})
    far = {"encoder/block_999999/layer_000/rms_norm/scale": (32,)}
    with pytest.raises(UserError, match="block's number"):
        read_shape(expected_shapes(V11) | far)
