"""Specifies runs of T5.1.1 for the PyTorch engine without TensorFlow; not a program.

    spec = run("small", rows=16, lengths={"inputs": 128, "targets": 32}, data=data)
    data = cached(Path("/caches"), "validation", lengths)      # every task of a cache folder
    config("small")                                            # the same model, for Transformers

A user's run is specified by gin (`t5_mesh_transformer --save_spec`). These runs have the same
settings; a test compares them.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t0.config.model_spec import Dropout, ModelShape, ModelSpec, T5Spec
from t0.config.specification import (
    ConfiguredSpec,
    DataSpec,
    FeatureSpec,
    RunSpec,
    TaskSpec,
    VocabularySpec,
)
from t0.errors import UserError

VOCABULARY = 32128
DROPOUT = 0.1


@dataclasses.dataclass(frozen=True)
class Size:
    """The sizes of a T5.1.1."""

    d_model: int
    d_ff: int
    layers: int
    heads: int
    d_kv: int = 64


SIZES = {
    "tiny": Size(64, 128, 2, 2, 32),  # for tests
    "small": Size(512, 1024, 8, 6),
    "base": Size(768, 2048, 12, 12),
    "large": Size(1024, 2816, 24, 16),
    "xl": Size(2048, 5120, 24, 32),  # T0-3B's
    "xxl": Size(4096, 10240, 24, 64),  # T0's
}


def run(
    size: str,
    *,
    rows: int,
    lengths: Mapping[str, int],
    data: DataSpec | None = None,
    microbatches: int = 1,
) -> RunSpec:
    """Returns a training run with dropout, Adafactor and a constant learning rate.

    Args:
      size: a name of `SIZES`.
      rows: the sequences per batch.
      lengths: feature -> tokens per sequence.
      data: the data; None for a run that receives its batches.
      microbatches: the number of parts in which a batch is computed.
    """
    vocabulary = VocabularySpec("", VOCABULARY, 100)
    return RunSpec(
        "train",
        "",
        _model(SIZES[size]),
        vocabulary,
        vocabulary,
        lengths,
        rows,
        microbatches=microbatches,
        optimizer=ConfiguredSpec("mesh_tensorflow.optimize.AdafactorOptimizer", _ADAFACTOR),
        schedule=0.001,
        data=data or DataSpec("none", "train", (), lengths),
    )


def cached(folder: Path, split: str, lengths: Mapping[str, int]) -> DataSpec:
    """Returns the data of every task in a cache folder, mixed by the numbers of examples.

    Raises:
      UserError: if the folder has no task with the split.
    """
    tasks = []
    for stats in sorted(folder.glob(f"*/stats.{split}.json")):
        count = json.loads(stats.read_text(encoding="utf-8"))["examples"]
        files = sorted(str(path) for path in stats.parent.glob(f"{split}.tfrecord-*"))
        features = {name: FeatureSpec(add_eos=True) for name in lengths}
        tasks.append(TaskSpec(stats.parent.name, float(count), features, count, tuple(files)))
    if not tasks:
        raise UserError(f"{folder} has no task with a split '{split}'; expected a cache folder")
    return DataSpec("benchmark", split, tuple(tasks), lengths, use_cached=True)


def config(size: str) -> dict[str, Any]:
    """Returns the parameters of the same model's `transformers.T5Config`."""
    shape = SIZES[size]
    return {
        "vocab_size": VOCABULARY,
        "d_model": shape.d_model,
        "d_kv": shape.d_kv,
        "d_ff": shape.d_ff,
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "decoder_start_token_id": 0,
        "dropout_rate": DROPOUT,
    }


def _model(size: Size) -> ModelSpec:
    shape = ModelShape(
        vocabulary=VOCABULARY,
        d_model=size.d_model,
        d_ff=size.d_ff,
        inner=size.heads * size.d_kv,
        heads=size.heads,
        buckets=32,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        gated=True,
        tied=False,
        shared_bias=True,
    )
    dropout = Dropout(DROPOUT, DROPOUT, DROPOUT)
    t5 = T5Spec(shape, "gelu", dropout, label_smoothing=0.0, z_loss=0.0001, loss_denominator=None)
    return ModelSpec(t5, "", "float32", "float32")


_ADAFACTOR = {
    "multiply_by_parameter_scale": True,
    "decay_rate": {
        "selector": "mesh_tensorflow.optimize.adafactor_decay_rate_pow",
        "parameters": {"exponent": 0.8, "offset": 0},
    },
    "beta1": 0.0,
    "clipping_threshold": 1.0,
    "factored": True,
    "epsilon1": 1e-30,
    "epsilon2": 1e-3,
    "min_dim_size_to_factor": 128,
    "stacked_dim_names": None,
    "exclude_from_parameter_scale": None,
}
