"""Hugging Face folders: safetensors (one file, or shards with an index), config and tokenizer.

    source = HfSource(Path("/models/t0_3b"))
    target = HfTarget(folder, plan)

A `pytorch_model.bin` is a pickle, which can run anything when it is opened. It is read only through
PyTorch's `weights_only` loader, from the release in which that is safe (see `torch_files`), and
refused otherwise.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from t0.checkpoints import hf_config, names, tokenizer, torch_files
from t0.checkpoints.json_files import read_json, write_json
from t0.checkpoints.safetensors_files import ShardWriter, Stored, read_header, read_tensor
from t0.checkpoints.shape import listed
from t0.checkpoints.source import Entry, Facts, Plan, Source, Target, checked_step, checksum
from t0.errors import UserError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_SHARD_BYTES = 5 * 10**9
# Copies of the embedding that state dicts of a tied model carry; one of T5's first releases also
# had a bias that no layer uses.
_EMBEDDING_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_NEVER_USED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
_EMBEDDING, _HEAD = "shared/embedding", "decoder/logits/kernel"


def is_folder(path: Path) -> bool:
    """Returns whether a folder looks like Hugging Face's."""
    return path.is_dir() and any(
        (path / n).is_file() for n in (SINGLE, INDEX, *_PICKLES, "config.json")
    )


class HfSource(Source):
    """A Hugging Face folder.

    Args:
      folder: with `config.json` and the weights.
    """

    kind = "hf"

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        config = hf_config.read(folder)
        self._load_native: Callable[..., np.ndarray]
        stored, metadata, self._load_native = _open_weights(folder)
        self._stored = stored
        scaled = hf_config.outputs_scaled(config)
        copies = self._copies(scaled)
        unknown = []
        for key in sorted(stored, key=lambda k: (str(stored[k].path), stored[k].offset_bytes)):
            name = names.from_hf(key)
            if key in copies:
                self.unused.append((key, copies[key]))
            elif name is None:
                unknown.append(key)
            else:
                shape = stored[key].shape
                turned = shape[::-1] if names.row_of(name).transposed else shape
                self.entries[name] = Entry(turned, stored[key].dtype, key)
        self.check(unknown)
        self._check_head(config, scaled)
        hf_config.check(folder, config, self.model)
        pieces = folder / tokenizer.FILE
        self.facts = Facts(
            step=_step(metadata, str(folder)),
            activation=hf_config.activation(folder, config, self.model),
            dropout_rate=hf_config.dropout_rate(folder, config),
            model_type=config["model_type"],
            legacy_norms=metadata.get("mtf_norms") == "layer_norm",
            tokenizer=pieces if pieces.is_file() else None,
        )

    def load(self, name: str) -> np.ndarray:
        """Returns a tensor by canonical name, in canonical orientation."""
        transposed = names.row_of(name).transposed
        return self._load_native(self.entries[name].native, transposed=transposed)

    def close(self) -> None:
        """Nothing stays open."""

    def _copies(self, scaled: bool) -> dict[str, str]:
        """Returns which keys repeat another tensor; each is compared before it is left out."""
        present = [key for key in _EMBEDDING_COPIES if key in self._stored]
        if "shared.weight" not in self._stored:
            raise UserError(f"{self.path} lacks shared.weight, the embedding:{listed(present)}")
        head = names.hf_name(_HEAD)
        same = [*present, *([head] if scaled and head in self._stored else [])]
        copies = {key: "the same as shared.weight" for key in same if self._equal(key)}
        wrong = [key for key in present if key not in copies]
        if wrong:
            raise UserError(
                f"{self.path}: encoder and decoder have embeddings of their own; Mesh TensorFlow's "
                f"T5 shares one:{listed(wrong)}"
            )
        if _NEVER_USED in self._stored:
            copies[_NEVER_USED] = "no layer uses it"
        return copies

    def _equal(self, key: str) -> bool:
        a, b = self._stored[key], self._stored["shared.weight"]
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        # One after the other: an embedding may be the largest tensor, and two of it too much.
        return self._digest(key) == self._digest("shared.weight")

    def _digest(self, key: str) -> str:
        return checksum(self._load_native(key, transposed=False))

    def _check_head(self, config: dict, scaled: bool) -> None:
        if self.model.tied and not scaled:
            raise UserError(
                f"{self.path} lacks lm_head.weight, and its config.json says tie_word_embeddings = "
                "false: the output matrix is lost"
            )
        if (
            not self.model.tied
            and scaled
            and config["model_type"] == "t5"
            and not _unscaled(config)
        ):
            raise UserError(
                f"{self.path} has an lm_head.weight of its own, but its config.json says "
                "tie_word_embeddings = true, which also scales the outputs. For a T5 1.1 set it to "
                "false"
            )


class HfTarget(Target):
    """A Hugging Face folder being written.

    Args:
      folder: empty.
      plan: what it will hold; `options["shard_bytes"]` limits a file.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self._shards = _shards(plan, plan.options.get("shard_bytes", _SHARD_BYTES))
        facts = plan.facts
        metadata = {
            "format": "pt",
            "step": str(facts.step),
            "mtf_norms": "layer_norm" if facts.legacy_norms else "rms_norm",
        }
        self._writers = {}
        for number, shard in enumerate(self._shards):
            path = folder / self._shard_name(number)
            self._writers[number] = ShardWriter(path, shard, metadata)
        self._shard_of = {key: n for n, shard in enumerate(self._shards) for key in shard}

    def write(self, name: str, array: np.ndarray) -> None:
        """Writes a tensor by canonical name."""
        key = names.hf_name(name)
        writer = self._writers[self._shard_of[key]]
        writer.write(key, array, transposed=names.row_of(name).transposed)

    def finish(self) -> None:
        """Writes the shards' index, the tokenizer, the generation config and, last, the config."""
        for writer in self._writers.values():
            writer.finish()
        if len(self._shards) > 1:
            total = sum(entry.nbytes for entry in self._plan.entries.values())
            index = {
                "metadata": {"total_size": total},
                "weight_map": {k: self._shard_name(n) for k, n in sorted(self._shard_of.items())},
            }
            write_json(self._folder / INDEX, index)
        hf_config.write(self._folder, self._plan)

    def close(self) -> None:
        """Closes the shards."""
        for writer in self._writers.values():
            writer.close()

    def _shard_name(self, number: int) -> str:
        count = len(self._shards)
        return SINGLE if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"


def adapted(plan: Plan) -> Plan:
    """Returns the plan as Hugging Face can hold it: without slots.

    Raises:
      UserError: if the tokenizer has more ids than the model.
    """
    hf_config.check_known(plan.model, plan.facts.activation)
    entries = {n: e for n, e in plan.entries.items() if names.split_slot(n)[1] is None}
    if plan.facts.tokenizer:
        tokenizer.check(plan.facts.tokenizer, plan.model.vocabulary)
    return Plan(plan.model, entries, plan.facts, plan.options)


def _step(metadata: dict[str, str], where: str) -> int | None:
    """Returns the step that a header of ours says; another's word "step" need not be a number."""
    said = metadata.get("step", "")
    if not re.fullmatch(r"[0-9]{1,4000}", said):
        return None
    return checked_step(int(said), where)


def _unscaled(config: dict) -> bool:
    return config.get("scale_decoder_outputs") is False


def _shards(plan: Plan, shard_bytes: int) -> list[dict]:
    shards: list[dict] = [{}]
    size = 0
    for name, entry in plan.entries.items():
        if size and size + entry.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shape = entry.shape[::-1] if names.row_of(name).transposed else entry.shape
        shards[-1][names.hf_name(name)] = (shape, entry.dtype)
        size += entry.nbytes
    return shards


def _open_weights(folder: Path) -> tuple[dict[str, Stored], dict[str, str], Callable]:
    if (folder / INDEX).is_file() or (folder / SINGLE).is_file():
        stored, metadata = _read_headers(folder)
        return (
            stored,
            metadata,
            lambda key, transposed: read_tensor(stored[key], transposed=transposed),
        )
    strays = sorted(path.name for path in folder.glob("model-*-of-*.safetensors"))
    if strays:
        raise UserError(f"{folder} has shards but not their index, {INDEX}:{listed(strays)}")
    if any((folder / name).is_file() for name in _PICKLES):
        stored, load = torch_files.open_folder(folder)
        return stored, {}, load
    raise UserError(f"{folder} has no weights: wanted {SINGLE}, or {INDEX} with its shards")


def _read_headers(folder: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    if not (folder / INDEX).is_file():
        return read_header(folder / SINGLE)
    where = read_json(folder / INDEX).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
        raise UserError(f"{folder / INDEX} has no weight_map of file names")
    if not where:
        raise UserError(f"{folder / INDEX} has no weight_map")
    stored, metadata = {}, {}
    for shard in sorted(set(where.values())):
        if Path(shard).name != shard:
            raise UserError(f"{folder / INDEX} names a file outside its folder: {shard}")
        tensors, metadata = read_header(folder / shard)
        stored.update(tensors)
    if set(stored) != set(where):
        wrong = sorted(set(stored) ^ set(where))
        raise UserError(f"{folder / INDEX} and its shards disagree on:{listed(wrong)}")
    return stored, metadata
