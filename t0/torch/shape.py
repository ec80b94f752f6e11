"""Reads a T5's sizes, dropout rates and loss parameters from a run specification.

    model = t5(spec.model)
    model.sizes.d_model, model.activation, model.dropout.residual

A specification contains the parameters of Mesh TensorFlow's layers, with the values that gin binds.
`t5` accepts T5 1.0, T5 1.1, LM-adapted models and mT5. If this engine does not support a setting,
an error names the setting, so no parameter is silently ignored.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from t0.checkpoints.shape import ModelShape
from t0.config.specification import ModelSpec
from t0.errors import UserError

# The parameters for which this engine supports only one value.
_FIXED = {
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
    "use_bias": False,
    "epsilon": 1e-6,
    "loss_fn": None,
    "positional_embedding": False,
    "sinusoid_positional_embedding": False,
    "input_full_attention": False,
    "loss_on_targets_only": False,
    "token_dropout_rate": 0.0,
    "ensemble": None,
}
_POSITIONS = {"SelfAttention": "bias_shared", "EncDecAttention": None}  # of each attention layer
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
        if any(type(x) not in (int, bool) or x > _LARGEST for x in sizes) or min(sizes[:8]) < 1:
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
    settings = [each for side, stack in stacks.items() for each in _read_stack(side, stack)]
    for owner, name, value in settings:
        if name in _FIXED and value != _FIXED[name]:
            raise _refusal(f"{owner}.{name}", value, repr(_FIXED[name]))
        if name == "relative_attention_type" and value != _POSITIONS[owner]:
            raise _refusal(f"{owner}.{name}", value, repr(_POSITIONS[owner]))

    def common(name: str, *owners: str) -> Any:
        """Returns the value of a parameter, which must be the same in all layers with it."""
        values = [x for owner, each, x in settings if each == name and owner in (owners or [owner])]
        if any(value != values[0] for value in values):
            raise _refusal(name, values, "one value for all layers")
        return values[0]

    activation = common("activation")
    activation = tuple(activation) if isinstance(activation, list) else (activation,)
    if activation not in _ACTIVATIONS:
        raise _refusal("DenseReluDense.activation", activation, "relu, or gelu * linear")
    decoder, heads = spec.decoder, common("num_heads")
    has_dropout = any(owner in _DROPOUTS for owner, *_ in settings)
    sizes = ModelShape(
        vocabulary=common("input_vocab"),
        d_model=common("d_model"),
        d_ff=common("hidden_size"),
        inner=heads * common("key_value_size"),
        heads=heads,
        buckets=common("relative_attention_num_buckets", "SelfAttention"),
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
            residual=common("dropout_rate", *_DROPOUTS) if has_dropout else 0.0,
            attention=common("dropout_rate", *_POSITIONS),
            hidden=common("dropout_rate", "DenseReluDense"),
        ),
        label_smoothing=decoder["label_smoothing"],
        z_loss=decoder["z_loss"],
        loss_denominator=decoder["loss_denominator"],
        legacy_norms=any("legacy" in x["selector"] for x in decoder["sublayers"]["per_layer"]),
    )


def _read_stack(side: str, stack: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yields (owner, parameter, value) for a stack; checks the kinds and order of its layers."""
    kinds, expected = [_kind(layer) for layer in stack["layers"]], list(_BLOCKS[side])
    if not kinds or kinds != expected * (len(kinds) // len(expected)):
        raise _refusal(f"the {side}'s layers", kinds, f"blocks of {', '.join(expected)}")
    sublayers = stack["sublayers"]
    for group, expected in _SUBLAYERS.items():
        kinds = [_kind(x) for x in sublayers[group]]
        kinds = ["norm" if x in _NORMS else "dropout" if x in _DROPOUTS else x for x in kinds]
        if kinds not in (list(expected), [x for x in expected if x != "dropout"]):
            raise _refusal(f"{side}'s LayerStack.sublayers_{group}", kinds, ", ".join(expected))
    yield from ((side, name, value) for name, value in stack.items())
    for layer in [*stack["layers"], *(x for group in _SUBLAYERS for x in sublayers[group])]:
        defaults = {"dropout_rate": 0.0} if _kind(layer) in _DROPOUTS else {}
        parameters = {**defaults, **layer["parameters"]}
        yield from ((_kind(layer), name, value) for name, value in parameters.items())


def _kind(layer: Mapping[str, Any]) -> str:
    """Returns the name of a layer's function in Mesh TensorFlow, such as "SelfAttention"."""
    return layer["selector"].rpartition(".")[2]


def _refusal(name: str, value: Any, expected: str) -> UserError:
    return UserError(
        f"{name} is {value!r:.100}, which the PyTorch engine does not compute; "
        f"expected {expected}. Mesh TensorFlow computes it: t5_mesh_transformer "
        "without --engine=torch"
    )
