"""Reads T5X's native checkpoints: a msgpack index, arrays within it or in zarr folders beside it.

    source = T5xSource(Path("/models/t5x/checkpoint_1000"))

How T5X lays out layers and the optimizer's state is in `t5x_layout`.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from t0.checkpoints import names
from t0.checkpoints.shape import combined, shown
from t0.checkpoints.source import Entry, Facts, Source, checked_step
from t0.checkpoints.t5x_index import InlineArray, Zarr, leaves, read_index
from t0.checkpoints.t5x_layout import (
    INDEX,
    PLACEHOLDER_SHAPE,
    SCANNED,
    SLOTS,
    VERSION,
    stacked_slot,
    swapped,
    unshared,
)
from t0.checkpoints.zarr_arrays import read_zarr
from t0.errors import UserError


def find_folder(path: Path, step: int | None) -> Path | None:
    """Returns the folder of the T5X checkpoint that `path` names, None if it names none.

    Args:
      path: a folder with `checkpoint_STEP` folders, one of these, or the index in it.
      step: which of several; the last by default.

    Raises:
      UserError: if there is no checkpoint of that step.
    """
    if path.is_file() and path.name == INDEX and _is_index(path):
        return path.parent
    if (path / INDEX).is_file() and _is_index(path / INDEX):
        return path
    found = {}
    for folder in path.glob("checkpoint_*"):
        match = re.fullmatch(r"checkpoint_(\d+)", folder.name)
        if match and (folder / INDEX).is_file():
            found[int(match[1])] = folder
    if step is not None and found and step not in found:
        steps = ", ".join(map(str, sorted(found)))
        raise UserError(f"{path} has no checkpoint of step {step}; it has {steps}")
    if not found:
        lost = [f for f in path.glob("checkpoint_*") if re.fullmatch(r"checkpoint_\d+", f.name)]
        if lost:
            raise UserError(f"{lost[0]} has no index: the file {INDEX} in it is missing")
        return None
    return found[step if step is not None else max(found)]


def _step(leaf: Any, where: str) -> int:
    if isinstance(leaf, InlineArray):
        if leaf.shape not in ((), (1,)):
            raise UserError(f"{where} says a step of shape {shown(leaf.shape)}; wanted one number")
        leaf = leaf.load().item()
    elif isinstance(leaf, np.generic):
        leaf = leaf.item()
    return checked_step(leaf, where)


class T5xSource(Source):
    """A T5X checkpoint.

    Args:
      folder: with the index.
      keep_slots: whether to look at the optimizer's state at all.
    """

    kind = "t5x"

    def __init__(self, folder: Path, *, keep_slots: bool = True) -> None:
        super().__init__(str(folder))
        self._folder = folder
        # Of a layer of a stacked array: also the axis of the layers, and which layer.
        self._places: dict[str, tuple[InlineArray | Zarr, tuple[int, int] | None]] = {}
        self._stacks: dict[str, int] = {}  # stacked parameter -> layers in it
        self._recent: tuple[Any, np.ndarray] | None = None
        tree = read_index(folder / INDEX)
        version = tree.get("version", VERSION)
        if not isinstance(version, int) or version < 2:
            raise UserError(f"{folder}: T5X's checkpoint version {shown(version)}; wanted 2 or 3")
        tree = tree.get("optimizer", tree)
        if not isinstance(tree, dict) or "target" not in tree:
            raise UserError(f"{folder / INDEX} has no parameters (no 'target' in it)")
        step, unknown, slots = None, [], []
        for path, leaf in leaves(tree):
            if path == "state/step":
                step = _step(leaf, str(folder / INDEX))
            elif not isinstance(leaf, InlineArray | Zarr):
                unknown.append(path)
            elif path.startswith("target/"):
                unknown += self._add(path.removeprefix("target/"), leaf)
            elif leaf.shape == PLACEHOLDER_SHAPE and path.startswith("state/param_states/"):
                self.unused.append((path, "a placeholder of T5X's Adafactor"))
            elif keep_slots:
                slots.append((path, leaf))
            else:
                self.unused.append((path, "optimizer slots were not asked for"))
        for path, leaf in slots:
            unknown += self._add_slot(path, leaf)
        self._fold_bias()
        self.check(unknown)
        # Decompression is what takes the time. A stacked array is read once, for all its layers.
        if all(layer is None for _, layer in self._places.values()):
            self.readers = 4
        tokenizer = folder.parent / "spiece.model"
        self.facts = Facts(step=step, tokenizer=tokenizer if tokenizer.is_file() else None)

    def load(self, name: str) -> np.ndarray:
        """Returns a tensor by canonical name."""
        leaf, layer = self._places[name]
        array = self._whole(leaf, keep=layer is not None)
        if layer is not None:
            axis, number = layer
            array = np.ascontiguousarray(array[(slice(None),) * axis + (number,)])
        return array.reshape(self.entries[name].shape)

    def close(self) -> None:
        """Lets go of the array in hand."""
        self._recent = None

    def _whole(self, leaf: InlineArray | Zarr, *, keep: bool) -> np.ndarray:
        # A stacked array's layers are asked for one after the other.
        if keep and self._recent is not None and self._recent[0] is leaf:
            return self._recent[1]
        if keep:
            self._recent = None
        if isinstance(leaf, InlineArray):
            array = leaf.load()
        else:
            array = read_zarr(self._folder / leaf.folder, leaf)
        if keep:
            self._recent = (leaf, array)
        return array

    def _add(self, path: str, leaf: InlineArray | Zarr) -> list[str]:
        """Enters a parameter; returns its path if it is unknown."""
        scanned = SCANNED.fullmatch(path)
        if not scanned:
            name = names.from_t5x(unshared(path))
            return [path] if name is None else self._enter(name, leaf, None, f"target/{path}")
        side, rest = scanned.groups()
        if len(leaf.shape) < 2 or names.from_t5x(f"{side}/layers_0/{rest}") is None:
            return [path]
        self._stacks[path] = leaf.shape[1]
        for layer in range(leaf.shape[1]):
            name = names.from_t5x(f"{side}/layers_{layer}/{rest}")
            self._enter(name, leaf, (1, layer), f"target/{path}")
        return []

    def _enter(
        self, name: str, leaf: InlineArray | Zarr, layer: tuple[int, int] | None, path: str
    ) -> list[str]:
        shape = leaf.shape
        if layer is not None:
            shape = tuple(size for axis, size in enumerate(shape) if axis != layer[0])
        self._places[name] = (leaf, layer)
        self.entries[name] = Entry(combined(name, shape), leaf.dtype, path)
        return []

    def _add_slot(self, path: str, leaf: InlineArray | Zarr) -> list[str]:
        parameter, _, kind = path.removeprefix("state/param_states/").rpartition("/")
        if kind not in SLOTS or not path.startswith("state/param_states/"):
            return [f"{path} (--drop_slots leaves the optimizer's state out)"]
        if parameter in self._stacks:
            return self._add_stacked_slot(parameter, SLOTS[kind], path, leaf)
        name = names.from_t5x(unshared(parameter))
        if name is None or name not in self.entries:
            return [path]
        slot = swapped(SLOTS[kind], self.entries[name].shape)
        return self._enter(names.slot_name(name, slot), leaf, None, path)

    def _add_stacked_slot(
        self, parameter: str, slot: str, path: str, leaf: InlineArray | Zarr
    ) -> list[str]:
        """Enters a slot for each layer; returns its path if it has another number of layers."""
        side, rest = SCANNED.fullmatch(parameter).groups()
        for layer in range(self._stacks[parameter]):
            name = names.from_t5x(f"{side}/layers_{layer}/{rest}")
            kind, axis = stacked_slot(slot, name, self.entries[name].shape)
            if len(leaf.shape) <= axis or leaf.shape[axis] != self._stacks[parameter]:
                return [path]
            self._enter(names.slot_name(name, kind), leaf, (axis, layer), path)
        return []

    def _fold_bias(self) -> None:
        """Takes biases that are the same in all layers for one that the layers share."""
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
    # TensorFlow keeps a text file of the same name in a model directory.
    with path.open("rb") as file:
        return not file.read(32).startswith((b"model_checkpoint_path", b"all_model_checkpoint"))
