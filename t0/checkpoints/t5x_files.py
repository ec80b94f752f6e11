"""Reads and writes the files of a T5X checkpoint: the msgpack index, and zarr arrays.

    tree = read_index(path)          # nested dicts of InlineArray, ZarrArray or plain values
    array = tree["target"]["encoder"]["encoder_norm"]["scale"].load()
    array = read_zarr(folder / "target.token_embedder.embedding", leaf)
    writer = ZarrWriter(
        folder, "target.decoder.logits_dense.kernel",
        shape=(512, 32128), dtype=dtype, gzip_level=0, one_layer_chunks=False,
    )

Flax writes the index as nested maps. An array is either inside the index or in its own folder.
Inside the index, an array is a msgpack extension (code 1) with (shape, dtype name, bytes). If it is
larger than 1 GiB, it is split into chunks. For an array in its own folder, the index has
TensorStore's JSON specification. The index is read without loading the arrays inside it. Reading
files from others is safe, because msgpack cannot contain code, and nothing is unpickled.

With gzip level 0, arrays are not compressed. Level 1 makes weights 8% smaller, at a twentieth of
the speed. Every reader accepts both levels.
"""

import contextlib
import dataclasses
import math
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import msgpack
import numpy as np

from t0.checkpoints.formats import read_into
from t0.errors import UserError
from t0.files.paths import copy, is_remote

# T5X splits arrays into chunks of at most 64 MiB.
CHUNK_BYTES = 64 << 20
_ARRAY, _SCALAR = 1, 3
_CHUNKED = "__msgpack_chunked_array__"
# msgpack allocates a list before it reads the elements, so the length of lists is limited. The only
# lists in an index are shapes.
_LONGEST_LIST = 1024


@dataclasses.dataclass(frozen=True)
class InlineArray:
    """An array inside the index file.

    Attributes:
      shape: the array's shape.
      dtype: the array's dtype.
      spans: (first byte, length) of its pieces in the file, in order.
      path: the path of the index file.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    spans: tuple[tuple[int, int], ...]
    path: Path

    def load(self) -> np.ndarray:
        """Reads the array."""
        array = np.empty(self.shape, self.dtype)
        flat, done = array.reshape(-1).view(np.uint8), 0
        with self.path.open("rb") as file:
            for start, length in self.spans:
                file.seek(start)
                read_into(file, flat[done : done + length], self.path)
                done += length
        return array


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
    """Reads the index as nested dicts, with arrays as `InlineArray` and `ZarrArray`.

    Raises:
      UserError: if the file is truncated or is not an index.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ValueError("it is empty")
            with _map_file(file, path) as data:
                reader = _Reader(data, path)
                tree = msgpack.unpackb(
                    data,
                    strict_map_key=False,
                    ext_hook=reader.read_extension,
                    object_hook=reader.join_chunks,
                    max_array_len=_LONGEST_LIST,
                )
            if not isinstance(tree, dict):
                raise ValueError("it is not a single map")
    except _UNREADABLE as error:
        raise UserError(f"{path} is truncated or not a T5X checkpoint: {error}") from error
    try:
        return _parse_zarr_specs(tree)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} describes an array in a way that T5X does not: {error}") from error


def _map_file(file: BinaryIO, path: Path) -> contextlib.AbstractContextManager[mmap.mmap | bytes]:
    if is_remote(path):
        return contextlib.nullcontext(file.read())
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


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


class _Reader:
    """Decodes arrays to locations in the index file, so that at most one array is in memory."""

    def __init__(self, data: mmap.mmap | bytes, path: Path) -> None:
        self._data, self._path = data, path
        self._end = 0  # the position after the last extension

    def read_extension(self, code: int, content: bytes) -> Any:
        """Decodes the array or scalar of an extension. msgpack calls this method in file order."""
        start = self._data.find(content, self._end)
        self._end = start + len(content)
        if code not in (_ARRAY, _SCALAR):
            raise ValueError(f"it contains an extension of code {code}, which is not an array")
        shape, name, values = msgpack.unpackb(content, max_array_len=_LONGEST_LIST)
        if code == _SCALAR:
            return np.frombuffer(values, _dtype(name)).reshape(())[()]
        return self._array(shape, _dtype(name), ((self._end - len(values), len(values)),))

    def join_chunks(self, value: dict[Any, Any]) -> Any:
        """Returns an array if the map holds the chunks of an array, otherwise the map itself."""
        if _CHUNKED not in value:
            return value
        shape, chunks = (
            [value[field][key] for key in sorted(value[field], key=int)]
            for field in ("shape", "chunks")
        )
        return self._array(shape, chunks[0].dtype, tuple(s for c in chunks for s in c.spans))

    def _array(
        self, shape: list[int], dtype: np.dtype, spans: tuple[tuple[int, int], ...]
    ) -> InlineArray:
        if sum(length for _, length in spans) != math.prod(shape) * dtype.itemsize:
            raise ValueError("the number of an array's bytes does not match its shape")
        return InlineArray(tuple(shape), dtype, spans, self._path)


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
    try:
        store = _tensorstore().open(spec, open=True).result()
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
      gzip_level: 0 to 9; T5X itself uses 1.
      one_layer_chunks: whether the array stacks layers on axis 1, and each chunk has only one
        layer. If so, layers can be written one by one.

    Attributes:
      spec: the specification to write into the index instead of the array.
    """

    def __init__(
        self,
        parent: Path,
        name: str,
        *,
        shape: tuple[int, ...],
        dtype: np.dtype,
        gzip_level: int,
        one_layer_chunks: bool,
    ) -> None:
        fixed = (1,) if one_layer_chunks else ()
        chunks = chunk_shape(shape, CHUNK_BYTES // dtype.itemsize, single=fixed)
        self.spec = {
            "driver": "zarr",
            "dtype": dtype.name,
            "kvstore": {"driver": "file", "path": f"{name}/"},
            "metadata": {
                "chunks": list(chunks),
                "compressor": {"id": "gzip", "level": gzip_level},
                "shape": list(shape),
            },
        }
        self._folder = parent / name
        kvstore = {"driver": "file", "path": f"{self._folder}/"}
        # By default TensorStore waits for the disk after every chunk. Here, only `finish` waits,
        # once for all chunks.
        spec = {**self.spec, "kvstore": kvstore, "context": {"file_io_sync": False}}
        self._store = _tensorstore().open(spec, create=True, open=True).result()

    def write(self, array: np.ndarray) -> None:
        """Writes the whole array."""
        self._store.write(array).result()

    def write_layer(self, layer: int, array: np.ndarray) -> None:
        """Writes one layer of an array that stacks layers on axis 1."""
        self._store[:, layer].write(array).result()

    def finish(self) -> None:
        """Waits until the array is on disk."""
        for path in self._folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def chunk_shape(
    shape: tuple[int, ...], elements: int, *, single: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Returns T5X's choice of a chunk shape that divides an array's shape evenly.

    While the chunk is too large, its largest dimension is reduced to the next smaller divisor. If
    several dimensions are equal, the first is reduced.

    Args:
      shape: the array's shape.
      elements: the maximum number of elements in a chunk.
      single: dimensions in which a chunk has size 1.

    >>> chunk_shape((32128, 4096), 16 * 2**20)
    (4016, 4096)
    """
    chunk = [1 if axis in single else size for axis, size in enumerate(shape)]
    while np.prod(chunk, dtype=np.int64) > elements:
        axis = max(range(len(chunk)), key=lambda i: (chunk[i], -i))
        chunk[axis] = next(n for n in range(chunk[axis] - 1, 0, -1) if shape[axis] % n == 0)
    return tuple(chunk)


def _tensorstore() -> Any:
    try:
        import tensorstore
    except ImportError as error:
        raise UserError(
            "reading T5X checkpoints needs TensorStore, since their arrays are zarr folders: "
            "pip install tensorstore"
        ) from error
    return tensorstore
