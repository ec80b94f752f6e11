"""Checks a loaded model of transformers before data is read: other texts do not change a text's results.

    model = TransformersModel(PretrainedFolder("/models/bart"), world, torch.float32, 16384)
    model.restore("/models/bart")    # calls `check_logits` and `check_padding`
    check_decoding(model)

The checks run the model on a few tokens. Logits must be finite. They must depend on earlier tokens
but on no later ones. The score of a text must not change if a longer text is in its batch. Cached
keys and values, and padding on the left, must not change the logits of a decoded text. A model that
fails a check, such as RecurrentGemma if it decodes a batch, would have silently wrong results.
"""

import itertools
from typing import Any

import numpy as np
import torch

from t0.errors import UserError

# The check of causality changes the token `_CHANGED` of `_TOKENS` tokens (not the last one, because
# mBART's decoder reads the last token first). The logits that predict this token and those before
# it must not change by more than `_ROUNDING` standard deviations.
_TOKENS, _CHANGED, _ROUNDING = 4, 2, 1e-3
# The largest difference, in nats, if the shapes of two batches differ, per nat plus 1.
_ROUNDING_OF_SHAPES = {torch.float32: 1e-3}
_ROUNDING_IN_16_BITS = 0.1


@torch.inference_mode()
def check_logits(model: Any) -> None:
    """Checks that logits are finite, and depend on earlier tokens but on no later ones.

    Args:
      model: the `TransformersModel`, whose weights are loaded.

    Raises:
      UserError: if the logits fail this check.
    """
    folder, separate = model.folder, model.folder.is_encoder_decoder
    first, second = _ordinary_ids(model)
    rows = np.full((3, _TOKENS), first)
    rows[1, _CHANGED], rows[2, 0] = second, second
    if separate:
        logits = model.decoder_logits(model.encode_inputs(rows[:, :2] + 1), rows + 1)[0]
    else:
        logits = model.model(input_ids=torch.from_numpy(rows).to(model.device)).logits
    # The logits at a position predict its token in an encoder-decoder, and the next token in a
    # decoder-only model.
    logits = logits[:, : _CHANGED + separate].float()
    if not logits.isfinite().all():
        raise UserError(
            f"{folder.path}: its logits are not finite numbers. Are its weights damaged, "
            f"or out of the range of {model.activations} (--activation_dtype)?"
        )
    same, changed_later, changed_earlier = logits
    sees = None
    if (same - changed_later).abs().max() > _ROUNDING * same.std():
        sees = "its first token sees those after it, as in an encoder"
    elif same.std() > 0 and torch.equal(same, changed_earlier):
        sees = "its tokens do not see those before them"
    if sees:
        raise UserError(
            f"{folder.path} ({folder.config.model_type}) is no decoder: {sees}. Expected a model "
            "that is trained to write or continue texts, such as BART, GPT-2 or Llama"
        )


@torch.inference_mode()
def check_padding(model: Any) -> None:
    """Checks that the score of a text does not change if a longer text is in its batch.

    Args:
      model: the `TransformersModel`, whose weights are loaded.

    Raises:
      UserError: if it changes.
    """
    first, second = np.array(_ordinary_ids(model)) + 1
    long, short = [first, second] * 4, [second, first, second]
    short_padded = [*short, *[0] * (len(long) - len(short))]
    both, own = np.array([long, short_padded]), np.array([short])
    together = model.score_choices(both, both[:, None])[1, 0, 0]
    _check_difference(model, together, model.score_choices(own, own[:, None])[0, 0, 0], "score")


@torch.inference_mode()
def can_share_inputs(model: Any) -> bool:
    """Returns whether an input's keys and values can be kept for all of its choices.

    This needs a decoder-only model with transformers' own cache, of which each layer has only keys
    and values (Mamba's layers have a state instead), and equal scores of a few tokens. Rotary
    positions whose frequencies depend on the length of the text would change the keys.

    Args:
      model: the `TransformersModel`, whose weights are loaded.
    """
    if model.folder.is_encoder_decoder:
        return False
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    lengths = ("dynamic", "longrope")
    if any(getattr(module, "rope_type", None) in lengths for module in model.model.modules()):
        return False
    ids = torch.tensor([_ordinary_ids(model)])
    output = model.forward(ids, torch.ones_like(ids), torch.arange(2)[None], use_cache=True)
    layers = getattr(getattr(output, "past_key_values", None), "layers", ())
    kinds = {type(layer) for layer in layers}
    if not kinds or not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        return False
    first, second = _ordinary_ids(model)
    contexts = [np.array([first, second] * 3), np.array([second, first, first])]
    choices = [np.array(ids) for ids in ([second, first, second], [first], [second, second])]
    context_of = np.array([0, 0, 1])
    pairs = [(contexts[row], choice) for row, choice in zip(context_of, choices, strict=True)]
    together, alone = model.score_shared(contexts, context_of, choices), model.score_pairs(pairs)
    return bool((_difference(together[:, 0], alone[:, 0]) <= _allowed(model)).all())


@torch.inference_mode()
def check_decoding(model: Any) -> None:
    """Checks that the logits of decoded texts equal those of each text's own forward pass.

    Args:
      model: the `TransformersModel`, whose weights are loaded.

    Raises:
      UserError: if they differ.
    """
    first, second = _ordinary_ids(model)
    rows = [np.array([first, second] * 2), np.array([second])]
    outputs, start = model.generate_rows(rows, 2, output_logits=True)
    for number, row in enumerate(rows):
        before, written = np.split(outputs.sequences[number].cpu().numpy(), [start])
        separate = model.folder.is_encoder_decoder
        ids = {"input_ids": row} if separate else {"input_ids": np.append(row, written)}
        if separate:
            ids["decoder_input_ids"] = np.append(before, written)
        ids = {k: torch.from_numpy(v)[None].to(model.device) for k, v in ids.items()}
        logits = model.model(**ids, use_cache=False).logits[0, -1 - len(written) : -1]
        ended = written[0] in model.end_ids
        for step, alone in enumerate(logits[: 1 if ended else None].float().log_softmax(-1)):
            token = alone.argmax()
            together = outputs.logits[step][number].float().log_softmax(-1)[token]
            _check_difference(model, float(together), float(alone[token]), "logit")


def _check_difference(model: Any, together: float, alone: float, kind: str) -> None:
    if not _difference(together, alone) <= _allowed(model):
        raise UserError(
            f"{model.folder.path} ({model.folder.config.model_type}): the {kind} of a text changes "
            f"from {alone:.6g} to {together:.6g} nats if a longer text is in its batch, or with "
            f"cached keys and values; expected equal {kind}s. Evaluate another model, or use "
            "another release of transformers"
        )


def _difference(together: Any, alone: Any) -> Any:
    """Returns the difference of log-likelihoods per nat plus 1."""
    return abs(together - alone) / (1 + abs(alone))


def _allowed(model: Any) -> float:
    return _ROUNDING_OF_SHAPES.get(model.activations, _ROUNDING_IN_16_BITS)


def _ordinary_ids(model: Any) -> list[int]:
    """Returns two ids that are no special tokens."""
    special = {model.folder.padding, *model.folder.tokenizer.all_special_ids}
    return list(itertools.islice((n for n in itertools.count() if n not in special), 2))
