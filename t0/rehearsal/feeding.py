"""Reads the batches that each core of a TPU slice would get, from random tokens or a mixture.

    with open_batches(run, random_input(run)) as batches:
        cores = next(batches)          # a batch for each physical core
        cores[0]["inputs"]             # int32 [sequences, length]

Mesh TensorFlow feeds a pod in mode `BROADCAST`. The first host calls the input function, and sends
the global batch to every core. Each core selects its rows according to the layout. TPUEstimator
creates one operation per core that enqueues the batch. This module reads the inputs of these
operations instead of running them. So a core gets exactly the batch that its host would enqueue for
it.

The batches may also come from the run's own mixture. If the mixture's tasks are cached, the batches
are written as a stream, and read with the operations that a TPU's hosts run
(`t0.feeding.batch_stream.stream_dataset`). If the tasks are not cached, the input function of Mesh
TensorFlow's `run` reads the mixture. It uses T5's dataset function and packing, and repeats and
batches the data as in `t0/training/estimator.py`. Nothing is read from the model directory.
"""

import contextlib
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import mesh_utils, seqio, tpu_estimator
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.errors import UserError, original
from t0.feeding import batch_stream, data_spec, manifest
from t0.feeding.batch_stream import Stream
from t0.mesh.pod_run import PodRun
from t0.mesh.topology import Topology, device_assignment
from t0.run import checks, data_checks, host_checks, mesh_modes
from t0.run.findings import Findings
from t0.run.host_checks import InputFunction
from t0.run.parsed_run import ParsedRun

Batch = Mapping[str, np.ndarray]
_EOS = 1
_FIRST_PIECE = 2  # the lowest id that is a token; ids 0 and 1 are padding and EOS
_EXAMPLES = 2
# Any name is accepted, because Mesh TensorFlow's `run` does not look up the TPU before training.
_TPU = "rehearsed"
_PLACES = dict.fromkeys(("tpu_job_name", "gcp_project", "tpu_zone"))


def random_input(run: PodRun) -> InputFunction:
    """Returns an input function that yields random tokens, for a rehearsal without data."""
    first = next(random_batches(run))
    signature = {name: tf.TensorSpec(value.shape, tf.int32) for name, value in first.items()}
    return lambda _: tf.data.Dataset.from_generator(
        lambda: random_batches(run), output_signature=signature
    )


@contextlib.contextmanager
def open_batches(run: PodRun, input_fn: InputFunction) -> Iterator[Iterator[Sequence[Batch]]]:
    """Opens the data of a run in the same way as the hosts of its slice.

    Args:
      run: the run on a slice.
      input_fn: the input function that TPUEstimator would get.

    Yields:
      an iterator that returns, for each step, one batch per core, in the order of physical cores.

    Raises:
      UserError: if the data ends, or if it cannot be read.
    """
    # This graph must not be deleted before the session ends, because it owns the functions of the
    # generators.
    graph = tf.Graph()
    with graph.as_default():
        initializer, names = _enqueue_features(run.slice_, input_fn)
    # This machine does the work of all hosts.
    with tf.Graph().as_default() as local_graph:
        tf.import_graph_def(_remove_core_operations(graph.as_graph_def()), name="")
    with tf.Session(graph=local_graph) as session:
        session.run(local_graph.get_operation_by_name(initializer))
        yield _read(session, names)
    del graph


def _read(session: tf.Session, names: list[dict[str, str]]) -> Iterator[Sequence[Batch]]:
    while True:
        try:
            yield session.run(names)
        except tf.errors.OutOfRangeError as error:
            raise UserError(
                "the data ended: the mixture has too few examples to fill a batch. Is its cache "
                "empty?"
            ) from error
        except tf.errors.OpError as error:
            raise original(error) from error


def _enqueue_features(
    slice_: Topology, input_fn: InputFunction
) -> tuple[str, list[dict[str, str]]]:
    """Adds TPUEstimator's operations that feed the cores to the default graph.

    Returns:
      the name of the operation that opens the data, and for each core, feature -> the name of the
      tensor that the core would receive.
    """
    assignment = device_assignment(slice_)

    def host(replica_id: int | None = None, host_id: int | None = None) -> str:
        if replica_id is None:
            return f"/job:worker/task:{host_id}/device:CPU:0"
        return assignment.host_device(replica=replica_id, job="worker")

    tpu_config = types.SimpleNamespace(eval_training_input_configuration=None)
    # A substitute for TPUEstimator's context, with the fields for broadcast feeding.
    context = types.SimpleNamespace(
        mode=tf.estimator.ModeKeys.TRAIN,
        num_replicas=slice_.cores,
        num_of_replicas_per_host=slice_.cores // slice_.hosts,
        device_assignment=assignment,
        tpu_host_placement_function=host,
        config=types.SimpleNamespace(tpu_config=tpu_config),
    )
    recorder = tpu_estimator._InputPipeline.InputsStructureRecorder()
    enqueue, _, initializer = tpu_estimator.generate_broadcast_enqueue_ops_fn(
        context, lambda _: input_fn({}), recorder, slice_.hosts
    )
    if initializer is None:
        raise UserError("the input function returns no tf.data.Dataset, which a rehearsal needs")
    inputs = {(op.device, op.get_attr("device_ordinal")): list(op.inputs) for op in enqueue()}
    names = []
    for core in range(slice_.cores):
        tensors = inputs[host(replica_id=core), assignment.tpu_ordinal(replica=core)]
        features, _ = recorder.unflatten_features_and_labels(tensors).features_and_labels()
        names.append({name: tensor.name for name, tensor in features.items()})
    return initializer.name, names


def _remove_core_operations(graph_def: Any) -> Any:
    """Returns the graph without devices and without the operations that feed the cores."""
    local_nodes = [node for node in graph_def.node if node.op != "InfeedEnqueueTuple"]
    local = tf.GraphDef(node=local_nodes, library=graph_def.library, versions=graph_def.versions)
    for nodes in (local.node, *(function.node_def for function in local.library.function)):
        for node in nodes:
            node.device = ""
    return local


def other_batches(cores: Sequence[Batch]) -> list[tuple[int, str]]:
    """Returns each (core, feature) for which a core's batch differs from the first core's batch."""
    return [
        (core, name)
        for core, batch in enumerate(cores)
        for name, value in cores[0].items()
        if not np.array_equal(batch.get(name), value)
    ]


def random_batches(run: PodRun, *, seed: int = 0) -> Iterator[Batch]:
    """Yields random batches without end: feature -> int32 [sequences, length].

    Args:
      run: the run on a slice. If its examples are packed, batches also have segment ids and
        positions.
      seed: the seed of the tokens.
    """
    rng = np.random.default_rng(seed)
    while True:
        batch = {}
        for name, length in run.sequence_length.items():
            shape = (run.batch_sequences, length)
            ids = rng.integers(_FIRST_PIECE, run.vocabulary_size, shape)
            padding = rng.integers(1, max(2, length // 4), (run.batch_sequences, 1))
            columns = np.broadcast_to(np.arange(length), shape)
            is_token = columns < length - padding
            batch[name] = ids * is_token
            if run.packed:
                tokens_per_example = -(-length // _EXAMPLES)
                batch[f"{name}_segmentation"] = (1 + columns // tokens_per_example) * is_token
                batch[f"{name}_position"] = columns % tokens_per_example * is_token
        yield {name: value.astype(np.int32) for name, value in batch.items()}


def random_choices(run: PodRun) -> tuple[np.ndarray, np.ndarray]:
    """Returns random inputs [inputs, length] and their choices [inputs, choices, length].

    They make up one batch. The choices have different lengths. Each choice ends with EOS, and then
    has padding.
    """
    rng = np.random.default_rng(0)
    choices = 2 if run.batch_sequences % 2 == 0 else 1
    shape = (run.batch_sequences // choices, choices, run.sequence_length["targets"])
    inputs = rng.integers(
        _FIRST_PIECE, run.vocabulary_size, (shape[0], run.sequence_length["inputs"])
    )
    targets = rng.integers(_FIRST_PIECE, run.vocabulary_size, shape)
    ends = rng.integers(1, shape[-1], shape[:2])[..., None]
    columns = np.arange(shape[-1])
    targets = np.where(columns < ends, targets, np.where(columns == ends, _EOS, 0))
    return inputs.astype(np.int32), targets.astype(np.int32)


def check_mixture(flags: Any) -> Any:
    """Checks that the mixture exists, and is cached if necessary; returns its vocabulary.

    Args:
      flags: the parsed flags of the command, see `t0.config.flags`.

    Raises:
      UserError: if the mixture, its cache or its split is missing.
    """
    seqio.add_global_cache_dirs(flags.additional_task_cache_dirs)
    run, findings = ParsedRun(flags, "train"), Findings()
    findings.check_all((*checks.DATA_CHECKS, data_checks.describe_data), run)
    for note in findings.notes():
        print(note, file=sys.stderr)
    return run.vocabulary


def vocabulary_size(vocabulary: Any) -> int:
    """Returns the number of ids in the vocabulary. Inputs and targets must have the same number.

    Raises:
      UserError: if the vocabularies of inputs and targets have different sizes.
    """
    sizes = [
        select(vocabulary).vocab_size
        for select in (mesh_utils.inputs_vocabulary, mesh_utils.targets_vocabulary)
    ]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"the vocabularies of inputs and targets have {sizes[0]:,} and {sizes[1]:,} ids, and a "
            "rehearsal takes one for both"
        )
    return sizes[0]


def write_stream(run: PodRun, folder: str, *, steps: int) -> Stream | None:
    """Writes the batches of the configured run as a stream for a rehearsal, and opens the stream.

    Args:
      run: the run on a slice.
      folder: the folder of the stream.
      steps: the number of steps whose batches are written.

    Returns:
      the stream; None if the tasks are not cached as examples, because then there is no stream.
    """
    dataset_fn, seed = bound("run.train_dataset_fn"), bound("train_loop.seed", 0)
    data = data_spec.open_dataset_function(dataset_fn, seed, sequence_length=run.sequence_length)
    recorded = manifest.build(data, run.batch_sequences, manifest.Start())
    if recorded is None or not recorded.indexed:
        return None
    list(batch_stream.write(folder, recorded, data, first=1, last=steps, workers=1))
    return batch_stream.open_stream(folder)


def configured_input(vocabulary: Any) -> InputFunction:
    """Returns the input function that TPUEstimator would get for the configured run."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"model_dir": folder, "vocabulary": vocabulary, **_PLACES}
        input_fn = host_checks.training_input(arguments | mesh_modes.engine_arguments(tpu=_TPU))
    if input_fn is None:
        raise UserError("the run reads no data: run.train_steps leaves nothing to train")
    return input_fn
