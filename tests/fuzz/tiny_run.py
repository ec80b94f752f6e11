"""A run specification of a tiny T5 with a cache of nine examples, as plain data.

spec = tiny_run(Path("/tmp/work"))          # writes the cache
from_json(json.dumps(spec), RunSpec)
"""

from pathlib import Path
from typing import Any

from t0.files import tf_examples, tfrecord

_SCHEDULES = "mesh_tensorflow.transformer.learning_rate_schedules"
_T5 = {
    "sizes": {
        "vocabulary": 32,
        "d_model": 8,
        "d_ff": 16,
        "inner": 8,
        "heads": 2,
        "buckets": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "gated": True,
        "tied": False,
        "shared_bias": True,
    },
    "activation": "gelu",
    "dropout": {"residual": 0.1, "attention": 0.1, "hidden": 0.1},
    "label_smoothing": 0.0,
    "z_loss": 1e-4,
    "loss_denominator": None,
}


def _configured(module: str, name: str, **parameters: Any) -> dict[str, Any]:
    return {"selector": f"{module}.{name}", "parameters": parameters}


def tiny_run(folder: Path) -> dict[str, Any]:
    """Writes the cache; returns the specification of a run of two steps."""
    shard = folder / "train.tfrecord-00000-of-00001"
    entries = [
        tf_examples.ints_entry("inputs", [2, 3 + n, 5])
        + tf_examples.ints_entry("targets", [4 + n, 1])
        for n in range(9)
    ]
    shard.write_bytes(b"".join(tfrecord.framed(tf_examples.example(entry)) for entry in entries))
    vocabulary = {"file": str(folder / "vocabulary.model"), "size": 32, "extra_ids": 0}
    lengths = {"inputs": 8, "targets": 4}
    features = {"inputs": {"add_eos": False}, "targets": {"add_eos": True}}
    task = {"name": "one", "rate": 1.0, "features": features, "examples": 9}
    data = {"mixture": "one", "split": "train", "lengths": lengths, "window_rows": 4}
    data["tasks"] = [{**task, "cache_files": [str(shard)]}]
    return {
        "mode": "train",
        "model_dir": str(folder / "model"),
        "model": {"t5": _T5, "other": "", "activations": "float32", "weights": "float32"},
        "inputs_vocabulary": vocabulary,
        "targets_vocabulary": vocabulary,
        "lengths": lengths,
        "batch_sequences": 2,
        "train_steps": 2,
        "optimizer": _configured(
            "mesh_tensorflow.optimize",
            "AdafactorOptimizer",
            multiply_by_parameter_scale=True,
            decay_rate=_configured(
                "mesh_tensorflow.optimize", "adafactor_decay_rate_pow", exponent=0.8, offset=0
            ),
            beta1=0.0,
            clipping_threshold=1.0,
            factored=True,
            epsilon1=1e-30,
            epsilon2=1e-3,
            min_dim_size_to_factor=128,
            stacked_dim_names=None,
            exclude_from_parameter_scale=None,
        ),
        "schedule": _configured(
            _SCHEDULES,
            "product_learning_rate",
            factors=[0.01, _configured(_SCHEDULES, "linear_warmup", steps_or_fraction=10)],
        ),
        "schedule_steps": 100,
        "save_checkpoints_steps": 1,
        "keep_checkpoint_max": 1,
        "keep_checkpoints": {"every_steps": 2, "best_by": "validation_loss"},
        "training": {
            "activation_dtype": "float32",
            "validate_every_steps": 1,
            "validation_batches": 1,
        },
        "data": data,
        "validation": {**data, "shuffle": False},
        "records": {"configuration.json": '{"run.batch_size": "2"}'},
    }
