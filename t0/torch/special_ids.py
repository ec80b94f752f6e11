"""Checks and chooses the ids of special tokens in the configs of a folder of transformers.

check(Path("/models/bart"), config, start=2, rows=50265)    # a UserError if one is wrong
choose(model.generation_config, tokenizer, 50265)           # {"eos_token_id": 2, ...}
"""

import itertools
import math
from pathlib import Path
from typing import Any

from t0.checkpoints.shape import shown
from t0.errors import UserError
from t0.files.untrusted import read_json

CONFIG, _GENERATION = "config.json", "generation_config.json"
_START, _FORCED, _EOS = "decoder_start_token_id", "forced_bos_token_id", "eos_token_id"
# The ids that a model needs to generate texts. All other generation settings of the folder, such as
# the number of beams, are ignored, because tasks are decoded greedily.
_NAMES = ("bos_token_id", _EOS, _START, _FORCED)


def check(folder: Path, config: Any, *, start: int | None, rows: int | None) -> None:
    """Checks the ids of special tokens in a folder's configs.

    Args:
      config: the model's config, as transformers reads it.
      start: the id that the decoder of an encoder-decoder reads first.
      rows: the number of ids of the model; None if it is unknown.

    Raises:
      UserError: if an id is no integer, or if the decoder would first read an id that the model
        does not have.
    """
    generation, texts = folder / _GENERATION, config.get_text_config(decoder=True)
    # Of a config without parts, this is a copy in which some ids have their default values.
    configs = (config,) if type(texts) is type(config) else (config, texts)
    places = [
        *((CONFIG, _read(each)) for each in configs),
        (CONFIG, {_START: start}),
        (_GENERATION, read_json(generation) if generation.is_file() else {}),
    ]
    first = (_FORCED, _START) if config.is_encoder_decoder else (_FORCED,)
    most = math.inf if rows is None else rows - 1
    for (file, ids), name in itertools.product(places, _NAMES):
        for value in _as_list(ids.get(name)) if name == _EOS else [ids.get(name)]:
            is_known = name not in first or type(value) is int and 0 <= value <= most
            if value is not None and not (type(value) is int and is_known):
                raise UserError(
                    f"{folder / file}: {name} is {shown(ids[name])}; expected a token id of the "
                    f"model, 0 to {most:,}. Copy the file that was saved with this model"
                )


def choose(config: Any, tokenizer: Any, rows: int | None) -> dict[str, Any]:
    """Returns the ids in a generation config, without those that the model does not have.

    Args:
      config: the generation config, as transformers reads it.
      tokenizer: the tokenizer, whose end token is used if the config has none.
      rows: the number of ids of the model; None if it is unknown.
    """
    ids = _read(config)
    if ids[_EOS] is None:
        ids[_EOS] = tokenizer.eos_token_id
    for name, value in ids.items():
        numbers = [each for each in _as_list(value) if each is not None]
        numbers = [each for each in numbers if 0 <= each < (rows or math.inf)]
        ids[name] = (numbers if isinstance(value, list) else numbers[0]) if numbers else None
    return ids


def _read(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name, None) for name in _NAMES}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
