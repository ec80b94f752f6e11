"""Hugging Face's files beside the weights: config.json, generation_config.json, tokenizer files.

config = read(folder)                   # of a source
write(folder, plan)                     # of a target; config.json last

The config's `tie_word_embeddings` does two things in `transformers`: it ties, and it scales the
decoder's outputs by d_model ** -0.5, as T5 1.0 needs and T5 1.1 must not have. Newer releases keep
the second under `scale_decoder_outputs`.
"""

from pathlib import Path
from typing import Any

from t0.checkpoints import tokenizer
from t0.checkpoints.json_files import read_json, write_json
from t0.checkpoints.shape import ModelShape, shown
from t0.checkpoints.source import Plan, checked_rate
from t0.errors import UserError

CONFIG = "config.json"
MODEL_TYPES = ("t5", "mt5", "umt5")
_CLASSES = {
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
}
_MT5_ROWS = 250_112  # the embedding of every public mT5
_ACTIVATIONS = {
    "relu": (False, "relu"),
    "gated-gelu": (True, "gelu"),
    "gated-silu": (True, "silu"),
    "gated-relu": (True, "relu"),
}
_PROJECTIONS = {pair: name for name, pair in _ACTIVATIONS.items()}
_BUCKET_DISTANCE_TOKENS = 128  # fixed in Mesh TensorFlow


def read(folder: Path) -> dict[str, Any]:
    """Returns a folder's config.

    Raises:
      UserError: if there is none, or its architecture is none of T5's.
    """
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} has no {CONFIG}: the model's architecture is unknown")
    config = read_json(folder / CONFIG)
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise UserError(
            f"{folder / CONFIG}: unknown architecture model_type = {shown(kind)}; wanted one of "
            f"{', '.join(MODEL_TYPES)}"
        )
    return config


def outputs_scaled(config: dict[str, Any]) -> bool:
    """Returns whether the model ties its embedding and scales its outputs, as T5 1.0 does."""
    if config.get("scale_decoder_outputs") is False:
        return False
    return config.get("tie_word_embeddings") is not False


def activation(folder: Path, config: dict[str, Any], model: ModelShape) -> str:
    """Returns the feed-forward layer's activation function.

    Raises:
      UserError: if it is unknown, or does not go with the tensors.
    """
    name = config.get("feed_forward_proj", "relu" if config["model_type"] == "t5" else "gated-gelu")
    known = _ACTIVATIONS.get(name) if isinstance(name, str) else None
    gated, function = known or (None, None)
    if gated != model.gated:
        wanted = [n for n, (g, _) in _ACTIVATIONS.items() if g == model.gated]
        raise UserError(
            f"{folder / CONFIG}: feed_forward_proj = {shown(name)}; the tensors want "
            f"{' or '.join(wanted)}"
        )
    return function


def dropout_rate(folder: Path, config: dict[str, Any]) -> float | None:
    """Returns the dropout rate, None where the config has none.

    Raises:
      UserError: if it is no rate.
    """
    return checked_rate(config.get("dropout_rate"), str(folder / CONFIG))


def check(folder: Path, config: dict[str, Any], model: ModelShape) -> None:
    """Checks that the config describes the tensors beside it.

    Raises:
      UserError: naming every difference.
    """
    layers = config.get("num_layers", model.encoder_layers)
    claims = {
        "vocab_size": model.vocabulary,
        "d_model": model.d_model,
        "d_kv": model.d_kv,
        "d_ff": model.d_ff,
        "num_heads": model.heads,
        "num_layers": model.encoder_layers,
        "relative_attention_num_buckets": model.buckets,
        "relative_attention_max_distance": _BUCKET_DISTANCE_TOKENS,
    }
    wrong = [
        f"{key} = {shown(config[key])}, but {seen}"
        for key, seen in claims.items()
        if not _same_number(config.get(key, seen), seen)
    ]
    decoder = config.get("num_decoder_layers") or layers
    if not _same_number(decoder, model.decoder_layers):
        wrong.append(f"num_decoder_layers = {shown(decoder)}, but {model.decoder_layers}")
    if wrong:
        raise UserError(f"{folder / CONFIG} does not fit the tensors beside it: {'; '.join(wrong)}")


def _same_number(value: Any, seen: int) -> bool:
    return type(value) in (int, float) and value == seen


def model_type(plan: Plan) -> str:
    """Returns the model type that `transformers` needs to compute the same."""
    if not plan.model.shared_bias:
        return "umt5"
    if plan.facts.model_type in ("t5", "mt5"):
        return plan.facts.model_type
    # The same network; only the name differs. mT5 is known by the size of its vocabulary.
    return "mt5" if plan.model.vocabulary == _MT5_ROWS and not plan.model.tied else "t5"


def write(folder: Path, plan: Plan) -> None:
    """Writes the files beside the weights, config.json last."""
    model, kind = plan.model, model_type(plan)
    tokens = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    write_json(folder / "generation_config.json", {"_from_model_config": True, **tokens})
    if plan.facts.tokenizer:
        tokenizer.write_hf(folder, plan.facts.tokenizer)
    dtypes = {entry.dtype.name for entry in plan.entries.values()}
    config = {
        "architectures": [_CLASSES[kind]],
        "d_ff": model.d_ff,
        "d_kv": model.d_kv,
        "d_model": model.d_model,
        "feed_forward_proj": _PROJECTIONS[model.gated, plan.facts.activation],
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-6,
        "model_type": kind,
        "num_decoder_layers": model.decoder_layers,
        "num_heads": model.heads,
        "num_layers": model.encoder_layers,
        "relative_attention_max_distance": _BUCKET_DISTANCE_TOKENS,
        "relative_attention_num_buckets": model.buckets,
        "tie_word_embeddings": model.tied,
        "torch_dtype": dtypes.pop() if len(dtypes) == 1 else "float32",
        "use_cache": True,
        "vocab_size": model.vocabulary,
        **tokens,
    }
    if plan.facts.dropout_rate is not None:
        config["dropout_rate"] = plan.facts.dropout_rate
    write_json(folder / CONFIG, config)


def check_known(model: ModelShape, function: str) -> None:
    """Checks that Hugging Face has this feed-forward layer.

    Raises:
      UserError: if not.
    """
    if (model.gated, function) not in _PROJECTIONS:
        raise UserError(f"Hugging Face's T5 has no feed-forward layer with {function} and no gate")
