"""Builds the graph with which a TPU's hosts read data, and finds operations that fail there.

    foreign_operations(pipeline_graph(input_fn))        # {"PyFunc": "the task's generator"}

With `--tpu=NAME` the input pipeline does not run in this process, but in the TensorFlow server of a
host. That server has only TensorFlow's own operations. It cannot call Python functions, and has no
operations of other libraries (such as tensorflow_text's SentencePiece). This module builds the same
graph in this process, so problems are found without a TPU.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t0.compat import seqio
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.feeding import data_spec

# TensorFlow operations that call a Python function of the process that built the graph.
CALL_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
# The length of features in a graph that is only inspected. Every length gives the same operations.
_ANY_LENGTH = 512


def pipeline_graph(input_fn: Callable[[dict[str, Any]], Any]) -> tf.Graph:
    """Builds the graph that TPUEstimator builds for an input function on a host.

    Args:
      input_fn: a function that takes the estimator's parameters and returns a dataset.
    """
    with tf.Graph().as_default() as graph:
        dataset = input_fn({})
        if isinstance(dataset, tf.data.Dataset | tf.compat.v2.data.Dataset):
            tf.data.make_initializable_iterator(dataset).get_next()
    return graph


def foreign_operations(graph: tf.Graph) -> dict[str, str]:
    """Finds the operations of a graph that a TensorFlow server without other libraries cannot run.

    Args:
      graph: the graph to check. The functions that its datasets call are also checked.

    Returns:
      type of an unsupported operation -> the name of one node of that type.
    """
    definition = graph.as_graph_def()
    operations: dict[str, str] = {}
    for nodes in (definition.node, *(f.node_def for f in definition.library.function)):
        for node in nodes:
            # `raw_ops` is generated when TensorFlow is built. So it does not contain the operations
            # of libraries that are loaded later.
            in_tensorflow = node.op.startswith("_") or hasattr(tf.raw_ops, node.op)
            if node.op in CALL_PYTHON or not in_tensorflow:
                operations.setdefault(node.op, node.name)
    return operations


def explain(foreign: Mapping[str, str]) -> str:
    """Describes unsupported operations in words."""
    return ", ".join(
        "a Python function" if kind in CALL_PYTHON else f"the operation {kind}" for kind in foreign
    )


def require_no_live_tasks(
    name: str, split: str, *, function: str, settings: Mapping[str, Sequence[str]]
) -> None:
    """Checks that a TPU's hosts can read the mixture `name` if none of its caches are used.

    Args:
      name: a mixture's or task's name.
      function: gin's name of the dataset function that reads the mixture, such as
        "mesh_train_dataset_fn".
      settings: flag -> values, for the flags of this command that the caching command also needs.

    Raises:
      UserError: if the hosts cannot read a task. The message has the command that caches the
        mixture.
    """
    mixture = data_spec.known_mixture(name)
    for task in seqio.get_subtasks(mixture):
        if split not in task.splits:
            continue
        foreign = foreign_operations(pipeline_graph(_live_input_fn(task, split)))
        if not foreign:
            continue
        folders = seqio.get_global_cache_dirs()
        into = folders[-1] if folders else "gs://BUCKET/cache"
        raise UserError(
            f"{function}.use_cached is not set, so a TPU's hosts would read {name} live, and their "
            f"TensorFlow servers cannot: task {task.name} needs {explain(foreign)}. Cache its "
            f"tasks once:\n  {data_spec.caching_command(name, into, settings)}\nand add "
            f"--additional_task_cache_dirs={into} --gin_param='{function}.use_cached = True'"
        )


def _live_input_fn(task: Any, split: str) -> Callable[[dict[str, Any]], Any]:
    def input_fn(params: dict[str, Any]) -> Any:
        del params
        lengths = dict.fromkeys(task.output_features, _ANY_LENGTH)
        return task.get_dataset(lengths, split=split, use_cached=False, shuffle=False)

    return input_fn
