"""Tiny checkpoints, written without the code under test where another library writes the format."""

import ml_dtypes
import numpy as np

from t0 import testing
from t0.checkpoints import names
from t0.checkpoints.bundle import BundleWriter
from t0.checkpoints.shape import expected_shapes, slot_shape
from t0.config.model_spec import ModelShape

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def model_shape(**changes):
    fields = {
        "vocabulary": 128,
        "d_model": 32,
        "d_ff": 48,
        "inner": 16,
        "heads": 2,
        "buckets": 32,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "gated": True,
        "tied": False,
        "shared_bias": True,
    }
    return ModelShape(**{**fields, **changes})


V10 = model_shape(gated=False, tied=True, inner=32)
V11 = model_shape()


def weights(model, dtype=np.float32, seed=0):
    """Parameters that give logits of a trained model's size."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in expected_shapes(model).items():
        scale = 1.0 if "embedding" in name or "bias" in name else shape[0] ** -0.5
        values = rng.standard_normal(shape, np.float32) * scale
        found[name] = (values + 1 if "norm" in name else values).astype(dtype)
    return found


def slots(parameters, factored_from=24, seed=1):
    """Adafactor's slots, factored where both dimensions reach `factored_from`."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, array in parameters.items():
        factored = array.ndim == 2 and min(array.shape) >= factored_from
        for slot in ("vr", "vc") if factored else ("v",):
            shape = slot_shape(array.shape, slot)
            found[names.slot_name(name, slot)] = rng.random(shape, np.float32)
    return found


def write_mtf(folder, tensors, step=1000, legacy_norms=False, shard_bytes=1 << 40):
    folder.mkdir(parents=True, exist_ok=True)
    writer = BundleWriter(folder / f"model.ckpt-{step}", shard_bytes=shard_bytes)
    for name, array in tensors.items():
        writer.add(names.to_mtf(name, legacy_norms=legacy_norms), array)
    writer.add("global_step", np.asarray(step, np.int64))
    writer.finish()
    return folder


def nested(flat):
    tree = {}
    for path, value in flat.items():
        *parents, last = path.split("/")
        place = tree
        for key in parents:
            place = place.setdefault(key, {})
        place[last] = value
    return tree


def write_inline(folder, flat, **top):
    """Writes an index of T5X as Flax does, all arrays within it."""
    from flax import serialization

    folder.mkdir(parents=True)
    tree = {"version": 3, "optimizer": nested(flat), **top}
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))
    return folder


def train_pieces(folder):
    """A SentencePiece model of some 60 pieces, as T5's: padding, end and unknown come first."""
    text = (f"rain and snow in {i} places, with wind {i * 7}" for i in range(300))
    return testing.train_vocabulary(folder / "spiece.model", text)


def with_sentinels(path, count=100, before="\u2581"):
    """The same model with sentinels, beside it."""
    wider = path.with_name(f"{count}extra{len(before)}.model")
    return testing.with_sentinels(path, wider, count=count, before=before)


def bits(array):
    return array.dtype, array.shape, np.ascontiguousarray(array).tobytes()


def loaded(path):
    """Every tensor of a checkpoint by canonical name, as comparable bits."""
    from t0.checkpoints import open_source

    source = open_source(path)
    found = {name: bits(source.load(name)) for name in source.entries}
    source.close()
    return found
