"""What each collective of a core's program is on this machine: plain operations over the copies.

    core = Core(3, name="core_3/sum", value=lambda core: f"core_{core}/loss/Cast")
    copy(node, assignment, core)         # the nodes of core 3's copy of the collective `node`

A collective joins the copies of one value that the cores of a group hold. On a TPU the members
exchange them over links; here every copy is a node of one graph, so that a sum is `AddN` over the
members' nodes, and an exchange is splits and concatenations. Members are in the order of the group
assignment. A sum adds in the type that the program gives it: for groups of more than eight members
Mesh TensorFlow casts bfloat16 to float32 before the collective.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t0.compat import tensor_util
from t0.compat import tf1 as tf


@dataclasses.dataclass(frozen=True)
class Core:
    """The core whose copy of a collective is made.

    Attributes:
      number: the core's physical number, from 0.
      name: the name of the copy that is made.
      value: core number -> the tensor that this core puts into the collective.
    """

    number: int
    name: str
    value: Callable[[int], str]


def _sum(node: Any, groups: np.ndarray, core: Core) -> list[Any]:
    members = _group_of(core.number, groups)
    return [
        _node("AddN", core.name, [core.value(m) for m in members], node, "T", N=len(members)),
    ]


def _all_to_all(node: Any, groups: np.ndarray, core: Core) -> list[Any]:
    """Returns the parts that the members have for this core, concatenated in their order."""
    members = _group_of(core.number, groups)
    mine = members.index(core.number)
    parts = len(members)
    split_axis, concat_axis = node.attr["split_dimension"].i, node.attr["concat_dimension"].i
    axis = _constant(f"{core.name}/split_axis", split_axis)
    splits = [
        _node(
            "Split",
            f"{core.name}/split_{member}",
            [axis.name, core.value(member)],
            node,
            "T",
            num_split=parts,
        )
        for member in members
    ]
    joined = _constant(f"{core.name}/concat_axis", concat_axis)
    output = _node(
        "ConcatV2",
        core.name,
        [*(f"{split.name}:{mine}" for split in splits), joined.name],
        node,
        "T",
        N=parts,
    )
    output.attr["Tidx"].type = tf.int32.as_datatype_enum
    return [axis, *splits, joined, output]


def _permute(node: Any, pairs: np.ndarray, core: Core) -> list[Any]:
    """Returns the value of the core that sends to this one; zeros where none does."""
    sources = [int(source) for source, target in pairs if target == core.number]
    kind, source = ("Identity", sources[0]) if sources else ("ZerosLike", core.number)
    return [_node(kind, core.name, [core.value(source)], node, "T")]


# Kind of a collective -> the nodes of one core's copy; the last has the copy's name.
COLLECTIVES: dict[str, Callable[[Any, np.ndarray, Core], list[Any]]] = {
    "CrossReplicaSum": _sum,
    "AllToAll": _all_to_all,
    "CollectivePermute": _permute,
}


def copy(node: Any, assignment: Any, core: Core) -> list[Any]:
    """Returns the nodes that replace one core's copy of a collective.

    Args:
      node: the collective's `NodeDef`.
      assignment: the `NodeDef` of the constant that has its groups, or its pairs of source and
        target.
      core: the core, and the values of all cores.
    """
    groups = np.asarray(tensor_util.MakeNdarray(assignment.attr["value"].tensor))
    return COLLECTIVES[node.op](node, groups, core)


def _group_of(core: int, groups: np.ndarray) -> list[int]:
    return next(row for row in groups.tolist() if core in row)


def _node(
    kind: str, name: str, inputs: Sequence[str], like: Any, type_attribute: str, **numbers: int
) -> Any:
    made = tf.NodeDef(op=kind, name=name, input=inputs)
    made.attr["T"].type = like.attr[type_attribute].type
    for attribute, number in numbers.items():
        made.attr[attribute].i = number
    return made


def _constant(name: str, value: int) -> Any:
    made = tf.NodeDef(op="Const", name=name)
    made.attr["dtype"].type = tf.int32.as_datatype_enum
    made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int32))
    return made
