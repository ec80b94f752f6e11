"""A core's program, copied once for each core of a slice into one graph that this machine runs.

    lowered = lower(run, every_slice=True)
    copied = copy_program(lowered, program=lowered.fetches, host=[to_slices])
    copied.graph_def                               # import it into a graph, and run it in a session
    copied.name(lowered.fetches[1].name, core=3)   # "core_3/add_n_1/Cast:0", the fourth core's loss

The program is the one that Mesh TensorFlow lowers for a TPU; nothing of it is computed otherwise:

- A node whose value depends on the core (it is the core's batch, reads its slices of variables or
  its number, draws random numbers, or gets such a value) is copied for each core. All other nodes
  are pure functions of the step, and exist once.
- A slice's handle becomes the handle of the core's own slice; the core's number becomes the number
  of that core (`TPUReplicatedInput`); a collective becomes operations over the copies
  (`t0/rehearsal/collectives.py`).
- All reads of variables come before all writes, as XLA compiles a step. TensorFlow 1 leaves their
  order open.
- The copies of a loop (microbatches, decoded tokens) share its frame and its condition, so that a
  collective within the loop joins copies of the same iteration. Where the condition depends on the
  core, it is the first core's: the program sums up over all cores whether to go on.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t0.compat import tf1 as tf
from t0.mesh.lowering import Lowered
from t0.rehearsal import collectives
from t0.rehearsal.collectives import Core

_READ_FIRST = "all_variables_are_read"
_ENTER = ("Enter", "RefEnter")


@dataclasses.dataclass(frozen=True)
class Copied:
    """A program in as many copies as there are cores.

    Attributes:
      graph_def: all copies, and what the hosts run.
      cores: the number of cores.
      of_each_core: the names of the nodes that were copied.
      draws: the names of those that draw random numbers, each core its own.
    """

    graph_def: Any
    cores: int
    of_each_core: frozenset[str]
    draws: tuple[str, ...]

    def name(self, name: str, core: int) -> str:
        """Returns the name in `graph_def` of a core's copy of a node or tensor of the program."""
        node = name.lstrip("^").partition(":")[0]
        return f"{_prefix(core)}{name}" if node in self.of_each_core else name


def copy_program(lowered: Lowered, *, program: Sequence[Any], host: Sequence[Any] = ()) -> Copied:
    """Returns the program of a core, copied for each core.

    Args:
      lowered: the lowered run, with the slices of every core.
      program: operations and tensors that a core computes in a step.
      host: operations and tensors that hosts compute; they are kept as they are.
    """
    return _Copy(lowered, program, host).made()


class _Copy:
    def __init__(self, lowered: Lowered, program: Sequence[Any], host: Sequence[Any]) -> None:
        graph_def = lowered.graph.as_graph_def()
        self._nodes = {node.name: node for node in graph_def.node}
        self._library = graph_def.library
        self._cores = lowered.mesh_impl.size
        self._slices = _slices(lowered)
        self._program = _needed(self._nodes, program)
        self._host = _needed(self._nodes, host)
        self._each = self._of_each_core()
        self._read_by_loops: dict[str, str] = {}

    def made(self) -> Copied:
        handles = {name for row in self._slices.values() for name in row}
        step = [
            node
            for name in self._nodes
            if name in self._each and name not in self._slices
            for core in range(self._cores)
            for node in self._copies(self._nodes[name], core)
        ]
        shared = [name for name in self._nodes if name in self._program - self._each - handles]
        step += [self._on_host(self._nodes[name]) for name in shared]
        _order_reads_and_writes(step)
        others = (self._host | handles) - set(shared)
        host = [_bare(self._nodes[name]) for name in self._nodes if name in others]
        graph_def = tf.GraphDef(library=self._library, node=[*host, *step])
        copied = frozenset(self._each - set(self._slices))
        draws = sorted(name for name in copied if _draws(self._nodes[name].op))
        return Copied(graph_def, self._cores, copied, tuple(draws))

    def _of_each_core(self) -> set[str]:
        """Returns the nodes of the program whose values depend on the core."""
        users = collections.defaultdict(list)
        for name in self._program:
            for used in self._nodes[name].input:
                users[_node_name(used)].append(name)
        stack = [name for name in self._program if self._starts_at_core(self._nodes[name])]
        found: set[str] = set()
        while stack:
            name = stack.pop()
            if name in found or self._is_shared(self._nodes[name]):
                continue
            found.add(name)
            stack.extend(users[name])
        return found

    def _starts_at_core(self, node: Any) -> bool:
        op = node.op
        return (
            node.name in self._slices
            or op in ("TPUReplicatedInput", "Placeholder")
            or op in collectives.COLLECTIVES
            or _draws(op)
        )

    def _is_shared(self, node: Any) -> bool:
        """Whether a node exists once, though its inputs are of each core; it gets the first's.

        It writes a variable that all cores share, such as the global step, or ends a loop: all
        cores sum up whether to go on.
        """
        if node.op == "LoopCond":
            return True
        return _writes(node) and _node_name(node.input[0]) not in self._slices

    def _on_host(self, node: Any) -> Any:
        made = _bare(node)
        for number, used in enumerate(made.input):
            if _node_name(used) in self._each and _node_name(used) not in self._slices:
                made.input[number] = self._input(used, 0)
        return made

    def _copies(self, node: Any, core: int) -> list[Any]:
        """Returns the nodes that are a core's copy of `node`."""
        name = self._input(node.name, core)
        if node.op == "TPUReplicatedInput":
            return [_identity(name, node.attr["T"].type, self._input(node.input[core], core))]
        if node.op in collectives.COLLECTIVES:
            return self._collective(node, core, name)
        if node.op in _ENTER and node.attr["T"].type == tf.resource.as_datatype_enum:
            return self._enter_with_value(node, core, name)
        if node.op == "ReadVariableOp" and self._nodes[_node_name(node.input[0])].op in _ENTER:
            entered = self._input(node.input[0], core)
            return [_identity(name, node.attr["dtype"].type, entered)]
        made = _bare(node)
        made.name = name
        made.input[:] = [self._input(used, core) for used in node.input]
        return [made]

    def _collective(self, node: Any, core: int, name: str) -> list[Any]:
        assignment = self._nodes[_node_name(node.input[1])]
        return collectives.copy(
            node, assignment, Core(core, name, lambda other: self._input(node.input[0], other))
        )

    def _enter_with_value(self, node: Any, core: int, name: str) -> list[Any]:
        """Returns an entry into a loop that takes a slice's value where `node` takes its handle.

        A read within a loop may otherwise come after the step's write.
        """
        handle = _node_name(node.input[0])
        slice_ = self._slices[handle][core]
        dtype = self._nodes[slice_].attr["dtype"].type
        read = tf.NodeDef(op="ReadVariableOp", name=f"{name}/read", input=[slice_])
        read.attr["dtype"].type = dtype
        made = _bare(node)
        made.name = name
        made.attr["T"].type = dtype
        made.input[:] = [read.name, *(self._input(used, core) for used in node.input[1:])]
        return [read, made]

    def _input(self, used: str, core: int) -> str:
        """Returns what an input of a node is called in the copy of a core."""
        node = _node_name(used)
        if node in self._slices:
            return used.replace(node, self._slices[node][core], 1)
        if node not in self._each:
            return used
        control = "^" if used.startswith("^") else ""
        return f"{control}{_prefix(core)}{used.lstrip('^')}"


def _prefix(core: int) -> str:
    return f"core_{core}/"


def _order_reads_and_writes(step: list[Any]) -> None:
    """Makes every write of a step wait for every read of a variable in it."""
    reads = [f"^{node.name}" for node in step if node.op == "ReadVariableOp"]
    for node in step:
        if _writes(node):
            node.input.append(f"^{_READ_FIRST}")
    step.append(tf.NodeDef(op="NoOp", name=_READ_FIRST, input=reads))


def _slices(lowered: Lowered) -> dict[str, list[str]]:
    """Returns the first core's slice of each variable -> the slices of all cores, by handle."""
    rows = {}
    for laid_out in lowered.lowering.variables.values():
        names = [piece.handle.op.name for piece in laid_out.laid_out_tensor.one_slice._vars]
        rows[names[0]] = names
    return rows


def _needed(nodes: Mapping[str, Any], fetches: Iterable[Any]) -> set[str]:
    stack = [getattr(fetch, "op", fetch).name for fetch in fetches]
    seen: set[str] = set()
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack.extend(_node_name(used) for used in nodes[name].input)
    return seen


def _node_name(used: str) -> str:
    return used.lstrip("^").partition(":")[0]


def _writes(node: Any) -> bool:
    return node.op.startswith("Assign") and node.op.endswith("VariableOp")


def _draws(op: str) -> bool:
    return op.startswith(("Random", "TruncatedNormal", "Multinomial", "ParameterizedTruncated"))


def _bare(node: Any) -> Any:
    made = tf.NodeDef()
    made.CopyFrom(node)
    made.device = ""  # a core of a TPU
    if "_class" in made.attr:
        del made.attr["_class"]
    return made


def _identity(name: str, dtype: int, used: str) -> Any:
    made = tf.NodeDef(op="Identity", name=name, input=[used])
    made.attr["T"].type = dtype
    return made
