"""T5.1.1 small for Transformers, as the benchmarks compare it. No program of its own."""

from typing import Any

from transformers import T5Config


def config(**more: Any) -> T5Config:
    """Returns T5.1.1 small's configuration, without dropout unless `more` says otherwise."""
    small = {
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 1024,
        "num_layers": 8,
        "num_heads": 6,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
    }
    return T5Config(**{**small, **more})
