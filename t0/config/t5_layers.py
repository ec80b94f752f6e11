"""Reads a T5's numbers from a description of the layers of Mesh TensorFlow's model.

    model = {"encoder": stack, "decoder": stack}
    read_sizes(model).d_model
    read_t5(model).dropout.residual         # raises an `OtherModelError` if a setting is not T5's

`t0.mesh.t5_model` describes the layers of a model that it has built. Run specifications of schema 1
contain such descriptions. A stack is a mapping from the parameters of Mesh TensorFlow's
`Unitransformer` to their values. Its "layers" are a list of `{"selector": ..., "parameters": ...}`,
with the layers' names and parameters in gin. Its "sublayers" are the functions that run before the
layers ("initial"), around each layer ("per_layer") and after the layers ("final"), in the same
form.
"""

import dataclasses
import operator
from collections.abc import Iterator, Mapping
from typing import Any

from t0.config.model_spec import Dropout, ModelShape, T5Spec
from t0.errors import UserError

ENCODER_DECODER = "bitransformer"  # Mesh TensorFlow's name of the kind of model

# The parameters for which T5 has only one value.
_FIXED = {
    "layer_stack": "mesh_tensorflow.transformer.transformer.LayerStack",
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
_ATTENTION = {"SelfAttention": "bias_shared", "EncDecAttention": None}  # of each attention layer
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
_ACTIVATIONS = {("relu",): "relu", ("gelu", "linear"): "gelu", ("swish", "linear"): "silu"}
Stacks = Mapping[str, Mapping[str, Any]]


class OtherModelError(ValueError):
    """A setting differs from T5's."""

    def __init__(self, name: str, value: Any, expected: str) -> None:
        super().__init__(f"{name} is {value!r:.100}; expected {expected}")


def read_sizes(stacks: Stacks) -> ModelShape:
    """Returns the sizes of a T5's tensors.

    Args:
      stacks: "encoder" and "decoder" -> the description of the stack.

    Raises:
      OtherModelError: if there are other layers, or if layers have different sizes.
    """
    return _Settings(stacks).sizes()


def read_t5(stacks: Stacks) -> T5Spec:
    """Returns the settings of a T5.

    Args:
      stacks: "encoder" and "decoder" -> the description of the stack.

    Raises:
      OtherModelError: if a setting is not one of T5's. The message names the setting.
    """
    settings = _Settings(stacks)
    settings.check()
    decoder = stacks["decoder"]
    around = decoder["sublayers"]["per_layer"]
    return T5Spec(
        settings.sizes(),
        activation=settings.activation(),
        dropout=Dropout(
            residual=settings.common("dropout_rate", *_DROPOUTS, default=0.0),
            attention=settings.common("dropout_rate", *_ATTENTION),
            hidden=settings.common("dropout_rate", "DenseReluDense"),
        ),
        label_smoothing=decoder["label_smoothing"],
        z_loss=decoder["z_loss"],
        loss_denominator=decoder["loss_denominator"],
        legacy_norms=any("legacy" in sublayer["selector"] for sublayer in around),
    )


def t5_or_other(model_type: Any, stacks: Stacks) -> tuple[T5Spec | None, str]:
    """Returns the settings of a T5, or None and the setting by which a model differs from a T5.

    Args:
      model_type: Mesh TensorFlow's name of the kind of model.
      stacks: "encoder" and "decoder" -> the description of the stack.
    """
    try:
        if model_type != ENCODER_DECODER:
            expected = f"'{ENCODER_DECODER}', an encoder-decoder"
            raise OtherModelError("run.model_type", model_type, expected)
        return read_t5(stacks), ""
    except OtherModelError as error:
        return None, str(error)


def model_of_schema_1(model: Any) -> dict[str, Any]:
    """Returns the model of a specification of schema 1 as plain data of today's schema.

    Raises:
      UserError: if the description is damaged.
    """
    try:
        t5, other = t5_or_other(model["model_type"], model)
        types = {name: model[name] for name in ("activations", "weights")}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"the specification's model cannot be read ({type(error).__name__}: {error!s:.200}); "
            "write it again with t5_mesh_transformer --save_spec"
        ) from error
    return {"t5": t5 and dataclasses.asdict(t5), "other": other, **types}


class _Settings:
    """The parameters of all layers, and of the functions around them."""

    def __init__(self, stacks: Stacks) -> None:
        if absent := [side for side in _BLOCKS if not stacks.get(side)]:
            raise OtherModelError(f"the {absent[0]}", None, "a stack of layers")
        self._stacks = stacks
        self._settings = [each for side in _BLOCKS for each in _read_stack(side, stacks[side])]

    def common(self, name: str, *owners: str, default: Any = None) -> Any:
        """Returns the value of a parameter, which must be the same in all layers that have it."""
        values = [
            value
            for owner, each, value in self._settings
            if each == name and owner in (owners or (owner,))
        ]
        if any(value != values[0] for value in values):
            raise OtherModelError(name, values, "one value for all layers")
        return values[0] if values or default is None else default

    def activation(self) -> str:
        """Returns the activation of the feed-forward layers."""
        names = self._functions()
        if names not in _ACTIVATIONS:
            raise OtherModelError("DenseReluDense.activation", names, "relu, or gelu * linear")
        return _ACTIVATIONS[names]

    def _functions(self) -> tuple[Any, ...]:
        activation = self.common("activation")
        return tuple(activation) if isinstance(activation, list | tuple) else (activation,)

    def sizes(self) -> ModelShape:
        """Returns the sizes of the tensors."""
        decoder, heads = self._stacks["decoder"], self.common("num_heads")
        position = self.common("relative_attention_type", "SelfAttention")
        layers = {side: len(self._stacks[side]["layers"]) for side in _BLOCKS}
        return ModelShape(
            vocabulary=self.common("input_vocab"),
            d_model=self.common("d_model"),
            d_ff=self.common("hidden_size"),
            inner=operator.index(heads) * operator.index(self.common("key_value_size")),
            heads=heads,
            buckets=self.common("relative_attention_num_buckets", "SelfAttention"),
            encoder_layers=layers["encoder"] // len(_BLOCKS["encoder"]),
            decoder_layers=layers["decoder"] // len(_BLOCKS["decoder"]),
            gated=len(self._functions()) == 2,
            tied=decoder["shared_embedding_and_softmax_weights"],
            shared_bias=position != "bias",
        )

    def check(self) -> None:
        """Checks the parameters that have only one value in a T5, and the functions."""
        for owner, name, value in self._settings:
            if name in _FIXED and value != _FIXED[name]:
                raise OtherModelError(f"{owner}.{name}", value, repr(_FIXED[name]))
            if name == "relative_attention_type" and value != _ATTENTION[owner]:
                raise OtherModelError(f"{owner}.{name}", value, repr(_ATTENTION[owner]))
        for side in _BLOCKS:
            stack = self._stacks[side]
            for group, expected in _SUBLAYERS.items():
                kinds = [_kind(x) for x in stack["sublayers"][group]]
                kinds = [
                    "norm" if x in _NORMS else "dropout" if x in _DROPOUTS else x for x in kinds
                ]
                if kinds not in (list(expected), [x for x in expected if x != "dropout"]):
                    name = f"{side}'s LayerStack.sublayers_{group}"
                    raise OtherModelError(name, kinds, ", ".join(expected))


def _read_stack(side: str, stack: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yields (owner, parameter, value) for a stack; checks the kinds and order of its layers."""
    kinds, expected = [_kind(layer) for layer in stack["layers"]], list(_BLOCKS[side])
    if not kinds or kinds != expected * (len(kinds) // len(expected)):
        raise OtherModelError(f"the {side}'s layers", kinds, f"blocks of {', '.join(expected)}")
    yield from ((side, name, value) for name, value in stack.items())
    functions = (function for group in _SUBLAYERS for function in stack["sublayers"][group])
    for layer in (*stack["layers"], *functions):
        defaults = {"dropout_rate": 0.0} if _kind(layer) in _DROPOUTS else {}
        parameters = {**defaults, **layer["parameters"]}
        yield from ((_kind(layer), name, value) for name, value in parameters.items())


def _kind(layer: Mapping[str, Any]) -> str:
    """Returns the name of a layer's class in Mesh TensorFlow, such as "SelfAttention"."""
    return layer["selector"].rpartition(".")[2]
