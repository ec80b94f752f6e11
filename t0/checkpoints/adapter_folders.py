"""Reads and writes adapters, (IA)3 and LoRA, in PEFT's folders, and merges them into a base model.

    source = AdapterSource(Path("/adapters/rte"), base)     # the merged model, as a checkpoint
    write(folder, AdapterSpec("lora"), tensors, BaseModel("/models/t0_3b", hashes), step=1000)
    join(["/adapters/rte"], "/models/t0_3b", "out")         # "out/adapter-5f3c..."

An adapter's folder has `adapter_config.json` and `adapter_model.safetensors`, as the library PEFT
writes them. If this project wrote `adapter_model.safetensors`, the metadata of this file contain
the path of the base model and a hash of each tensor of the base model. While the base model is
read, its tensors are compared with these hashes. `join` copies an adapter into a new folder and
writes the path of a base model into the copy. So this folder can be used wherever a complete
checkpoint is expected.
"""

import dataclasses
import json
import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy

from t0.checkpoints import names, torch_shards
from t0.checkpoints.formats import FLOAT32, CheckpointSource, checked_step, checksum, write_json
from t0.checkpoints.other_folders import ADAPTER as CONFIG
from t0.checkpoints.other_folders import hint
from t0.checkpoints.quantized_weights import is_quantized, round_weight
from t0.checkpoints.shape import listed, shown
from t0.checkpoints.weight_files import Weights, open_file
from t0.config.model_spec import ModelShape
from t0.config.plain_data import Positive, read_plain
from t0.config.specification import BASES, AdapterSpec
from t0.errors import UserError
from t0.files import publishing
from t0.files.any_path import any_path
from t0.files.paths import read_bytes
from t0.files.untrusted import check_bucket, match_names, named_buckets, parsed_json, read_json

WEIGHTS = "adapter_model.safetensors"
_LARGEST = 2**34  # bytes of an adapter's weights
_PREFIX, _RECORD, _BASE = "base_model.model.", "t0", "base_model_name_or_path"
_TYPE = "t0_base"  # in a copy that `join` writes: the type of the base's projections
# Names in gin -> (name in PEFT, the projections that are adapted by default).
METHODS = {"ia3": ("IA3", ("k", "v", "wo")), "lora": ("LORA", ("q", "v"))}
# (IA)3 scales the input of these projections, and the output of all others.
INPUT_SCALED = ("wo",)
_MATCHING_SECONDS = 10
_KEY = re.compile(r"(.+)\.(lora_A\.weight|lora_B\.weight|ia3_l)")
# PEFT copies the whole matrix of an adapted head or embedding from the base next to the factors.
_COPY = re.compile(r"(.+?)(?:\.base_layer)?\.weight")
_REMEDY = "merge the adapter with PEFT (merge_and_unload), and use the merged model"
# Fields of PEFT's configs that do not change the merged weights, or that this module reads. If any
# other field is set, this module cannot merge the adapter.
_READ = {"peft_type", _BASE, _TYPE, "r", "lora_alpha", "use_rslora"}
_IGNORED = {
    *("revision", "task_type", "inference_mode", "auto_mapping", "peft_version", "lora_dropout"),
    *("target_modules", "exclude_modules", "feedforward_modules", "layers_to_transform"),
    *("layers_pattern", "init_ia3_weights", "megatron_core", "qalora_group_size"),
    *("runtime_config", "eva_config"),
}
# The values of `init_lora_weights` that leave the base's weights unchanged. Other values, such as
# "pissa", change them.
_INITIAL = (None, True, False, "gaussian", "orthogonal", "eva")


@dataclasses.dataclass(frozen=True)
class BaseModel:
    """The model to which an adapter belongs.

    Attributes:
      path: the path of its checkpoint.
      tensors: canonical name -> shape and hash of the tensor, from `describe_tensor`.
      type: the type of its projections while the adapter was trained (`AdapterSpec.base`).
    """

    path: str
    tensors: Mapping[str, str]
    type: Literal[BASES] = "full"

    @property
    def hash(self) -> str:
        """The hash of the names, shapes and values of all tensors."""
        text = json.dumps(self.tensors, sort_keys=True)
        return checksum(np.frombuffer(text.encode(), np.uint8))

    def check(self, tensors: Mapping[str, str], path: str, adapter: str) -> None:
        """Checks that the tensors of the model at `path` are equal to those of this model.

        Raises:
          UserError: if one differs. The message names both models.
        """
        wrong = [name for name in tensors if self.tensors.get(name) != tensors[name]]
        if wrong:
            raise UserError(
                f"the adapter {adapter} is for the base {self.path} (hash {self.hash}), not for "
                f"{path}: {wrong[0]} differs. Name the base on which it was trained"
            )


def describe_tensor(array: np.ndarray) -> str:
    """Returns the shape and the hash of a tensor, which are the same in every format and type."""
    return f"{'x'.join(map(str, array.shape))} {checksum(np.asarray(array, np.float32))}"


def adapted_modules(spec: AdapterSpec, model: ModelShape) -> dict[str, tuple[int, int]]:
    """Returns Hugging Face's name of each adapted projection -> its (input size, output size).

    Raises:
      UserError: if a setting names no projection of the model, or the rank is larger than the input
        or output size of a projection.
    """
    d, ff, inner = model.d_model, model.d_ff, model.inner
    sizes = dict.fromkeys("qkv", (d, inner)) | {"o": (inner, d)}
    sizes |= dict.fromkeys(("wi_0", "wi_1") if model.gated else ("wi",), (d, ff)) | {"wo": (ff, d)}
    _check_names("projections", spec.projections, sizes)
    if spec.projections and spec.target_modules:
        raise UserError(
            "t0.adapter.projections and t0.adapter.target_modules are both set; unset one of them"
        )
    modules = {
        f"{stack}.block.{block}.layer.{number}.{layer}.{name}": size
        for stack, blocks, layers in (
            ("encoder", model.encoder_layers, ("SelfAttention", "DenseReluDense")),
            (
                "decoder",
                model.decoder_layers,
                ("SelfAttention", "EncDecAttention", "DenseReluDense"),
            ),
        )
        for block in range(blocks)
        for number, layer in enumerate(layers)
        for name, size in sizes.items()
        if (name in "qkvo") == (layer != "DenseReluDense")
    }
    targets = spec.target_modules or spec.projections or METHODS[spec.method][1]
    chosen = _matches("target_modules", targets, modules)
    excluded = _matches("exclude_modules", spec.exclude_modules, modules)
    blocks = {int(module.split(".")[2]) for module in modules}
    _check_names("layers_to_transform", spec.layers_to_transform, sorted(blocks))
    layers = set(spec.layers_to_transform) or blocks
    adapted = {
        module: size
        for module, size in modules.items()
        if module in chosen - excluded and int(module.split(".")[2]) in layers
    }
    if not adapted:
        raise UserError(
            "t0.adapter.exclude_modules and layers_to_transform leave no module of target_modules "
            "to adapt; expected at least one"
        )
    for module, size in adapted.items():
        if spec.method == "lora" and spec.rank > min(size):
            raise UserError(
                f"t0.adapter.rank is {spec.rank:,}, but {module.rpartition('.')[2]} has only "
                f"{min(size):,} dimensions. Set a smaller rank"
            )
    return adapted


def _check_names(setting: str, values: Sequence[Any], expected: Collection[Any]) -> None:
    for value in values:
        if value not in expected:
            raise UserError(
                f"t0.adapter.{setting} has {value!r:.40}, which this model does not have. Its "
                f"{setting if setting == 'projections' else 'blocks'} are "
                f"{', '.join(map(str, expected))}"
            )


def _matches(setting: str, patterns: Sequence[str] | str, modules: Collection[str]) -> set[str]:
    """Returns the modules that a list of endings or a regular expression matches, as in PEFT."""
    if isinstance(patterns, str) and patterns:
        ends = time.monotonic() + _MATCHING_SECONDS
        try:
            by_pattern = {patterns: {*match_names(patterns, modules, ends=ends)}}
        except (TimeoutError, ValueError) as error:
            slow = f"comparing it with the names of modules takes over {_MATCHING_SECONDS} s"
            reason = slow if isinstance(error, TimeoutError) else str(error)
            raise UserError(f"t0.adapter.{setting} = {patterns!r:.80}: {reason}") from error
    else:
        by_pattern = {p: {m for m in modules if f".{m}".endswith(f".{p}")} for p in patterns}
    for pattern, matching in by_pattern.items():
        if not matching:
            raise UserError(
                f"t0.adapter.{setting} has {pattern!r:.80}, which matches no projection of this "
                f"model. Its projections have names such as {next(iter(modules))}; a list has "
                "their endings, and a text is a regular expression of the whole name"
            )
    return set().union(*by_pattern.values())


def count_weights(spec: AdapterSpec, model: ModelShape) -> int:
    """Returns the number of an adapter's trained weights."""
    modules = adapted_modules(spec, model)
    if spec.method == "lora":
        return sum(spec.rank * (inputs + outputs) for inputs, outputs in modules.values())
    return sum(size[not is_input_scaled(module)] for module, size in modules.items())


def is_input_scaled(module: str) -> bool:
    """Returns whether (IA)3 scales the input of a module instead of its output."""
    return module.rpartition(".")[2] in INPUT_SCALED


def write(
    folder: Path,
    spec: AdapterSpec,
    tensors: Mapping[str, np.ndarray],
    base: BaseModel,
    *,
    step: int,
) -> None:
    """Writes an adapter's two files into a folder.

    Args:
      folder: an existing folder.
      spec: the adapter.
      tensors: name -> float32 array. A name is Hugging Face's name of a projection, followed by
        PEFT's name of a factor.
      base: the model to which the adapter belongs.
      step: the training step.
    """
    kind, default = METHODS[spec.method]
    adapted = list(spec.projections or default)
    if spec.target_modules or spec.exclude_modules or spec.layers_to_transform:
        # The names of all adapted modules, because PEFT's (IA)3 has no `layers_to_transform`.
        adapted = sorted({_KEY.fullmatch(name)[1] for name in tensors})
    # The config has no task type, because PEFT 0.21 cannot load a config with a task type for a T5
    # of transformers 5.
    config = {"peft_type": kind, _BASE: base.path, "inference_mode": True}
    config["target_modules"] = adapted
    if spec.method == "lora":
        config |= {"r": spec.rank, "lora_alpha": spec.alpha, "lora_dropout": spec.dropout}
        config |= {"bias": "none"}
    else:
        config["feedforward_modules"] = [name for name in adapted if is_input_scaled(name)]
    record = {"path": base.path, "hash": base.hash, "tensors": dict(base.tensors), "step": step}
    if base.type != "full":
        record["type"] = base.type
    content = safetensors.numpy.save(
        {f"{_PREFIX}{name}": np.ascontiguousarray(array) for name, array in tensors.items()},
        {"format": "pt", _RECORD: json.dumps(record)},
    )
    (folder / WEIGHTS).write_bytes(content)  # if the disk is full, `save_file` raises no OSError
    write_json(folder / CONFIG, config)


class AdapterSource(CheckpointSource):
    """A base model with an adapter merged into its weights.

    The merged weights are float32, even if the base has bfloat16 weights. So merging does not round
    them to bfloat16. If the adapter was trained on a quantized base, all projections of the base
    get the values with which the adapter was trained.

    Args:
      folder: the adapter's folder.
      base: the base, which this source closes.

    Raises:
      UserError: if the adapter is damaged, if its method is not LoRA or (IA)3, or if it was trained
        for another base.
    """

    kind = "adapter"

    def __init__(self, folder: Path, base: CheckpointSource) -> None:
        super().__init__(str(folder))
        self._base, config = base, _read_config(folder)
        self._file = _open_weights(folder)
        self.recorded, step = read_record(folder)
        self._type = config.get(_TYPE) or (self.recorded.type if self.recorded else "full")
        self._rank, self._scale = _read_rank_and_scale(folder, config)
        self._keys: dict[str, dict[str, str]] = {}
        self._copies: dict[str, str] = {}
        unknown = []
        for key in self._file.tensors:
            short = key.removeprefix(_PREFIX)
            match = _KEY.fullmatch(short) or _COPY.fullmatch(short)
            name = names.from_hf(f"{match[1]}.weight") if match else None
            if name not in base.parameters:
                unknown.append(key)
            elif match.re is _COPY:
                self._copies[name] = key
            elif names.row_of(name).transposed:
                self._keys.setdefault(name, {})[match[2]] = key
            else:
                unknown.append(key)
        if unknown or not self._keys:
            raise UserError(
                f"{folder / WEIGHTS} has {len(unknown):,} tensors that are not factors of a "
                f"projection of the base {base.path}. Name the base on which it was trained, or "
                f"{_REMEDY}:{listed(unknown)}"
            )
        for name, keys in self._keys.items():
            self._check_shapes(
                name, {factor: self._file.tensors[k].shape for factor, k in keys.items()}
            )
        self.entries = {
            name: dataclasses.replace(entry, dtype=FLOAT32)
            if name in self._keys or self._rounds(name)
            else entry
            for name, entry in base.parameters.items()
        }
        self.model, self.unused = base.model, base.unused
        self.facts = base.facts if step is None else dataclasses.replace(base.facts, step=step)

    def load(self, name: str) -> np.ndarray:
        """Returns a merged tensor by canonical name, in canonical orientation."""
        array = self._base.load(name)
        if self.recorded:
            self.recorded.check({name: describe_tensor(array)}, self._base.path, self.path)
        if name in self._copies:
            self._check_copy(name, array)
        if self._rounds(name):
            array = round_weight(array, self._type)
        if name not in self._keys:
            return array
        factors = {
            factor: self._file.load(key, transposed=False).astype(np.float32)
            for factor, key in self._keys[name].items()
        }
        array = np.asarray(array, np.float32)
        if "ia3_l" in factors:
            return array * factors["ia3_l"].T
        return array + self._scale * (factors["lora_A.weight"].T @ factors["lora_B.weight"].T)

    def close(self) -> None:
        """Closes the base."""
        self._base.close()

    def _rounds(self, name: str) -> bool:
        return self._type != "full" and is_quantized(name)

    def _check_copy(self, name: str, array: np.ndarray) -> None:
        """Checks that PEFT's copy of a base's tensor is equal to it, except for its data type."""
        copy = self._file.load(self._copies[name], transposed=names.row_of(name).transposed)
        with np.errstate(over="ignore"):
            same = np.array_equal(copy, array.astype(copy.dtype))
        if not same:
            raise UserError(
                f"{self._copies[name]} in the adapter {self.path} differs from {name} of the base "
                f"{self._base.path}. Name the base on which it was trained, or, if it was trained "
                f"with this matrix: {_REMEDY}"
            )

    def _check_shapes(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        rows, columns = self._base.entries[name].shape
        rank = self._rank
        expected = [{"lora_A.weight": (rank, rows), "lora_B.weight": (columns, rank)}]
        if rank is None:
            expected = [{"ia3_l": (columns, 1)}, {"ia3_l": (1, rows)}]
        if shapes not in expected or (rank or 0) > min(rows, columns):
            raise UserError(
                f"the adapter {self.path} does not fit {name} {[rows, columns]} of the base "
                f"{self._base.path}: its factors are {shown(dict(shapes))}"
            )


def find(path: str | Path) -> Path | None:
    """Returns the folder of the adapter at or in `path`; None if there is no adapter.

    Args:
      path: a folder of PEFT, or a model directory of a run that trained an adapter.
    """
    path = any_path(path)
    folder = (isinstance(path, Path) and torch_shards.find_folder(path, None)) or path
    return folder if (folder / CONFIG).is_file() else None


def read_base_path(folder: Path) -> str:
    """Returns the path of the base that an adapter's config names; "" if it names none.

    Raises:
      UserError: if the base is in a bucket that the command line does not name.
    """
    path = _read_config(folder).get(_BASE)
    if not isinstance(path, str):
        return ""
    fix = "name the base on the command line, and the adapter with --adapter"
    check_bucket(path, folder / CONFIG, fix)
    return path


def read_record(folder: Path) -> tuple[BaseModel | None, int | None]:
    """Returns the base and the step that are recorded in an adapter's metadata.

    Both are None if the metadata contain no record.

    Raises:
      UserError: if the metadata are damaged.
    """
    text = open_file(folder / WEIGHTS).metadata.get(_RECORD)
    if text is None:
        return None, None
    try:
        record = parsed_json(text)
        base = BaseModel(
            read_plain(record["path"], str, "path"),
            read_plain(record["tensors"], Mapping[str, str], "tensors"),
            read_plain(record.get("type", "full"), Literal[BASES], "type"),
        )
        if record["hash"] != base.hash:
            raise ValueError("its hash is not that of its tensors")
        return base, checked_step(record["step"], str(folder / WEIGHTS))
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{folder / WEIGHTS} has damaged metadata: {error!s:.200}") from error


def choose(adapters: Sequence[str]) -> Path:
    """Returns the adapter's folder that the values of --adapter name.

    Raises:
      UserError: if there are several adapters, or the folder has no adapter.
    """
    if len(adapters) > 1:
        raise UserError(
            f"--adapter is given {len(adapters)} times; expected one adapter. Merge the first: t0 "
            f"convert BASE NEW --adapter {adapters[0]} --merge --to hf"
        )
    folder = find(adapters[0])
    if folder is None:
        raise UserError(f"--adapter={adapters[0]} has no {CONFIG}; expected a folder of PEFT")
    return folder


def join(adapters: Sequence[str], base: str, folder: str, type_: str | None = None) -> str:
    """Copies an adapter into `folder`, writes the base's path into the copy, and returns its path.

    If the copy exists already, it is not made again. If the base is quantized, or was quantized
    while the adapter was trained, a line says which type is read.

    Args:
      adapters: the values of --adapter.
      base: the path of the base.
      folder: the folder of a run's results.
      type_: the type of the base's projections (`AdapterSpec.base`); None as during training.

    Raises:
      UserError: if there are several adapters, the adapter cannot be read, or the folder is remote.
    """
    source = choose(adapters)
    if "://" in folder:
        raise UserError(
            f"--adapter needs a results folder on this machine, and {folder} is remote. Merge the "
            f"adapter first: t0 convert {base} NEW --adapter {source} --merge --to mtf"
        )
    config = _read_config(source)
    if "://" in base:
        named_buckets.add(base)
    else:
        base = str(Path(base).absolute())
    _open_weights(source)
    recorded, _ = read_record(source)
    trained = recorded.type if recorded else "full"
    if {trained, type_ or trained} != {"full"}:
        note = f"the base is read in {type_ or trained}; the adapter was trained on {trained}"
        print(note, file=sys.stderr)
    config |= {_TYPE: type_} if type_ else {}
    weights, text = read_bytes(source / WEIGHTS, _LARGEST), json.dumps({**config, _BASE: base})
    key = checksum(np.frombuffer(text.encode() + weights, np.uint8))
    target = Path(folder) / f"adapter-{key}"
    if not (target / CONFIG).is_file():
        with publishing.writing(str(target)):
            target.mkdir(parents=True, exist_ok=True)
        publishing.write_whole(str(target / WEIGHTS), weights)
        # The config is written last, because it completes the folder.
        publishing.write_whole(str(target / CONFIG), text)
    return str(target)


def _open_weights(folder: Path) -> Weights:
    if (folder / torch_shards.RECORD).is_file():  # a checkpoint of a run, which has checksums
        torch_shards.check_checksums(folder, torch_shards.read_record(folder))
    return open_file(folder / WEIGHTS)


def _read_config(folder: Path) -> dict[str, Any]:
    """Reads an adapter's config.

    Raises:
      UserError: if the method or one of its options is not supported, or if the folder has no
        `adapter_model.safetensors`.
    """
    config = read_json(folder / CONFIG)
    kinds = {kind: method for method, (kind, _) in METHODS.items()}
    if config.get("peft_type") not in [*kinds]:  # a list cannot be looked up in a dict
        raise UserError(
            f"{folder / CONFIG}: PEFT's method {shown(config.get('peft_type'))} is not supported; "
            f"expected {' or '.join(kinds)}. If PEFT can merge the adapter, merge it, and use the "
            "merged model"
        )
    for name, value in config.items():
        wrong = value and value != "none" and name not in _READ | _IGNORED
        if name == "init_lora_weights":
            wrong = value not in _INITIAL
        if name == _TYPE:
            wrong = value not in BASES
        if wrong:
            raise UserError(
                f"{folder / CONFIG}: {shown(name)} = {shown(value)} is not supported: {_REMEDY}"
            )
    if not (folder / WEIGHTS).is_file():
        raise UserError(
            f"{folder} has no {WEIGHTS}: save the adapter again with PEFT{hint(folder)}"
        )
    return config


def _read_rank_and_scale(folder: Path, config: dict[str, Any]) -> tuple[int | None, float]:
    """Returns LoRA's rank and the scale of the product of its matrices; (None, 1) for (IA)3."""
    if config["peft_type"] == METHODS["ia3"][0]:
        return None, 1.0
    try:
        rank = read_plain(config.get("r"), Positive, "r")
        alpha = read_plain(config.get("lora_alpha"), float, "lora_alpha")
    except ValueError as error:
        raise UserError(f"{folder / CONFIG}: {error}") from error
    return rank, alpha / (rank**0.5 if config.get("use_rslora") else rank)
