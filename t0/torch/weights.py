"""Weights and slots between a sharded model and checkpoints of Mesh TensorFlow, T5X, Hugging Face.

    load(model, optimizer, "/models/t0_3b", world)       # every process reads its own rows
    random(model, seed=0, world=world)                   # Mesh TensorFlow's distributions
    for name, array in arrays(model, optimizer):         # whole arrays, one at a time
        ...

Names and orientation are the canonical ones of `t0.checkpoints.names`.
"""

import contextlib
import hashlib
from collections.abc import Iterator

import numpy as np
import torch

from t0.checkpoints import names
from t0.checkpoints.conversion import open_source
from t0.checkpoints.formats import Source
from t0.errors import UserError
from t0.torch.model import T5
from t0.torch.optimizers import Optimizer, Slot
from t0.torch.sharding import names_and_parameters, own_rows, whole
from t0.torch.world import World


def load(model: T5, optimizer: Optimizer | None, path: str, world: World) -> tuple[int, str]:
    """Fills the weights, and the optimizer's slots where the checkpoint has them.

    Args:
      model: the model.
      optimizer: its optimizer; None to read the weights alone.
      path: a checkpoint in any format.
      world: the processes.

    Returns:
      the checkpoint's step, and a line that says what was restored.

    Raises:
      UserError: if there is no such checkpoint, or it is of another model.
    """
    with contextlib.closing(open_source(path, keep_slots=optimizer is not None)) as source:
        _check(model, source)
        for name, parameter in names_and_parameters(model).items():
            rows = _in_torch(source.load(name), name)[own_rows(parameter.shape[0], world)]
            _local(parameter).copy_(torch.from_numpy(rows))
        slots = _load_slots(optimizer, source, world) if optimizer else 0
        step = source.facts.step or 0
    count = len(names_and_parameters(model))
    line = f"restored {count:,} of {count:,} variables from {path}, step {step:,}"
    if optimizer:
        line += f"; optimizer state: {slots:,} of {len(optimizer.slots):,} slots"
    return step, line


def _check(model: T5, source: Source) -> None:
    wanted, got = model.spec.sizes, source.model
    differing = [
        f"{field} {getattr(got, field)}, not {getattr(wanted, field)}"
        for field in vars(wanted)
        if getattr(got, field) != getattr(wanted, field)
    ]
    if differing:
        raise UserError(
            f"checkpoint {source.path} is of another model than the run configures: it has "
            f"{', '.join(differing)}"
        )


def _load_slots(optimizer: Optimizer, source: Source, world: World) -> int:
    filled = 0
    for full_name, slot in optimizer.slots.items():
        name = names.from_mtf(full_name)
        if name not in source.entries:
            continue
        array = _in_torch(source.load(name), name)
        rows = array[own_rows(slot.shape[0], world)] if slot.by_rows else array
        slot.value.copy_(torch.from_numpy(rows))
        filled += 1
    return filled


def random(model: T5, seed: int, world: World) -> None:
    """Fills the weights at random, by Mesh TensorFlow's initializers for each kind of tensor.

    The values depend on the seed alone, not on the number of processes.
    """
    for name, parameter in names_and_parameters(model).items():
        key = hashlib.sha256(f"{seed} {name}".encode()).digest()
        draw = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
        value = _initial(name, tuple(parameter.shape), model, draw)
        _local(parameter).copy_(value[own_rows(parameter.shape[0], world)])


def _initial(name: str, shape: tuple[int, ...], model: T5, draw: torch.Generator) -> torch.Tensor:
    """Returns a tensor's initial values, in PyTorch's orientation."""
    row, sizes = names.row_of(name), model.spec.sizes
    if row.dims == "D":
        return torch.ones(shape)
    value = torch.empty(shape)
    if row.dims == "HB":  # Glorot and Bengio 2010, TensorFlow's default
        limit = (6 / sum(shape)) ** 0.5
        return value.uniform_(-limit, limit, generator=draw)
    deviation = {"VD": 1.0, "FD": sizes.d_ff**-0.5, "ID": sizes.inner**-0.5}.get(
        row.dims, sizes.d_model**-0.5
    )
    if name.endswith("/q"):
        deviation *= sizes.d_kv**-0.5  # which replaces the division of the attention logits
    return value.normal_(0.0, deviation, generator=draw)


def arrays(
    model: T5, optimizer: Optimizer | None, world: World
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields canonical name and whole array of each weight, then of each slot.

    Every process must take part; the arrays are on the CPU of each.
    """
    for name, parameter in names_and_parameters(model).items():
        yield name, _canonical(whole(parameter.detach()), name)
    for full_name, slot in (optimizer.slots if optimizer else {}).items():
        yield names.from_mtf(full_name), _canonical(_whole_slot(slot, world), full_name)


def _whole_slot(slot: Slot, world: World) -> torch.Tensor:
    if not slot.by_rows or world.size == 1:
        return slot.value
    value = torch.zeros(slot.shape, device=slot.value.device)
    value[own_rows(slot.shape[0], world)] = slot.value
    return world.total(value)


def _in_torch(array: np.ndarray, name: str) -> np.ndarray:
    """Returns a canonical array as float32 in PyTorch's orientation."""
    wide = np.asarray(array, np.float32)
    return np.ascontiguousarray(wide.T if _is_transposed(array, name) else wide)


def _canonical(tensor: torch.Tensor, name: str) -> np.ndarray:
    array = tensor.float().cpu().numpy()
    return np.ascontiguousarray(array.T if _is_transposed(array, name) else array)


def _is_transposed(array: np.ndarray, name: str) -> bool:
    return array.ndim == 2 and names.row_of(names.from_mtf(name)).transposed


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.data.to_local() if hasattr(parameter.data, "to_local") else parameter.data
