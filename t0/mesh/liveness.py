"""Estimates the memory that a core's program needs in addition to its variables.

The method is liveness analysis. It imitates XLA's compilation, step by step in the order of the
program:

- Element-wise operations, casts, broadcasts and similar operations are fused into the operations
  that read their results. Such a result is stored only if a matrix product, a collective or another
  operation that cannot be fused reads it. Otherwise it is recomputed from its sources.
- A value lives from the step that computes it to the last step that reads it. If a fused operation
  reads the value, the value lives until the last step that reads the fused operation's result. So
  values of the forward pass often live until the backward pass.
- Sums over microbatches and assignments to variables happen in place, as early as possible.
- Values that the microbatch loop reads from outside live throughout the loop.

The estimate is the largest sum of live values. It omits three effects: rematerialization (XLA
recomputes values when memory runs out, which takes time), fragmentation, and the padding of small
dimensions to the TPU's tiles of 8 x 128. (If that padding is large, `formulas.bias_and_mask_bytes`
estimates it.) tests/mesh/mesh_liveness_test.py and benchmarks/planning.py compare the estimate with
memory measured on the CPU. The difference is at most a quarter, and mostly below a tenth.

    peak = peak_memory(program)
    peak.bytes, peak.by_kind["activations"], peak.live[0]
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from t0.mesh.lowering import CoreProgram, ProgramStep, ProgramValue

# The results of these operations share the memory of their input.
_VIEWS = {
    *("Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient"),
    *("Merge", "Switch", "Exit"),
}
# XLA computes these operations once and stores the result, instead of recomputing it whenever it is
# read.
_EXPENSIVE = {"Erf", "Exp", "Expm1", "Log", "Log1p", "Pow", "Sigmoid", "Softplus", "Tanh"}
# XLA fuses these operations into the operations that read their results.
_FUSED = _EXPENSIVE | {
    *("Abs", "Add", "AddV2", "BiasAdd", "BroadcastTo", "Cast", "Ceil", "Equal", "Fill", "Floor"),
    *("FloorDiv", "FloorMod", "Greater", "GreaterEqual", "IsFinite", "Less", "LessEqual"),
    *("LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mod", "Mul", "Neg"),
    *("NotEqual", "OneHot", "OnesLike", "Pad", "Range", "RealDiv", "Reciprocal", "Relu"),
    *("ReluGrad", "Round", "Rsqrt", "Select", "SelectV2", "Sign", "Slice", "Sqrt", "Square"),
    *("SquaredDifference", "StridedSlice", "Sub", "Tile", "Transpose", "Unpack", "ZerosLike"),
}
# XLA fuses these operations with the operation that computes their input, but stores their result.
_REDUCTIONS = {"All", "Any", "ArgMax", "ArgMin", "Max", "Mean", "Min", "Prod", "Sum"}
_PRODUCTS = {"Einsum", "MatMul", "BatchMatMul", "BatchMatMulV2"}
_ASSIGNMENTS = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
_SINKS = _ASSIGNMENTS | {"NextIteration"}
_VARIABLES = {"ReadVariableOp", "VariableV2", "VarHandleOp"}
_RESIDENT = _VARIABLES | {"Const", "Placeholder", "TPUReplicatedInput"}


@dataclasses.dataclass
class Buffer:
    """The memory of one value: its name, size and kind, and the first and last step of its life."""

    name: str
    bytes: int
    kind: str
    born: int
    dies: int


@dataclasses.dataclass(frozen=True)
class Peak:
    """The memory at a program's peak.

    Attributes:
      bytes: the bytes of all live values at that moment, without variables.
      by_kind: the same bytes by kind: "weight copies" (weights in the type of the activations),
        "gradients" (sums over microbatches, or the values that the optimizer reads), "activations".
      live: the live values at that moment, largest first.
    """

    bytes: int
    by_kind: Mapping[str, int]
    live: tuple[Buffer, ...]


def peak_memory(program: CoreProgram, *, recompute: bool = False) -> Peak:
    """Estimates the peak memory of a core's program, without its variables and inputs.

    Args:
      program: the steps, in an order that respects dependencies.
      recompute: whether element-wise values are recomputed for each operation that reads them, as
        XLA does when memory is short. If so, only the results of matrix products, collectives and
        reductions are stored.
    """
    order = _move_sinks_early(program)
    buffers = _Liveness(program, order, recompute=recompute).buffers()
    changes = [0] * (len(order) + 2)
    for buffer in buffers:
        changes[buffer.born] += buffer.bytes
        changes[buffer.dies + 1] -= buffer.bytes
    sizes = list(itertools.accumulate(changes))
    moment = sizes.index(max(sizes))
    live = [b for b in buffers if b.born <= moment <= b.dies]
    by_kind = dict.fromkeys(("weight copies", "gradients", "activations"), 0)
    for buffer in live:
        by_kind[buffer.kind] += buffer.bytes
    live.sort(key=lambda buffer: -buffer.bytes)
    return Peak(sizes[moment], by_kind, tuple(live))


def _move_sinks_early(program: CoreProgram) -> list[ProgramStep]:
    """Returns the steps in an order that updates each variable as soon as its gradient exists.

    Mesh TensorFlow's program first computes all gradients, then sums them and updates all
    variables. A compiled program sums a gradient and updates its variable as soon as the gradient
    is computed. So if only updates read the results of a step, this function moves the step to just
    after the matrix product that computes the gradient.
    """
    feeds_only_sinks = _feeding_only_sinks(program)
    ready_at: dict[int, float] = {}
    keyed = []
    for position, step in enumerate(program.steps):
        time: float = position
        if step.kind in _RESIDENT:
            time = -1.0
        elif feeds_only_sinks[position]:
            time = max((ready_at.get(value, -1.0) for value in step.inputs), default=-1.0) + 1e-6
        for value in step.outputs:
            ready_at[value] = time
        keyed.append((time, position))
    return [program.steps[position] for _, position in sorted(keyed)]


def _feeding_only_sinks(program: CoreProgram) -> list[bool]:
    """Returns, for each step, whether only updates of variables depend on its results."""
    result = [False] * len(program.steps)
    read: set[int] = set()
    read_by_others: set[int] = set()
    for position, step in reversed([*enumerate(program.steps)]):
        if step.kind in _SINKS:
            result[position] = True
        elif step.kind not in _PRODUCTS and not read.isdisjoint(step.outputs):
            result[position] = read_by_others.isdisjoint(step.outputs)
        read.update(step.inputs)
        if not result[position]:
            read_by_others.update(step.inputs)
    return result


class _Liveness:
    """Walks the steps once and records the buffer of each value, by the rules in the module header.

    A view is replaced by the value with which it shares memory. Every other value is of one of
    three kinds: it is resident (a variable, an input, a constant), it is stored in its own buffer,
    or the operations that read it recompute it from other values.
    """

    def __init__(
        self, program: CoreProgram, order: Sequence[ProgramStep], *, recompute: bool
    ) -> None:
        self._values = program.values
        self._order = order
        self._recompute = recompute
        self._stored: dict[int, Buffer] = {}
        # (step, size) -> the value of a fused operation, recomputed only for this step.
        self._transient: dict[tuple[int, int], Buffer] = {}
        self._resident: set[int] = set()
        self._weights: set[int] = set()
        # `_constants` has the values that depend only on constants. If several of them have the
        # same shape and type, only one is stored. `_shared` maps the shape and type to the stored
        # value.
        self._constants: set[int] = set()
        self._shared: dict[ProgramValue, int] = {}
        self._sources: dict[int, tuple[int, ...]] = {}
        self._origin = list(range(len(program.values)))
        self._uses = [0] * len(program.values)
        for step in order:
            for value in () if _is_view(step) else step.inputs:
                self._uses[self._origin[value]] += 1
            for value in step.outputs if _is_view(step) else ():
                self._origin[value] = self._origin[step.inputs[0]]
        loops = (position for position, step in enumerate(order) if step.in_loop)
        self._loop_end = max(loops, default=-1)
        assigns = (i for i, step in enumerate(order) if step.kind in _ASSIGNMENTS)
        self._update = next(assigns, len(order))

    def buffers(self) -> list[Buffer]:
        """Returns every buffer that the program fills."""
        for position, step in enumerate(self._order):
            self._visit(position, step)
        for buffer in self._stored.values():
            if buffer.kind == "activations" and buffer.born < self._update <= buffer.dies:
                buffer.kind = "gradients"
        stored = [buffer for buffer in self._stored.values() if buffer.bytes]
        return stored + list(self._transient.values())

    def _visit(self, position: int, step: ProgramStep) -> None:
        inputs = [self._origin[value] for value in step.inputs]
        kind = step.kind
        if kind in _RESIDENT:
            self._resident.update(step.outputs)
            if kind in _VARIABLES:
                self._weights.update(step.outputs)
            elif kind == "Const":
                self._constants.update(step.outputs)
        elif _is_view(step):
            if kind == "Enter":  # a microbatch loop reads the value from outside in every iteration
                self._keep(inputs[0], position)
                if inputs[0] in self._stored:
                    self._extend(inputs[0], self._loop_end)
        elif kind in _FUSED:
            self._fuse(step, inputs, position)
        else:
            reads_fused = kind in _SINKS or kind in _REDUCTIONS or kind == "Enter"
            for value in inputs:
                (self._read if reads_fused else self._keep)(value, position)
            for value in () if kind in _SINKS else step.outputs:
                self._store(value, position, "gradients" if kind == "Enter" else "activations")
                if kind == "Enter":
                    self._extend(value, self._loop_end)

    def _fuse(self, step: ProgramStep, inputs: Sequence[int], position: int) -> None:
        sources = dict.fromkeys(key for value in inputs for key in self._buffers_of(value))
        large = [value for value in inputs if self._values[value].shape]
        of_weights = bool(large) and all(value in self._weights for value in large)
        source_bytes = sum(self._values[key].bytes for key in sources)
        constant = all(value in self._constants for value in inputs)
        for value in step.outputs:
            self._sources[value] = tuple(sources)
            if constant:
                self._constants.add(value)
            if of_weights:
                self._weights.add(value)
            expensive = step.kind in _EXPENSIVE and not self._recompute
            if self._uses[value] > 1 and (
                expensive or source_bytes > 1.5 * self._values[value].bytes
            ):
                self._keep(value, position)

    def _buffers_of(self, value: int) -> tuple[int, ...]:
        """Returns the buffers from which `value` is read or recomputed."""
        return (value,) if value in self._stored else self._sources.get(value, ())

    def _read(self, value: int, position: int) -> None:
        for key in self._buffers_of(value):
            self._extend(key, position)

    def _extend(self, key: int, position: int) -> None:
        self._stored[key].dies = max(self._stored[key].dies, position)

    def _keep(self, value: int, position: int) -> None:
        """Stores `value` in memory, for an operation that reads it but cannot recompute it."""
        if value in self._constants:
            # Position buckets and masks are the same in every layer, so XLA stores each only once.
            value = self._shared.setdefault(self._values[value], value)
        self._read(value, position)
        if value in self._stored or value in self._resident:
            return
        step = self._order[position]
        if self._recompute and step.kind != "Enter":
            size = self._values[value].bytes
            self._transient[position, size] = Buffer(
                step.name, size, "activations", position, position
            )
            return
        kind = "weight copies" if value in self._weights else "activations"
        self._store(value, position, kind)

    def _store(self, value: int, position: int, kind: str) -> None:
        name, size = self._order[position].name, self._values[value].bytes
        self._stored[value] = Buffer(name, size, kind, position, position)


def _is_view(step: ProgramStep) -> bool:
    return step.kind in _VIEWS or (step.kind == "Enter" and step.detail)
