"""Checks the arithmetic of the global batch before anything is built.

    >>> check_batch(("tokens_per_batch", 65536), sequence_length={"inputs": 1024, "targets": 256},
    ...             mesh_shape="batch:4,model:2", layout_rules="batch:batch,heads:model")
    64

A batch in tokens is divided by the length of the longest feature. In this example, 65,536 tokens
are 64 sequences, because the inputs have 1,024 tokens.
"""

import re
from collections.abc import Mapping
from typing import Any

from t0.compat import mtf
from t0.config.bindings import bound
from t0.errors import UserError, unknown_name

_METHODS = (
    "sequences_per_batch",
    "tokens_per_batch",
    "sequences_per_replica",
    "tokens_per_replica",
)
_UNDIVIDED = re.compile(r"not divisible by mesh dimension size: tensor_shape=Shape\[(.*?)\]")
_DIMENSION = re.compile(r"(\w+)=(\d+)")
# The largest mesh dimension that an error message proposes.
MOST_PARTS = 256


def replicas(mesh_shape: Any, layout_rules: Any) -> int:
    """Returns the number of replicas: the parts into which the mesh splits a batch."""
    count = 1
    for name in ("batch", "outer_batch"):
        count *= mtf.tensor_dim_to_mesh_dim_size(layout_rules, mesh_shape, mtf.Dimension(name, 0))
    return count


def check_batch(
    batch_size: Any,
    *,
    sequence_length: Mapping[str, int] | None,
    mesh_shape: Any,
    layout_rules: Any,
) -> int:
    """Returns the number of sequences in the global batch, and checks that it divides evenly.

    Args:
      batch_size: the value of `run.batch_size`: a number of sequences, or a pair such as
        ("tokens_per_batch", 65536).
      sequence_length: the number of tokens of each feature; None if the run takes the lengths from
        its data.
      mesh_shape: anything that `mtf.convert_to_shape` accepts.
      layout_rules: anything that `mtf.convert_to_layout_rules` accepts.

    Raises:
      UserError: if `batch_size` is not a valid value, or the batch is not a multiple of the length
        times the number of replicas. In the second case, the message contains the nearest
        multiples.
    """
    method, value = _method_and_value(batch_size)
    if method.startswith("tokens") and not sequence_length:
        raise UserError(
            f"run.batch_size = {batch_size!r} counts tokens, which needs run.sequence_length; "
            "set it, or give the batch in sequences"
        )
    longest = max(sequence_length.values()) if sequence_length else 1
    replica_count = replicas(mesh_shape, layout_rules)
    tokens = longest if method.startswith("tokens") else 1
    split = replica_count if method.endswith("batch") else 1
    if value % (tokens * split):
        raise UserError(_describe_undivided(batch_size, value, tokens=tokens, split=split))
    return value // tokens * (replica_count if method.endswith("replica") else 1)


def _method_and_value(batch_size: Any) -> tuple[str, int]:
    pair = ("sequences_per_batch", batch_size) if isinstance(batch_size, int) else batch_size
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise UserError(
            f"run.batch_size is {batch_size!r}; wanted a number of sequences or a pair such as "
            "('tokens_per_batch', 65536)"
        )
    method, value = pair
    if method not in _METHODS:
        raise unknown_name("way to count a batch", str(method), _METHODS, "(run.batch_size)")
    if not isinstance(value, int) or value < 1:
        raise UserError(f"run.batch_size is {batch_size!r}; wanted a whole number above 0")
    return method, value


def _describe_undivided(batch_size: Any, value: int, *, tokens: int, split: int) -> str:
    step = tokens * split
    below, above = value // step * step, -(-value // step) * step
    factors = [f"the longest sequence, {tokens} tokens"] if tokens > 1 else []
    factors += [f"the {split} replicas of the mesh"] if split > 1 else []
    nearest = f"{below} or {above}" if below else str(above)
    return (
        f"run.batch_size = {batch_size!r}: {value} is not a multiple of {step} "
        f"({' times '.join(factors)}). The nearest that work: {nearest}"
    )


def explain_undivided(error: BaseException, mesh_shape: Any) -> UserError | None:
    """Explains Mesh TensorFlow's error for a mesh that does not divide a tensor.

    Returns:
      a UserError with the explanation; None if `error` is any other error.
    """
    match = _UNDIVIDED.search(str(error))
    if not match:
        return None
    mesh = ", ".join(f"{dim.name}:{dim.size}" for dim in mtf.convert_to_shape(mesh_shape).dims)
    allowed_sizes = _sizes_that_work(match[1], mesh_shape)
    return UserError(
        f"the mesh {mesh} cannot split a tensor of dimensions {match[1]}: the sizes that "
        "run.layout_rules splits must be multiples of the mesh's. Change run.mesh_shape "
        f"(on a TPU tpu_mesh_shape.model_parallelism) or the model's sizes{allowed_sizes}"
    )


def _sizes_that_work(dimensions: str, mesh_shape: Any) -> str:
    """Returns a sentence with the mesh sizes that work; "" if the mesh divides all dimensions.

    If several dimensions cannot be divided, the sentence is about the first of them.
    """
    mesh = mtf.convert_to_shape(mesh_shape)
    rules = mtf.convert_to_layout_rules(bound("run.layout_rules") or "")
    for name, text in _DIMENSION.findall(dimensions):
        size = int(text)
        axis = rules.tensor_dimension_to_mesh_axis(mtf.Dimension(name, size), mesh)
        if axis is not None and size % mesh.dims[axis].size:
            fits = [str(n) for n in range(1, MOST_PARTS) if size % n == 0]
            return f". {name} is {size}: {mesh.dims[axis].name} may be {', '.join(fits)}"
    return ""
