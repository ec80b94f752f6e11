"""Ranks choices, decodes and measures perplexity with models of Hugging Face's transformers.

    folder = PretrainedFolder("/models/bart")       # checks the files, and loads the tokenizer
    folder.is_encoder_decoder, folder.decoder.positions     # True, 1024
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
`t0.evaluation` but a token in these models.

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
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from t0.catalogue.text_growth import check_growth
from t0.checkpoints import look_alikes, weight_files
from t0.checkpoints.shape import shown
from t0.errors import UserError, install_command, reading, short_reason
from t0.evaluation.batching import BatchLimits, BatchPlan, PaddedBatch, SortedPlan
from t0.evaluation.examples import ScoringTask
from t0.evaluation.ranking import MAX_LOGITS
from t0.files.paths import check_folder, sha256
from t0.torch import model_checks, special_ids
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
# Fields with which the other texts of a batch, or chance, change the score of a text: the test for
# values that are independent of these, and the value to set. BigBird attends to all tokens from the
# first short batch on, and NLLB-MoE drops the tokens that an expert has no place for.
_DEPENDS_ON_BATCH: dict[str, tuple[Callable[[Any], bool], Any]] = {
    "attention_type": (lambda value: value != "block_sparse", "original_full"),
    "moe_eval_capacity_token_fraction": (lambda value: value >= 1, 1.0),
    "second_expert_policy": (lambda value: value == "all", "all"),
}
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
      encoder, decoder: the context window and the number of token embeddings of each side; both
        are equal in a decoder-only model.
      decoder_start: the first id that the decoder of an encoder-decoder reads.
      padding: the id of padding, which attention masks hide.
      tokenizer: the model's tokenizer.

    Raises:
      UserError: if a file is missing or cannot be read, or if the model is not supported.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        with reading(path):
            check_folder(path)
        _check_files(self.path)
        self.config = config = _read_config(self.path)
        self.is_encoder_decoder = bool(config.is_encoder_decoder)
        with as_user_error(self.path / special_ids.CONFIG):
            sides = [_read_side(config, side) for side in ("encoder", "decoder")]
        self.encoder, self.decoder = sides
        self.decoder_start: int | None = getattr(config, "decoder_start_token_id", None)
        if self.decoder_start is None:
            text_config = config.get_text_config(decoder=True)
            self.decoder_start = getattr(text_config, "bos_token_id", None)
        special_ids.check(self.path, config, start=self.decoder_start, rows=self.decoder.embeddings)
        self._tensors = weight_files.open_weights(self.path).tensors
        self._weights = sorted({tensor.path for tensor in self._tensors.values()})
        check_growth(self.path)
        check_within_limits(self.path)
        with as_user_error(self.path, "its tokenizer cannot be loaded"):
            self.tokenizer = import_transformers().AutoTokenizer.from_pretrained(
                self.path, trust_remote_code=False, local_files_only=True
            )
        self.padding = self.tokenizer.pad_token_id or 0
        if self.padding >= min(
            side.embeddings or math.inf for side in (self.encoder, self.decoder)
        ):
            self.padding = 0  # the tokenizer has an additional padding token without an embedding

    @property
    def fingerprint(self) -> str:
        """A hash that changes if a file with weights or its modification time changes."""
        return _hash(f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in self._weights)

    @property
    def settings_sha256(self) -> str:
        """A hash of the configs and of the tokenizer files that `vocabulary` does not hash."""
        matches = {path for pattern in _SETTINGS for path in self.path.glob(pattern)}
        files = sorted(path for path in matches if path.is_file() and path.name not in _BESIDE)
        return _hash(f"{p.name} {sha256(p)}" for p in files)

    @property
    def vocabulary(self) -> dict[str, Any]:
        """The facts about the tokenizer for results files."""
        files = [self.path / name for name in _BESIDE if (self.path / name).is_file()]
        return {
            "vocabulary": str(files[0]),
            "vocabulary_sha256": _hash(map(sha256, files)),
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
        model.generation_config = package.GenerationConfig(
            # After its end, a row of a batch is filled with this id, which `decode` removes.
            pad_token_id=self.padding,
            num_beams=1,
            do_sample=False,
            **special_ids.choose(model.generation_config, self.tokenizer, self.decoder.embeddings),
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


@dataclasses.dataclass(frozen=True)
class Side:
    """The sizes of an encoder or a decoder.

    Attributes:
      positions: the context window in tokens; None if unlimited.
      embeddings: the number of token embeddings; None if the config does not have this number.
    """

    positions: int | None
    embeddings: int | None


# The names of both sizes in configs, for each side. LED has a window for each side, FSMT a
# vocabulary for each language, and Marian may have a vocabulary for its decoder.
_SIZES = {
    "encoder": (
        ("max_encoder_position_embeddings", "max_position_embeddings"),
        ("src_vocab_size", "vocab_size"),
    ),
    "decoder": (
        ("max_decoder_position_embeddings", "max_position_embeddings"),
        ("tgt_vocab_size", "decoder_vocab_size", "vocab_size"),
    ),
}
# RoBERTa and its relatives number positions from the id of padding plus 1, so their context window
# is smaller than the number of position embeddings.
_NUMBERED_AFTER_PADDING = ("roberta", "camembert", "xmod", "data2vec-text")


def _read_side(config: Any, side: str) -> Side:
    """Returns the sizes of one side of a model. `config` may have a config for each side."""
    text_config = getattr(config, side, None)
    if not hasattr(text_config, "get_text_config"):
        text_config = config
    if text_config is not config or not config.is_encoder_decoder:
        text_config = text_config.get_text_config(decoder=True)
    positions, embeddings = (
        next((size for name in names if (size := getattr(text_config, name, None))), None)
        for names in _SIZES[side]
    )
    for value in (positions, embeddings):
        if value is not None and type(value) is not int:
            raise ValueError(f"a number of tokens is {value!r:.60}; expected an integer")
    if embeddings is not None and embeddings < 0:
        raise ValueError(f"the number of token ids is {embeddings:,}; expected at least 1")
    if positions and any(name in text_config.model_type for name in _NUMBERED_AFTER_PADDING):
        positions -= text_config.pad_token_id + 1
    return Side(positions, embeddings)


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
    for name, (is_independent, remedy) in _DEPENDS_ON_BATCH.items():
        if not is_independent(getattr(config, name, remedy)):
            raise UserError(
                f"{folder / 'config.json'} sets {name} to {getattr(config, name)!r:.60}, so the "
                "score of a text would depend on the other texts of its batch, or on chance. "
                f"Expected {remedy!r}: set it in config.json"
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
    """A model of transformers, with the methods that `t0.evaluation` needs.

    Attributes:
      folder, device, activations, join: as given.
      model: the module of transformers; None before `restore`.

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
        self.folder, self.activations, self.device = folder, activations, world.device
        self.device_kind = world.device_kind
        self.join = _SEPARATE if folder.is_encoder_decoder else join
        self._batch_tokens = batch_tokens
        self.model: Any = None

    def encode(self, given: str, choice: str) -> _Pair:
        """Returns the ids of an input and the ids of a choice.

        Raises:
          UserError: if the tokenizer fails, or if it returns an id for which the model has no
            embedding.
        """
        with as_user_error(self.folder.path, "its tokenizer cannot encode a text"):
            context, scored = self.join.join(self.folder, given, choice)
        self._check_ids(context, self.folder.encoder)
        self._check_ids(scored, self.folder.decoder)
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
        self._check_ids(whole, self.folder.decoder)
        for start in range(0, len(ids), most):
            yield whole[start : start + 1], ids[start : start + most]

    def _check_ids(self, ids: Sequence[int | None], side: Side) -> None:
        path, rows = self.folder.path, side.embeddings
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
        read, written = (
            side.positions or math.inf for side in (self.folder.encoder, self.folder.decoder)
        )
        if self.folder.is_encoder_decoder:
            used = ((context, read), (scored, written))
        else:
            used = ((context + scored - 1, written),)
        for tokens, positions in used:
            if tokens > positions:
                inputs, targets = (min(most, 1 << 20) for most in (read, written))
                return (
                    f"{tokens:,} tokens, but the context window has {positions:,}. To truncate "
                    "long inputs, which the results record: "
                    f"--lengths=inputs={inputs * 3 // 4},targets={targets // 4}"
                )
        return ""

    def restore(self, checkpoint: str) -> int:
        """Loads the weights if they are not loaded yet; returns the number of tensors.

        Raises:
          UserError: if a tensor of the model is missing in the folder, or the folder has tensors
            that the model does not have.
        """
        del checkpoint  # not needed, because `folder` is the checkpoint
        if self.model is None:
            self.model = self.folder.load_model(self.device, self.activations)
            with as_user_error(self.folder.path, "this model cannot be evaluated"):
                model_checks.check_logits(self)
                model_checks.check_padding(self)
        # Tied weights count once. `load_model` has checked that all tensors have been read.
        return sum(1 for _ in self.model.parameters())

    def close(self) -> None:
        """Does nothing, because the same weights score and decode."""

    def check_decoding(self) -> None:
        """Checks that the model can decode texts in batches.

        Raises:
          UserError: if it cannot.
        """
        with as_user_error(self.folder.path, "this model cannot decode texts"):
            model_checks.check_decoding(self)

    @property
    def end_ids(self) -> list[int]:
        """The ids of the tokens that end a decoded text."""
        ends = self.model.generation_config.eos_token_id
        return [] if ends is None else np.atleast_1d(ends).tolist()

    def log_likelihoods(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns the log-likelihood of each choice, given its input, in nats, float32 [B, C].

        Args:
          inputs: int [B, L], ids plus 1; 0 is padding.
          targets: int [B, C, T], the C choices of each input, also as ids plus 1. The result is 0
            for a choice with only padding.
        """
        return self.score_choices(inputs, targets)[..., 0]

    def plan(self, tasks: Sequence[ScoringTask], limits: BatchLimits, **options: Any) -> BatchPlan:
        """Plans batches of any shape, sorted by length."""
        del tasks, options
        return SortedPlan(limits)

    def score(self, batch: PaddedBatch) -> np.ndarray:
        """Returns the log-likelihoods of a batch, float32 [B, C]."""
        return self.log_likelihoods(*batch.lay_out())

    def measure(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the sums of a batch; see `t0.evaluation.model.Model`."""
        nats, correct = self.score_choices(batch["inputs"], batch["targets"][:, None]).sum((0, 1))
        return np.array([-nats, 0.0, correct, np.count_nonzero(batch["targets"])])

    @torch.inference_mode()
    def score_choices(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns each choice's log-likelihood and number of correct tokens, [B, C, 2]."""
        scores = np.zeros((*targets.shape[:2], 2), np.float32)
        places = np.argwhere(targets.any(-1))  # (row, choice)
        separate = self.folder.is_encoder_decoder
        encoded = self.encode_inputs(inputs) if separate else None
        read = targets.shape[2] if separate else inputs.shape[1] + targets.shape[2]
        most = self._batch_tokens
        if separate and self.folder.decoder.embeddings:
            most = min(most, MAX_LOGITS[self.device_kind] // self.folder.decoder.embeddings)
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

    def encode_inputs(self, inputs: np.ndarray) -> dict[str, torch.Tensor]:
        """Returns ids and attention mask [B, L], and the encoder's output [B, L, D] as "memory"."""
        ids = torch.from_numpy(inputs.astype(np.int64)).to(self.device)
        seen = {"attention_mask": (ids > 0).long()}
        seen["input_ids"] = (ids - 1).masked_fill(ids == 0, self.folder.padding)
        return {**seen, "memory": self.model.get_encoder()(**seen)[0]}

    def _score_decoded(
        self, encoded: Mapping[str, torch.Tensor], targets: np.ndarray
    ) -> np.ndarray:
        """Returns the scores [N, 2] that an encoder-decoder gives to targets [N, T]."""
        return _score_labels(*self.decoder_logits(encoded, targets))

    def decoder_logits(
        self, encoded: Mapping[str, torch.Tensor], targets: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the logits [N, T, V] of an encoder-decoder, and the labels [N, T].

        The decoder's inputs are made from the labels as transformers makes them for training: by
        the model's function for this purpose or, if it has none, in the model.
        """
        from transformers.modeling_outputs import MoEModelOutput

        labels = torch.from_numpy(targets.astype(np.int64)).to(self.device) - 1
        labels = labels.masked_fill(labels < 0, _IGNORED)
        shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        copied = labels.clone()  # FSMT changes it
        shifted = {"decoder_input_ids": shift(labels=copied)} if shift else {"labels": copied}
        inputs = dict(encoded)  # FSMT's decoder is causal only if it gets the ids of the inputs
        # This class of outputs has the fields of all encoders.
        inputs["encoder_outputs"] = MoEModelOutput(last_hidden_state=inputs.pop("memory"))
        logits = self.model(**inputs, **shifted, use_cache=False).logits
        return logits, labels

    def _score_pairs(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Returns the scores [N, 2] that a decoder-only model gives to (given ids, scored ids)."""
        wholes = [np.concatenate(pair)[:-1] for pair in pairs]
        ids, seen = _pad(wholes, "right", self.folder.padding)
        labels, _ = _pad(
            [np.concatenate([np.full(len(c) - 1, _IGNORED), x]) for c, x in pairs],
            "right",
            _IGNORED,
        )
        width = ids.shape[1]
        # Logits are computed only for the first scored position and all positions after it.
        keep = width - (min(len(context) for context, _ in pairs) - 1)
        accepted = inspect.signature(self.model.forward).parameters
        some = {"logits_to_keep": keep} if "logits_to_keep" in accepted else {}
        device = self.device
        batch = {"input_ids": ids.to(device), "attention_mask": seen.to(device)}
        logits = self.model(**batch, use_cache=False, **some).logits[:, -keep:]
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
            rows = self._generate([_ids(inputs[number]) for number in numbers], most_tokens)
            for number, row in zip(numbers, rows, strict=True):
                texts[number] = self.folder.tokenizer.decode(row, skip_special_tokens=True).strip()
        yield from texts

    def _generate(self, rows: Sequence[np.ndarray], most_tokens: int) -> list[list[int]]:
        """Returns the ids that the model generates for rows of ids, up to the end token."""
        outputs, start = self.generate(rows, most_tokens)
        return [
            list(itertools.takewhile(lambda token: token not in self.end_ids, row))
            for row in outputs.sequences[:, start:].tolist()
        ]

    @torch.inference_mode()
    def generate(
        self, rows: Sequence[np.ndarray], most_tokens: int, **options: bool
    ) -> tuple[Any, int]:
        """Returns the output of `generate`, and the number of ids before the generated ones."""
        separate = self.folder.is_encoder_decoder
        # A decoder-only model continues a row at its right end, so its padding is on the left.
        ids, seen = _pad(rows, "right" if separate else "left", self.folder.padding)
        outputs = self.model.generate(
            input_ids=ids.to(self.device),
            attention_mask=seen.to(self.device),
            max_new_tokens=most_tokens,
            return_dict_in_generate=True,
            **options,
        )
        return outputs, 1 if separate else ids.shape[1]  # the decoder's start token, or the input


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
