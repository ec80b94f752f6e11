"""T5 1.1 for Transformers, for the benchmarks; not a program."""

from typing import Any

from transformers import T5Config

_SIZES = {
    "small": {"d_model": 512, "d_ff": 1024, "num_layers": 8, "num_heads": 6},
    "base": {"d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12},
}


def config(size: str = "small", **more: Any) -> T5Config:
    """Returns T5 1.1's configuration, without dropout unless `more` says otherwise."""
    shared = {
        "vocab_size": 32128,
        "d_kv": 64,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
    }
    return T5Config(**{**shared, **_SIZES[size], **more})
