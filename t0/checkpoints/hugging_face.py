"""Reads and writes Hugging Face folders: weights in safetensors files, config and tokenizer.

    source = HfSource(Path("/models/t0_3b"))
    target = HfTarget(folder, plan)
    config = read_config(folder)

`weight_files` reads and writes the weights. This module translates their keys into canonical names,
and `config.json` into model settings. In `transformers`, `tie_word_embeddings` has two effects. It
ties the output matrix to the embedding, and it scales the decoder's outputs by d_model ** -0.5. T5
1.0 needs this scaling, but T5 1.1 must not have it. Newer releases control the second effect with
`scale_decoder_outputs`.

Our engines use fixed ids for padding, start and end, and a fixed epsilon in the norms. If a folder
has other values, it is refused.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np

from t0.checkpoints import names, other_folders, tokenizer
from t0.checkpoints.formats import (
    CheckpointFacts,
    CheckpointSource,
    CheckpointTarget,
    TargetPlan,
    TensorEntry,
    checked_rate,
    checked_step,
    write_json,
)
from t0.checkpoints.shape import listed, shown
from t0.checkpoints.weight_files import INDEX, PICKLES, SINGLE, ShardWriter, digest, open_weights
from t0.config.model_spec import ModelShape
from t0.errors import UserError
from t0.files.untrusted import read_json

CONFIG, GENERATION = "config.json", "generation_config.json"
MODEL_CARD = "README.md"
# The engines support only these values.
_TOKENS = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
_NORMS = {"layer_norm_epsilon": 1e-6}
# transformers writes null if a model never had a start token, and may write a list of end tokens.
_ALSO_ALLOWED = {"decoder_start_token_id": (None,), "eos_token_id": ([1],)}
_MT5_ROWS = 250_112  # the number of embeddings of every public mT5
_ACTIVATIONS = {
    "relu": (False, "relu"),
    "gated-gelu": (True, "gelu"),
    "gated-silu": (True, "silu"),
    "gated-relu": (True, "relu"),
}
_PROJECTIONS = {pair: name for name, pair in _ACTIVATIONS.items()}
_DENSE_FUNCTIONS = {"gelu": "gelu_new"}  # activation -> "dense_act_fn" in a config, if that differs
_BUCKET_DISTANCE_TOKENS = 128  # fixed in Mesh TensorFlow
# In the state dict of a tied model, `_EMBEDDING_COPIES` are copies of the embedding. `_NEVER_USED`
# is a bias in one of T5's first releases, which no layer uses.
_EMBEDDING_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_NEVER_USED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
_NUMBER = re.compile("[0-9]{1,18}")
_EMBEDDING, _HEAD = "shared/embedding", "decoder/logits/kernel"
_SHARED = "shared.weight"


def is_folder(path: Path) -> bool:
    """Returns whether a path is a folder with a config or weights in Hugging Face's format."""
    return path.is_dir() and any((path / n).is_file() for n in (SINGLE, INDEX, *PICKLES, CONFIG))


class HfSource(CheckpointSource):
    """A Hugging Face folder.

    Args:
      folder: the folder with `config.json` and the weights.
    """

    kind = "hf"

    def __init__(self, folder: Path, *, keep_slots: bool = True) -> None:
        super().__init__(str(folder))
        del keep_slots  # the format has no slots
        other_folders.check(folder)
        config = read_config(folder)
        self._weights = open_weights(folder)
        stored, metadata = self._weights.tensors, self._weights.metadata
        scaled = _scales_outputs(config)
        embedding = self._find_embedding_key(config)
        copies = self._find_copies(embedding, scaled)
        unknown = []
        for key in stored:
            name = _EMBEDDING if key == embedding else names.from_hf(key)
            if key in copies:
                self.unused.append((key, copies[key]))
            elif name is None:
                unknown.append(key)
            else:
                self._add(name, key)
        tied = config.get("tie_word_embeddings") is not False
        if _HEAD not in self.entries and tied and not scaled:
            # The embedding is also the output matrix, and outputs are not scaled. In new releases
            # of `transformers`, a T5 1.1 can have this form.
            self._add(_HEAD, embedding)
        self.check(unknown)
        self._check_head(config, scaled)
        activation = _read_activation(folder, config, self.model)
        _check_settings(folder, config, self.model, activation)
        pieces, fault = tokenizer.find(folder)
        step = metadata.get("step", "")
        self.facts = CheckpointFacts(
            # Other programs may write other texts as "step".
            step=checked_step(int(step), str(folder)) if _NUMBER.fullmatch(step) else None,
            activation=activation,
            dropout_rate=checked_rate(config.get("dropout_rate"), str(folder / CONFIG)),
            model_type=config["model_type"],
            legacy_norms=metadata.get("mtf_norms") == "layer_norm",
            tokenizer=pieces,
            tokenizer_fault=fault,
        )

    def load(self, name: str) -> np.ndarray:
        """Returns a tensor by canonical name, in canonical orientation."""
        transposed = names.row_of(name).transposed
        return self._weights.load(self.entries[name].native, transposed=transposed)

    def _add(self, name: str, key: str) -> None:
        tensor = self._weights.tensors[key]
        turned = tensor.shape[::-1] if names.row_of(name).transposed else tensor.shape
        self.entries[name] = TensorEntry(turned, tensor.dtype, key)

    def _find_embedding_key(self, config: dict) -> str:
        """Returns the key under which the files store the embedding.

        If several tensors share memory, the files store only one tensor, under any one of the keys.

        Raises:
          UserError: if there is no embedding.
        """
        keys = [_SHARED, *_EMBEDDING_COPIES]
        if config.get("tie_word_embeddings") is not False:
            keys.append(names.hf_name(_HEAD))
        present = [key for key in keys if key in self._weights.tensors]
        if not present:
            stored = sorted(self._weights.tensors, key=lambda key: (bool(names.from_hf(key)), key))
            raise UserError(
                f"{self.path} has no embedding; expected {' or '.join(keys)}. Its keys are:"
                f"{listed(stored)}"
            )
        return present[0]

    def _find_copies(self, embedding: str, scaled: bool) -> dict[str, str]:
        """Returns key -> reason for tensors to leave out, such as copies of the embedding.

        A tensor counts as a copy only if it has the same values as the embedding.
        """
        others = {_SHARED, *_EMBEDDING_COPIES} - {embedding}
        present = sorted(others & self._weights.tensors.keys())
        head = names.hf_name(_HEAD)
        same = [*present, *([head] if scaled and head in self._weights.tensors else [])]
        copies = {
            key: f"the same as {embedding}"
            for key in same
            if key != embedding and digest(self._weights, key) == digest(self._weights, embedding)
        }
        wrong = [key for key in present if key not in copies]
        if wrong:
            raise UserError(
                f"{self.path}: encoder and decoder have different embeddings, but Mesh "
                f"TensorFlow's T5 shares one:{listed(wrong)}"
            )
        if _NEVER_USED in self._weights.tensors:
            copies[_NEVER_USED] = "no layer uses it"
        return copies

    def _check_head(self, config: dict[str, Any], scaled: bool) -> None:
        """Checks that the config's tie_word_embeddings, which scales outputs, fits the tensors."""
        if self.model.tied and not scaled:
            raise UserError(f"{self.path} has no lm_head.weight, but tie_word_embeddings is false")
        if not self.model.tied and scaled and config["model_type"] == "t5":
            raise UserError(
                f"{self.path} has an untied lm_head.weight, but tie_word_embeddings is true. For a "
                "T5 1.1 set it to false"
            )


class HfTarget(CheckpointTarget):
    """Writes a Hugging Face folder."""

    title, last = "Hugging Face", CONFIG

    def __init__(self, folder: Path, plan: TargetPlan) -> None:
        super().__init__(folder, plan)
        self._shards = _plan_shards(plan)
        facts = plan.facts
        metadata = {
            "format": "pt",
            "step": str(facts.step),
            "mtf_norms": "layer_norm" if facts.legacy_norms else "rms_norm",
        }
        self._writers = [
            ShardWriter(folder / self._shard_name(number), shard, metadata)
            for number, shard in enumerate(self._shards)
        ]
        self._shard_of = {key: n for n, shard in enumerate(self._shards) for key in shard}

    @staticmethod
    def adapt_plan(plan: TargetPlan) -> TargetPlan:
        """Leaves out slots, and checks that Hugging Face's T5 has the feed-forward layer."""
        function = plan.facts.activation
        if (plan.model.gated, function) not in _PROJECTIONS:
            raise UserError(f"Hugging Face's T5 has no layer with {function} and no gate")
        entries = {n: e for n, e in plan.entries.items() if names.split_slot(n)[1] is None}
        return dataclasses.replace(plan, entries=entries)

    def write(self, name: str, array: np.ndarray) -> None:
        """Writes a tensor by canonical name."""
        key = names.hf_name(name)
        writer = self._writers[self._shard_of[key]]
        writer.write(key, array, transposed=names.row_of(name).transposed)

    def finish(self) -> None:
        """Writes the shards' index, the model card, the tokenizer and, last, the configs."""
        for writer in self._writers:
            writer.finish()
        if len(self._shards) > 1:
            index = {
                "metadata": {"total_size": self.plan.nbytes},
                "weight_map": {k: self._shard_name(n) for k, n in sorted(self._shard_of.items())},
            }
            write_json(self.folder / INDEX, index)
        if self.plan.options.model_card:
            (self.folder / MODEL_CARD).write_text(self.plan.options.model_card, encoding="utf-8")
        _write_config(self.folder, self.plan)

    def close(self) -> None:
        """Closes the shards."""
        for writer in self._writers:
            writer.close()

    def _shard_name(self, number: int) -> str:
        count = len(self._shards)
        return SINGLE if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"


def _plan_shards(plan: TargetPlan) -> list[dict]:
    shards: list[dict] = [{}]
    size = 0
    for name, entry in plan.entries.items():
        if size and size + entry.nbytes > plan.options.shard_bytes:
            shards.append({})
            size = 0
        shape = entry.shape[::-1] if names.row_of(name).transposed else entry.shape
        shards[-1][names.hf_name(name)] = (shape, entry.dtype)
        size += entry.nbytes
    return shards


def read_config(folder: Path) -> dict[str, Any]:
    """Reads a folder's config.

    Raises:
      UserError: if there is no config, or its architecture is not a T5.
    """
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} has no {CONFIG}{other_folders.hint(folder)}")
    config = read_json(folder / CONFIG)
    if config.get("quantization_config"):
        raise UserError(
            f"{folder / CONFIG}: quantized weights (quantization_config) cannot be read. Use the "
            "folder of the model before quantization"
        )
    kind = config.get("model_type")
    if kind not in other_folders.T5_TYPES:
        types = ", ".join(other_folders.T5_TYPES)
        raise UserError(f"{folder / CONFIG}: model_type = {shown(kind)}; expected one of {types}")
    return config


def _scales_outputs(config: dict[str, Any]) -> bool:
    """Returns whether the model ties its embedding and scales its outputs, as T5 1.0 does.

    transformers 5 never scales the outputs of mT5.
    """
    if config.get("scale_decoder_outputs") is False or config["model_type"] == "mt5":
        return False
    return config.get("tie_word_embeddings") is not False


def _read_activation(folder: Path, config: dict[str, Any], model: ModelShape) -> str:
    """Returns the activation function of the feed-forward layers.

    Raises:
      UserError: if it is unknown, or does not fit the tensors.
    """
    name = config.get("feed_forward_proj", "relu" if config["model_type"] == "t5" else "gated-gelu")
    layer = _ACTIVATIONS.get(name) if isinstance(name, str) else None
    gated, function = layer or (None, None)
    if gated != model.gated:
        fitting = " or ".join(n for n, (g, _) in _ACTIVATIONS.items() if g == model.gated)
        value = f"feed_forward_proj = {shown(name)}"
        raise UserError(f"{folder / CONFIG}: {value}; the tensors need {fitting}")
    return function


def _check_settings(
    folder: Path, config: dict[str, Any], model: ModelShape, activation: str
) -> None:
    """Checks that the config describes the tensors next to it.

    Also checks that the configs have T5's values for settings that our engines cannot change.

    Raises:
      UserError: if a setting has another value. The message names each of these settings.
    """
    layers = config.get("num_layers", model.encoder_layers)
    config = {**config, "num_decoder_layers": config.get("num_decoder_layers") or layers}
    expected = {
        **_describe_model(model),
        "dense_act_fn": _DENSE_FUNCTIONS.get(activation, activation),
        "is_gated_act": model.gated,
    }
    wrong = [f"{CONFIG}: {fault}" for fault in _list_differences(config, expected)]
    if (folder / GENERATION).is_file():
        generation = read_json(folder / GENERATION)
        wrong += [f"{GENERATION}: {fault}" for fault in _list_differences(generation, _TOKENS)]
    if wrong:
        raise UserError(
            f"{folder} has settings that its tensors or T5 do not have. If the model was trained "
            f"with the expected values, write these into the file:{listed(wrong)}"
        )


def _describe_model(model: ModelShape) -> dict[str, Any]:
    """Returns the fields of a config that a model's shape determines, and those that T5 fixes."""
    return {
        "d_ff": model.d_ff,
        "d_kv": model.d_kv,
        "d_model": model.d_model,
        **_NORMS,
        "num_decoder_layers": model.decoder_layers,
        "num_heads": model.heads,
        "num_layers": model.encoder_layers,
        "relative_attention_max_distance": _BUCKET_DISTANCE_TOKENS,
        "relative_attention_num_buckets": model.buckets,
        "vocab_size": model.vocabulary,
        **_TOKENS,
    }


def _list_differences(config: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    return [
        f"{key} = {shown(config[key])}, expected {value}"
        for key, value in expected.items()
        if key in config
        and config[key] not in _ALSO_ALLOWED.get(key, ())
        and (config[key] != value or isinstance(config[key], bool) != isinstance(value, bool))
    ]


def _choose_model_type(plan: TargetPlan) -> str:
    """Returns the model type with which `transformers` and our engines compute equal outputs."""
    if not plan.model.shared_bias:
        return "umt5"
    if plan.facts.model_type in ("t5", "mt5"):
        return plan.facts.model_type
    # mT5 and T5 1.1 are the same network under two names. The vocabulary size identifies mT5.
    return "mt5" if plan.model.vocabulary == _MT5_ROWS and not plan.model.tied else "t5"


def _write_config(folder: Path, plan: TargetPlan) -> None:
    """Writes the files next to the weights. The last of them is config.json."""
    model, kind = plan.model, _choose_model_type(plan)
    write_json(folder / GENERATION, {"_from_model_config": True, **_TOKENS})
    if plan.facts.tokenizer:
        tokenizer.write_hf(folder, plan.facts.tokenizer)
    dtypes = {entry.dtype.name for entry in plan.entries.values()}
    config = {
        "architectures": [f"{kind.upper()}ForConditionalGeneration"],
        "feed_forward_proj": _PROJECTIONS[model.gated, plan.facts.activation],
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "model_type": kind,
        "tie_word_embeddings": model.tied,
        "torch_dtype": dtypes.pop() if len(dtypes) == 1 else "float32",
        "use_cache": True,
        **_describe_model(model),
    }
    if plan.facts.dropout_rate is not None:
        config["dropout_rate"] = plan.facts.dropout_rate
    write_json(folder / CONFIG, config)
