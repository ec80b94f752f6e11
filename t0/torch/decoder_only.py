"""Ranks answer choices with decoder-only models of Hugging Face's transformers.

    model = DecoderOnly("/models/gpt2", torch.device("cpu"), torch.float32, 16384)
    context, continuation = JOINS["lm-eval"].join(model.tokenizer, "It rains. Wet?", "yes")
    model.restore("/models/gpt2")
    model.log_likelihoods(inputs, targets)     # [B, L], [B, C, T] -> float32 [B, C]

A decoder-only model reads an input and a choice as one text. If the two parts are tokenized
separately, the ids may differ from those of the whole text, so the score depends on how the parts
are joined. `JOINS` has the published ways.

Arrays have each token id plus 1, because 0 is padding in `t0.scoring` but a token of these models.
No file of a folder can run code: weights are safetensors, Python files are ignored, and no value of
config.json chooses code. The tokenizer is first loaded within limits (`tokenizer_check`). Every
weight of the model is read from the folder, so a missing or unexpected tensor is an error.
"""

import contextlib
import dataclasses
import hashlib
import inspect
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from t0.checkpoints import look_alikes, weight_files
from t0.checkpoints.shape import shown
from t0.errors import UserError, short_reason
from t0.torch import tokenizer_check
from t0.torch.tokenizer_check import import_transformers

# A folder has a tokenizer if it has one of these files.
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_BESIDE = (*TOKENIZERS, "merges.txt", "tokenizer_config.json", "special_tokens_map.json")
# The fields of config.json with which transformers chooses code or files. Two more such fields,
# attn_implementation and experts_implementation (which can name a kernel of the hub), are not here,
# because `restore` sets them itself.
_CHOOSING = ("quantization_config", "fusion_config", "transformers_weights")
_SHOWN = 4  # the number of tensors that a message names
# A model is not built if it has over twice the elements of its file, plus this number.
_LARGEST_UNREAD = 10_000_000
# How many tokens a check of causality has, and how much a later token may change an earlier token's
# logits by rounding, in standard deviations of the logits.
_PROBE_TOKENS, _PROBE_SHARE = 4, 1e-3


@dataclasses.dataclass(frozen=True)
class Join:
    """A published way to join an input and a choice.

    Attributes:
      description: the description of this way in results files.
      join: function from (tokenizer, input, choice) to (the ids that the model is given, the ids
        that are scored).
      cut_left: whether an input that is too long loses its beginning instead of its end.
    """

    description: str
    join: Callable[[Any, str, str], tuple[list[int], list[int]]]
    cut_left: bool


def _join_as_lm_eval(tokenizer: Any, given: str, choice: str) -> tuple[list[int], list[int]]:
    """Joins an input and a choice like lm-evaluation-harness 0.4.13 (`TemplateLM._encode_pair`)."""
    text = " " + choice
    if not given:
        bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        return [eos if bos is None else bos], tokenizer.encode(text, add_special_tokens=False)
    bare = given.rstrip()
    whole = tokenizer.encode(given + text)
    # The tokenizer adds the same special tokens, such as BOS, to the input and to the whole text.
    context = tokenizer.encode(bare) if bare else whole[:1]
    return context, whole[len(context) :]


def _join_as_t_zero(tokenizer: Any, given: str, choice: str) -> tuple[list[int], list[int]]:
    """Joins an input and a choice like bigscience-workshop/t-zero (evaluation/run_eval.py)."""
    return tokenizer.encode(given, add_special_tokens=False), tokenizer.encode(choice)


JOINS = {
    "lm-eval": Join(
        "lm-evaluation-harness: input, a space and choice are tokenised as one text; the tokens "
        "after those of the input are scored, without EOS; a long input loses its beginning",
        _join_as_lm_eval,
        cut_left=True,
    ),
    "t-zero": Join(
        "bigscience-workshop/t-zero: input (without special tokens) and choice (with the "
        "tokeniser's own) are tokenised apart, nothing is between them; the choice's tokens are "
        "scored; a long input loses its end",
        _join_as_t_zero,
        cut_left=False,
    ),
}


class DecoderOnly:
    """Scores choices with a decoder-only model, for `t0.scoring.ranking`.

    Args:
      folder: a folder with config.json, safetensors and a tokenizer.
      device: the device that computes.
      activations: the type of weights and activations. The softmax is always float32.
      batch_tokens: the largest number of tokens in a forward pass.

    Raises:
      UserError: if a file is missing, or the folder has another kind of model.
    """

    replicas = 1

    def __init__(
        self, folder: str, device: torch.device, activations: torch.dtype, batch_tokens: int
    ) -> None:
        self._folder, self._device, self._activations = Path(folder), device, activations
        self._batch_tokens = batch_tokens
        _check_files(self._folder)
        self.config = _read_config(self._folder)
        self._tensors = weight_files.open_weights(self._folder).tensors
        self._weights = sorted({tensor.path for tensor in self._tensors.values()})
        self.tokenizer = _load_tokenizer(self._folder)
        self._model: Any = None

    @property
    def device_kind(self) -> str:
        """The kind of device that computes: "gpu" or "cpu"."""
        return "gpu" if self._device.type == "cuda" else "cpu"

    @property
    def positions(self) -> int | None:
        """The context window in tokens; None if the model has no limit."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None)

    @property
    def fingerprint(self) -> str:
        """A hash that changes if a file with weights changes, or its modification time."""
        return _hash(f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in self._weights)

    @property
    def vocabulary(self) -> dict[str, Any]:
        """The facts about the tokenizer for results files."""
        files = [self._folder / name for name in _BESIDE if (self._folder / name).is_file()]
        return {
            "vocabulary": str(files[0]),
            "vocabulary_sha256": _hash(hashlib.sha256(p.read_bytes()).hexdigest() for p in files),
            "vocabulary_size": len(self.tokenizer),
        }

    def encode(self, join: Join, given: str, choice: str) -> tuple[list[int], list[int]]:
        """Returns the ids of an input and the ids of a choice, in the way of `join`.

        Raises:
          UserError: if the tokenizer fails, or returns an id for which the model has no embedding.
        """
        with _as_user_error(self._folder, "its tokenizer cannot encode a text"):
            context, scored = join.join(self.tokenizer, given, choice)
        rows = getattr(self.config.get_text_config(), "vocab_size", None)
        for token in (*context, *scored):
            if token is None:
                raise UserError(
                    f"{self._folder}: the input is empty, and the tokenizer has neither a BOS nor "
                    "an EOS token to put in its place; name one in tokenizer_config.json"
                )
            if rows is not None and not 0 <= token < rows:
                raise UserError(
                    f"{self._folder}: its tokenizer makes the id {token:,} of "
                    f"{self.tokenizer.convert_ids_to_tokens(token)!r:.40}, and the model has "
                    f"embeddings for the ids 0 to {rows - 1:,} (vocab_size in config.json): the "
                    "tokenizer is of another model. Copy this model's own tokenizer into the folder"
                )
        return context, scored

    def restore(self, checkpoint: str) -> int:
        """Loads the weights; returns the number of tensors that were read.

        Raises:
          UserError: if a tensor of the model is missing in the folder, or the folder has others.
        """
        del checkpoint  # not needed, because the weights are in the folder
        self._check_size()
        with _as_user_error(self._folder):
            model, report = import_transformers().AutoModelForCausalLM.from_pretrained(
                self._folder,
                config=self.config,
                dtype=self._activations,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                # None means the library's default, so that config.json cannot choose.
                attn_implementation=None,
                experts_implementation=None,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # the report names them, and is checked below
            )
        _check_report(self._folder, report)
        self._model = model.to(self._device).eval()
        self._check_causal()
        # Tied weights count once. The checked report names no tensor, so all have been read.
        return sum(1 for _ in model.parameters())

    def _check_size(self) -> None:
        """Checks that the model is about as large as its file, before any memory is allocated.

        Otherwise transformers would allocate all missing weights, and fill them at random, before
        it reports that they are missing.
        """
        stored = sum(int(np.prod(tensor.shape)) for tensor in self._tensors.values())
        layers = getattr(self.config.get_text_config(), "num_hidden_layers", 0)
        described = f"{layers:,} layers" if isinstance(layers, int) else f"{layers!r:.20} layers"
        fits = isinstance(layers, int) and layers <= len(self._tensors)
        if fits:
            with _as_user_error(self._folder), torch.device("meta"):
                model = import_transformers().AutoModelForCausalLM.from_config(
                    self.config, attn_implementation=None, experts_implementation=None
                )
            parameters = sum(parameter.numel() for parameter in model.parameters())
            described = f"{parameters:,} parameters"
            fits = parameters <= 2 * stored + _LARGEST_UNREAD
        if not fits:
            raise UserError(
                f"{self._folder}: config.json describes a model of {described}, and the weights "
                f"have {len(self._tensors):,} tensors with {stored:,} elements. Copy the "
                "config.json that was saved with these weights"
            )

    @torch.inference_mode()
    def _check_causal(self) -> None:
        """Checks that a token's logits are finite and do not depend on the tokens after it."""
        rows = torch.ones(2, _PROBE_TOKENS, dtype=torch.int64, device=self._device)
        rows[1, -1] = 2
        first, other = self._model(input_ids=rows).logits[:, 0].float()
        if not first.isfinite().all():
            raise UserError(
                f"{self._folder}: its logits are not finite numbers. Are its weights damaged, or "
                f"out of the range of {self._activations} (--activation_dtype)?"
            )
        if (first - other).abs().max() > _PROBE_SHARE * first.std():
            raise UserError(
                f"{self._folder} ({self.config.model_type}) is no decoder: its first token sees "
                "those after it, as in an encoder. Wanted a model that is trained to continue "
                "texts, such as GPT-2 or Llama"
            )

    @torch.inference_mode()
    def log_likelihoods(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns log p(choice | input) in nats, float32 [B, C].

        Args:
          inputs: int [B, L], ids plus 1; 0 is padding.
          targets: int [B, C, T], the C choices of each input, also as ids plus 1. A choice with
            only padding has the result 0.
        """
        nats = np.zeros(targets.shape[:2], np.float32)
        places = np.argwhere(targets.any(-1))  # (row, choice)
        batch_size = max(1, self._batch_tokens // (inputs.shape[1] + targets.shape[2]))
        for first in range(0, len(places), batch_size):
            batch = places[first : first + batch_size]
            pairs = [(_ids(inputs[row]), _ids(targets[row, choice])) for row, choice in batch]
            nats[tuple(batch.T)] = self._score_pairs(pairs)
        return nats

    def _score_pairs(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Returns the log-likelihoods of N pairs (given ids, scored ids), in nats, [N]."""
        width = max(len(context) + len(scored) for context, scored in pairs) - 1
        ids, seen, targets = (torch.zeros(len(pairs), width, dtype=torch.int64) for _ in range(3))
        scored_at = torch.zeros(len(pairs), width, dtype=torch.bool)
        for row, (context, scored) in enumerate(pairs):
            whole = torch.from_numpy(np.concatenate([context, scored]).astype(np.int64))
            length = len(whole) - 1
            ids[row, :length], seen[row, :length] = whole[:-1], 1
            targets[row, :length] = whole[1:]
            scored_at[row, len(context) - 1 : length] = True
        # Logits are computed only from the first scored position on.
        keep = width - (min(len(context) for context, _ in pairs) - 1)
        some = {"logits_to_keep": keep} if _keeps_logits(self._model) else {}
        batch = {"input_ids": ids.to(self._device), "attention_mask": seen.to(self._device)}
        logits = self._model(**batch, use_cache=False, **some).logits[:, -keep:].float()
        targets, scored_at = (x[:, -keep:].to(self._device) for x in (targets, scored_at))
        nats = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        return nats.masked_fill(~scored_at, 0.0).sum(-1).cpu().numpy()


def _ids(row: np.ndarray) -> np.ndarray:
    return row[row > 0] - 1


def _keeps_logits(model: Any) -> bool:
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def _hash(parts: Iterator[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _check_files(folder: Path) -> None:
    """Checks that the folder has safetensors, no adapter, and no special files such as pipes.

    Reading a pipe could wait forever.
    """
    look_alikes.check(folder)
    for path in folder.iterdir():
        if path.exists() and not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            raise UserError(f"{path} is no regular file: remove it, or copy the file itself")
    if not any((folder / name).is_file() for name in (weight_files.SINGLE, weight_files.INDEX)):
        raise UserError(
            f"{folder} has no safetensors ({weight_files.SINGLE}, or {weight_files.INDEX} and its "
            "shards), and pickled weights are not read: save the model by transformers' "
            "save_pretrained, which writes model.safetensors"
        )


def _check_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Checks the report of transformers about the tensors that it has loaded.

    Raises:
      UserError: if a tensor of the model was not loaded, or a tensor of the folder was not used.
    """
    kinds = {
        "missing": report["missing_keys"],
        "unexpected": report["unexpected_keys"],
        "of another shape": [key for key, *_ in report["mismatched_keys"]],
        "not read": report.get("error_msgs", ()),
    }
    faults = [
        f"{len(names):,} {kind} ({', '.join(map(shown, sorted(names)[:_SHOWN]))}"
        f"{', ...' if len(names) > _SHOWN else ''})"
        for kind, names in kinds.items()
        if names
    ]
    if faults:
        raise UserError(
            f"{folder}: the tensors of its safetensors are not those of the model in config.json: "
            f"{', '.join(faults)}. Copy the config.json that was saved with these weights, or save "
            "the bare model (without the wrapper of torch.compile or DataParallel) by "
            "save_pretrained"
        )


def _read_config(folder: Path) -> Any:
    with _as_user_error(folder):
        config = import_transformers().AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    architectures = import_transformers().MODEL_FOR_CAUSAL_LM_MAPPING
    named = next(iter(config.architectures or ()), None)
    if type(config) not in architectures or named not in (
        None,
        architectures[type(config)].__name__,
    ):
        raise UserError(
            f"{folder} has a {named or config.model_type}, which is not trained to continue texts. "
            "Wanted a decoder-only model (AutoModelForCausalLM), such as GPT-2 or Llama, or a T5"
        )
    for name in _CHOOSING:
        if any(getattr(each, name, None) for each in (config, config.get_text_config())):
            raise UserError(
                f"{folder / 'config.json'} sets {name}, which would choose the code or the file "
                "that is loaded. Wanted plain weights in float32, float16 or bfloat16: save the "
                "model without it"
            )
    return config


def _load_tokenizer(folder: Path) -> Any:
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise UserError(
            f"{folder} has no tokeniser ({', '.join(TOKENIZERS)}): copy the files of the model's "
            "tokeniser into it; without them its tokens have no texts"
        )
    tokenizer_check.check_within_limits(folder)
    with _as_user_error(folder):
        return tokenizer_check.load_tokenizer(folder)


@contextlib.contextmanager
def _as_user_error(folder: Path, fault: str = "cannot be read as a model") -> Iterator[None]:
    """Turns errors and panics of transformers and its libraries into a UserError."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:  # these libraries raise errors of many classes
        # A panic in Rust is raised as a BaseException that is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(
            f"{folder}: {fault} (transformers {import_transformers().__version__}): "
            f"{short_reason(error):.300}"
        ) from error
