"""Reads and writes T5X's native checkpoints, which have a msgpack index and zarr arrays.

    source = T5xSource(Path("/models/t5x/checkpoint_1000"))
    target = T5xTarget(folder, plan)          # folder/checkpoint_STEP/

`t5x_files` reads and writes the index and the arrays. Usually each layer has its own arrays
(`encoder/layers_3/...`). In T5X's "scalable" models, one array stacks all layers on its axis 1
instead (`encoder/encoder/...`), and every layer has its own relative bias.

Adafactor stores two slots for a matrix, a row factor and a column factor. If the matrix is square,
T5X's row factor averages over the last dimension, but Mesh TensorFlow's row factor averages over
the first dimension. So a conversion swaps the two slots. If layers are stacked, T5X's row factor is
always the one that keeps the dimension d_model (`standard_logical_factor_rules` of its Adafactor).
Mesh TensorFlow chooses the row factor by the sizes of the dimensions.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

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
from t0.checkpoints.shape import combined, factored_axes, same_size
from t0.checkpoints.t5x_files import (
    ZarrArray,
    ZarrWriter,
    leaves,
    pack_array,
    read_index,
    read_zarr,
)
from t0.errors import UserError

_VERSION = 3
INDEX = "checkpoint"
_BIAS = "relpos_bias/rel_embedding"
_SCANNED = re.compile(r"(encoder|decoder)/\1/(.+)")
_SLOTS = {"v_row": "vr", "v_col": "vc", "v": "v", "m": "m"}
_PLACEHOLDER_SHAPE = (1,)
_MOST_LAYERS = 10_000


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


def _read_step(leaf: Any, where: str) -> int:
    if isinstance(leaf, np.ndarray | np.generic) and leaf.size == 1:
        leaf = leaf.item()
    return checked_step(leaf, where)


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
        self._stacks: dict[str, int] = {}  # stacked parameter -> the number of its layers
        self._recent: tuple[Any, np.ndarray] | None = None
        tree = read_index(folder / INDEX)
        tree = tree.get("optimizer", tree)
        if not isinstance(tree, dict) or "target" not in tree:
            raise UserError(f"{folder / INDEX} has no parameters (no 'target' in it)")
        step, unknown, slots = None, [], []
        for path, leaf in leaves(tree):
            if path == "state/step":
                step = _read_step(leaf, str(folder / INDEX))
            elif not isinstance(leaf, np.ndarray | ZarrArray):
                unknown.append(path)
            elif path.startswith("target/"):
                unknown += self._add(path.removeprefix("target/"), leaf)
            elif leaf.shape == _PLACEHOLDER_SHAPE and path.startswith("state/param_states/"):
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
        array = self._read_array(leaf, keep=layer is not None)
        if layer is not None:
            axis, number = layer
            array = np.ascontiguousarray(array[(slice(None),) * axis + (number,)])
        return array.reshape(self.entries[name].shape)

    def close(self) -> None:
        """Frees the stacked array that was read last."""
        self._recent = None

    def _read_array(self, leaf: np.ndarray | ZarrArray, *, keep: bool) -> np.ndarray:
        if isinstance(leaf, np.ndarray):
            return leaf.copy()  # the array in the index cannot be written
        if not keep:
            return read_zarr(self._folder / leaf.folder, leaf)
        # Keep a stacked array in memory, because its layers are usually loaded in a row.
        if self._recent is None or self._recent[0] is not leaf:
            self._recent = None
            self._recent = (leaf, read_zarr(self._folder / leaf.folder, leaf))
        return self._recent[1]

    def _add(self, path: str, leaf: np.ndarray | ZarrArray) -> list[str]:
        """Adds a parameter's entry. Returns [path] if the parameter is unknown, otherwise []."""
        scanned = _SCANNED.fullmatch(path)
        if not scanned:
            name = names.from_t5x(_unshare_bias(path))
            return [path] if name is None else self._add_entry(name, leaf, None, f"target/{path}")
        side, rest = scanned.groups()
        if len(leaf.shape) < 2 or names.from_t5x(f"{side}/layers_0/{rest}") is None:
            return [path]
        if leaf.shape[1] > _MOST_LAYERS:
            raise UserError(f"{self.path}: {path} stacks {leaf.shape[1]:,} layers")
        self._stacks[path] = leaf.shape[1]
        for layer in range(leaf.shape[1]):
            name = names.from_t5x(f"{side}/layers_{layer}/{rest}")
            self._add_entry(name, leaf, (1, layer), f"target/{path}")
        return []

    def _add_entry(
        self, name: str, leaf: np.ndarray | ZarrArray, layer: tuple[int, int] | None, path: str
    ) -> list[str]:
        shape = leaf.shape
        if layer is not None:
            shape = tuple(size for axis, size in enumerate(shape) if axis != layer[0])
        self._places[name] = (leaf, layer)
        self.entries[name] = TensorEntry(combined(name, shape), leaf.dtype, path)
        return []

    def _add_slot(self, path: str, leaf: np.ndarray | ZarrArray) -> list[str]:
        parameter, _, kind = path.removeprefix("state/param_states/").rpartition("/")
        if kind not in _SLOTS or not path.startswith("state/param_states/"):
            return [f"{path} (--drop_slots leaves out the optimizer's state)"]
        if parameter in self._stacks:
            return self._add_stacked_slot(parameter, _SLOTS[kind], path, leaf)
        name = names.from_t5x(_unshare_bias(parameter))
        if name is None or name not in self.entries:
            return [path]
        slot = _swap_slot(_SLOTS[kind], self.entries[name].shape)
        return self._add_entry(names.slot_name(name, slot), leaf, None, path)

    def _add_stacked_slot(
        self, parameter: str, slot: str, path: str, leaf: np.ndarray | ZarrArray
    ) -> list[str]:
        """Adds an entry for the slot of each layer of a stacked parameter.

        Returns:
          [path] if the slot does not have the parameter's number of layers, otherwise [].
        """
        side, rest = _SCANNED.fullmatch(parameter).groups()
        for layer in range(self._stacks[parameter]):
            name = names.from_t5x(f"{side}/layers_{layer}/{rest}")
            kind, axis = _translate_stacked_slot(slot, name, self.entries[name].shape)
            if len(leaf.shape) <= axis or leaf.shape[axis] != self._stacks[parameter]:
                return [path]
            self._add_entry(names.slot_name(name, kind), leaf, (axis, layer), path)
        return []

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
    with path.open("rb") as file:
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
        kept = {n: e for n, e in plan.entries.items() if slot_of[n] not in names.ADAM_SLOTS}
        if plan.options.scan_layers and any(slot_of[name] for name in kept):
            raise UserError(
                "T5X factors the optimizer's state of stacked layers differently: add --drop_slots "
                "to --scan_layers"
            )
        return dataclasses.replace(plan, entries=kept)

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
        return {f"state/param_states/{p}/{kind}": empty for p in parameters for kind in _SLOTS}


def _find_native_path(parameter: str, slot: str | None, plan: TargetPlan) -> str:
    """Returns the path of a parameter or slot in an index without stacked layers."""
    path = names.t5x_name(parameter)
    if plan.model.shared_bias:
        path = path.replace(f"/layers_0/{_BIAS}", f"/{_BIAS}")
    if slot is None:
        return f"target/{path}"
    slot = _swap_slot(slot, plan.entries[parameter].shape)
    kind = next(kind for kind, ours in _SLOTS.items() if ours == slot)
    return f"state/param_states/{path}/{kind}"


def _insert(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for key in parents:
        tree = tree.setdefault(key, {})
    tree[last] = value


def _unshare_bias(path: str) -> str:
    """Changes the path of a shared bias to that of the first layer's bias; keeps other paths."""
    match = re.fullmatch(rf"(encoder|decoder)/{_BIAS}", path)
    return f"{match[1]}/layers_0/{_BIAS}" if match else path


def _swap_slot(slot: str, shape: tuple[int, ...]) -> str:
    """Translates the kind of a slot between T5X and Mesh TensorFlow, for unstacked layers."""
    if same_size(shape) and slot in ("vr", "vc"):
        return "vc" if slot == "vr" else "vr"
    return slot


def _translate_stacked_slot(slot: str, name: str, shape: tuple[int, ...]) -> tuple[str, int]:
    """Returns Mesh TensorFlow's kind for a slot of stacked layers, and the axis of the layers."""
    dims = names.row_of(name).dims
    if slot not in ("vr", "vc") or len(shape) != 2 or "D" not in dims:
        return slot, 1
    kept_axis = dims.index("D") if slot == "vr" else 1 - dims.index("D")
    # The stacked array is [first, layers, second].
    return ("vc" if kept_axis == factored_axes(shape)[0] else "vr"), 1 - kept_axis


def _split_layer(path: str) -> tuple[str, int | None, str]:
    """Splits a path into (stack, layer, path in the layer); ("", None, path) outside layers."""
    match = re.fullmatch(r"(encoder|decoder)/layers_(\d{1,9})/(.+)", path)
    return (match[1], int(match[2]), match[3]) if match else ("", None, path)
