"""Collectives over copies move and add what a TPU's would."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from t0.rehearsal.virtual_cores import CoreCopy, copy_collective

GROUPS = [[0, 2], [3, 1]]
X = np.arange(4 * 2 * 4, dtype=np.float32).reshape(4, 2, 4)  # [cores, rows, columns]


def constant(name, value):
    node = tf.NodeDef(op="Const", name=name)
    tensor = tf.make_tensor_proto(value)
    node.attr["value"].tensor.CopyFrom(tensor)
    node.attr["dtype"].type = tensor.dtype
    return node


def run(kind, assignment, **attributes):
    """Returns what each core gets."""
    node = tf.NodeDef(op=kind, name="collective", input=["x", "assignment"])
    node.attr["T"].type = tf.float32.as_datatype_enum
    for name, value in attributes.items():
        node.attr[name].i = value
    groups = constant("assignment", np.array(assignment, np.int32))
    nodes = [constant(f"x_{core}", x) for core, x in enumerate(X)]
    for core in range(len(X)):
        nodes += copy_collective(
            node, groups, CoreCopy(core, f"got_{core}", lambda other: f"x_{other}")
        )
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(tf.GraphDef(node=nodes), name="")
        return session.run([f"got_{core}:0" for core in range(len(X))])


def test_collective_sum_adds_its_group():
    first, second = X[0] + X[2], X[3] + X[1]
    np.testing.assert_array_equal(run("CrossReplicaSum", GROUPS), [first, second, first, second])


@pytest.mark.parametrize("split, concat", [(1, 0), (0, 1), (1, 1)])
def test_collective_all_to_all_exchanges_parts(split, concat):
    got = run("AllToAll", GROUPS, split_dimension=split, concat_dimension=concat, split_count=2)
    for members in GROUPS:
        for place, core in enumerate(members):
            parts = [np.split(X[member], 2, axis=split)[place] for member in members]
            np.testing.assert_array_equal(got[core], np.concatenate(parts, concat))


def test_collective_permute_sends_and_leaves_zeros():
    got = run("CollectivePermute", [[0, 1], [1, 3]])
    np.testing.assert_array_equal(got, [0 * X[0], X[0], 0 * X[0], X[1]])
