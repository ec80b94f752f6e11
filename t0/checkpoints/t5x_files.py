"""Reads and writes the files of a T5X checkpoint: the msgpack index, and zarr arrays.

    tree = read_index(path)          # nested dicts of numpy arrays, ZarrArray or plain values
    tree["target"]["encoder"]["encoder_norm"]["scale"].shape
    array = read_zarr(folder / "target.token_embedder.embedding", leaf)
    writer = ZarrWriter(
        folder, "target.decoder.logits_dense.kernel", shape=(512, 32128), dtype=dtype, stacked=False
    )

Flax writes the index as nested maps. An array is either inside the index or in its own folder.
Inside the index, an array is a msgpack extension (code 1) with (shape, dtype name, bytes). If it is
larger than 1 GiB, it is split into chunks. For an array in its own folder, the index has
TensorStore's JSON specification. T5X keeps large arrays in their own folders, so the index is read
as a whole. Reading files from others is safe, because msgpack cannot contain code, and nothing is
unpickled.

Arrays are written without compression. T5X's own compression would make weights 8% smaller, at a
twentieth of the speed.
"""

import dataclasses
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import numpy as np

from t0.errors import UserError
from t0.files.paths import copy, is_remote

# T5X splits arrays into chunks of at most 64 MiB.
CHUNK_BYTES = 64 << 20
GZIP_LEVEL = 0
_ARRAY, _SCALAR = 1, 3
_CHUNKED = "__msgpack_chunked_array__"
# msgpack allocates a list before it reads the elements, so the length of lists is limited. The only
# lists in an index are shapes.
_LONGEST_LIST = 1024


@dataclasses.dataclass(frozen=True)
class ZarrArray:
    """An array in a folder next to the index.

    Attributes:
      shape: the array's shape.
      dtype: the array's dtype.
      folder: the folder's name, relative to the checkpoint's folder.
      packed_bfloat16: whether bfloat16 is stored as uint16, as T5X did before its version 3.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    folder: str
    packed_bfloat16: bool = False


# The exceptions that damaged msgpack data can cause.
_UNREADABLE = (
    *(msgpack.UnpackException, ArithmeticError, MemoryError, RecursionError),
    *(LookupError, ValueError, TypeError, AttributeError),
)


def read_index(path: Path) -> dict[str, Any]:
    """Reads the index as nested dicts, with arrays as numpy arrays and `ZarrArray`.

    Raises:
      UserError: if the file is truncated or is not an index.
    """
    try:
        tree = msgpack.unpackb(
            path.read_bytes(),
            strict_map_key=False,
            ext_hook=_read_array,
            object_hook=_join_chunks,
            max_array_len=_LONGEST_LIST,
        )
        if not isinstance(tree, dict):
            raise ValueError("it is not a single map")
        return _parse_zarr_specs(tree)
    except _UNREADABLE as error:
        raise UserError(f"{path} is truncated or not a T5X checkpoint: {error}") from error


def _read_array(code: int, content: bytes) -> Any:
    """Decodes the array or scalar of a msgpack extension."""
    if code not in (_ARRAY, _SCALAR):
        raise ValueError(f"it contains an extension of code {code}, which is not an array")
    shape, name, values = msgpack.unpackb(content, max_array_len=_LONGEST_LIST)
    array = np.frombuffer(values, _dtype(name)).reshape(shape)
    return array[()] if code == _SCALAR else array


def _join_chunks(value: dict[Any, Any]) -> Any:
    """Returns an array if the map holds the chunks of an array, otherwise the map itself."""
    if _CHUNKED not in value:
        return value
    shape, chunks = (
        [value[field][key] for key in sorted(value[field], key=int)]
        for field in ("shape", "chunks")
    )
    return np.concatenate(chunks).reshape(shape)


def leaves(tree: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yields (path joined by "/", leaf) for each leaf of a tree; empty maps are skipped."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*prefix, str(key)))
    else:
        yield "/".join(prefix), tree


def pack_array(array: np.ndarray) -> msgpack.ExtType:
    """Encodes an array as Flax stores it inside an index."""
    fields = (array.shape, array.dtype.name, array.tobytes())
    return msgpack.ExtType(_ARRAY, msgpack.packb(fields, use_bin_type=True))


def _dtype(name: Any) -> np.dtype:
    if isinstance(name, bytes):
        name = name.decode()
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def _parse_zarr_specs(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    if {"driver", "kvstore", "metadata"} <= set(tree):
        return _parse_zarr(tree)
    return {key: _parse_zarr_specs(value) for key, value in tree.items()}


def _parse_zarr(spec: dict[str, Any]) -> ZarrArray:
    if spec["driver"] != "zarr":
        raise UserError(
            f"an array is stored by TensorStore's driver {spec['driver']!r}; expected zarr"
        )
    # TensorStore 0.1.14 moved the path from the spec into the spec's key-value store.
    folder = str(spec["kvstore"].get("path", spec.get("path", ""))).strip("/")
    if not folder or Path(folder).is_absolute() or ".." in Path(folder).parts:
        raise UserError(f"an array is stored in {folder!r}, outside the checkpoint's folder")
    name = spec.get("dtype") or spec["metadata"].get("dtype", "").lstrip("<>|")
    name = {"f4": "float32", "f2": "float16", "f8": "float64", "u2": "uint16"}.get(name, name)
    packed = name == "uint16"
    dtype = np.dtype(ml_dtypes.bfloat16) if packed else _dtype(name)
    shape = tuple(spec["metadata"]["shape"])
    if not all(type(size) is int and 0 <= size < 2**31 for size in shape):
        raise ValueError(f"the sizes of {folder} are not integers")
    return ZarrArray(shape, dtype, folder, packed)


def read_zarr(folder: Path, expected: ZarrArray) -> np.ndarray:
    """Reads the array in a folder.

    Args:
      folder: the folder with `.zarray` and the chunks.
      expected: the array's description in the index.

    Raises:
      UserError: if a chunk is missing or truncated, or the array differs from its description.
    """
    if not (folder / ".zarray").is_file():
        raise UserError(f"{folder} is missing, or has no .zarray: the checkpoint is incomplete")
    if is_remote(folder):
        with tempfile.TemporaryDirectory() as local:
            for path in folder.iterdir():
                copy(path, f"{local}/{path.name}")
            return read_zarr(Path(local), expected)
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": f"{folder}/"},
        # This limits the number of chunks that are in memory in addition to the array.
        "context": {"file_io_concurrency": {"limit": 4}},
        # By default a missing chunk would be read as zeros.
        "fill_missing_data_reads": False,
    }
    import tensorstore

    try:
        store = tensorstore.open(spec, open=True).result()
        dtype = store.dtype.numpy_dtype
        if expected.packed_bfloat16 and dtype == np.uint16:
            dtype = expected.dtype
        if store.shape != expected.shape or dtype != expected.dtype:
            raise UserError(
                f"{folder} has {dtype} {list(store.shape)}, the index says {expected.dtype} "
                f"{list(expected.shape)}"
            )
        return store.read().result().view(dtype)
    except ValueError as error:
        reason = str(error).splitlines()[0].split(" [source")[0]
        raise UserError(f"{folder} is truncated or damaged: {reason}. Copy it again") from error


class ZarrWriter:
    """Writes an array into its own folder.

    Args:
      parent: the folder in which the array's folder is made.
      name: the folder's name, relative to the index.
      shape: the array's shape.
      dtype: the array's dtype.
      stacked: whether the array stacks layers on axis 1. If so, each chunk has only one layer, so
        layers can be written one by one.

    Attributes:
      spec: the specification to write into the index instead of the array.
    """

    def __init__(
        self, parent: Path, name: str, *, shape: tuple[int, ...], dtype: np.dtype, stacked: bool
    ) -> None:
        import tensorstore

        chunks = chunk_shape(shape, CHUNK_BYTES // dtype.itemsize, stacked=stacked)
        self.spec = {
            "driver": "zarr",
            "dtype": dtype.name,
            "kvstore": {"driver": "file", "path": f"{name}/"},
            "metadata": {
                "chunks": list(chunks),
                "compressor": {"id": "gzip", "level": GZIP_LEVEL},
                "shape": list(shape),
            },
        }
        self._folder = parent / name
        kvstore = {"driver": "file", "path": f"{self._folder}/"}
        # By default TensorStore waits for the disk after every chunk. Here, only `finish` waits,
        # once for all chunks.
        spec = {**self.spec, "kvstore": kvstore, "context": {"file_io_sync": False}}
        self._store = tensorstore.open(spec, create=True, open=True).result()

    def write(self, array: np.ndarray, layer: int | None = None) -> None:
        """Writes the whole array, or one layer of an array that stacks layers."""
        store = self._store if layer is None else self._store[:, layer]
        store.write(array).result()

    def finish(self) -> None:
        """Waits until the array is on disk."""
        for path in self._folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def chunk_shape(shape: tuple[int, ...], elements: int, *, stacked: bool = False) -> tuple[int, ...]:
    """Returns T5X's choice of a chunk shape that divides an array's shape evenly.

    While the chunk is too large, its largest dimension is reduced to the next smaller divisor. If
    several dimensions are equal, the first is reduced.

    Args:
      shape: the array's shape.
      elements: the maximum number of elements in a chunk.
      stacked: whether a chunk has size 1 on axis 1.

    >>> chunk_shape((32128, 4096), 16 * 2**20)
    (4016, 4096)
    """
    chunk = [1 if stacked and axis == 1 else size for axis, size in enumerate(shape)]
    while np.prod(chunk, dtype=np.int64) > elements:
        axis = max(range(len(chunk)), key=lambda i: (chunk[i], -i))
        chunk[axis] = next(n for n in range(chunk[axis] - 1, 0, -1) if shape[axis] % n == 0)
    return tuple(chunk)
