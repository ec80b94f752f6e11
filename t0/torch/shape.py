"""Reads a T5's sizes, dropout rates and loss parameters from a run specification.

    model = t5(spec.model)
    model.sizes.d_model, model.activation, model.dropout.residual

A specification contains the parameters of Mesh TensorFlow's layers, with the values that gin binds.
`t5` accepts T5 1.0, T5 1.1, LM-adapted models and mT5. If this engine does not support a setting,
an error names the setting, so no parameter is silently ignored.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from t0.checkpoints.shape import ModelShape
from t0.config.specification import ModelSpec
from t0.errors import UserError

_ATTENTION = {
    "num_memory_heads": 0,
    "shared_kv": False,
    "attention_kwargs": {},
    "attention_func": None,
    "combine_dims": True,
    "keep_query_heads_dims": False,
    "fold_scaling_into_initializer": True,
    "z_loss_coeff": None,
    "use_hyperprompt": False,
    "hyperprompt_length_encoder": None,
    "hyperprompt_length_decoder": None,
}
_STACK = {
    "loss_fn": None,
    "positional_embedding": False,
    "sinusoid_positional_embedding": False,
    "input_full_attention": False,
    "loss_on_targets_only": False,
    "token_dropout_rate": 0.0,
    "ensemble": None,
}
# The parameters for which this engine supports only one value: layer -> parameter -> that value.
_FIXED = {
    "SelfAttention": _ATTENTION,
    "EncDecAttention": {**_ATTENTION, "relative_attention_type": None},
    "DenseReluDense": {"use_bias": False},
}
_BLOCKS = {
    "encoder": ("SelfAttention", "DenseReluDense"),
    "decoder": ("SelfAttention", "EncDecAttention", "DenseReluDense"),
}
_NORMS = ("sublayer_rms_norm", "sublayer_legacy_rms_norm", "sublayer_legacy_final_rms_norm")
_DROPOUTS = ("sublayer_dropout", "sublayer_legacy_dropout")
# The sublayers of a T5's layers in their order. The dropout sublayers may be missing.
_SUBLAYERS = {
    "initial": ("dropout",),
    "per_layer": ("norm", "sublayer_call_layer", "dropout", "sublayer_residual"),
    "final": ("norm", "dropout"),
}
_LARGEST = 2**31 - 1
_ACTIVATIONS = {("relu",): "relu", ("gelu", "linear"): "gelu", ("swish", "linear"): "silu"}


@dataclasses.dataclass(frozen=True)
class Dropout:
    """The dropout rates of a T5.

    Attributes:
      residual: the rate for the embeddings, the output of each layer, and the output of each stack.
      attention: the rate for the attention weights.
      hidden: the rate for the hidden values of feed-forward layers.
    """

    residual: float = 0.0
    attention: float = 0.0
    hidden: float = 0.0


@dataclasses.dataclass(frozen=True)
class T5Spec:
    """The settings of a T5: its sizes, activation, dropout rates and loss.

    Attributes:
      sizes: the sizes of the model's tensors.
      activation: the activation of feed-forward layers. With "relu", the layers are not gated; with
        "gelu" or "silu", they are gated.
      dropout: the dropout rates.
      label_smoothing: the part of the target's probability that is taken from the target and spread
        evenly over all tokens.
      z_loss: the factor of the z-loss. The z-loss is the square of the logarithm of the softmax's
        denominator.
      loss_denominator: the number by which the summed loss is divided; None to divide by the number
        of target positions in the batch.
      legacy_norms: whether norms have their older names in the model's Mesh TensorFlow checkpoints.
    """

    sizes: ModelShape
    activation: str
    dropout: Dropout
    label_smoothing: float
    z_loss: float
    loss_denominator: float | None
    legacy_norms: bool = False


def t5(spec: ModelSpec) -> T5Spec:
    """Returns the settings of the T5 in a specification.

    Raises:
      UserError: if this engine does not support a setting. The message names the setting.
    """
    if spec.model_type != "bitransformer":
        raise _refusal("run.model_type", spec.model_type, "'bitransformer', an encoder-decoder")
    try:
        model = _read_model(spec)
        numbers = (*dataclasses.astuple(model.dropout), model.label_smoothing, model.z_loss)
        if any(type(x) not in (int, float) or not 0 <= x < 1 for x in numbers):
            raise ValueError(f"rates of {numbers!r:.80}")
        sizes = dataclasses.astuple(model.sizes)
        if (
            any(type(x) not in (int, bool) or not x <= _LARGEST for x in sizes)
            or min(sizes[:8]) < 1
        ):
            raise ValueError(f"sizes of {model.sizes!r:.200}")
        if model.loss_denominator is not None and not float(model.loss_denominator) > 0:
            raise ValueError(f"a loss_denominator of {model.loss_denominator!r:.40}")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"the specification's model cannot be read ({type(error).__name__}: {error!s:.200}); "
            "write it again with t5_mesh_transformer --save_spec"
        ) from error
    return model


def _read_model(spec: ModelSpec) -> T5Spec:
    stacks = {"encoder": spec.encoder, "decoder": spec.decoder}
    layers = {side: _read_layers(side, stack) for side, stack in stacks.items()}
    all_layers = [*layers["encoder"], *layers["decoder"]]
    attention_layers = [x for x in all_layers if "num_heads" in x]
    biased_layers = [
        x for x in all_layers if "relative_attention_num_buckets" in x and _has_bias(x)
    ]
    dense_layers = [x for x in all_layers if "hidden_size" in x]
    heads, width = (
        _common_value(attention_layers, "num_heads"),
        _common_value(attention_layers, "key_value_size"),
    )
    activation = dense_layers[0]["activation"]
    activation = tuple(activation) if isinstance(activation, list) else (activation,)
    if activation not in _ACTIVATIONS or any(
        x["activation"] != dense_layers[0]["activation"] for x in dense_layers
    ):
        raise _refusal(
            "DenseReluDense.activation", dense_layers[0]["activation"], "relu, or gelu * linear"
        )
    decoder = spec.decoder
    sizes = ModelShape(
        vocabulary=_common_value(stacks.values(), "input_vocab"),
        d_model=_common_value(stacks.values(), "d_model"),
        d_ff=_common_value(dense_layers, "hidden_size"),
        inner=heads * width,
        heads=heads,
        buckets=_common_value(biased_layers, "relative_attention_num_buckets"),
        encoder_layers=len(spec.encoder["layers"]) // len(_BLOCKS["encoder"]),
        decoder_layers=len(decoder["layers"]) // len(_BLOCKS["decoder"]),
        gated=len(activation) == 2,
        tied=decoder["shared_embedding_and_softmax_weights"],
        shared_bias=True,
    )
    return T5Spec(
        sizes,
        activation=_ACTIVATIONS[activation],
        dropout=Dropout(
            residual=_common_value(map(_residual_dropout, stacks.values()), "rate"),
            attention=_common_value(attention_layers, "dropout_rate"),
            hidden=_common_value(dense_layers, "dropout_rate"),
        ),
        label_smoothing=decoder["label_smoothing"],
        z_loss=decoder["z_loss"],
        loss_denominator=decoder["loss_denominator"],
        legacy_norms=any("legacy" in x["selector"] for x in decoder["sublayers"]["per_layer"]),
    )


def _read_layers(side: str, stack: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Checks the kinds and fixed values of a stack's layers; returns the layers' parameters."""
    _check_fixed(side, stack, _STACK)
    _check_sublayers(side, stack["sublayers"])
    kinds = [layer["selector"].rpartition(".")[2] for layer in stack["layers"]]
    expected = _BLOCKS[side]
    if not kinds or kinds != list(expected) * (len(kinds) // len(expected)):
        raise _refusal(
            f"the {side}'s layers", kinds[: len(expected)], f"blocks of {', '.join(expected)}"
        )
    for kind, layer in zip(kinds, stack["layers"], strict=True):
        _check_fixed(kind, layer["parameters"], _FIXED[kind])
        bias = layer["parameters"].get("relative_attention_type")
        if kind == "SelfAttention" and bias != "bias_shared":
            raise _refusal("SelfAttention.relative_attention_type", bias, "'bias_shared'")
    return [layer["parameters"] for layer in stack["layers"]]


def _has_bias(attention: Mapping[str, Any]) -> bool:
    return attention.get("relative_attention_type") is not None


def _check_fixed(owner: str, parameters: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    for name, value in fixed.items():
        if name in parameters and parameters[name] != value:
            raise _refusal(f"{owner}.{name}", parameters[name], repr(value))


def _check_sublayers(side: str, sublayers: Mapping[str, Any]) -> None:
    for group, expected in _SUBLAYERS.items():
        selectors = [x["selector"].rpartition(".")[2] for x in sublayers[group]]
        kinds = ["norm" if x in _NORMS else "dropout" if x in _DROPOUTS else x for x in selectors]
        if kinds not in (list(expected), [x for x in expected if x != "dropout"]):
            raise _refusal(f"{side}'s LayerStack.sublayers_{group}", selectors, ", ".join(expected))
        for sublayer in sublayers[group]:
            epsilon = sublayer["parameters"].get("epsilon", 1e-6)
            if epsilon != 1e-6:
                raise _refusal("sublayer_rms_norm.epsilon", epsilon, "1e-06")


def _residual_dropout(stack: Mapping[str, Any]) -> dict[str, float]:
    """Returns the dropout rate that all sublayers of a stack share."""
    rates = [
        sublayer["parameters"].get("dropout_rate", 0.0)
        for group in stack["sublayers"].values()
        for sublayer in group
        if sublayer["selector"].rpartition(".")[2] in _DROPOUTS
    ]
    return {
        "rate": _common_value(
            [{"rate": rate} for rate in rates] or [{"rate": 0.0}], "sublayers' rate"
        )
    }


def _common_value(parameter_sets: Iterable[Mapping[str, Any]], name: str) -> Any:
    """Returns the value of a parameter, which must be the same in all parameter sets."""
    key = name.rpartition(" ")[2]
    values = [x[key] for x in parameter_sets]
    if any(value != values[0] for value in values):
        raise _refusal(name, sorted(set(values)), "one value for all layers")
    return values[0]


def _refusal(name: str, value: Any, expected: str) -> UserError:
    return UserError(
        f"{name} is {value!r:.100}, which the PyTorch engine does not compute; wanted {expected}. "
        "Mesh TensorFlow computes it: t5_mesh_transformer without --engine=torch"
    )
