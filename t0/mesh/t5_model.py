"""Reads a T5's numbers from the model that Mesh TensorFlow has built from gin's bindings.

    model = mesh_utils.build_model(...)
    t5, other = read("bitransformer", model)
    sizes(model).d_model

The layers are described in the form that `t0.config.t5_layers` reads.
"""

from collections.abc import Callable
from typing import Any

from t0.compat import transformer
from t0.config import t5_layers
from t0.config.model_spec import ModelShape, T5Spec
from t0.config.plain_values import parameters_of, selector_of, to_plain
from t0.errors import UserError

_ATTENTION = (
    *("num_heads", "num_memory_heads", "key_value_size", "shared_kv", "dropout_rate"),
    *("attention_kwargs", "relative_attention_type", "relative_attention_num_buckets"),
    *("attention_func", "combine_dims", "keep_query_heads_dims", "fold_scaling_into_initializer"),
    *("z_loss_coeff", "use_hyperprompt", "hyperprompt_length_encoder"),
    "hyperprompt_length_decoder",
)
# Class of Mesh TensorFlow's layers -> the attributes that hold its constructor's parameters.
_LAYERS = {
    "SelfAttention": _ATTENTION,
    "EncDecAttention": _ATTENTION,
    "DenseReluDense": ("hidden_size", "dropout_rate", "activation", "use_bias"),
}
# Parameter of `Unitransformer` -> the attribute that holds it.
_STACK = {
    "d_model": "model_dim",
    "input_vocab": "input_vocab_dim",
    "ensemble": "ensemble_dim",
    "loss_fn": "_loss_fn",
    "loss_denominator": "_loss_denominator",
} | {
    name: name
    for name in (
        *("shared_embedding_and_softmax_weights", "label_smoothing", "z_loss"),
        *("positional_embedding", "sinusoid_positional_embedding", "input_full_attention"),
        *("loss_on_targets_only", "token_dropout_rate"),
    )
}


def read(model_type: str, model: Any) -> tuple[T5Spec | None, str]:
    """Returns the settings of a T5, or None and the setting by which the model differs from a T5.

    Args:
      model_type: Mesh TensorFlow's name of the kind of model, `run.model_type`.
    """
    return t5_layers.t5_or_other(model_type, _describe(model))


def sizes(model: Any) -> ModelShape:
    """Returns the sizes of a T5's tensors.

    Raises:
      UserError: if the model is not a T5 with equal layers.
    """
    try:
        return t5_layers.read_sizes(_describe(model))
    except t5_layers.OtherModelError as error:
        raise UserError(
            f"the formulas are for T5's encoder-decoder with equal layers; {error}. Plan it with "
            "--exact, which lowers it"
        ) from error


def _describe(model: Any) -> t5_layers.Stacks:
    stacks = {side: getattr(model, side, None) for side in ("encoder", "decoder")}
    return {
        side: _describe_stack(stack)
        for side, stack in stacks.items()
        if isinstance(stack, transformer.Unitransformer)
    }


def _describe_stack(stack: Any) -> dict[str, Any]:
    values = {name: to_plain(getattr(stack, attribute)) for name, attribute in _STACK.items()}
    layer_stack = stack.layer_stack
    values["layer_stack"] = selector_of(type(layer_stack))
    values["layers"] = [_describe_layer(layer) for layer in layer_stack.layers]
    values["sublayers"] = {
        group: [
            _describe_sublayer(function, layer_stack)
            for function in getattr(layer_stack, f"_sublayers_{group}")
        ]
        for group in ("initial", "per_layer", "final")
    }
    return values


def _describe_layer(layer: Any) -> dict[str, Any]:
    names = _LAYERS.get(type(layer).__name__, ())
    values = {name: to_plain(getattr(layer, name), name) for name in names}
    return {"selector": selector_of(type(layer)), "parameters": values}


def _describe_sublayer(function: Callable[..., Any], layer_stack: Any) -> dict[str, Any]:
    selector = selector_of(function)
    values = parameters_of(selector)
    if "legacy" in selector:  # these functions take their parameters from the stack
        legacy = {"dropout_rate": layer_stack.dropout_rate, "epsilon": layer_stack.norm_epsilon}
        name = "dropout_rate" if "dropout" in selector else "epsilon"
        values[name] = legacy[name]
    return {"selector": selector, "parameters": values}
