"""The facts of a run specification as plain lines, from either schema of `--save_spec`.

    facts(json.loads(path.read_text()))     # ["mode = train", "model.d_ff = 384", ...]

Schema 1 describes the model by the arguments of Mesh TensorFlow's layers, schema 2 by a T5's
numbers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

RATES = 10  # the number of steps whose learning rate is a fact
_PLAIN = (
    *("mode", "model_dir", "lengths", "batch_sequences", "microbatches", "train_steps", "seed"),
    *("optimizer", "clip_gradient_norm", "variable_filter", "init_checkpoint"),
    *("init_variable_filter", "save_checkpoints_steps", "keep_checkpoint_max", "keep_checkpoints"),
    *("training", "choice_losses", "rank", "adapter", "inputs_vocabulary", "targets_vocabulary"),
)
_ACTIVATIONS = {"relu": "relu", ("gelu", "linear"): "gelu", ("swish", "linear"): "silu"}


def facts(spec: Mapping[str, Any]) -> list[str]:
    """Returns the lines."""
    found = {name: spec[name] for name in _PLAIN}
    found["model"] = _model(spec["model"]) if spec["schema"] == 1 else _numbers(spec["model"])
    found |= {name: _data(spec[name]) for name in ("data", "validation")}
    found["rates"] = _rates(spec)
    if spec["infer"]:
        jobs = [job | {"task": (job["task"] or {}).get("name")} for job in spec["infer"]["jobs"]]
        found["infer"] = spec["infer"] | {"jobs": jobs}
    return sorted(f"{name} = {value}" for name, value in _flat(found, ""))


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, item in items:
        where = f"{name}.{key}" if name else str(key)
        if isinstance(item, Mapping | list) and item:
            yield from _flat(item, where)
        else:
            yield where, item


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numbers of a T5 in schema 1."""
    layers = {"encoder": model["encoder"]["layers"], "decoder": model["decoder"]["layers"]}
    attention = layers["encoder"][0]["parameters"]
    feed_forward = layers["encoder"][1]["parameters"]
    around = model["decoder"]["sublayers"]["per_layer"]
    dropout = [x["parameters"]["dropout_rate"] for x in around if "dropout" in x["selector"]]
    activation = feed_forward["activation"]
    loss = ("label_smoothing", "z_loss", "loss_denominator")
    return {
        "weights": model["weights"],
        "activations": model["activations"],
        "vocabulary": model["encoder"]["input_vocab"],
        "d_model": model["encoder"]["d_model"],
        "d_ff": feed_forward["hidden_size"],
        "heads": attention["num_heads"],
        "d_kv": attention["key_value_size"],
        "buckets": attention["relative_attention_num_buckets"],
        "encoder_layers": len(layers["encoder"]) // 2,
        "decoder_layers": len(layers["decoder"]) // 3,
        "activation": _ACTIVATIONS[
            tuple(activation) if isinstance(activation, list) else activation
        ],
        "tied": model["decoder"]["shared_embedding_and_softmax_weights"],
        "dropout": [*dropout, attention["dropout_rate"], feed_forward["dropout_rate"]],
        "legacy_norms": any("legacy" in x["selector"] for x in around),
        **{name: model["decoder"][name] for name in loss},
    }


def _numbers(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numbers of a T5 in schema 2, with the names of `_model`."""
    t5 = model["t5"]
    sizes = t5["sizes"]
    same = ("vocabulary", "d_model", "d_ff", "heads", "buckets", "encoder_layers", "decoder_layers")
    others = ("activation", "legacy_norms", "label_smoothing", "z_loss", "loss_denominator")
    return {
        "weights": model["weights"],
        "activations": model["activations"],
        **{name: sizes[name] for name in (*same, "tied")},
        "d_kv": sizes["inner"] // sizes["heads"],
        "dropout": [t5["dropout"][name] for name in ("residual", "attention", "hidden")],
        **{name: t5[name] for name in others},
    }


def _data(data: Mapping[str, Any] | None) -> dict[str, Any]:
    same = ("mixture", "split", "lengths", "ends_in_eos", "pack", "shuffle", "seed", "window_rows")
    tasks = ("rate", "examples", "cache_files", "features", "objective", "instructions", "eos")
    return data and {
        **{name: data[name] for name in (*same, "use_cached")},
        "tasks": {task["name"]: {name: task[name] for name in tasks} for task in data["tasks"]},
    }


def _rates(spec: Mapping[str, Any]) -> dict[int, float]:
    """Returns step -> learning rate, for some steps of the run."""
    from t0.config.specification import ConfiguredSpec
    from t0.torch.schedules import schedule

    if spec["schedule"] is None:
        return {}
    configured, total = spec["schedule"], spec["schedule_steps"]
    configured = ConfiguredSpec(**configured) if isinstance(configured, dict) else configured
    rate = schedule(configured, total)
    steps = {spec["train_steps"] * part // RATES for part in range(1, RATES + 1)}
    return {step: rate(step) for step in sorted(steps)}
