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
estimates it.) tests/mesh/mesh_memory_test.py and benchmarks/planning.py compare the estimate with
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


@dataclasses.dataclass(frozen=True)
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
      step: the name of the operation at that moment.
    """

    bytes: int
    by_kind: Mapping[str, int]
    live: tuple[Buffer, ...]
    step: str


def peak_memory(program: CoreProgram, *, recompute: bool = False) -> Peak:
    """Estimates the peak memory of a core's program, without its variables and inputs.

    Args:
      program: the steps, in an order that respects dependencies.
      recompute: whether element-wise values are recomputed for each operation that reads them, as
        XLA does when memory is short. If so, only the results of matrix products, collectives and
        reductions are stored.
    """
    order = _move_sinks_early(program)
    liveness = _Liveness(program, order, recompute=recompute)
    buffers = liveness.buffers()
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
    name = order[moment].name if moment < len(order) else ""
    return Peak(sizes[moment], by_kind, tuple(live), name)


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
    readers = _readers(program.steps)
    result = [False] * len(program.steps)
    for position in range(len(program.steps) - 1, -1, -1):
        step = program.steps[position]
        if step.kind in _SINKS:
            result[position] = True
        elif step.kind not in _PRODUCTS:
            users = [user for value in step.outputs for user in readers.get(value, ())]
            result[position] = bool(users) and all(u > position and result[u] for u in users)
    return result


def _readers(steps: Sequence[ProgramStep]) -> dict[int, list[int]]:
    readers: dict[int, list[int]] = {}
    for position, step in enumerate(steps):
        for value in step.inputs:
            readers.setdefault(value, []).append(position)
    return readers


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
        self._transient: list[tuple[int, int]] = []
        self._origin = list(range(len(program.values)))
        self._uses = [0] * len(program.values)
        self._resolve_views()
        self._resident: set[int] = set()
        self._weights: set[int] = set()
        # `_constants` has the values that depend only on constants. If several of them have the
        # same shape and type, only one is stored. `_shared` maps the shape and type to the stored
        # value.
        self._constants: set[int] = set()
        self._shared: dict[ProgramValue, int] = {}
        self._sources: dict[int, tuple[int, ...]] = {}
        self._born: dict[int, int] = {}
        self._dies: dict[int, int] = {}
        self._name: dict[int, str] = {}
        self._kind: dict[int, str] = {}
        loops = [position for position, step in enumerate(order) if step.in_loop]
        self._loop_end = loops[-1] if loops else -1
        assigns = (i for i, step in enumerate(order) if step.kind in _ASSIGNMENTS)
        self._update = next(assigns, len(order))

    def buffers(self) -> list[Buffer]:
        """Returns every buffer that the program fills."""
        for position, step in enumerate(self._order):
            self._visit(position, step)
        stored = [
            Buffer(
                self._name[key],
                self._values[key].bytes,
                self._final_kind(key),
                born,
                max(born, self._dies[key]),
            )
            for key, born in self._born.items()
            if self._values[key].bytes
        ]
        transient = {
            Buffer(self._order[at].name, self._values[value].bytes, "activations", at, at)
            for value, at in self._transient
        }
        return stored + list(transient)

    def _resolve_views(self) -> None:
        origin = self._origin
        for step in self._order:
            if _is_view(step):
                for value in step.outputs:
                    origin[value] = origin[step.inputs[0]]
            else:
                for value in step.inputs:
                    self._uses[origin[value]] += 1

    def _final_kind(self, key: int) -> str:
        kind = self._kind[key]
        lives_into_update = self._born[key] < self._update <= self._dies[key]
        return "gradients" if kind == "activations" and lives_into_update else kind

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
            if kind == "Enter":
                self._capture(inputs[0], position)
        elif kind in _SINKS:
            for value in inputs:
                self._read(value, position)
        elif kind == "Enter":
            self._read(inputs[0], position)
            self._make(step, position, kind="gradients")
            self._dies[step.outputs[0]] = self._loop_end
        elif kind in _FUSED:
            self._fuse(step, inputs, position)
        else:
            for value in inputs:
                use = self._read if kind in _REDUCTIONS else self._keep
                use(value, position)
            self._make(step, position)

    def _capture(self, value: int, position: int) -> None:
        """Records that a microbatch loop reads `value` from outside in every iteration."""
        self._keep(value, position)
        if value in self._born:
            self._dies[value] = max(self._dies[value], self._loop_end)

    def _fuse(self, step: ProgramStep, inputs: Sequence[int], position: int) -> None:
        sources: dict[int, None] = {}
        for value in inputs:
            sources.update(dict.fromkeys(self._buffers_of(value)))
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
        return (value,) if value in self._born else self._sources.get(value, ())

    def _read(self, value: int, position: int) -> None:
        for key in self._buffers_of(value):
            self._dies[key] = max(self._dies[key], position)

    def _keep(self, value: int, position: int) -> None:
        """Stores `value` in memory, for an operation that reads it but cannot recompute it."""
        if value in self._constants:
            # Position buckets and masks are the same in every layer, so XLA stores each only once.
            value = self._shared.setdefault(self._values[value], value)
        self._read(value, position)
        if value in self._born or value in self._resident:
            return
        if self._recompute and self._order[position].kind != "Enter":
            self._transient.append((value, position))
            return
        kind = "weight copies" if value in self._weights else "activations"
        self._born[value] = self._dies[value] = position
        self._name[value] = self._order[position].name
        self._kind[value] = kind

    def _make(self, step: ProgramStep, position: int, kind: str = "activations") -> None:
        for value in step.outputs:
            self._born[value] = self._dies[value] = position
            self._name[value] = step.name
            self._kind[value] = kind


def _is_view(step: ProgramStep) -> bool:
    return step.kind in _VIEWS or (step.kind == "Enter" and step.detail)
