"""The files of a T5X checkpoint: a msgpack index, and arrays within it or in zarr folders.

    tree = read_index(path)          # nested dicts; leaves are InlineArray, Zarr or plain values
    array = tree["target"]["encoder"]["encoder_norm"]["scale"].load()
    array = read_zarr(folder / "target.token_embedder.embedding", leaf)
    writer = ZarrWriter(
        folder, "target.decoder.logits_dense.kernel",
        shape=(512, 32128), dtype=dtype, gzip_level=0, one_layer_chunks=False,
    )

The index is read without loading the arrays within it. Flax writes such files as a map of maps. An
array is an extension (code 1) that holds (shape, dtype name, bytes) in msgpack; an array above
1 GiB is split into chunks. For a parameter in a folder of its own the index holds TensorStore's
JSON specification. msgpack holds no code, and nothing is unpickled.

gzip at level 0 stores without compression: level 1 makes weights smaller by 8%, at a twentieth of
the speed. Every reader accepts both.
"""

import collections
import contextlib
import dataclasses
import mmap
import os
import struct
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

# T5X cuts arrays into chunks of at most 64 MiB.
CHUNK_BYTES = 64 << 20
_ARRAY, _SCALAR = 1, 3
_CHUNKED = "__msgpack_chunked_array__"
_DEEPEST = 64


@dataclasses.dataclass(frozen=True)
class InlineArray:
    """An array within the index file.

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
        """Returns the array."""
        array = np.empty(self.shape, self.dtype)
        flat, done = array.reshape(-1).view(np.uint8), 0
        with self.path.open("rb") as file:
            for start, length in self.spans:
                file.seek(start)
                read_into(file, flat[done : done + length], self.path)
                done += length
        return array


@dataclasses.dataclass(frozen=True)
class Zarr:
    """An array in a folder beside the index.

    Attributes:
      shape: the array's shape.
      dtype: the array's dtype.
      folder: the folder's name, below the checkpoint's folder.
      packed_bfloat16: whether bfloat16 is stored as uint16, as T5X did before its version 3.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    folder: str
    packed_bfloat16: bool = False


class BrokenIndexError(Exception):
    """The bytes are not the index of a T5X checkpoint."""


# The exceptions that damaged bytes cause where msgpack is read.
_UNREADABLE = (
    *(BrokenIndexError, msgpack.UnpackException, struct.error, ArithmeticError, MemoryError),
    *(LookupError, ValueError, TypeError, AttributeError),
)


def read_index(path: Path) -> dict[str, Any]:
    """Returns the index as nested dicts, with arrays as `InlineArray` and `Zarr`.

    Raises:
      UserError: if the file is cut off or is not an index.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise BrokenIndexError("it is empty")
            with _mapped(file, path) as data:
                tree, end = _Walker(data, path).value(0, 0)
                if end != len(data) or not isinstance(tree, dict):
                    raise BrokenIndexError("it is not a single map")
    except _UNREADABLE as error:
        raise UserError(f"{path} is truncated or no T5X checkpoint: {error}") from error
    try:
        return _with_zarrs(tree)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} describes an array in no way that T5X does: {error}") from error


def _mapped(file: BinaryIO, path: Path) -> contextlib.AbstractContextManager[mmap.mmap | bytes]:
    if is_remote(path):
        return contextlib.nullcontext(file.read())
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def leaves(tree: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yields (path joined by "/", leaf) of a tree; empty maps are skipped."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*prefix, str(key)))
    else:
        yield "/".join(prefix), tree


def pack_array(array: np.ndarray) -> msgpack.ExtType:
    """Returns an array in the form in which Flax stores it within an index."""
    fields = (array.shape, array.dtype.name, array.tobytes())
    return msgpack.ExtType(_ARRAY, msgpack.packb(fields, use_bin_type=True))


class _Walker:
    """Reads a msgpack buffer without reading the bytes of arrays."""

    def __init__(self, data: mmap.mmap | bytes, path: Path) -> None:
        self._data, self._path = data, path

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """Returns the value that starts at byte `at`, and the position after it."""
        if depth > _DEEPEST:
            raise BrokenIndexError("it is nested too deep")
        tag = self._data[at]
        if tag >> 4 == 0x8 or tag in (0xDE, 0xDF):
            return self._map(at, depth)
        if tag >> 4 == 0x9 or tag in (0xDC, 0xDD):
            return self._list(at, depth)
        if tag in _EXTENSIONS:
            return self._extension(at)
        size = self._plain_bytes(at)
        plain = self._slice(at, size)
        return msgpack.unpackb(plain, raw=False), at + size

    def _map(self, at: int, depth: int) -> tuple[Any, int]:
        count, at = self._count(at, 0xDE, 0x0F)
        found = {}
        for _ in range(count):
            key, at = self.value(at, depth + 1)
            found[key], at = self.value(at, depth + 1)
        return (self._joined(found) if _CHUNKED in found else found), at

    def _list(self, at: int, depth: int) -> tuple[list, int]:
        count, at = self._count(at, 0xDC, 0x0F)
        found = []
        for _ in range(count):
            value, at = self.value(at, depth + 1)
            found.append(value)
        return found, at

    def _count(self, at: int, tag16: int, mask: int) -> tuple[int, int]:
        tag = self._data[at]
        if tag == tag16:
            return struct.unpack(">H", self._slice(at + 1, 2))[0], at + 3
        if tag == tag16 + 1:
            return struct.unpack(">I", self._slice(at + 1, 4))[0], at + 5
        return tag & mask, at + 1

    def _extension(self, at: int) -> tuple[Any, int]:
        length, header = _EXTENSIONS[self._data[at]], 2
        if length < 0:
            width = -length
            length = int.from_bytes(self._slice(at + 1, width), "big")
            header += width
        code = self._data[at + header - 1]
        start = at + header
        if start + length > len(self._data):
            raise BrokenIndexError("it ends within an array")
        if code not in (_ARRAY, _SCALAR):
            raise BrokenIndexError(f"it holds an extension of code {code}, which is not an array")
        array = self._array(start, start + length)
        return (array if code == _ARRAY else array.load().reshape(())[()]), start + length

    def _array(self, at: int, end: int) -> InlineArray:
        count, at = self._count(at, 0xDC, 0x0F)
        shape, at = self.value(at, 0)
        name, at = self.value(at, 0)
        tag = self._data[at]
        if count != 3 or tag not in _BINARIES:
            raise BrokenIndexError("an array is not (shape, dtype, bytes)")
        width = _BINARIES[tag]
        length = int.from_bytes(self._slice(at + 1, width), "big")
        start = at + 1 + width
        dtype = _dtype(name)
        if start + length != end or length != int(np.prod(shape, dtype=np.int64)) * dtype.itemsize:
            raise BrokenIndexError("an array's bytes are not as many as its shape needs")
        return InlineArray(tuple(shape), dtype, ((start, length),), self._path)

    def _joined(self, found: dict[str, Any]) -> InlineArray:
        shape = tuple(found["shape"][key] for key in sorted(found["shape"], key=int))
        chunks = [found["chunks"][key] for key in sorted(found["chunks"], key=int)]
        spans = tuple(span for chunk in chunks for span in chunk.spans)
        return InlineArray(shape, chunks[0].dtype, spans, self._path)

    def _plain_bytes(self, at: int) -> int:
        tag = self._data[at]
        if tag <= 0x7F or tag >= 0xE0 or tag in (0xC0, 0xC2, 0xC3):
            return 1
        if tag >> 5 == 0b101:
            return 1 + (tag & 0x1F)
        if tag in _FIXED:
            return 1 + _FIXED[tag]
        width = {**_BINARIES, **_STRINGS}[tag] if tag in _BINARIES or tag in _STRINGS else 0
        if not width:
            raise BrokenIndexError(f"byte {at:,} is not msgpack")
        return 1 + width + int.from_bytes(self._slice(at + 1, width), "big")

    def _slice(self, at: int, size: int) -> bytes:
        if at + size > len(self._data):
            raise BrokenIndexError("it ends too early")
        return self._data[at : at + size]


# msgpack's tags -> the length of an extension (negative: the size of the length field that
# follows), of numbers, and of the length fields of byte strings and texts.
_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16, 0xC7: -1, 0xC8: -2, 0xC9: -4}
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_BINARIES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_STRINGS = {0xD9: 1, 0xDA: 2, 0xDB: 4}


def _dtype(name: Any) -> np.dtype:
    if isinstance(name, bytes):
        name = name.decode()
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def _with_zarrs(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    if {"driver", "kvstore", "metadata"} <= set(tree):
        return _zarr(tree)
    return {key: _with_zarrs(value) for key, value in tree.items()}


def _zarr(spec: dict[str, Any]) -> Zarr:
    if spec["driver"] != "zarr":
        raise UserError(f"an array is kept by TensorStore's driver {spec['driver']!r}; wanted zarr")
    # In 0.1.14 TensorStore moved the path from the spec into the spec's key-value store.
    folder = str(spec["kvstore"].get("path", spec.get("path", ""))).strip("/")
    if not folder or Path(folder).is_absolute() or ".." in Path(folder).parts:
        raise UserError(f"an array is kept in {folder!r}, outside the checkpoint's folder")
    name = spec.get("dtype") or spec["metadata"].get("dtype", "").lstrip("<>|")
    name = {"f4": "float32", "f2": "float16", "f8": "float64", "u2": "uint16"}.get(name, name)
    packed = name == "uint16"
    dtype = np.dtype(ml_dtypes.bfloat16) if packed else _dtype(name)
    shape = tuple(spec["metadata"]["shape"])
    if not all(type(size) is int and 0 <= size < 2**31 for size in shape):
        raise ValueError(f"the sizes of {folder} are not whole numbers")
    return Zarr(shape, dtype, folder, packed)


def read_zarr(folder: Path, expected: Zarr) -> np.ndarray:
    """Returns the array in a folder.

    Args:
      folder: the folder with `.zarray` and the chunks.
      expected: the array's description in the index.

    Raises:
      UserError: if a chunk is missing or cut off, or the array differs from its description.
    """
    if not (folder / ".zarray").is_file():
        raise UserError(f"{folder} is missing, or has no .zarray: the checkpoint is not whole")
    if is_remote(folder):
        with tempfile.TemporaryDirectory() as local:
            for path in folder.iterdir():
                copy(path, f"{local}/{path.name}")
            return read_zarr(Path(local), expected)
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": f"{folder}/"},
        # A missing chunk would otherwise be read as zeros.
        "fill_missing_data_reads": False,
    }
    try:
        store = _tensorstore().open(spec, open=True).result()
        dtype = store.dtype.numpy_dtype
        if expected.packed_bfloat16 and dtype == np.uint16:
            dtype = expected.dtype
        if store.shape != expected.shape or dtype != expected.dtype:
            raise UserError(
                f"{folder} holds {dtype} {list(store.shape)}, the index says {expected.dtype} "
                f"{list(expected.shape)}"
            )
        return _read(store).view(dtype)
    except ValueError as error:
        reason = str(error).splitlines()[0].split(" [source")[0]
        raise UserError(f"{folder} is truncated or damaged: {reason}. Copy it again") from error


class ZarrWriter:
    """Writes an array into a folder of its own.

    Args:
      parent: the folder in which the array's folder is made.
      name: the folder's name, relative to the index.
      shape: the array's shape.
      dtype: the array's dtype.
      gzip_level: 0 to 9; T5X's own is 1.
      one_layer_chunks: whether each layer, stacked on axis 1, has its own chunks, so that layers
        can be written one by one.
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
        self._spec = {
            "driver": "zarr",
            "dtype": dtype.name,
            "kvstore": {"driver": "file", "path": f"{name}/"},
            "metadata": {
                "chunks": list(chunks),
                "compressor": {"id": "gzip", "level": gzip_level},
                "shape": list(shape),
            },
        }
        self._final = parent / name if is_remote(parent) else None
        # An array for an object store is on this machine until it is whole.
        self._local = tempfile.TemporaryDirectory() if self._final else None
        self._folder = Path(self._local.name) if self._local else parent / name
        place = {"driver": "file", "path": f"{self._folder}/"}
        # TensorStore would wait for the disk at every chunk; `finish` waits once, for all.
        here = {**self._spec, "kvstore": place, "context": {"file_io_sync": False}}
        self._store = _tensorstore().open(here, create=True, open=True).result()

    def write(self, array: np.ndarray) -> None:
        """Writes the whole array."""
        _in_turn(self._store[slab].write(array[slab]) for slab in _slabs(self._store))
        if self._local:
            self.finish()

    def write_layer(self, layer: int, array: np.ndarray) -> None:
        """Writes one layer of an array that stacks layers on axis 1."""
        self._store[:, layer].write(array).result()

    def finish(self) -> None:
        """Waits until the array is on the disk, or in the object store."""
        if self._local is None and self._final:
            return
        if self._local:
            for path in sorted(self._folder.iterdir()):
                copy(path, self._final / path.name)
            self._local.cleanup()
            self._local = None
            return
        for path in self._folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def spec(self) -> dict[str, Any]:
        """Returns the specification that the index holds in place of the array."""
        return self._spec


def chunk_shape(
    shape: tuple[int, ...], elements: int, *, single: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Returns T5X's choice of a chunk shape that divides an array's shape evenly.

    The largest dimension (the first of equals) is reduced to its next smaller divisor until the
    chunk has few enough elements.

    Args:
      shape: the array's shape.
      elements: the largest number of elements in a chunk.
      single: dimensions in which a chunk has size 1.

    >>> chunk_shape((32128, 4096), 16 * 2**20)
    (4016, 4096)
    """
    chunk = [1 if axis in single else size for axis, size in enumerate(shape)]
    while np.prod(chunk, dtype=np.int64) > elements:
        axis = max(range(len(chunk)), key=lambda i: (chunk[i], -i))
        chunk[axis] = next(n for n in range(chunk[axis] - 1, 0, -1) if shape[axis] % n == 0)
    return tuple(chunk)


def _slabs(store: Any) -> list[tuple[slice, ...]]:
    """Returns slices of whole chunks that make up an array, along the axis with the most chunks.

    TensorStore holds encoded and decoded chunks in memory; reading a slab at a time limits that.
    """
    shape, chunk = store.shape, store.chunk_layout.write_chunk.shape
    counts = [-(-size // part) for size, part in zip(shape, chunk, strict=True)]
    axis = max(range(len(shape)), key=counts.__getitem__) if shape else None
    if axis is None:
        return [()]
    before = (slice(None),) * axis
    steps = range(0, shape[axis], chunk[axis])
    return [(*before, slice(at, min(at + chunk[axis], shape[axis]))) for at in steps]


def _read(store: Any) -> np.ndarray:
    slabs = _slabs(store)
    if len(slabs) == 1:
        return store.read().result()
    array = np.empty(store.shape, store.dtype.numpy_dtype)
    for slab, part in zip(slabs, _results(store[slab].read() for slab in slabs), strict=True):
        array[slab] = part
    return array


def _results(futures: Iterator[Any]) -> Iterator[Any]:
    """Yields the futures' results in order; the next two are started before each is awaited."""
    begun: collections.deque = collections.deque()
    for future in futures:
        begun.append(future)
        if len(begun) > 2:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


def _in_turn(futures: Iterator[Any]) -> None:
    for _ in _results(futures):
        pass


def _tensorstore() -> Any:
    try:
        import tensorstore
    except ImportError as error:
        raise UserError(
            "T5X's checkpoints keep arrays in zarr folders, which needs TensorStore: "
            "pip install tensorstore"
        ) from error
    return tensorstore
