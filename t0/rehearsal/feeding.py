"""What the hosts of a slice feed to its cores, by TPUEstimator's own code.

    with fed(run, random_input(run)) as batches:
        cores = next(batches)          # a batch for each physical core
        cores[0]["inputs"]             # int32 [sequences, length]

Mesh TensorFlow asks for `BROADCAST`: the first host reads the input function and sends the global
batch to every core, which takes its rows of it by the layout. TPUEstimator makes one operation for
each core that enqueues the batch; here the inputs of these operations are read in place of that.
So a core gets what the operation with its host and its number on that host would enqueue.
"""

import contextlib
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import tf1 as tf
from t0.compat import tpu_estimator
from t0.errors import UserError, original
from t0.mesh.pod_run import PodRun
from t0.mesh.topology import Topology, device_assignment
from t0.rehearsal.batches import random_batches

Batch = Mapping[str, np.ndarray]
InputFunction = Callable[[Any], Any]
_ENQUEUE = "InfeedEnqueueTuple"


def random_input(run: PodRun) -> InputFunction:
    """Returns an input function of random tokens, for a rehearsal that opens no data."""
    shapes = {name: value.shape for name, value in next(random_batches(run)).items()}

    def input_fn(params: Any) -> tf.data.Dataset:
        del params
        return tf.data.Dataset.from_generator(
            lambda: random_batches(run), dict.fromkeys(shapes, tf.int32), shapes
        )

    return input_fn


@contextlib.contextmanager
def fed(run: PodRun, input_fn: InputFunction) -> Iterator[Iterator[tuple[Batch, ...]]]:
    """Opens the run's data as the hosts of its slice do.

    Args:
      run: the run on a slice.
      input_fn: what TPUEstimator would be given.

    Yields:
      for each step the batches of the physical cores, in their order.

    Raises:
      UserError: if the data ends, or cannot be read.
    """
    graph = tf.Graph()
    with graph.as_default():
        initializer, features = _enqueued(run, input_fn)
    # The hosts are this machine. The first graph is kept: it holds the generators' functions.
    here = tf.Graph()
    with here.as_default():
        tf.import_graph_def(_without_cores(graph.as_graph_def()), name="")
    names = [{name: tensor.name for name, tensor in core.items()} for core in features]
    with tf.Session(graph=here) as session:
        session.run(here.get_operation_by_name(initializer.name))
        yield _read(session, names)
    del graph


def _read(session: tf.Session, names: Sequence[Mapping[str, str]]) -> Iterator[tuple[Batch, ...]]:
    while True:
        try:
            yield tuple(session.run(list(names)))
        except tf.errors.OutOfRangeError as error:
            raise UserError(
                "the data ended: the mixture has too few examples to fill a batch. Is its cache "
                "empty?"
            ) from error
        except tf.errors.OpError as error:
            raise original(error) from error


def _enqueued(run: PodRun, input_fn: InputFunction) -> tuple[Any, list[dict[str, tf.Tensor]]]:
    """Returns the operation that opens the data, and what each core's enqueuing takes."""
    recorder = tpu_estimator._InputPipeline.InputsStructureRecorder()
    context = _context(run.slice_)
    enqueue, _, initializer = tpu_estimator.generate_broadcast_enqueue_ops_fn(
        context, lambda _: input_fn({}), recorder, context.num_hosts
    )
    if initializer is None:
        raise UserError("the input function returns no tf.data.Dataset, which a rehearsal needs")
    of_core = {(op.device, op.get_attr("device_ordinal")): list(op.inputs) for op in enqueue()}
    assignment = context.device_assignment
    cores = []
    for core in range(run.slice_.cores):
        host = context.tpu_host_placement_function(replica_id=core)
        inputs = of_core[host, assignment.tpu_ordinal(replica=core)]
        found, _ = recorder.unflatten_features_and_labels(inputs).features_and_labels()
        cores.append(dict(found))
    return initializer, cores


def _context(slice_: Topology) -> Any:
    """Returns the attributes of TPUEstimator's context that feeding by broadcast reads."""
    assignment = device_assignment(slice_)

    def host(replica_id: int | None = None, host_id: int | None = None) -> str:
        if replica_id is not None:
            return assignment.host_device(replica=replica_id, job="worker")
        return f"/job:worker/task:{host_id}/device:CPU:0"

    configuration = types.SimpleNamespace(eval_training_input_configuration=None)
    return types.SimpleNamespace(
        mode=tf.estimator.ModeKeys.TRAIN,
        num_hosts=slice_.hosts,
        num_replicas=slice_.cores,
        num_of_replicas_per_host=slice_.cores // slice_.hosts,
        device_assignment=assignment,
        tpu_host_placement_function=host,
        config=types.SimpleNamespace(tpu_config=configuration),
    )


def _without_cores(graph_def: Any) -> Any:
    """Returns a graph that this machine can run: no devices, and nothing that is sent to a core."""
    kept = [node for node in graph_def.node if node.op != _ENQUEUE]
    made = tf.GraphDef(node=kept, library=graph_def.library, versions=graph_def.versions)
    for nodes in (made.node, *(function.node_def for function in made.library.function)):
        for node in nodes:
            node.device = ""
    return made


@dataclasses.dataclass(frozen=True)
class OtherBatch:
    """A core that is fed another batch than the first."""

    core: int
    feature: str


def other_batches(cores: Sequence[Batch]) -> list[OtherBatch]:
    """Returns the cores, and the features, in which a core's batch is not the first core's."""
    first = cores[0]
    return [
        OtherBatch(number, name)
        for number, batch in enumerate(cores)
        for name in sorted(first.keys() | batch.keys())
        if batch is not first and not np.array_equal(batch.get(name), first.get(name))
    ]
