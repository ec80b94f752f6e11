"""Detects Hugging Face folders of models that are not T5s, without importing PyTorch.

    needs_transformers("/models/gpt2")       # True
    needs_transformers("/models/t0_3b")      # False, because it is a T5

Such models are evaluated with `transformers`. `t0.torch.transformers_model` reads their folders.
"""

from pathlib import Path

from t0.files.untrusted import read_json

# The published ways to join an input and an answer choice for a decoder-only model; see
# `t0.torch.transformers_model.JOINS`.
JOINS = ("lm-eval", "t-zero")
_CONFIG = "config.json"


def needs_transformers(path: str) -> bool:
    """Returns whether a path is a Hugging Face folder of a model that is not a T5."""
    from t0.checkpoints.hugging_face import MODEL_TYPES  # slow to import for an option's choices

    file = Path(path) / _CONFIG
    if "://" in path or not file.is_file():
        return False
    return read_json(file).get("model_type", "t5") not in MODEL_TYPES
