"""Opens a folder of Hugging Face's transformers, whose files are checked before they are read.

    folder = PretrainedFolder("/models/bart")       # checks the files, and loads the tokenizer
    folder.is_encoder_decoder, folder.decoder.positions     # True, 1024
    module = folder.load_model(torch.device("cpu"), torch.float32)

No file in a folder can run code: weights must be safetensors, Python files are ignored, and no
value in config.json can choose code. The tokenizer is first loaded in a separate process with
limits (`tokenizer_check`). Every weight of the model must be in the folder, so a missing
or unexpected tensor is an error.
"""

import contextlib
import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from t0.catalogue.text_growth import check_growth
from t0.checkpoints import other_folders, weight_files
from t0.checkpoints.shape import shown
from t0.errors import UserError, install_command, reading, short_reason
from t0.files.paths import check_folder, sha256
from t0.torch import special_ids
from t0.torch.tokenizer_check import check_within_limits

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
    other_folders.check(folder)
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
