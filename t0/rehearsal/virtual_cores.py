"""Makes a graph for this machine with a copy of a TPU core's program for each core of a slice.

    lowered = lower(run)
    copied = copy_program(lowered, program=lowered.fetches, host=[to_slices])
    copied.graph_def                               # import it into a graph, and run it in a session
    copied.name(lowered.fetches[1].name, core=3)   # "core_3/add_n_1/Cast:0", the fourth core's loss

The program is the one that Mesh TensorFlow lowers for a TPU, with these changes:

- A node is copied for each core if its value depends on the core. This is the case if the node
  takes the core's batch, reads the core's number, reads the core's slices of variables, draws
  random numbers, or reads a value of another copied node. All other nodes have the same value on
  every core, and exist only once.
- The handle of a variable's slice is replaced by the handle of the slice on the copy's core. The
  number of the core (`TPUReplicatedInput`) is replaced by the number of the copy.
- A sum over cores is replaced by `AddN` over the copies, in the order of the group assignment. The
  type of a sum does not change. (For groups of more than eight members, Mesh TensorFlow casts
  bfloat16 to float32 before the sum.) Other collectives are refused. Only models with mixtures of
  experts have them.
- All reads of variables come before all writes, as in a step compiled by XLA. TensorFlow 1 itself
  does not define this order.
- All copies of a loop (over microbatches or decoded tokens) share the loop's frame and condition.
  So a collective within the loop combines copies of the same iteration. If the condition depends on
  the core, all copies use the condition of the first core. The condition is the same on all cores,
  because the program computes it from a sum over all cores.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t0.compat import tensor_util
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.mesh.lowering import COLLECTIVES, LoweredRun

_READ_FIRST = "all_variables_are_read"
_ENTER = ("Enter", "RefEnter")
SUM, *_OTHER_COLLECTIVES = COLLECTIVES


@dataclasses.dataclass(frozen=True)
class CopiedProgram:
    """A graph with a copy of the program for each core.

    Attributes:
      graph_def: the graph, with all copies and the operations of the hosts.
      cores: the number of cores.
      of_each_core: the names of the nodes that are copied for each core.
    """

    graph_def: Any
    cores: int
    of_each_core: frozenset[str]

    def name(self, name: str, core: int) -> str:
        """Returns the name that a core's copy of a node or tensor has in `graph_def`."""
        node = name.lstrip("^").partition(":")[0]
        return f"{_prefix(core)}{name}" if node in self.of_each_core else name


def copy_program(
    lowered: LoweredRun, *, program: Sequence[Any], host: Sequence[Any] = ()
) -> CopiedProgram:
    """Returns a graph with a copy of the lowered program for each core.

    Args:
      lowered: the lowered run, with the slices of every core.
      program: the operations and tensors that a core computes in a step.
      host: the operations and tensors that hosts compute. They are not copied for each core.

    Raises:
      UserError: if the program has a collective other than a sum.
    """
    return ProgramCopy(lowered, program, host).build()


class ProgramCopy:
    """Copies the nodes of a lowered program; see `copy_program`."""

    def __init__(self, lowered: LoweredRun, program: Sequence[Any], host: Sequence[Any]) -> None:
        graph_def = lowered.graph.as_graph_def()
        self._nodes = {node.name: node for node in graph_def.node}
        self._library = graph_def.library
        self._cores = lowered.mesh_impl.size
        self._slices = _slices(lowered)
        self._program = _find_needed(self._nodes, program)
        self._host = _find_needed(self._nodes, host)
        others = {self._nodes[name].op for name in self._program} & {*_OTHER_COLLECTIVES}
        if others:
            raise UserError(
                f"the program has {', '.join(sorted(others))}, as a mixture of experts does, and a "
                "rehearsal only covers sums over cores"
            )
        self._core_nodes = self._find_core_nodes()

    def build(self) -> CopiedProgram:
        """Returns the graph with all copies."""
        handles = {name for row in self._slices.values() for name in row}
        step = [
            node
            for name in self._nodes
            if name in self._core_nodes and name not in self._slices
            for core in range(self._cores)
            for node in self._copies(self._nodes[name], core)
        ]
        shared = [
            name for name in self._nodes if name in self._program - self._core_nodes - handles
        ]
        step += [self._copy_for_host(self._nodes[name]) for name in shared]
        _order_reads_and_writes(step)
        others = (self._host | handles) - set(shared)
        host = [_copy_without_device(self._nodes[name]) for name in self._nodes if name in others]
        graph_def = tf.GraphDef(library=self._library, node=[*host, *step])
        copied = frozenset(self._core_nodes - set(self._slices))
        return CopiedProgram(graph_def, self._cores, copied)

    def _find_core_nodes(self) -> set[str]:
        """Returns the nodes of the program whose values depend on the core."""
        users = collections.defaultdict(list)
        for name in self._program:
            for input_name in self._nodes[name].input:
                users[_node_name(input_name)].append(name)
        stack = [name for name in self._program if self._starts_at_core(self._nodes[name])]
        core_nodes: set[str] = set()
        while stack:
            name = stack.pop()
            if name in core_nodes or self._is_shared(self._nodes[name]):
                continue
            core_nodes.add(name)
            stack.extend(users[name])
        return core_nodes

    def _starts_at_core(self, node: Any) -> bool:
        op = node.op
        return (
            node.name in self._slices
            or op in ("TPUReplicatedInput", "Placeholder", SUM)
            or _is_random(op)
        )

    def _is_shared(self, node: Any) -> bool:
        """Returns whether a node exists only once, although its inputs are copied for each core.

        Such a node reads the first core's copies of its inputs. There are two kinds. The first kind
        writes a variable that all cores share, such as the global step. The second kind is the
        condition of a loop, which is the same on all cores.
        """
        if node.op == "LoopCond":
            return True
        return _is_write(node) and _node_name(node.input[0]) not in self._slices

    def _copy_for_host(self, node: Any) -> Any:
        copied = _copy_without_device(node)
        copied.input[:] = [self._input(input_name, 0) for input_name in node.input]
        return copied

    def _copies(self, node: Any, core: int) -> list[Any]:
        """Returns the nodes that form a core's copy of `node`."""
        name = self._input(node.name, core)
        if node.op == "TPUReplicatedInput":
            return [_identity(name, node.attr["T"].type, self._input(node.input[core], core))]
        if node.op == SUM:
            return [self.copy_sum(node, core, name)]
        if node.op in _ENTER and node.attr["T"].type == tf.resource.as_datatype_enum:
            return self._enter_with_value(node, core, name)
        if node.op == "ReadVariableOp" and self._nodes[_node_name(node.input[0])].op in _ENTER:
            entered = self._input(node.input[0], core)
            return [_identity(name, node.attr["dtype"].type, entered)]
        copied = _copy_without_device(node)
        copied.name = name
        copied.input[:] = [self._input(input_name, core) for input_name in node.input]
        return [copied]

    def copy_sum(self, node: Any, core: int, name: str) -> Any:
        """Returns a node that adds the values of the cores in a core's group."""
        assignment = self._nodes[_node_name(node.input[1])].attr["value"].tensor
        groups = tensor_util.MakeNdarray(assignment).tolist()
        members = next(group for group in groups if core in group)
        inputs = [self._input(node.input[0], member) for member in members]
        copied = tf.NodeDef(op="AddN", name=name, input=inputs)
        copied.attr["T"].type = node.attr["T"].type
        copied.attr["N"].i = len(members)
        return copied

    def _enter_with_value(self, node: Any, core: int, name: str) -> list[Any]:
        """Returns nodes that pass the value of a slice, instead of the slice's handle, into a loop.

        With the handle, the loop could read the slice after the step has written it.
        """
        handle = _node_name(node.input[0])
        slice_ = self._slices[handle][core]
        dtype = self._nodes[slice_].attr["dtype"].type
        read = tf.NodeDef(op="ReadVariableOp", name=f"{name}/read", input=[slice_])
        read.attr["dtype"].type = dtype
        entry = _copy_without_device(node)
        entry.name = name
        entry.attr["T"].type = dtype
        entry.input[:] = [
            read.name,
            *(self._input(input_name, core) for input_name in node.input[1:]),
        ]
        return [read, entry]

    def _input(self, input_name: str, core: int) -> str:
        """Returns the name that replaces an input's name in a core's copy of a node."""
        node = _node_name(input_name)
        if node in self._slices:
            return input_name.replace(node, self._slices[node][core], 1)
        if node not in self._core_nodes:
            return input_name
        control = "^" if input_name.startswith("^") else ""
        return f"{control}{_prefix(core)}{input_name.lstrip('^')}"


def _prefix(core: int) -> str:
    return f"core_{core}/"


def _order_reads_and_writes(step: list[Any]) -> None:
    """Makes every write of a step wait for all reads of variables."""
    reads = [f"^{node.name}" for node in step if node.op == "ReadVariableOp"]
    for node in step:
        if _is_write(node):
            node.input.append(f"^{_READ_FIRST}")
    step.append(tf.NodeDef(op="NoOp", name=_READ_FIRST, input=reads))


def _slices(lowered: LoweredRun) -> dict[str, list[str]]:
    """Returns the first core's handle -> all cores' handles, for each variable's slices."""
    rows = {}
    for laid_out in lowered.lowering.variables.values():
        names = [piece.handle.op.name for piece in laid_out.laid_out_tensor.one_slice._vars]
        rows[names[0]] = names
    return rows


def _find_needed(nodes: Mapping[str, Any], fetches: Iterable[Any]) -> set[str]:
    stack = [getattr(fetch, "op", fetch).name for fetch in fetches]
    seen: set[str] = set()
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack.extend(_node_name(input_name) for input_name in nodes[name].input)
    return seen


def _node_name(input_name: str) -> str:
    return input_name.lstrip("^").partition(":")[0]


def _is_write(node: Any) -> bool:
    return node.op.startswith("Assign") and node.op.endswith("VariableOp")


def _is_random(op: str) -> bool:
    return op.startswith(("Random", "TruncatedNormal", "Multinomial", "ParameterizedTruncated"))


def _copy_without_device(node: Any) -> Any:
    copied = tf.NodeDef()
    copied.CopyFrom(node)
    copied.device = ""  # the original node names a TPU core as its device
    if "_class" in copied.attr:
        del copied.attr["_class"]
    return copied


def _identity(name: str, dtype: int, input_name: str) -> Any:
    node = tf.NodeDef(op="Identity", name=name, input=[input_name])
    node.attr["T"].type = dtype
    return node
