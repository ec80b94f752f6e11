"""Reads an encoder-decoder or a decoder-only model from a folder of Hugging Face's transformers.

    folder = PretrainedFolder("/models/bart")       # checks the files, and loads the tokenizer
    folder.is_encoder_decoder, folder.positions     # True, 1024
    model = folder.load_model(torch.device("cpu"), torch.float32)

No file in a folder can run code: weights must be safetensors, Python files are ignored, and no
value in config.json can choose code. Every weight of the model must be in the folder, so a missing
or unexpected tensor is an error.
"""

import contextlib
import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from t0.checkpoints import look_alikes, weight_files
from t0.checkpoints.shape import shown
from t0.errors import UserError, install_command, short_reason

# A folder with a tokenizer has at least one of these files.
TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model"),
    "sentencepiece.bpe.model",  # mBART
)
_BESIDE = (*TOKENIZERS, "merges.txt", "tokenizer_config.json", "special_tokens_map.json")
# The fields of config.json with which transformers chooses code or files. Two other fields,
# attn_implementation and experts_implementation, can also choose code, because they can name a
# kernel of the hub. They are not in this list, because `load_model` sets them itself.
_CHOOSING = ("quantization_config", "fusion_config", "transformers_weights")
# The ids that a model needs to generate texts. All other generation settings of the folder, such as
# the number of beams, are ignored, because tasks are decoded greedily.
_GENERATED_IDS = ("bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id")
_SHOWN = 4  # the maximum number of tensors that a message names
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
      tokenizer: the model's tokenizer.

    Raises:
      UserError: if a file is missing or cannot be read, or if the model is not supported.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        _check_files(self.path)
        self.config = _read_config(self.path)
        tensors = weight_files.open_weights(self.path).tensors
        self._weights = sorted({tensor.path for tensor in tensors.values()})
        with as_user_error(self.path, "its tokenizer cannot be loaded"):
            self.tokenizer = import_transformers().AutoTokenizer.from_pretrained(
                self.path, trust_remote_code=False, local_files_only=True
            )

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model is an encoder-decoder; otherwise it is a decoder-only model."""
        return bool(self.config.is_encoder_decoder)

    @property
    def positions(self) -> int | None:
        """The context window of the encoder and the decoder, in tokens; None if unlimited."""
        return getattr(self._text_config, "max_position_embeddings", None)

    @property
    def embeddings(self) -> int | None:
        """The number of token embeddings; None if the config does not have this number."""
        return getattr(self._text_config, "vocab_size", None)

    @property
    def decoder_start(self) -> int | None:
        """The first id that the decoder of an encoder-decoder reads."""
        start = getattr(self.config, "decoder_start_token_id", None)
        return getattr(self._text_config, "bos_token_id", None) if start is None else start

    @property
    def _text_config(self) -> Any:
        return self.config.get_text_config(decoder=True)

    @property
    def fingerprint(self) -> str:
        """A hash that changes if a file with weights or its modification time changes."""
        return _hash(f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in self._weights)

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


def _hash(parts: Iterator[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _check_files(folder: Path) -> None:
    """Checks that the folder has safetensors and a tokenizer, but no adapter."""
    look_alikes.check(folder)
    if not any((folder / name).is_file() for name in (weight_files.SINGLE, weight_files.INDEX)):
        raise UserError(
            f"{folder} has no safetensors ({weight_files.SINGLE}, or {weight_files.INDEX} and its "
            "shards), and pickled weights are not read: save the model by transformers' "
            "save_pretrained, which writes model.safetensors"
        )
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise UserError(
            f"{folder} has no tokeniser ({', '.join(TOKENIZERS)}): copy the files of the model's "
            "tokeniser into it; without them its tokens have no texts"
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
