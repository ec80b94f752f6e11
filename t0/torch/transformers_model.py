"""Ranks choices, decodes and measures perplexity with models of Hugging Face's transformers.

    folder = PretrainedFolder("/models/bart")       # checks the files, and loads the tokenizer
    folder.is_encoder_decoder, folder.positions     # True, 1024
    model = TransformersModel(folder, world, torch.float32, 16384)
    inputs, targets = model.encode("It rains. Wet?", "yes")
    model.restore("/models/bart")
    model.log_likelihoods(inputs, targets)      # [B, L], [B, C, T] -> float32 [B, C]
    list(model.decode([inputs], 16))            # ["yes"]

T5 models do not use this module. The encoder of an encoder-decoder reads the input, and its decoder
scores the choices. Each input is encoded once for all of its choices. A decoder-only model reads an
input and a choice as one text. If the two parts are tokenized separately, the ids may differ from
those of the whole text, so the score depends on how the parts are joined. `JOINS` contains the
published ways to join them. Arrays contain each token id plus 1, because 0 is padding in
`t0.scoring` but a token in these models.

No file in a folder can run code: weights must be safetensors, Python files are ignored, and no
value in config.json can choose code. The tokenizer is first loaded in a separate process with
limits (`tokenizer_check`). Every weight of the model must be in the folder, so a missing
or unexpected tensor is an error.
"""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from t0.checkpoints import look_alikes, weight_files
from t0.checkpoints.shape import shown
from t0.errors import UserError, install_command, short_reason
from t0.scoring.ranking import MAX_LOGITS
from t0.torch.tokenizer_check import check_within_limits
from t0.torch.world import World

# A folder with a tokenizer has at least one of these files.
TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model"),
    "sentencepiece.bpe.model",  # mBART
)
_BESIDE = (*TOKENIZERS, "merges.txt", "tokenizer_config.json", "special_tokens_map.json")
# Patterns of other files on which scores and texts depend: the configs and more tokenizer files.
_SETTINGS = ("*config.json", "*.spm", "*vocab*", "*.codes", "added_tokens.json")
# The fields of config.json with which transformers chooses code or files. Two other fields,
# attn_implementation and experts_implementation, can also choose code, because they can name a
# kernel of the hub. They are not in this list, because `load_model` sets them itself.
_CHOOSING = ("quantization_config", "fusion_config", "transformers_weights")
# The ids that a model needs to generate texts. All other generation settings of the folder, such as
# the number of beams, are ignored, because tasks are decoded greedily.
_GENERATED_IDS = ("bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id")
_SHOWN = 4  # the maximum number of tensors that a message names
# A model is built only if its elements are at most twice the elements in its files, plus this
# number.
_LARGEST_UNREAD = 10_000_000
_SUPPORTED = (
    "Give a T5, another encoder-decoder (such as BART, mBART, LongT5 or T5Gemma), or a "
    "decoder-only model (such as GPT-2 or Llama)"
)


@functools.cache
def import_transformers() -> Any:
    """Returns the package transformers.

    Raises:
      UserError: if transformers is not installed.
    """
    try:
        import transformers as package
    except ImportError as error:
        raise UserError(
            f"{error.name or error} is not installed, and evaluating a model that is not a T5 "
            f"needs PyTorch and transformers: {install_command('hf')}"
        ) from error
    package.logging.set_verbosity_error()
    return package


class PretrainedFolder:
    """A folder with config.json, safetensors and a tokenizer, whose files have been checked.

    Args:
      path: the folder.

    Attributes:
      path: the folder.
      config: the model's config, as transformers reads it.
      is_encoder_decoder: whether the model is an encoder-decoder; otherwise it is a decoder-only
        model.
      positions: the context window of the encoder and the decoder, in tokens; None if unlimited.
      embeddings: the number of token embeddings; None if the config does not have this number.
      decoder_start: the first id that the decoder of an encoder-decoder reads.
      tokenizer: the model's tokenizer.

    Raises:
      UserError: if a file is missing or cannot be read, or if the model is not supported.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        _check_files(self.path)
        self.config = config = _read_config(self.path)
        text_config = config.get_text_config(decoder=True)
        self.is_encoder_decoder = bool(config.is_encoder_decoder)
        self.positions: int | None = getattr(text_config, "max_position_embeddings", None)
        self.embeddings: int | None = getattr(text_config, "vocab_size", None)
        self.decoder_start: int | None = getattr(config, "decoder_start_token_id", None)
        if self.decoder_start is None:
            self.decoder_start = getattr(text_config, "bos_token_id", None)
        self._tensors = weight_files.open_weights(self.path).tensors
        self._weights = sorted({tensor.path for tensor in self._tensors.values()})
        check_within_limits(self.path)
        with as_user_error(self.path, "its tokenizer cannot be loaded"):
            self.tokenizer = import_transformers().AutoTokenizer.from_pretrained(
                self.path, trust_remote_code=False, local_files_only=True
            )

    @property
    def fingerprint(self) -> str:
        """A hash that changes if a file with weights or its modification time changes."""
        return _hash(f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in self._weights)

    @property
    def settings_sha256(self) -> str:
        """A hash of the configs and of the tokenizer files that `vocabulary` does not hash."""
        matches = {path for pattern in _SETTINGS for path in self.path.glob(pattern)}
        files = sorted(path for path in matches if path.is_file() and path.name not in _BESIDE)
        return _hash(f"{p.name} {hashlib.sha256(p.read_bytes()).hexdigest()}" for p in files)

    @property
    def vocabulary(self) -> dict[str, Any]:
        """The facts about the tokenizer for results files."""
        files = [self.path / name for name in _BESIDE if (self.path / name).is_file()]
        return {
            "vocabulary": str(files[0]),
            "vocabulary_sha256": _hash(hashlib.sha256(p.read_bytes()).hexdigest() for p in files),
            "vocabulary_size": len(self.tokenizer),
        }

    def load_model(self, device: torch.device, dtype: torch.dtype) -> Any:
        """Loads the model and its weights, with generation settings for greedy search.

        Raises:
          UserError: if a tensor of the model is missing in the folder, or if the folder has tensors
            that the model does not have.
        """
        package = import_transformers()
        auto_model = (
            package.AutoModelForSeq2SeqLM
            if self.is_encoder_decoder
            else package.AutoModelForCausalLM
        )
        self._check_size(auto_model)
        with as_user_error(self.path):
            model, report = auto_model.from_pretrained(
                self.path,
                config=self.config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                # None selects the library's default, so that config.json cannot choose an
                # implementation.
                attn_implementation=None,
                experts_implementation=None,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # the report names mismatches; see below
            )
        _check_report(self.path, report)
        ids = {name: getattr(model.generation_config, name, None) for name in _GENERATED_IDS}
        model.generation_config = package.GenerationConfig(
            # After its end, a row of a batch is filled with this id, which is never read.
            pad_token_id=self.tokenizer.pad_token_id or 0,
            num_beams=1,
            do_sample=False,
            **ids,
        )
        return model.to(device).eval()

    def _check_size(self, auto_model: Any) -> None:
        """Checks that the model is about as large as its files, before any memory is allocated.

        Otherwise, transformers would first allocate all missing weights and fill them at random.
        """
        stored = sum(int(np.prod(tensor.shape)) for tensor in self._tensors.values())
        layers = getattr(self.config.get_text_config(decoder=True), "num_hidden_layers", 0)
        described = f"{layers:,} layers" if isinstance(layers, int) else f"{layers!r:.20} layers"
        fits = isinstance(layers, int) and layers <= len(self._tensors)
        if fits:
            with as_user_error(self.path), torch.device("meta"):
                model = auto_model.from_config(
                    self.config, attn_implementation=None, experts_implementation=None
                )
            parameters = sum(parameter.numel() for parameter in model.parameters())
            described = f"{parameters:,} parameters"
            fits = parameters <= 2 * stored + _LARGEST_UNREAD
        if not fits:
            raise UserError(
                f"{self.path}: config.json describes a model of {described}, and the weights "
                f"have {len(self._tensors):,} tensors with {stored:,} elements. Copy the "
                "config.json that was saved with these weights"
            )


def _hash(parts: Iterator[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _check_files(folder: Path) -> None:
    """Checks that the folder has safetensors and a tokenizer, but no adapter and no pipes."""
    look_alikes.check(folder)
    for path in folder.iterdir():
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe may block forever
            raise UserError(f"{path} is no regular file: remove it, or copy the file itself")
    if not any((folder / name).is_file() for name in (weight_files.SINGLE, weight_files.INDEX)):
        raise UserError(
            f"{folder} has no safetensors ({weight_files.SINGLE}, or {weight_files.INDEX} and its "
            "shards), and pickled weights are not read: save the model by transformers' "
            "save_pretrained, which writes model.safetensors"
        )
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise UserError(
            f"{folder} has no tokenizer ({', '.join(TOKENIZERS)}): copy the files of the model's "
            "tokenizer into it; without them its tokens have no texts"
        )


def _check_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Checks the report in which transformers lists the tensors that it has loaded.

    Raises:
      UserError: if a tensor of the model was not loaded, or if a tensor in the folder was not used.
    """
    kinds = {
        "missing": report["missing_keys"],
        "unexpected": report["unexpected_keys"],
        "of another shape": [key for key, *_ in report["mismatched_keys"]],
        "not read": report.get("error_msgs", ()),
    }
    faults = [
        f"{len(names):,} {kind} ({', '.join(map(shown, sorted(names)[:_SHOWN]))})"
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
    """Reads config.json; checks that the model reads and writes texts, and runs no other code."""
    package = import_transformers()
    with as_user_error(folder):
        config = package.AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    for name in _CHOOSING:
        if any(getattr(each, name, None) for each in (config, config.get_text_config())):
            raise UserError(
                f"{folder / 'config.json'} sets {name}, which would choose the code or the file "
                "that is loaded. Wanted plain weights in float32, float16 or bfloat16: save the "
                "model without it"
            )
    if config.is_encoder_decoder:
        classes = package.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    else:
        classes = package.MODEL_FOR_CAUSAL_LM_MAPPING
    chosen = classes.get(type(config), None)  # noqa: SIM910 (this `get` requires it)
    saved = next(iter(config.architectures or ()), None)
    if chosen and chosen.main_input_name == "input_ids" and saved in (None, chosen.__name__):
        return config
    raise UserError(
        f"{folder} has a {saved or config.model_type}, which is not trained to write texts. "
        f"{_SUPPORTED}"
    )


@contextlib.contextmanager
def as_user_error(folder: Path, fault: str = "cannot be read as a model") -> Iterator[None]:
    """Turns errors and panics of transformers and its libraries into a UserError."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:  # because these libraries raise errors of many classes
        # A panic in Rust is raised as a BaseException, but not as an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(
            f"{folder}: {fault} (transformers {import_transformers().__version__}): "
            f"{short_reason(error):.300}"
        ) from error


# The check of causality changes the last of `_PROBE_TOKENS` tokens. Then the logits of the first
# token must not change. A change of at most `_PROBE_SHARE` standard deviations counts as rounding.
_PROBE_TOKENS, _PROBE_SHARE = 4, 1e-3
_Pair = tuple[list[int], list[int]]  # the ids that a model is given, and the ids that it scores
_IGNORED = -100  # the label of positions that are not scored, as in transformers


@dataclasses.dataclass(frozen=True)
class Join:
    """A way in which an input and a choice are joined for a model.

    Attributes:
      description: the description of this way in results files.
      join: a function of (folder, input, choice) that returns (ids that are given to the model, ids
        that are scored).
      cut_left: whether an input that is too long is cut at its beginning instead of its end.
    """

    description: str
    join: Callable[[PretrainedFolder, str, str], _Pair]
    cut_left: bool = False


def _join_as_lm_eval(folder: PretrainedFolder, given: str, choice: str) -> _Pair:
    """Joins an input and a choice like lm-evaluation-harness 0.4.13 (`TemplateLM._encode_pair`)."""
    tokenizer, text = folder.tokenizer, " " + choice
    if not given:
        return [_first_id(tokenizer)], tokenizer.encode(text, add_special_tokens=False)
    bare = given.rstrip()
    whole = tokenizer.encode(given + text)
    # The tokenizer adds the same special tokens (such as BOS) to the input as to the whole text.
    context = tokenizer.encode(bare) if bare else whole[:1]
    return context, whole[len(context) :]


def _join_as_t_zero(folder: PretrainedFolder, given: str, choice: str) -> _Pair:
    """Joins an input and a choice like bigscience-workshop/t-zero (evaluation/run_eval.py)."""
    tokenizer = folder.tokenizer
    return tokenizer.encode(given, add_special_tokens=False), tokenizer.encode(choice)


def _encode_separately(folder: PretrainedFolder, given: str, choice: str) -> _Pair:
    """Encodes an input for the encoder, and a choice with EOS for the decoder."""
    tokenizer = folder.tokenizer
    scored = tokenizer(text_target=choice)["input_ids"]
    # Some tokenizers, such as Gemma's, begin each text with the id that the decoder reads first
    # anyway.
    scored = scored[1:] if scored[:1] == [folder.decoder_start] else scored
    eos = tokenizer.eos_token_id
    return tokenizer(given)["input_ids"], scored + [eos] * (eos is not None and eos not in scored)


def _first_id(tokenizer: Any) -> int | None:
    """Returns the id with which a text begins: BOS, or EOS if the tokenizer has no BOS."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    return eos if bos is None else bos


JOINS = {
    "lm-eval": Join(
        "lm-evaluation-harness: input, a space and choice are tokenized as one text; the tokens "
        "after those of the input are scored, without EOS; a long input loses its beginning",
        _join_as_lm_eval,
        cut_left=True,
    ),
    "t-zero": Join(
        "bigscience-workshop/t-zero: input (without special tokens) and choice (with the "
        "tokenizer's own) are tokenized apart, nothing is between them; the choice's tokens are "
        "scored; a long input loses its end",
        _join_as_t_zero,
    ),
}
_SEPARATE = Join(
    "encoder-decoder: input and choice are tokenized apart, each with the tokenizer's own special "
    "tokens; the choice's tokens are scored, with EOS; a long input loses its end",
    _encode_separately,
)


class TransformersModel:
    """A model of transformers, with the methods that `t0.scoring` needs.

    Args:
      folder: the model's folder.
      world: the world of a single process, with the device that computes.
      activations: the type of weights and activations. The softmax is always float32.
      batch_tokens: the maximum number of tokens in a forward pass.
      join: the way in which inputs and choices are joined for a decoder-only model, one of `JOINS`.
    """

    replicas = 1

    def __init__(
        self,
        folder: PretrainedFolder,
        world: World,
        activations: torch.dtype,
        batch_tokens: int,
        join: Join = JOINS["lm-eval"],
    ) -> None:
        self.folder, self._world, self._activations = folder, world, activations
        self.device_kind = world.device_kind
        self.join = _SEPARATE if folder.is_encoder_decoder else join
        self._batch_tokens = batch_tokens
        self._model: Any = None

    def encode(self, given: str, choice: str) -> _Pair:
        """Returns the ids of an input and the ids of a choice.

        Raises:
          UserError: if the tokenizer fails, or if it returns an id for which the model has no
            embedding.
        """
        with as_user_error(self.folder.path, "its tokenizer cannot encode a text"):
            context, scored = self.join.join(self.folder, given, choice)
        self._check_ids((*context, *scored))
        return context, scored

    def encode_windows(self, text: str, most: int) -> Iterator[_Pair]:
        """Yields windows of a text, each of at most `most` tokens, as (given ids, scored ids).

        Each token of the text is scored once. As in lm-evaluation-harness
        (`get_rolling_token_windows`), the model is also given the token before a window. Before the
        first window, it is given BOS or EOS.
        """
        tokenizer = self.folder.tokenizer
        with as_user_error(self.folder.path, "its tokenizer cannot encode a text"):
            ids = tokenizer.encode(text, add_special_tokens=False)
        whole = [_first_id(tokenizer), *ids]
        self._check_ids(whole)
        for start in range(0, len(ids), most):
            yield whole[start : start + 1], ids[start : start + most]

    def _check_ids(self, ids: Sequence[int | None]) -> None:
        path, rows = self.folder.path, self.folder.embeddings
        if None in ids:
            raise UserError(
                f"{path}: the input is empty, and the tokenizer has neither a BOS nor an EOS token "
                "to put in its place; name one in tokenizer_config.json"
            )
        if rows is not None and max(ids, default=0) >= rows:
            raise UserError(
                f"{path}: its tokenizer makes the id {max(ids):,}, and the model has embeddings "
                f"for the ids 0 to {rows - 1:,} (vocab_size in config.json): the tokenizer is of "
                "another model. Copy this model's own tokenizer into the folder"
            )

    def truncate(self, context: list[int], most: int) -> list[int]:
        """Truncates an input to `most` ids; an encoder's input keeps the special ids at its end."""
        if len(context) <= most:
            return context
        if self.join.cut_left:
            return context[-most:]
        special = set(self.folder.tokenizer.all_special_ids) if self.join is _SEPARATE else ()
        last = next((n for n, token in enumerate(reversed(context)) if token not in special), 0)
        return context[: most - last] + context[len(context) - last :]

    def excess(self, context: int, scored: int) -> str:
        """Returns a message with advice if a text exceeds the context window, otherwise "".

        Args:
          context: the number of tokens of the input.
          scored: the number of tokens of the choice.
        """
        positions = self.folder.positions
        separate = self.folder.is_encoder_decoder
        read = max(context, scored) if separate else context + scored - 1
        if not positions or read <= positions:
            return ""
        return (
            f"{read:,} tokens, but the context window has {positions:,}. To truncate "
            "long inputs, which the results record: "
            f"--lengths=inputs={positions * 3 // 4},targets={positions // 4}"
        )

    def restore(self, checkpoint: str) -> int:
        """Loads the weights if they are not loaded yet; returns the number of tensors.

        Raises:
          UserError: if a tensor of the model is missing in the folder, or the folder has tensors
            that the model does not have.
        """
        del checkpoint  # not needed, because `folder` is the checkpoint
        if self._model is None:
            self._model = self.folder.load_model(self._world.device, self._activations)
            self._check_logits()
        # Tied weights count once. `load_model` has checked that all tensors have been read.
        return sum(1 for _ in self._model.parameters())

    @torch.inference_mode()
    def _check_logits(self) -> None:
        """Checks that logits are finite and, in a decoder-only model, depend on no later token.

        Raises:
          UserError: if the logits fail this check.
        """
        rows = torch.ones(2, _PROBE_TOKENS, dtype=torch.int64, device=self._world.device)
        rows[1, -1] = 2
        separate = self.folder.is_encoder_decoder
        decoded = {"decoder_input_ids": rows} if separate else {}
        first, other = self._model(input_ids=rows, **decoded).logits[:, 0].float()
        if not first.isfinite().all():
            raise UserError(
                f"{self.folder.path}: its logits are not finite numbers. Are its weights damaged, "
                f"or out of the range of {self._activations} (--activation_dtype)?"
            )
        if not separate and (first - other).abs().max() > _PROBE_SHARE * first.std():
            raise UserError(
                f"{self.folder.path} ({self.folder.config.model_type}) is no decoder: its first "
                "token sees those after it, as in an encoder. Wanted a model that is trained to "
                "continue texts, such as GPT-2 or Llama"
            )

    def log_likelihoods(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns the log-likelihood of each choice, given its input, in nats, float32 [B, C].

        Args:
          inputs: int [B, L], ids plus 1; 0 is padding.
          targets: int [B, C, T], the C choices of each input, also as ids plus 1. The result is 0
            for a choice with only padding.
        """
        return self._score(inputs, targets)[..., 0]

    def sums(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the sums of a batch; see `t0.scoring.perplexity.HeldOutModel`."""
        nats, correct = self._score(batch["inputs"], batch["targets"][:, None]).sum((0, 1))
        return np.array([-nats, 0.0, correct, np.count_nonzero(batch["targets"])])

    @torch.inference_mode()
    def _score(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns each choice's log-likelihood and number of correct tokens, [B, C, 2]."""
        scores = np.zeros((*targets.shape[:2], 2), np.float32)
        places = np.argwhere(targets.any(-1))  # (row, choice)
        separate = self.folder.is_encoder_decoder
        encoded = self._encode_inputs(inputs) if separate else None
        read = targets.shape[2] if separate else inputs.shape[1] + targets.shape[2]
        most = self._batch_tokens
        if separate and self.folder.embeddings:
            most = min(most, MAX_LOGITS[self.device_kind] // self.folder.embeddings)
        batch_size = max(1, most // read)
        for first in range(0, len(places), batch_size):
            batch = places[first : first + batch_size]
            if encoded is None:
                pairs = [(_ids(inputs[row]), _ids(targets[row, choice])) for row, choice in batch]
                scores[tuple(batch.T)] = self._score_pairs(pairs)
            else:
                scores[tuple(batch.T)] = self._score_decoded(
                    {name: values[batch[:, 0]] for name, values in encoded.items()},
                    targets[tuple(batch.T)],
                )
        return scores

    def _encode_inputs(self, inputs: np.ndarray) -> dict[str, torch.Tensor]:
        """Returns the encoder's output [B, L, D] and its attention mask [B, L]."""
        ids = torch.from_numpy(inputs.astype(np.int64)).to(self._world.device)
        # Padding has the id 0, which the mask hides.
        seen = {"input_ids": (ids - 1).clamp(min=0), "attention_mask": (ids > 0).long()}
        memory = self._model.get_encoder()(**seen)[0]
        return {"memory": memory, "attention_mask": seen["attention_mask"]}

    def _score_decoded(
        self, encoded: Mapping[str, torch.Tensor], targets: np.ndarray
    ) -> np.ndarray:
        """Returns the scores [N, 2] that an encoder-decoder gives to targets [N, T]."""
        from transformers.modeling_outputs import BaseModelOutput

        labels = torch.from_numpy(targets.astype(np.int64)).to(self._world.device) - 1
        labels = labels.masked_fill(labels < 0, _IGNORED)
        logits = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoded["memory"]),
            attention_mask=encoded["attention_mask"],
            decoder_input_ids=self._model.prepare_decoder_input_ids_from_labels(labels=labels),
            use_cache=False,
        ).logits
        return _score_labels(logits, labels)

    def _score_pairs(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Returns the scores [N, 2] that a decoder-only model gives to (given ids, scored ids)."""
        wholes = [np.concatenate(pair)[:-1] for pair in pairs]
        ids, seen = _pad(wholes, "right")
        labels, _ = _pad(
            [np.concatenate([np.full(len(c) - 1, _IGNORED), x]) for c, x in pairs],
            "right",
            _IGNORED,
        )
        width = ids.shape[1]
        # Logits are computed only for the first scored position and all positions after it.
        keep = width - (min(len(context) for context, _ in pairs) - 1)
        accepted = inspect.signature(self._model.forward).parameters
        some = {"logits_to_keep": keep} if "logits_to_keep" in accepted else {}
        device = self._world.device
        batch = {"input_ids": ids.to(device), "attention_mask": seen.to(device)}
        logits = self._model(**batch, use_cache=False, **some).logits[:, -keep:]
        return _score_labels(logits, labels[:, -keep:].to(device))

    def decode(self, inputs: Sequence[np.ndarray], most_tokens: int) -> Iterator[str]:
        """Decodes each input [L] greedily; yields texts of at most `most_tokens` tokens.

        Args:
          inputs: the ids of each input plus 1.
          most_tokens: the maximum number of tokens of a text.

        Raises:
          UserError: if an input together with `most_tokens` tokens does not fit into the context
            window.
        """
        order = sorted(range(len(inputs)), key=lambda number: -len(inputs[number]))
        longest = len(inputs[order[0]]) if order else 0
        if excess := self.excess(longest, most_tokens):
            raise UserError(f"input and decoded text may have {excess}")
        batch_size = max(1, self._batch_tokens // (longest + most_tokens))
        texts = [""] * len(inputs)
        for first in range(0, len(order), batch_size):
            numbers = order[first : first + batch_size]
            ids = self._generate([_ids(inputs[number]) for number in numbers], most_tokens)
            for number, row in zip(numbers, ids, strict=True):
                texts[number] = self.folder.tokenizer.decode(row, skip_special_tokens=True).strip()
        yield from texts

    @torch.inference_mode()
    def _generate(self, rows: Sequence[np.ndarray], most_tokens: int) -> torch.Tensor:
        """Returns the ids that the model generates for rows of ids."""
        separate = self.folder.is_encoder_decoder
        # A decoder-only model continues a row at its right end, so its padding is on the left.
        ids, seen = _pad(rows, "right" if separate else "left")
        generated = self._model.generate(
            input_ids=ids.to(self._world.device),
            attention_mask=seen.to(self._world.device),
            max_new_tokens=most_tokens,
        )
        return generated if separate else generated[:, ids.shape[1] :]


def _pad(
    rows: Sequence[np.ndarray], side: str, value: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns rows of ids, padded on one side with `value`, and 1 for ids and 0 for padding."""
    tensors = [torch.from_numpy(row.astype(np.int64)) for row in rows]
    pad = functools.partial(pad_sequence, batch_first=True, padding_side=side)
    return pad(tensors, padding_value=value), pad([torch.ones_like(each) for each in tensors])


def _score_labels(logits: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Returns the log-likelihood and the number of correctly predicted tokens of rows, [N, 2].

    Args:
      logits: the logits, [N, T, V].
      labels: the ids that are scored, or `_IGNORED` at positions that are not scored, [N, T].
    """
    logits, scored = logits.float(), labels != _IGNORED
    nats = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    correct = logits.argmax(-1) == labels
    return torch.stack([nats.masked_fill(~scored, 0.0).sum(-1), correct.sum(-1)], -1).cpu().numpy()


def _ids(row: np.ndarray) -> np.ndarray:
    return row[row > 0] - 1
