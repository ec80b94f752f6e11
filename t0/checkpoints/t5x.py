"""Reads and writes T5X's native checkpoints, which have a msgpack index and zarr arrays.

    source = T5xSource(Path("/models/t5x/checkpoint_1000"))
    target = T5xTarget(folder, plan)          # folder/checkpoint_STEP/

Flax writes the index as nested maps. An array is either inside the index or in its own folder.
Inside the index, an array is a msgpack extension (code 1) with (shape, dtype name, bytes). If it is
larger than 1 GiB, it is split into chunks. For an array in its own folder, the index has
TensorStore's JSON specification. T5X keeps large arrays in their own folders, so the index is read
as a whole. Reading files from others is safe, because msgpack cannot contain code, and nothing is
unpickled.

Arrays are written without compression. T5X's own compression would make weights 8% smaller, at a
twentieth of the speed.

Usually each layer has its own arrays (`encoder/layers_3/...`). In T5X's "scalable" models, one
array stacks all layers on its axis 1 instead (`encoder/encoder/...`), and every layer has its own
relative bias.

Adafactor stores two slots for a matrix, a row factor and a column factor. If the matrix is square,
T5X's row factor averages over the last dimension, but Mesh TensorFlow's row factor averages over
the first dimension. So a conversion swaps the two slots. If layers are stacked, T5X's row factor is
always the one that keeps the dimension d_model (`standard_logical_factor_rules` of its Adafactor).
Mesh TensorFlow chooses the row factor by the sizes of the dimensions.
"""

import dataclasses
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import numpy as np

from t0.checkpoints import names, tokenizer
from t0.checkpoints.formats import (
    CheckpointFacts,
    CheckpointSource,
    CheckpointTarget,
    TargetPlan,
    TensorEntry,
    checked_step,
)
from t0.checkpoints.shape import combined, factored_axes
from t0.errors import UserError
from t0.files import paths
from t0.files.paths import copy, is_remote
from t0.files.publishing import to_disk

_VERSION = 3
INDEX = "checkpoint"
_BIAS = "relpos_bias/rel_embedding"
_SCANNED = re.compile(r"(encoder|decoder)/\1/(.+)")
_SLOTS = {"v_row": "vr", "v_col": "vc", "v": "v", "m": "m"}
_STATES = "state/param_states/"
_PLACEHOLDER_SHAPE = (1,)
_MOST_LAYERS = 10_000
# T5X splits arrays into chunks of at most 64 MiB.
CHUNK_BYTES = 64 << 20
GZIP_LEVEL = 0
_SMALL_CHUNK = 2**24  # numbers of a chunk that are never too many for memory
_ARRAY, _SCALAR = 1, 3
_CHUNKED = "__msgpack_chunked_array__"
_LARGEST_INDEX = 2**32  # bytes; the index of a small model holds its weights
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
            paths.read_bytes(path, _LARGEST_INDEX),
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
        raise ValueError(f"an array is stored by the driver {spec['driver']!r}; expected zarr")
    # TensorStore 0.1.14 moved the path from the spec into the spec's key-value store.
    folder = str(spec["kvstore"].get("path", spec.get("path", ""))).strip("/")
    if not folder or Path(folder).is_absolute() or ".." in Path(folder).parts:
        raise ValueError(f"an array is stored in {folder!r}, outside the checkpoint's folder")
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
        paths.check_folder(folder)
        store = tensorstore.open(spec, open=True).result()
        dtype = store.dtype.numpy_dtype
        chunk = math.prod(store.chunk_layout.read_chunk.shape or ())
        if chunk > max(2 * math.prod(store.shape), _SMALL_CHUNK):
            raise UserError(f"{folder} has chunks of {chunk:,} numbers for {list(store.shape)}")
        if expected.packed_bfloat16 and dtype == np.uint16:
            dtype = expected.dtype
        if store.shape != expected.shape or dtype != expected.dtype:
            claim = f"{expected.dtype} {list(expected.shape)}"
            raise UserError(f"{folder} has {dtype} {list(store.shape)}, the index says {claim}")
        return store.read().result().view(dtype)
    except (OSError, ValueError) as error:
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
            to_disk(str(path))


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


def find_folder(path: Path, step: int | None) -> Path | None:
    """Returns the folder of the T5X checkpoint at or in `path`; None if there is no checkpoint.

    Args:
      path: a folder with `checkpoint_STEP` folders, one of these folders, or the index in one of
        them.
      step: the step of the checkpoint; the last by default.

    Raises:
      UserError: if there is no checkpoint of that step.
    """
    if path.is_file() and path.name == INDEX and _is_index(path):
        return path.parent
    if (path / INDEX).is_file() and _is_index(path / INDEX):
        return path
    folders = {
        int(match[1]): folder
        for folder in path.glob("checkpoint_*")
        if (match := re.fullmatch(r"checkpoint_(\d+)", folder.name))
    }
    complete = {step: folder for step, folder in folders.items() if (folder / INDEX).is_file()}
    if folders and not complete:
        folder = next(iter(folders.values()))
        raise UserError(f"{folder} has no index: the file {INDEX} in it is missing")
    if step is not None and folders and step not in complete:
        steps = ", ".join(map(str, sorted(complete)))
        raise UserError(f"{path} has no checkpoint of step {step}; it has {steps}")
    return complete.get(max(complete, default=None) if step is None else step)


class T5xSource(CheckpointSource):
    """A T5X checkpoint.

    Args:
      folder: the folder with the index.
      keep_slots: whether to read the optimizer's state.
    """

    kind = "t5x"

    def __init__(self, folder: Path, *, keep_slots: bool = True) -> None:
        super().__init__(str(folder))
        self._folder = folder
        # Canonical name -> its array, and the position in an array that stacks layers: (the axis of
        # the layers, the layer's number). The position is None if the array stacks no layers.
        self._places: dict[str, tuple[np.ndarray | ZarrArray, tuple[int, int] | None]] = {}
        self._names: dict[str, list[str]] = {}  # parameter -> canonical name of each layer
        self._recent: tuple[Any, np.ndarray] | None = None
        tree = read_index(folder / INDEX)
        tree = tree.get("optimizer", tree)
        if not isinstance(tree, dict) or "target" not in tree:
            raise UserError(f"{folder / INDEX} has no parameters (no 'target' in it)")
        step, unknown, slots = None, [], []
        for path, leaf in leaves(tree):
            if path == "state/step":
                value = leaf.item() if getattr(leaf, "size", 0) == 1 else leaf
                step = checked_step(value, str(folder / INDEX))
            elif not isinstance(leaf, np.ndarray | ZarrArray):
                unknown.append(path)
            elif path.startswith("target/"):
                unknown += self._add(path.removeprefix("target/"), leaf)
            elif leaf.shape == _PLACEHOLDER_SHAPE and path.startswith(_STATES):
                self.unused.append((path, "a placeholder of T5X's Adafactor"))
            elif keep_slots:
                slots.append((path, leaf))
            else:
                self.unused.append((path, "optimizer slots are not read"))
        for path, leaf in slots:
            unknown += self._add_slot(path, leaf)
        self._fold_bias()
        self.check(unknown)
        pieces = folder.parent / tokenizer.FILE
        self.facts = CheckpointFacts(step=step, tokenizer=pieces if pieces.is_file() else None)

    def load(self, name: str) -> np.ndarray:
        """Returns a tensor by canonical name."""
        leaf, layer = self._places[name]
        array = leaf if isinstance(leaf, np.ndarray) else self._read(leaf, keep=layer is not None)
        if layer is not None:
            axis, number = layer
            array = array[(slice(None),) * axis + (number,)]
        # Copies layers of a stack, and arrays in the index, which cannot be written to.
        return np.require(array, requirements="CW").reshape(self.entries[name].shape)

    def close(self) -> None:
        """Frees the stacked array that was read last."""
        self._recent = None

    def _read(self, leaf: ZarrArray, *, keep: bool) -> np.ndarray:
        if not keep:
            return read_zarr(self._folder / leaf.folder, leaf)
        # Keep a stacked array in memory, because its layers are usually loaded in a row.
        if self._recent is None or self._recent[0] is not leaf:
            self._recent = None
            self._recent = (leaf, read_zarr(self._folder / leaf.folder, leaf))
        return self._recent[1]

    def _add(self, path: str, leaf: np.ndarray | ZarrArray) -> list[str]:
        """Adds a parameter's entries. Returns [path] if the parameter is unknown, otherwise []."""
        scanned = _SCANNED.fullmatch(path)
        if scanned:
            layers = leaf.shape[1] if len(leaf.shape) > 1 else 0
            if layers > _MOST_LAYERS:
                raise UserError(f"{self.path}: {path} stacks {layers:,} layers")
            side, rest = scanned.groups()
            canonical = [names.from_t5x(f"{side}/layers_{n}/{rest}") for n in range(layers)]
        else:
            canonical = [names.from_t5x(_unshare_bias(path))]
        if None in canonical or not canonical:
            return [path]
        self._names[path] = canonical
        for number, name in enumerate(canonical):
            self._add_entry(name, leaf, (1, number) if scanned else None, f"target/{path}")
        return []

    def _add_slot(self, path: str, leaf: np.ndarray | ZarrArray) -> list[str]:
        """Adds a slot's entries. Returns [path] if it does not fit its parameter, otherwise []."""
        parameter, _, kind = path.removeprefix(_STATES).rpartition("/")
        if kind not in _SLOTS or not path.startswith(_STATES):
            self.unused.append((path, "not a slot of Adafactor"))
            return []
        scanned = _SCANNED.fullmatch(parameter) is not None
        canonical = self._names.get(parameter, ())
        for number, name in enumerate(canonical):
            shape = self.entries[name].shape
            slot, axis = _translate_slot(_SLOTS[kind], name, shape, stacked=scanned)
            if scanned and (len(leaf.shape) <= axis or leaf.shape[axis] != len(canonical)):
                return [path]
            layer = (axis, number) if scanned else None
            self._add_entry(names.slot_name(name, slot), leaf, layer, path)
        return [] if canonical else [path]

    def _add_entry(
        self, name: str, leaf: np.ndarray | ZarrArray, layer: tuple[int, int] | None, path: str
    ) -> None:
        shape = leaf.shape
        if layer is not None:
            shape = tuple(size for axis, size in enumerate(shape) if axis != layer[0])
        self._places[name] = (leaf, layer)
        self.entries[name] = TensorEntry(combined(name, shape), leaf.dtype, path)

    def _fold_bias(self) -> None:
        """If the biases of all layers are equal, replaces them with one shared bias."""
        biases = [
            n for n in self.entries if names.split_slot(n)[0].endswith("/relative_attention_bias")
        ]
        groups: dict[tuple, list[str]] = {}
        for name in biases:
            key = (name.partition("/")[0], names.split_slot(name)[1])
            groups.setdefault(key, []).append(name)
        if not all(self._all_equal(group) for group in groups.values()):
            return
        for name in (name for group in groups.values() for name in group[1:]):
            del self.entries[name]
            self.unused.append((f"{name} (layer of a stack)", "the same as the first layer's"))

    def _all_equal(self, group: list[str]) -> bool:
        first = self.load(group[0]) if len(group) > 1 else None
        equal = all(np.array_equal(first, self.load(name)) for name in group[1:])
        self._recent = None
        return equal


def _is_index(path: Path) -> bool:
    # A TensorFlow model directory has a text file of the same name.
    with paths.opened(path) as file:
        return not file.read(32).startswith((b"model_checkpoint_path", b"all_model_checkpoint"))


class T5xTarget(CheckpointTarget):
    """Writes a T5X checkpoint into the folder `checkpoint_STEP` of a folder."""

    title, last = "T5X", INDEX

    def __init__(self, folder: Path, plan: TargetPlan) -> None:
        super().__init__(folder / f"checkpoint_{plan.facts.step}", plan)
        self.folder.mkdir()
        self._writers: dict[str, ZarrWriter] = {}

    @staticmethod
    def adapt_plan(plan: TargetPlan) -> TargetPlan:
        """Leaves out AdamW's slots, and checks that layers that will be stacked have no slots."""
        slot_of = {name: names.split_slot(name)[1] for name in plan.entries}
        entries = {n: e for n, e in plan.entries.items() if slot_of[n] not in names.ADAM_SLOTS}
        if plan.options.scan_layers and any(slot_of[name] for name in entries):
            raise UserError("--scan_layers stacks only weights: add --drop_slots")
        return dataclasses.replace(plan, entries=entries)

    def write(self, name: str, array: np.ndarray) -> None:
        """Writes a tensor by canonical name."""
        parameter, slot = names.split_slot(name)
        side, layer, rest = _split_layer(names.t5x_name(parameter))
        if not self.plan.options.scan_layers or layer is None:
            path = _find_native_path(parameter, slot, self.plan)
            self._open_writer(path, array.shape, array.dtype).write(array)
            return
        layers = getattr(self.plan.model, f"{side}_layers")
        shape = (array.shape[0], layers, *array.shape[1:])
        writer = self._open_writer(f"target/{side}/{side}/{rest}", shape, array.dtype)
        is_shared = rest == _BIAS and self.plan.model.shared_bias
        for number in range(layers) if is_shared else [layer]:
            writer.write(array, number)

    def finish(self) -> None:
        """Writes the index, which completes the checkpoint."""
        # The step is written as an array, because T5X's loader reads its dtype. T5X itself has also
        # written plain integers.
        leaves = {"state/step": pack_array(np.asarray(self.plan.facts.step, np.int32))}
        if any(names.split_slot(name)[1] for name in self.plan.entries):
            leaves |= self._make_placeholders()
        for path, writer in self._writers.items():
            writer.finish()
            leaves[path] = writer.spec
        optimizer: dict[str, Any] = {}
        for path in sorted(leaves, key=lambda path: path.split("/")):
            _insert(optimizer, path, leaves[path])
        index = {"version": _VERSION, "optimizer": optimizer}
        content = msgpack.packb(index, use_bin_type=True, strict_types=True)
        (self.folder / INDEX).write_bytes(content)
        if self.plan.facts.tokenizer:
            target = self.folder.parent / tokenizer.FILE
            target.write_bytes(tokenizer.model_bytes(self.plan.facts.tokenizer))

    def _open_writer(self, path: str, shape: tuple[int, ...], dtype: np.dtype) -> ZarrWriter:
        if path not in self._writers:
            stacked = _SCANNED.fullmatch(path.removeprefix("target/")) is not None
            self._writers[path] = ZarrWriter(
                self.folder, path.replace("/", "."), shape=shape, dtype=dtype, stacked=stacked
            )
        return self._writers[path]

    def _make_placeholders(self) -> dict[str, msgpack.ExtType]:
        """Returns path -> placeholder for every slot that T5X's Adafactor expects.

        It expects every kind of slot for every parameter. `finish` replaces the placeholders of the
        slots that the plan has.
        """
        empty = pack_array(np.zeros(_PLACEHOLDER_SHAPE, np.float32))
        parameters = [p.removeprefix("target/") for p in self._writers if p.startswith("target/")]
        return {f"{_STATES}{p}/{kind}": empty for p in parameters for kind in _SLOTS}


def _find_native_path(parameter: str, slot: str | None, plan: TargetPlan) -> str:
    """Returns the path of a parameter or slot in an index without stacked layers."""
    path = names.t5x_name(parameter)
    if plan.model.shared_bias:
        path = path.replace(f"/layers_0/{_BIAS}", f"/{_BIAS}")
    if slot is None:
        return f"target/{path}"
    slot, _ = _translate_slot(slot, parameter, plan.entries[parameter].shape, stacked=False)
    kind = next(kind for kind, ours in _SLOTS.items() if ours == slot)
    return f"{_STATES}{path}/{kind}"


def _insert(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for key in parents:
        tree = tree.setdefault(key, {})
    tree[last] = value


def _unshare_bias(path: str) -> str:
    """Changes the path of a shared bias to that of the first layer's bias; keeps other paths."""
    match = re.fullmatch(rf"(encoder|decoder)/{_BIAS}", path)
    return f"{match[1]}/layers_0/{_BIAS}" if match else path


def _translate_slot(
    slot: str, name: str, shape: tuple[int, ...], *, stacked: bool
) -> tuple[str, int]:
    """Translates the kind of a slot between T5X and Mesh TensorFlow.

    Returns:
      the kind, and the axis of the layers if layers are stacked.
    """
    dims = names.row_of(name).dims
    if slot not in ("vr", "vc") or len(shape) != 2:
        return slot, 1
    if not stacked:
        return ({"vr": "vc", "vc": "vr"}[slot] if shape[0] == shape[1] else slot), 1
    if "D" not in dims:
        return slot, 1
    kept_axis = dims.index("D") if slot == "vr" else 1 - dims.index("D")
    # The stacked array is [first, layers, second].
    return ("vc" if kept_axis == factored_axes(shape)[0] else "vr"), 1 - kept_axis


def _split_layer(path: str) -> tuple[str, int | None, str]:
    """Splits a path into (stack, layer, path in the layer); ("", None, path) outside layers."""
    match = re.fullmatch(r"(encoder|decoder)/layers_(\d{1,9})/(.+)", path)
    return (match[1], int(match[2]), match[3]) if match else ("", None, path)
