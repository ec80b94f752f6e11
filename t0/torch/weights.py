"""Fills the weights of a sharded model from a checkpoint in any format, or at random.

    load(model, optimizer, "/models/t0_3b", world)       # every process reads its own rows
    warm_start(model, optimizer, "/models/t5", world)    # some variables may be missing
    fill_at_random(model, seed=0, world=world)           # Mesh TensorFlow's distributions

Names and orientations of weights are the canonical ones of `t0.checkpoints.names`.
"""

import contextlib
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from t0.checkpoints import adapter_folders, checkpoint_files, conversion, names
from t0.checkpoints.bundle import BundleReader, shape_of
from t0.checkpoints.conversion import open_source
from t0.checkpoints.formats import FLOAT32, CheckpointSource
from t0.checkpoints.mtf import STEP
from t0.checkpoints.shape import combined, expected_shapes
from t0.errors import UserError
from t0.torch import checkpointing
from t0.torch.adapters import adapter_parameters
from t0.torch.model import T5
from t0.torch.optimizers import Optimizer
from t0.torch.sharding import local_rows, names_and_parameters, own_rows
from t0.torch.world import World
from t0.training import recorder, resume_file

# The dimensions of the weights in Mesh TensorFlow's dense layers. The initial values of these
# weights are drawn within two standard deviations of zero.
_TRUNCATED = ("DF", "FD", "DV")


def find_checkpoints(model_dir: str, checkpoint: str | None, steps: Any) -> dict[int, str]:
    """Returns step -> path, for the checkpoints to evaluate, which may have any format.

    Args:
      model_dir: the folder with checkpoints of either engine.
      checkpoint: a checkpoint to use instead of those in `model_dir`, or None.
      steps: a step, a list of steps, "all", or None for the latest step.

    Raises:
      UserError: if there is no such checkpoint.
    """
    if checkpoint:
        with contextlib.closing(open_source(checkpoint, keep_slots=False)) as source:
            return {source.facts.step or 0: checkpoint}
    own_steps = set(checkpointing.steps(model_dir))
    return {
        step: str(checkpointing.folder_of(model_dir, step))
        if step in own_steps
        else checkpoint_files.checkpoint_path(model_dir, step)
        for step in checkpoint_files.select_steps(model_dir, steps, also=own_steps)
    }


def fingerprint(path: str) -> str:
    """Returns a hash that changes if the values of a checkpoint change."""
    return conversion.fingerprint(*conversion.recognise(path), "")


def warm_start(
    model: T5,
    optimizer: Optimizer,
    path: str,
    world: World,
    *,
    unfilled: Sequence[str] = (),
    seed: int = 0,
) -> tuple[int, list[str]]:
    """Fills the weights from an initial checkpoint, in which some variables may be missing.

    Args:
      model: the model.
      optimizer: the optimizer of the model.
      path: a checkpoint in any format. Variables may be missing only in Mesh TensorFlow's format.
      world: the processes of the run.
      unfilled: regular expressions for the names (in Mesh TensorFlow) of variables that may be
        missing. Missing variables get random values.
      seed: the seed of these random values.

    Returns:
      (checkpoint's step, lines about the filled weights). One of the lines names the variables with
      random values.

    Raises:
      UserError: if there is no such checkpoint, if a variable that `unfilled` does not match is
        missing, or if a variable has another shape.
    """
    kind, prefix = conversion.recognise(path) if unfilled else ("", "")
    if kind != "mtf":
        return load(model, optimizer, path, world)
    fill_at_random(model, seed, world)
    parameters = names_and_parameters(model)
    legacy = model.spec.legacy_norms
    with contextlib.closing(BundleReader(prefix)) as reader:
        native_names = {names.from_mtf(native): native for native in reader.entries}
        missing = [
            names.to_mtf(name, legacy_norms=legacy)
            for name in parameters
            if name not in native_names
        ]
        uncovered = [name for name in missing if not any(re.search(x, name) for x in unfilled)]
        if uncovered:
            raise UserError(
                f"the initial checkpoint {path} leaves {len(uncovered)} of the model's "
                f"{len(parameters)} variables unfilled, such as {uncovered[0]}; to leave them "
                "random, name them in train_loop.unfilled_variables"
            )
        shapes = expected_shapes(model.spec.sizes)
        for name in parameters.keys() & native_names.keys():
            native = native_names[name]
            shape = combined(name, shape_of(reader.entries[native]))
            if tuple(shape) != tuple(shapes[name]):
                raise UserError(
                    f"checkpoint {path} holds {native} as {list(shape)}, the configured model "
                    f"wants {list(shapes[name])}: the gin files describe another model"
                )
            _fill_rows(parameters[name], reader.load(native).reshape(shape), name, world)
        step = int(reader.load(STEP).item()) if STEP in reader.entries else 0
    count = len(parameters)
    lines = [recorder.restored_line(count - len(missing), count, path, step)]
    lines += [f"left random: {', '.join(missing)}"] if missing else []
    lines.append(recorder.slots_line(_load_slots(optimizer, prefix, world), len(optimizer.slots)))
    return step, lines


def load(
    model: T5,
    optimizer: Optimizer | None,
    path: str,
    world: World,
    *,
    exact: Mapping[str, np.ndarray] | None = None,
    hashes: dict[str, str] | None = None,
) -> tuple[int, list[str]]:
    """Fills the weights, and the optimizer's slots if the checkpoint has them.

    Args:
      model: the model.
      optimizer: the optimizer of the model; None to read only the weights.
      path: a checkpoint in any format.
      world: the processes of the run.
      exact: the arrays of the checkpoint's resume file. If the checkpoint stores weights in
        bfloat16, these arrays contain the missing bits. None if there are no such arrays.
      hashes: a mapping to fill: canonical name -> shape and hash of the tensor.

    Returns:
      (checkpoint's step, lines about the restored weights and slots).

    Raises:
      UserError: if there is no such checkpoint, or it belongs to another model.
    """
    with contextlib.closing(open_source(path, keep_slots=False)) as source:
        _check_sizes(model, source)
        for name, parameter in names_and_parameters(model).items():
            array = np.asarray(source.load(name), np.float32)
            if exact:
                entry = source.entries[name]
                wide = resume_file.wide_weight(exact, entry.native, array)
                if wide is None and entry.dtype != FLOAT32:
                    raise ValueError(f"it has no low halves of {entry.native}, {entry.dtype}")
                array = array if wide is None else wide
            if hashes is not None:
                hashes[name] = adapter_folders.describe_tensor(array)
            _fill_rows(parameter, array, name, world)
        step, prefix = source.facts.step or 0, source.path
        slots = _load_slots(optimizer, prefix, world) if optimizer and source.kind == "mtf" else 0
    count = len(names_and_parameters(model))
    lines = [recorder.restored_line(count, count, path, step)]
    if optimizer:
        lines.append(recorder.slots_line(slots, len(optimizer.slots)))
    return step, lines


def _fill_rows(parameter: torch.Tensor, array: np.ndarray, name: str, world: World) -> None:
    """Copies this process's rows of a canonical array into a weight."""
    rows = _to_torch(array, name)[own_rows(parameter.shape[0], world)]
    local_rows(parameter).copy_(torch.from_numpy(rows))


def _check_sizes(model: T5, source: CheckpointSource) -> None:
    expected, actual = model.spec.sizes, source.model
    differing = [
        f"{field} {getattr(actual, field)}, not {getattr(expected, field)}"
        for field in vars(expected)
        if getattr(actual, field) != getattr(expected, field)
    ]
    if differing:
        raise UserError(
            f"checkpoint {source.path} is of another model than the run configures: it has "
            f"{', '.join(differing)}"
        )


def _load_slots(optimizer: Optimizer, prefix: str, world: World) -> int:
    """Fills the slots that a Mesh TensorFlow checkpoint contains; returns their number."""
    with contextlib.closing(BundleReader(prefix)) as reader:
        stored_names = optimizer.slots.keys() & reader.entries.keys()
        for name in stored_names:
            slot = optimizer.slots[name]
            array = _to_torch(reader.load(name), slot.weight)
            if array.shape != slot.shape:
                raise UserError(
                    f"checkpoint {prefix} holds {name} with the shape {list(array.shape)}, not "
                    f"{list(slot.shape)}: it is of another optimizer"
                )
            rows = array[own_rows(slot.shape[0], world)] if slot.by_rows else array
            slot.value.copy_(torch.from_numpy(rows))
    return len(stored_names)


def fill_at_random(model: T5, seed: int, world: World) -> None:
    """Fills the weights at random, from the distributions of Mesh TensorFlow's initializers.

    The values depend only on the seed, and not on the number of processes.
    """
    for name, parameter in names_and_parameters(model).items():
        value = _draw_initial(name, tuple(parameter.shape), model, _generator(name, seed))
        local_rows(parameter).copy_(value[own_rows(parameter.shape[0], world)])


def fill_adapter(model: T5, seed: int, world: World) -> None:
    """Fills a model's adapter with values that do not change the model's outputs, as in PEFT.

    The factors of (IA)3 are 1. LoRA's second matrix is 0, and its first matrix is random.
    """
    for name, parameter in adapter_parameters(model).items():
        value = torch.full(tuple(parameter.shape), 0.0 if ".lora_" in name else 1.0)
        if ".lora_A." in name:
            bound = parameter.shape[1] ** -0.5
            value.uniform_(-bound, bound, generator=_generator(name, seed))
        local_rows(parameter).copy_(value[own_rows(parameter.shape[0], world)])


def _generator(name: str, seed: int) -> torch.Generator:
    """Returns the random number generator of a weight's initial values."""
    key = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)


def _draw_initial(
    name: str, shape: tuple[int, ...], model: T5, generator: torch.Generator
) -> torch.Tensor:
    """Returns a tensor's initial values, in PyTorch's orientation."""
    row, sizes = names.row_of(name), model.spec.sizes
    if row.dims == "D":
        return torch.ones(shape)
    value = torch.empty(shape)
    if row.dims == "HB":  # TensorFlow's default initializer (Glorot and Bengio 2010)
        limit = (6 / sum(shape)) ** 0.5
        return value.uniform_(-limit, limit, generator=generator)
    deviation = {"VD": 1.0, "FD": sizes.d_ff**-0.5, "ID": sizes.inner**-0.5}.get(
        row.dims, sizes.d_model**-0.5
    )
    if name.endswith("/q"):
        deviation *= sizes.d_kv**-0.5  # because T5 does not divide attention logits by sqrt(d_kv)
    if row.dims in _TRUNCATED:
        bound = 2 * deviation
        return torch.nn.init.trunc_normal_(
            value, 0.0, deviation, -bound, bound, generator=generator
        )
    return value.normal_(0.0, deviation, generator=generator)


def _to_torch(array: np.ndarray, name: str) -> np.ndarray:
    """Returns a canonical array as float32 in PyTorch's orientation."""
    wide = np.asarray(array, np.float32)
    return np.ascontiguousarray(wide.T if _is_transposed(array, name) else wide)


def _is_transposed(array: np.ndarray, name: str) -> bool:
    return array.ndim == 2 and names.row_of(names.from_mtf(name)).transposed
