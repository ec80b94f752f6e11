"""Reads and writes safetensors files, and reads a `pytorch_model.bin` if that is safe.

    weights = open_weights(Path("/models/t0_3b"))
    array = weights.load("shared.weight", transposed=False)
    writer = ShardWriter(path, {"shared.weight": ((32128, 512), dtype)}, {"format": "pt"})

As in `transformers`, a single file is preferred to an index with shards, and safetensors are
preferred to a pickle. If a single file and a complete set of shards have different values, the
folder is refused. Prefixes that wrappers add to keys (`module.` of data parallelism, `_orig_mod.`
of `torch.compile`) are removed.

A safetensors file consists of the length of its header (8 bytes), the header (JSON: dtype, shape
and byte range of each tensor), and the tensors' bytes. This module reads and writes it tensor by
tensor, because the library `safetensors` cannot read from buckets, and writes only whole files from
memory. To transpose a matrix without a second copy in memory, it is read in blocks of rows.

A `pytorch_model.bin` is a pickle, which can run any code when it is opened. It is read only with
the weights-only loader of PyTorch 2.6 or later, because a crafted file could make the loader of
older versions run code. If PyTorch 2.6 or later is not installed, the file is refused. The file is
memory-mapped, and one tensor is in memory at a time. Only a file from a PyTorch version before 1.6
is read into memory as a whole.

TensorFlow is never imported. PyTorch is imported only to read pickles.
"""

import dataclasses
import json
import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from t0.checkpoints import other_folders
from t0.checkpoints.formats import checksum, flat_bytes, nbytes_of, read_into
from t0.checkpoints.shape import listed, shown
from t0.errors import UserError, install_command, short_reason
from t0.files.any_path import binary
from t0.files.paths import is_remote
from t0.files.untrusted import checked_name, parsed_json, read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# Key components that wrappers add: DataParallel, torch.compile, FSDP, activation checkpointing.
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# A matrix is transposed in blocks of `_BLOCK_ROWS` rows. Within a block, `_LINE_ROWS` rows are
# copied at a time, because a column of `_LINE_ROWS` values fits in a cache line. To copy more rows
# at a time would be five times slower, because rows at a power-of-two distance share cache lines.
_BLOCK_ROWS = 1024
_LINE_ROWS = 16
_SAFE_SINCE = (2, 6)
_LARGEST_HEADER_BYTES = 100_000_000  # the limit of the library safetensors
_MOST_TENSORS = 20_000


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
      path: the file's path.
      shape: the tensor's shape in the file.
      dtype: the tensor's dtype in the file.
      first: the position of the tensor's first byte in the file; 0 if the file is a pickle.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    first: int = 0

    @property
    def nbytes(self) -> int:
        """The size of the tensor in bytes."""
        return nbytes_of(self.shape, self.dtype)


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of a folder.

    Attributes:
      tensors: key -> tensor, in the order of the files.
      metadata: texts from the files' headers.
      load: a function of a key and the keyword `transposed`. It returns the tensor, or its
        transpose if `transposed` is True.
    """

    tensors: dict[str, StoredTensor]
    metadata: dict[str, str]
    load: Callable[..., np.ndarray]


def open_weights(folder: Path) -> Weights:
    """Opens a folder's weights. Reads tensors only if the folder has two sets of weights.

    Raises:
      UserError: if there are no weights, if a file is missing, truncated, damaged or unsafe to
        open, or if two sets of weights differ.
    """
    for (single, index), open_files in (
        ((SINGLE, INDEX), _open_safetensors),
        (PICKLES, _open_pickles),
    ):
        shard_of = _shards_by_key(folder / index)
        missing = sorted(name for name in set(shard_of.values()) if not (folder / name).is_file())
        if (folder / single).is_file():
            weights = open_files(folder, {})
            if shard_of and not missing:
                _check_same(folder, (single, weights), (index, open_files(folder, shard_of)))
            return weights
        if missing:
            raise UserError(f"{folder / index} names missing files, copy them:{listed(missing)}")
        if shard_of:
            return open_files(folder, shard_of)
    files = f"{SINGLE}, or {INDEX} with its shards"
    raise UserError(f"{folder} has no weights; expected {files}{other_folders.hint(folder)}")


def open_file(path: Path) -> Weights:
    """Opens a single safetensors file.

    Raises:
      UserError: if the file is missing, truncated or damaged.
    """
    metadata: dict[str, str] = {}
    return _lazy_weights(_read_header(path, metadata), metadata)


def _check_same(folder: Path, first: tuple[str, Weights], second: tuple[str, Weights]) -> None:
    """Reads two sets of weights in one folder, and raises a UserError if they differ."""
    (name, single), (other_name, sharded) = first, second
    wrong = sorted(single.tensors.keys() ^ sharded.tensors.keys())
    wrong = wrong or [k for k in single.tensors if digest(single, k) != digest(sharded, k)][:1]
    if wrong:
        raise UserError(
            f"{folder} has two different sets of weights: {name}, which transformers reads, and "
            f"the shards of {other_name}. Move one of them away. They differ in:{listed(wrong)}"
        )


def digest(weights: Weights, key: str) -> str:
    """Returns a text that two tensors share only if their shapes, dtypes and values are equal."""
    tensor = weights.tensors[key]
    return f"{tensor.dtype} {tensor.shape} {checksum(weights.load(key, transposed=False))}"


class ShardWriter:
    """Writes one file: first its header, then its tensors in any order.

    Args:
      path: the file's path.
      tensors: name -> (shape, dtype) of each tensor in the file.
      metadata: texts for the header.
    """

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, tuple[tuple[int, ...], np.dtype]],
        metadata: Mapping[str, str],
    ) -> None:
        header: dict = {"__metadata__": dict(metadata)}
        offset, self._offsets = 0, {}
        # Tensors with wide dtypes come first, as in the library `safetensors`, so that every tensor
        # is aligned.
        for name in sorted(tensors, key=lambda n: (-tensors[n][1].itemsize, n)):
            shape, dtype = tensors[name]
            end = offset + nbytes_of(shape, dtype)
            header[name] = {
                "dtype": _NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [offset, end],
            }
            self._offsets[name] = offset
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._start = 8 + len(text)
        self._file = path.open("wb")
        self._file.write(struct.pack("<Q", len(text)) + text)

    def write(self, name: str, array: np.ndarray, *, transposed: bool) -> None:
        """Writes a tensor, or the transpose of a matrix, to its position in the file."""
        self._file.seek(self._start + self._offsets[name])
        if transposed:
            _write_transposed(self._file, array)
        else:
            self._file.write(flat_bytes(array).data)

    def finish(self) -> None:
        """Waits until the bytes are on disk, and closes the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _open_safetensors(folder: Path, shard_of: Mapping[str, str]) -> Weights:
    metadata: dict[str, str] = {}
    tensors: dict[str, StoredTensor] = _read_files(
        (folder / SINGLE, folder / INDEX), shard_of, lambda path: _read_header(path, metadata)
    )
    return _lazy_weights(tensors, metadata)


def _lazy_weights(tensors: dict[str, StoredTensor], metadata: dict[str, str]) -> Weights:
    def load(key: str, *, transposed: bool) -> np.ndarray:
        return _read_tensor(tensors[key], transposed=transposed)

    return Weights(tensors, metadata, load)


def _read_files(
    names: tuple[Path, Path], shard_of: Mapping[str, str], read: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Reads the files that `shard_of` names, or else the single file; drops wrappers' prefixes."""
    single, index = names
    tensors: dict[str, Any] = {}
    for name in sorted(set(shard_of.values())) or [single.name]:
        for native, tensor in read(index.with_name(name)).items():
            key = _without_wrappers(native)
            if key in tensors:
                fault = f"two tensors {shown(key)}, in two files or with a wrapper's prefix"
                raise UserError(f"{single.parent} has {fault}")
            tensors[key] = tensor
    if shard_of and (wrong := sorted(tensors.keys() ^ set(map(_without_wrappers, shard_of)))):
        raise UserError(f"{index} and its files disagree on:{listed(wrong)}")
    return tensors


def _without_wrappers(key: str) -> str:
    return ".".join(word for word in key.split(".") if word not in _WRAPPERS)


def _shards_by_key(index: Path) -> dict[str, str]:
    """Returns key -> file name from the index; {} if there is no index."""
    if not index.is_file():
        return {}
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise UserError(f"{index} has no weight_map")
    for shard in where.values():
        checked_name(shard, "file", index)
    return where


def _read_header(path: Path, metadata: dict[str, str]) -> dict[str, StoredTensor]:
    """Reads the positions of a file's tensors, checks them for gaps, and fills `metadata`."""
    try:
        size = path.stat().st_size
        with binary(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(_LARGEST_HEADER_BYTES, size - 8):
                raise ValueError("its header is too long")
            header = parsed_json(file.read(length))
        texts = header.pop("__metadata__", None) or {}
        if not all(isinstance(text, str) for text in texts.values()):
            raise ValueError("its metadata are not texts")
        metadata |= texts
        if len(header) > _MOST_TENSORS:
            raise UserError(f"{path} has {len(header):,} tensors; a T5 has a few hundred")
        end, tensors = 8 + length, {}
        for key, fact in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            first, last = (8 + length + offset for offset in fact["data_offsets"])
            shape = tuple(fact["shape"])
            if fact["dtype"] not in _DTYPES:
                kind = shown(fact["dtype"])
                raise UserError(f"{path}: {shown(key)} is {kind}; expected {', '.join(_DTYPES)}")
            if not all(type(n) is int and n >= 0 for n in shape):
                raise ValueError(f"{shown(key)} has the shape {shown(shape)}")
            tensors[key] = StoredTensor(path, shape, _DTYPES[fact["dtype"]], end)
            if first != end or last != end + tensors[key].nbytes:
                raise ValueError(f"{shown(key)} is not where the tensor before it ends")
            end += tensors[key].nbytes
        if end != size:
            raise ValueError(f"its tensors end at byte {end:,}")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is truncated or not a safetensors file ({size:,} bytes): {shown(str(error))}. "
            "Copy it again"
        ) from error
    return tensors


def _read_tensor(stored: StoredTensor, *, transposed: bool) -> np.ndarray:
    # The library would map the file, and the mapped pages would count as used memory until the file
    # is closed.
    try:
        with binary(stored.path) as file:
            file.seek(stored.first)
            array = np.empty(stored.shape[::-1] if transposed else stored.shape, stored.dtype)
            if transposed:
                _read_transposed(file, stored, array)
            else:
                read_into(file, array, stored.path)
            return array
    except OSError as error:
        raise UserError(f"{stored.path} cannot be read: {error.strerror or error}") from error


def _read_transposed(file: BinaryIO, stored: StoredTensor, array: np.ndarray) -> None:
    rows, columns = stored.shape
    buffer = np.empty((min(_BLOCK_ROWS, rows), columns), stored.dtype)
    for start in range(0, rows, _BLOCK_ROWS):
        block = buffer[: min(_BLOCK_ROWS, rows - start)]
        read_into(file, block, stored.path)
        _transpose(block, array[:, start : start + len(block)])


def _write_transposed(file: BinaryIO, array: np.ndarray) -> None:
    """Writes the bytes of `array.T` at a file's position."""
    rows, columns = array.shape
    buffer = np.empty((min(_BLOCK_ROWS, columns), rows), array.dtype)
    for start in range(0, columns, _BLOCK_ROWS):
        block = buffer[: min(_BLOCK_ROWS, columns - start)]
        _transpose(array[:, start : start + len(block)], block)
        file.write(flat_bytes(block).data)


def _transpose(source: np.ndarray, target: np.ndarray) -> None:
    for row in range(0, len(source), _LINE_ROWS):
        target[:, row : row + _LINE_ROWS] = source[row : row + _LINE_ROWS].T


def _open_pickles(folder: Path, shard_of: Mapping[str, str]) -> Weights:
    if is_remote(folder):
        raise UserError(f"{folder} has only a pytorch_model.bin: copy it to this machine first")
    torch = _import_safe_torch(folder)
    single, index = (folder / name for name in PICKLES)
    tensors = _read_files((single, index), shard_of, lambda path: _read_pickle(torch, path))
    stored = {
        key: StoredTensor(
            path, tuple(tensor.shape), np.dtype(str(tensor.dtype).removeprefix("torch."))
        )
        for key, (path, tensor) in tensors.items()
    }

    def load(key: str, *, transposed: bool) -> np.ndarray:
        tensor = tensors[key][1]
        tensor = (tensor.t() if transposed else tensor).contiguous()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()

    return Weights(stored, {}, load)


def _read_pickle(torch: Any, path: Path) -> dict[str, tuple[Path, Any]]:
    """Returns key -> (path, tensor) for all tensors of a file, detached from gradients."""
    try:
        # A file written before PyTorch 1.6 is not a zip archive and cannot be memory-mapped.
        with binary(path) as file:
            if mapped := file.read(2) == b"PK":
                _check_archive(file)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # noqa: BLE001 (whatever the loader finds wrong with the file)
        raise UserError(
            f"{path} cannot be read as weights only ({short_reason(error)}): use the model's "
            "safetensors files"
        ) from error
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and torch.is_tensor(value) for key, value in state.items()
    ):
        keys = listed([*map(shown, state)]) if isinstance(state, dict) else f"a {type(state)}"
        raise UserError(f"{path} has more than tensors: save only model.state_dict(), not {keys}")
    for key, tensor in state.items():
        # A tensor of any size can repeat the few bytes of its storage.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise UserError(
                f"{path}: {shown(key)} {list(tensor.shape)} has fewer bytes: copy it again"
            )
    return {key: (path, tensor.detach()) for key, tensor in state.items()}


def _check_archive(file: BinaryIO) -> None:
    """Raises a ValueError if a file of PyTorch is compressed, which `torch.save` never does."""
    with zipfile.ZipFile(file) as archive:
        if any(each.file_size != each.compress_size for each in archive.infolist()):
            raise ValueError("it is compressed")


def _import_safe_torch(folder: Path) -> Any:
    try:
        import torch

        version = torch.__version__
    except ImportError:
        version = "0.0"
    if tuple(map(int, version.split(".")[:2])) < _SAFE_SINCE:
        raise UserError(
            f"{folder} has only a pytorch_model.bin, a pickle, which can run any code when opened, "
            "and is not read. Use the model's safetensors files, or install PyTorch 2.6 or later, "
            f"whose weights_only loader reads it safely: {install_command('hf')}"
        )
    return torch
