"""The layers of Mesh TensorFlow's model as a T5's numbers; other settings are named."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t0.config.model_spec import require_t5
from t0.config.specification import RunSpec, from_json
from t0.errors import UserError

ATTENTION = {
    "num_heads": 4,
    "num_memory_heads": 0,
    "key_value_size": 16,
    "dropout_rate": 0.1,
    "relative_attention_num_buckets": 32,
    "combine_dims": True,
}
LAYERS = {
    "SelfAttention": {**ATTENTION, "relative_attention_type": "bias_shared"},
    "EncDecAttention": {**ATTENTION, "relative_attention_type": None},
    "DenseReluDense": {
        "hidden_size": 64,
        "dropout_rate": 0.1,
        "activation": ["gelu", "linear"],
        "use_bias": False,
    },
}
DROPOUT = {"selector": "m.sublayer_dropout", "parameters": {"dropout_rate": 0.1}}
NORM = {"selector": "m.sublayer_rms_norm", "parameters": {"epsilon": 1e-6}}
SUBLAYERS = {
    "initial": [DROPOUT],
    "per_layer": [
        NORM,
        {"selector": "m.sublayer_call_layer", "parameters": {}},
        DROPOUT,
        {"selector": "m.sublayer_residual", "parameters": {}},
    ],
    "final": [NORM, DROPOUT],
}
STACK = {
    "d_model": 32,
    "input_vocab": 128,
    "shared_embedding_and_softmax_weights": False,
    "label_smoothing": 0.0,
    "z_loss": 1e-4,
    "loss_denominator": None,
    "sublayers": SUBLAYERS,
}


def stack(*kinds):
    layers = [
        {"selector": f"mesh.{kind}", "name": "", "parameters": LAYERS[kind]} for kind in kinds * 2
    ]
    return copy.deepcopy({**STACK, "layers": layers})


def both():
    encoder = stack("SelfAttention", "DenseReluDense")
    return encoder, stack("SelfAttention", "EncDecAttention", "DenseReluDense")


@pytest.fixture
def stacks():
    return both()


def read(encoder, decoder, model_type="bitransformer"):
    model = {"model_type": model_type, "encoder": encoder, "decoder": decoder}
    model |= {"activations": "float32", "weights": "float32"}
    vocabulary = {"file": "/v", "size": 100, "extra_ids": 0}
    run = {"mode": "train", "model_dir": "/m", "model": model, "schema": 1}
    run |= dict.fromkeys(("inputs_vocabulary", "targets_vocabulary"), vocabulary)
    text = json.dumps({**run, "lengths": {"targets": 8}, "batch_sequences": 4})
    return require_t5(from_json(text, RunSpec).model)


def test_model_shape_has_sizes_and_dropout_of_specification(stacks):
    found = read(*stacks)
    assert (found.sizes.inner, found.sizes.heads, found.sizes.d_kv) == (64, 4, 16)
    assert (found.sizes.encoder_layers, found.sizes.decoder_layers) == (2, 2)
    assert (found.sizes.gated, found.sizes.tied, found.activation) == (True, False, "gelu")
    assert found.dropout.residual == found.dropout.attention == found.dropout.hidden == 0.1
    assert not found.legacy_norms


def test_legacy_rms_norm_is_detected_by_its_sublayer(stacks):
    for each in stacks:
        each["sublayers"]["per_layer"][0]["selector"] = "m.sublayer_legacy_rms_norm"
    assert read(*stacks).legacy_norms


def layer(number, **changes):
    def change(stacks):
        stacks[1]["layers"][number]["parameters"] |= changes

    return change


def of_decoder(**changes):
    return lambda stacks: stacks[1].update(changes)


def sublayers(place, value):
    return lambda stacks: stacks[1]["sublayers"].update({place: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (layer(0, num_memory_heads=1), "SelfAttention.num_memory_heads is 1"),
        (layer(0, shared_kv=True), "SelfAttention.shared_kv is True"),
        (layer(0, relative_attention_type="bias"), "relative_attention_type is 'bias'"),
        (layer(0, z_loss_coeff=0.1), "SelfAttention.z_loss_coeff is 0.1"),
        (layer(1, dropout_rate=0.2), "dropout_rate is .*one value for all layers"),
        (layer(3, num_heads=8), "num_heads is .*one value for all layers"),
        (layer(2, use_bias=True), "DenseReluDense.use_bias is True"),
        (layer(2, activation="tanh"), "activation is"),
        (of_decoder(ensemble=2), "decoder.ensemble is 2"),
        (of_decoder(loss_on_targets_only=True), "decoder.loss_on_targets_only is True"),
        (of_decoder(positional_embedding=True), "decoder.positional_embedding is True"),
        (of_decoder(d_model=64), "d_model is .*one value"),
        (sublayers("final", [DROPOUT]), "decoder's LayerStack.sublayers_final is"),
        (
            sublayers("final", [{**NORM, "parameters": {"epsilon": 0.1}}, DROPOUT]),
            "sublayer_rms_norm.epsilon is 0.1",
        ),
        (lambda stacks: stacks[1]["layers"].pop(), "the decoder's layers is"),
        (lambda stacks: stacks[0]["layers"].clear(), "the encoder's layers is"),
    ],
)
def test_model_shape_unsupported_setting_is_refused_by_name(stacks, change, said):
    change(stacks)
    with pytest.raises(UserError, match=said):
        read(*stacks)


def test_language_model_is_refused(stacks):
    with pytest.raises(UserError, match="run.model_type is 'lm'"):
        read(*stacks, model_type="lm")


def places(value):
    """Every (container, key) of nested lists and mappings."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


ODD = st.sampled_from([None, True, -1, 0, 2**70, 1e308, "", "gelu", [], {}, [None], {"a": 1}])


@settings(max_examples=300)
@given(st.data())
def test_model_shape_of_changed_specification_is_read_or_refused(data):
    encoder, decoder = both()
    stacks = [encoder, decoder]
    there = list(places(stacks))
    container, key = there[data.draw(st.integers(0, len(there) - 1))]
    if data.draw(st.booleans()) and isinstance(container, dict):
        del container[key]
    else:
        container[key] = data.draw(ODD)
    try:
        found = read(*stacks)
    except UserError as error:
        assert len(str(error)) < 1000
    else:
        assert found.sizes.d_model >= 0
