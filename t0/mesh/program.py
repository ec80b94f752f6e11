"""A core's program, read from a lowered graph: steps in order, with sizes, types and the loop.

    program = read_program(lowered.graph, lowered.fetches)
    [step.kind for step in program.steps][:3]

Only what the fetches need is read: initialisers and the copies between master and slices run on
hosts. Microbatches are one `while` loop, lowered once; `in_loop` marks what it repeats.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from t0.compat import tensor_util
from t0.compat import tf1 as tf


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """A tensor on one core.

    Attributes:
      shape: on this core, that is, already split.
      dtype: such as "bfloat16".
      bytes: elements times element size.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One operation of the program.

    Attributes:
      name: as TensorFlow has it, which tells the layer.
      kind: TensorFlow's operation type.
      inputs, outputs: positions in `Program.values`.
      in_loop: whether the microbatch loop repeats it.
      detail: an einsum's equation, a collective's groups (rows of physical core numbers), whether
        an Enter is constant; None for all others.
    """

    name: str
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    in_loop: bool
    detail: Any = None


@dataclasses.dataclass(frozen=True)
class Program:
    """Steps in an order that respects their dependencies, and the values they pass."""

    steps: tuple[Step, ...]
    values: tuple[Value, ...]


COLLECTIVES = ("CrossReplicaSum", "AllToAll", "CollectivePermute")


def read_program(graph: tf.Graph, fetches: Sequence[Any]) -> Program:
    """Returns what a core computes for `fetches` (operations or tensors) of `graph`."""
    needed = _needed(fetches)
    values: list[Value] = []
    number: dict[str, int] = {}
    groups: dict[str, Any] = {}

    def value_number(tensor: Any) -> int:
        name = tensor.name
        if name not in number:
            number[name] = len(values)
            values.append(_value(tensor))
        return number[name]

    steps = tuple(
        Step(
            name=op.name,
            kind=op.type,
            inputs=tuple(map(value_number, op.inputs)),
            outputs=tuple(map(value_number, op.outputs)),
            in_loop=op._control_flow_context is not None or op.type == "Exit",
            detail=_detail(op, groups),
        )
        for op in graph.get_operations()
        if op.name in needed
    )
    return Program(steps, tuple(values))


def _needed(fetches: Sequence[Any]) -> set[str]:
    seen: set[str] = set()
    stack = [getattr(fetch, "op", fetch) for fetch in fetches]
    while stack:
        op = stack.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        stack.extend(tensor.op for tensor in op.inputs)
        stack.extend(op.control_inputs)
    return seen


def _value(tensor: Any) -> Value:
    shape = tuple(tensor.shape.as_list()) if tensor.shape.rank is not None else ()
    dtype = tensor.dtype.base_dtype
    if dtype in (tf.resource, tf.string, tf.variant) or None in shape:
        return Value((), dtype.name, 0)
    elements = 1
    for size in shape:
        elements *= size
    return Value(shape, dtype.name, elements * dtype.size)


def _detail(op: Any, groups: dict[str, Any]) -> Any:
    if op.type == "Einsum":
        return op.get_attr("equation").decode()
    if op.type == "Enter":
        return op.get_attr("is_constant")
    if op.type in COLLECTIVES:
        # Hundreds of collectives share few assignments, each its own constant of hundreds of ints.
        content = op.inputs[-1].op.node_def.attr["value"].tensor.SerializeToString()
        if content not in groups:
            groups[content] = np.asarray(tensor_util.constant_value(op.inputs[-1]))
        return groups[content]
    return None
