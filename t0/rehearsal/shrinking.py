"""A configured run made small enough for this machine, with the mesh and layout of the pod.

    small = shrink(run, model_dimensions(build_model(run)))     # after gin has been parsed
    small.run.mesh_shape == run.mesh_shape                      # True
    small.changes                                               # ("num_layers: 24 -> 1", ...)

What the mesh splits stays divisible by its parts: each core keeps some heads, some columns of d_ff.
Types, optimizer, schedule, packing, dropout and vocabulary stay as they are. Sizes are gin macros,
as T5's model files and Mesh TensorFlow's operative configs have them.
"""

import dataclasses
from collections.abc import Mapping

from t0.compat import gin
from t0.config.bindings import bound
from t0.errors import UserError
from t0.mesh.lowering import build_model
from t0.mesh.pod_run import PodRun, model_dimensions, read_pod_run

# Macro -> the size on this machine, before it is rounded up to the mesh's parts.
_SIZES = {"num_layers": 1, "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 2}
# Macro -> the dimension of tensors that a layout may split.
_DIMENSIONS = {"d_model": "d_model", "d_ff": "d_ff", "d_kv": "d_kv", "num_heads": "heads"}
_LENGTHS = {"inputs": 32, "targets": 16}
_TOKENS = "serialize_num_microbatches.tokens_per_microbatch_per_replica"
_MICROBATCHES = 2


@dataclasses.dataclass(frozen=True)
class Shrunk:
    """A run that fits this machine.

    Attributes:
      run: the small run.
      changes: what was changed, one clause each.
    """

    run: PodRun
    changes: tuple[str, ...]


def shrink(run: PodRun, dimensions: Mapping[str, int]) -> Shrunk:
    """Binds smaller sizes in gin, and reads the run again.

    Args:
      run: the run as it is configured.
      dimensions: sizes of its model's dimensions, such as {"d_model": 1024, "heads": 16}.

    Raises:
      UserError: if a size cannot be made smaller, because no macro sets it.
    """
    macros = {name: bound(f"%{name}") for name in _SIZES}
    smaller = {
        name: size
        for name, size in ((name, _rounded_up(run, name)) for name in _SIZES)
        if isinstance(macros[name], int) and macros[name] > size
    }
    lengths = {name: min(n, _LENGTHS.get(name, n)) for name, n in run.sequence_length.items()}
    parts = _MICROBATCHES if run.microbatches > 1 else 1
    rows = ("sequences_per_replica", parts)
    tokens = max(lengths.values()) if parts > 1 else None
    lines = [f"{name} = {size}" for name, size in smaller.items()]
    lines += [
        f"run.sequence_length = {lengths}",
        f"run.batch_size = {rows}",
        f"{_TOKENS} = {tokens}",
    ]
    with gin.unlock_config():
        gin.parse_config(lines)
    small = read_pod_run(vocabulary_size=run.vocabulary_size)
    _check_smaller(smaller, dimensions, model_dimensions(build_model(small)))
    changes = [f"{name}: {macros[name]} -> {size}" for name, size in smaller.items()]
    changes += [
        f"length of {name}: {run.sequence_length[name]} -> {length}"
        for name, length in lengths.items()
        if length != run.sequence_length[name]
    ]
    changes.append(f"sequences of a batch: {run.batch_sequences} -> {small.batch_sequences}")
    changes.append(f"microbatches: {run.microbatches} -> {small.microbatches}")
    return Shrunk(small, tuple(changes))


def _rounded_up(run: PodRun, macro: str) -> int:
    size = _SIZES[macro]
    parts = run.split(_DIMENSIONS[macro]) if macro in _DIMENSIONS else 1
    return -(-size // parts) * parts


def _check_smaller(
    smaller: Mapping[str, int], before: Mapping[str, int], now: Mapping[str, int]
) -> None:
    """Checks that the model took the smaller sizes, and that every large size has a macro."""
    sizes = {_DIMENSIONS[name]: (name, _SIZES[name]) for name in _DIMENSIONS}
    for dimension, (macro, wanted) in sizes.items():
        size = now.get(dimension)
        if size is None or size <= max(wanted, smaller.get(macro, size)):
            continue
        raise UserError(
            f"the model's {dimension} = {before[dimension]} cannot be made smaller: the macro "
            f"{macro} does not set it. Write the size as {macro} = {before[dimension]} in a gin "
            "file, or rehearse with --shrink none on a machine that has the memory"
        )
