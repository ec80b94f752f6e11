"""The graph by which a TPU's hosts read data: which of its operations a bare server has.

    foreign_operations(pipeline_graph(input_fn))        # {"PyFunc": "the task's generator"}

With `--tpu=NAME` the input pipeline does not run in this process, but in the TensorFlow server of a
host. It has only TensorFlow's own operations: no Python function, and no operation of another
library (tensorflow_text's SentencePiece). Building the graph shows that here, without a TPU.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from t0.compat import seqio
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.feeding import opening

# Operations of TensorFlow that call a Python function of the process that built the graph.
CALL_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
# Of a task that is only looked at; its operations do not depend on it.
_ANY_LENGTH = 512


def pipeline_graph(input_fn: Callable[[dict[str, Any]], Any]) -> tf.Graph:
    """Returns the graph that TPUEstimator builds for an input function on a host.

    Args:
      input_fn: takes the estimator's parameters and returns a dataset.
    """
    with tf.Graph().as_default() as graph:
        dataset = input_fn({})
        if isinstance(dataset, tf.data.Dataset | tf.compat.v2.data.Dataset):
            tf.data.make_initializable_iterator(dataset).get_next()
    return graph


def foreign_operations(graph: tf.Graph) -> dict[str, str]:
    """Returns the types of operations that a bare TensorFlow server does not know, with a name.

    Args:
      graph: the graph; the functions that its datasets call are also checked.
    """
    definition = graph.as_graph_def()
    found: dict[str, str] = {}
    for node in _nodes(definition):
        if not _is_everywhere(node.op):
            found.setdefault(node.op, node.name)
    return found


def _nodes(definition: Any) -> Iterator[Any]:
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _is_everywhere(kind: str) -> bool:
    # `raw_ops` is written when TensorFlow is built, so libraries that are loaded later add nothing.
    if kind in CALL_PYTHON:
        return False
    return kind.startswith("_") or hasattr(tf.raw_ops, kind)


def explain(foreign: Mapping[str, str]) -> str:
    """Returns foreign operations in words."""
    return ", ".join(
        "a Python function" if kind in CALL_PYTHON else f"the operation {kind}" for kind in foreign
    )


def require_no_live_tasks(
    name: str, split: str, *, function: str, settings: Mapping[str, Sequence[str]]
) -> None:
    """Checks that a TPU's hosts can read the mixture `name` without a cache.

    Args:
      name: a mixture's or task's name.
      split: the split.
      function: the gin name of the dataset function that reads it, such as
        "mesh_train_dataset_fn".
      settings: flag -> values of this command that the caching command also needs.

    Raises:
      UserError: if they cannot read a task; the message has the command that caches the mixture.
    """
    mixture = opening.known_mixture(name)
    for task in seqio.get_subtasks(mixture):
        if split not in task.splits:
            continue
        foreign = foreign_operations(pipeline_graph(_live(task, split)))
        if not foreign:
            continue
        folders = seqio.get_global_cache_dirs()
        into = folders[-1] if folders else "gs://BUCKET/cache"
        raise UserError(
            f"{function}.use_cached is not set, so a TPU's hosts would read {name} live, and their "
            f"TensorFlow servers cannot: task {task.name} needs {explain(foreign)}. Cache its "
            f"tasks once:\n  {opening.caching_command(name, into, settings)}\nand add "
            f"--additional_task_cache_dirs={into} --gin_param='{function}.use_cached = True'"
        )


def _live(task: Any, split: str) -> Callable[[dict[str, Any]], Any]:
    def input_fn(params: dict[str, Any]) -> Any:
        del params
        lengths = dict.fromkeys(task.output_features, _ANY_LENGTH)
        return task.get_dataset(lengths, split=split, use_cached=False, shuffle=False)

    return input_fn
