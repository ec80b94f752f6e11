"""Detects folders of decoder-only models by their config.json, without importing PyTorch.

    is_decoder_only("/models/gpt2")       # True

`t0.torch.decoder_only` reads such folders.
"""

from pathlib import Path

from t0.errors import UserError
from t0.files.untrusted import read_json

# The ways in which published evaluations join an input and an answer choice.
# `t0.torch.decoder_only.JOINS` describes them.
JOINS = ("lm-eval", "t-zero")
_T5 = ("t5", "mt5", "umt5", "longt5", "switch_transformers")
_CONFIG = "config.json"


def is_decoder_only(path: str) -> bool:
    """Returns whether a path is a Hugging Face folder of a decoder-only model."""
    file = Path(path) / _CONFIG
    if "://" in path or not file.is_file():
        return False
    config = read_json(file)
    if config.get("model_type", "t5") in _T5:
        return False
    if config.get("is_encoder_decoder"):
        raise UserError(
            f"{path} is a {config['model_type']}, an encoder-decoder that is not a T5; expected "
            "a T5, or a decoder-only model"
        )
    return True
