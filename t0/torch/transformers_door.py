"""Hugging Face's transformers, which is imported where a decoder-only model is ranked.

transformers().AutoTokenizer.from_pretrained("/models/gpt2")
"""

import functools
from typing import Any

from t0.errors import UserError, install_command


@functools.cache
def transformers() -> Any:
    """Returns the package.

    Raises:
      UserError: if it, or PyTorch, is not installed.
    """
    try:
        import torch  # noqa: F401 (transformers is imported without it, too)
        import transformers as package
    except ImportError as error:
        raise UserError(
            f"{error.name or error} is not installed, and evaluating a decoder-only model needs "
            f"PyTorch and transformers: {install_command('hf')}"
        ) from error
    package.logging.set_verbosity_error()
    return package
