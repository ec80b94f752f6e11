"""Runs a TPU slice on this machine: the programs of all cores, and the variables of the hosts.

    with VirtualPod.open(run) as pod:                    # parse gin first
        pod.initialise()
        pod.step([batch] * cores).losses                   # the loss on each core
        pod.variables().values["shared/embedding"]        # joined from the cores' slices

    with ReadingCores.open(run, "score_eval") as cores:
        cores.restore("/models/tiny/model.ckpt-5")
        cores.values({"inputs": ..., "targets": ...})[0]   # the first core's values

The hosts have a master of each variable, whose value is saved in checkpoints. Each core has a slice
of the variable, according to the layout. If several cores have the same slice, these replicas must
stay equal.

For a comparison, dropout must be the same in all programs. But two programs never draw the same
random numbers, because each core of a TPU has a generator without a seed, and our loop's generator
depends on seed and step. So within `deterministic_uniform`, the uniform numbers for dropout depend
only on their position in the tensor and on the index of the draw. They form a Weyl sequence. Each
number is the fractional part of a sum. This sum grows by an irrational step along each dimension,
and by another step with each draw of the program. The numbers are spread evenly between 0 and 1.
All rows of a batch get equal numbers, because the microbatches of two programs may have different
rows.
"""

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0 import compat
from t0.compat import mtf
from t0.compat import tf1 as tf
from t0.mesh.lowering import LoweredRun, lower
from t0.mesh.pod_run import PodRun
from t0.rehearsal.virtual_cores import copy_program

# Type -> the tolerance for sums in a different order, relative to the largest value.
ROUNDING = {"float32": 1e-5, "bfloat16": 2**-6}
_ROWS = ("batch", "outer_batch")
_GOLDEN_RATIO = 0.6180339887


@dataclasses.dataclass(frozen=True)
class WholeTensors:
    """Whole tensors, each joined from the slices of the cores.

    Attributes:
      values: name -> the whole tensor.
      unequal: the names of the tensors whose replicas on two cores differ.
    """

    values: Mapping[str, np.ndarray]
    unequal: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class PodStep:
    """The results of all cores in one training step.

    Attributes:
      losses: the loss of each core, float32 [cores].
      gradients: the gradient of each trained variable.
      features: the global batch, joined from the parts that the cores have read.
    """

    losses: np.ndarray
    gradients: WholeTensors
    features: WholeTensors


@dataclasses.dataclass(frozen=True)
class _RecordingOptimizer:
    """Wraps an optimizer class, and records the gradients passed to it."""

    optimizer: Any
    recorded: dict[str, mtf.Tensor] = dataclasses.field(default_factory=dict)

    def __call__(self, **arguments: Any) -> Any:
        optimizer = self.optimizer(**arguments)
        published = optimizer.apply_grads

        def apply_grads(gradients: Any, variables: Any) -> Any:
            pairs = zip(gradients, variables, strict=True)
            self.recorded.update({v.name: g for g, v in pairs if g is not None})
            return published(gradients, variables)

        optimizer.apply_grads = apply_grads
        return optimizer


class VirtualCores:
    """The programs of all cores, in one TensorFlow session.

    Args:
      lowered: the lowered program of a core, with the slices of every core.
      program: the operations and tensors that a core computes in a step.
      host: name -> an operation that hosts run.
      saver: the hosts' saver, as a proto.
    """

    def __init__(
        self, lowered: LoweredRun, program: Sequence[Any], host: Mapping[str, Any], saver: Any
    ) -> None:
        operations = lowered.graph.get_operations()
        self.features = tuple(op.name for op in operations if op.type == "Placeholder")
        self._file_name = saver.filename_tensor_name
        self._host = {name: op.name for name, op in host.items()}
        self._copied = copy_program(lowered, program=program, host=list(host.values()))
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.import_graph_def(self._copied.graph_def, name="")
        self.session = tf.Session(graph=self.graph, config=disable_graph_rewrites())

    def _names_on_cores(self, name: str) -> list[str]:
        return [self._copied.name(name, core) for core in range(self._copied.cores)]

    def _feed(self, batches: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Returns a `feed_dict` that gives each core its batch."""
        return {
            self._copied.name(f"{feature}:0", core): batch[feature]
            for core, batch in enumerate(batches)
            for feature in self.features
            if feature in self._copied.of_each_core
        }

    def _run_on_host(self, name: str, prefix: str | None = None) -> None:
        feed = {self._file_name: prefix} if prefix else None
        self.session.run(self.graph.get_operation_by_name(self._host[name]), feed)

    def restore(self, prefix: str) -> None:
        """Restores a checkpoint as hosts do: runs the saver, then copies masters to slices."""
        self._run_on_host("restore", prefix)
        self._run_on_host("to_slices")


class VirtualPod(VirtualCores):
    """The training programs of all cores, in one TensorFlow session.

    Args:
      lowered: the lowered program of a core, with the slices of every core.
      gradients: name of a variable -> its gradient, as a tensor of the mesh.
    """

    def __init__(self, lowered: LoweredRun, gradients: Mapping[str, mtf.Tensor]) -> None:
        train, loss = lowered.fetches
        read_features = _find_read_features(lowered)
        with lowered.graph.as_default():
            slices = {
                tensor: lowered.lowering.tensors[tensor].to_laid_out_tensor().one_slice
                for tensor in [*gradients.values(), *read_features.values()]
            }
            saver = tf.get_collection(tf.GraphKeys.SAVERS)[0].as_saver_def()
            host = _host_operations(lowered, saver)
        super().__init__(lowered, [train, loss, *slices.values()], host, saver)
        self._losses, self._train = map(self._names_on_cores, (loss.name, train.name))
        self._gradients, self._read_features = (
            _SlicedTensors(
                lowered,
                {n: self._names_on_cores(slices[x].name) for n, x in tensors.items()},
                tensors,
            )
            for tensors in (gradients, read_features)
        )
        self._variables = _variables(lowered, self.graph)

    @classmethod
    @contextlib.contextmanager
    def open(cls, run: PodRun) -> Iterator["VirtualPod"]:
        """Builds the training programs in a session, which is closed when the context ends."""
        recorder = _RecordingOptimizer(run.optimizer)
        with deterministic_uniform():
            lowered = lower(dataclasses.replace(run, optimizer=recorder))
        pod = cls(lowered, recorder.recorded)
        with pod.session:
            yield pod

    def initialise(self) -> None:
        """Fills the masters with the configured initializers, and copies them to the slices."""
        self._run_on_host("initialise")
        self._run_on_host("to_slices")

    def step(self, batches: Sequence[Mapping[str, np.ndarray]]) -> PodStep:
        """Runs one training step.

        Args:
          batches: for each core, the batch that the host sends to it: feature -> int32 [sequences,
            length]. The host sends the whole global batch.
        """
        losses, gradients, read_features, _ = self.session.run(
            [self._losses, self._gradients.names, self._read_features.names, self._train],
            self._feed(batches),
        )
        return PodStep(
            np.array(losses),
            self._gradients.join_slices(gradients),
            self._read_features.join_slices(read_features),
        )

    def variables(self) -> WholeTensors:
        """Returns all variables and optimizer slots as whole tensors, in the type of the slices."""
        joined = self._variables.join_slices(self.session.run(self._variables.names))
        return WholeTensors(self._variables.split_stacked(joined.values), joined.unequal)

    def save(self, prefix: str) -> None:
        """Writes a checkpoint as hosts do: copies the slices to masters, then runs the saver."""
        self._run_on_host("to_masters")
        self._run_on_host("save", prefix)


class _SlicedTensors:
    """Tensors of the mesh, and the names of their slices in the order of physical cores."""

    def __init__(
        self, lowered: LoweredRun, names: Mapping[str, list[str]], tensors: Mapping[str, Any]
    ) -> None:
        self._mesh_impl = lowered.mesh_impl
        self._shapes = {name: x.shape for name, x in tensors.items()}
        self._stacked = {n: getattr(x, "original_names", None) for n, x in tensors.items()}
        self.names = dict(names)

    def join_slices(self, slices: Mapping[str, Sequence[np.ndarray]]) -> WholeTensors:
        joined = {name: self._join_pieces(self._shapes[name], slices[name]) for name in self.names}
        return WholeTensors(
            {name: whole for name, (whole, _) in joined.items()},
            tuple(sorted(name for name, (_, equal) in joined.items() if not equal)),
        )

    def split_stacked(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns name -> value of each variable. Values that stack several variables are split."""
        single: dict[str, np.ndarray] = {}
        for name, value in values.items():
            stacked = self._stacked[name]
            single |= zip(stacked, value, strict=True) if stacked else {name: value}
        return single

    def _join_pieces(
        self, shape: mtf.Shape, slices: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, bool]:
        whole = np.zeros(shape.to_integer_list, slices[0].dtype)
        first: dict[tuple[int, ...], np.ndarray] = {}
        equal = True
        for physical, piece in enumerate(slices):
            begin = tuple(self._mesh_impl.slice_begin(shape, self._mesh_impl.p2l(physical)))
            first_piece = first.setdefault(begin, piece)
            equal = equal and replicas_equal(first_piece, piece)
            whole[tuple(slice(b, b + n) for b, n in zip(begin, first_piece.shape, strict=True))] = (
                first_piece
            )
        return whole, equal


def replicas_equal(first: np.ndarray, second: np.ndarray) -> bool:
    """Returns whether a tensor has the same value on two cores.

    Integers must be equal bit for bit. Floats may differ by rounding, because the threads of this
    machine split each sum in a different way every time. (On a TPU, all cores add in the same
    order.)
    """
    if first.tobytes() == second.tobytes():
        return True
    rounding = ROUNDING.get(first.dtype.name)
    if rounding is None:
        return False
    a, b = first.astype(np.float64), second.astype(np.float64)
    return bool(np.max(np.abs(a - b)) <= rounding * np.max(np.abs(a)))  # False if a value is nan


def _variables(lowered: LoweredRun, graph: tf.Graph) -> _SlicedTensors:
    names = {}
    with graph.as_default():
        for variable, laid_out in lowered.lowering.variables.items():
            slices = laid_out.laid_out_tensor.one_slice._vars
            handles = [graph.get_tensor_by_name(piece.handle.name) for piece in slices]
            names[variable.name] = [
                tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.slice_dtype).name
                for handle in handles
            ]
    variables = {variable.name: variable for variable in lowered.lowering.variables}
    return _SlicedTensors(lowered, names, variables)


def _find_read_features(lowered: LoweredRun) -> dict[str, mtf.Tensor]:
    """Returns feature -> the mesh tensor whose slices the cores read."""
    names = {op.name for op in lowered.graph.get_operations() if op.type == "Placeholder"}
    read_features: dict[str, mtf.Tensor] = {}
    for op in lowered.lowering.graph.operations:
        name = op.inputs[0].operation.name if op.inputs else ""
        if name in names:
            read_features.setdefault(name, op.outputs[0])
    return read_features


def _host_operations(lowered: LoweredRun, saver: Any) -> dict[str, Any]:
    of_slices = [v.initializer for v in tf.get_collection("TPU_VAR")]
    masters = [v.initializer for v in tf.global_variables()]
    return {
        "initialise": tf.group(*masters, *of_slices),
        "to_slices": lowered.lowering.copy_masters_to_slices(),
        "to_masters": lowered.lowering.copy_slices_to_masters(),
        "save": lowered.graph.get_operation_by_name(saver.save_tensor_name.partition(":")[0]),
        "restore": lowered.graph.get_operation_by_name(saver.restore_op_name),
    }


def disable_graph_rewrites(config: Any = None) -> Any:
    """Returns a session configuration that stops TensorFlow from rewriting the graph.

    Args:
      config: the `tf.ConfigProto` to change; None to make a new one.
    """
    config = tf.ConfigProto() if config is None else config
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1  # disables folding and merging of nodes
    return config


class ReadingCores(VirtualCores):
    """The programs of all cores in a mode that only reads a checkpoint, in one session.

    Args:
      lowered: the lowered program of a core, with the slices of every core.
    """

    def __init__(self, lowered: LoweredRun) -> None:
        with lowered.graph.as_default():
            # This is the saver that TensorFlow's estimator makes if the model function provides no
            # saver.
            saver = tf.train.Saver(sharded=True, allow_empty=True).as_saver_def()
            host = {
                "initialise": tf.group(*(v.initializer for v in tf.get_collection("TPU_VAR"))),
                "to_slices": lowered.lowering.copy_masters_to_slices(),
                "restore": lowered.graph.get_operation_by_name(saver.restore_op_name),
            }
        super().__init__(lowered, lowered.fetches, host, saver)
        values = [self._names_on_cores(value.name) for value in lowered.fetches]
        self._values = list(map(list, zip(*values, strict=True)))

    @classmethod
    @contextlib.contextmanager
    def open(cls, run: PodRun, mode: str) -> Iterator["ReadingCores"]:
        """Builds the programs of a mode in a session, which is closed when the context ends.

        Args:
          run: the run on a slice.
          mode: a mode that `lowering.lower` accepts, such as "score_eval".
        """
        reading = dataclasses.replace(run, mode=mode, packed=False, microbatches=1)
        cores = cls(lower(reading))
        with cores.session:
            cores._run_on_host("initialise")
            yield cores

    def values(self, batch: Mapping[str, np.ndarray]) -> list[list[np.ndarray]]:
        """Returns, for each core, the values of the program's fetches for a batch."""
        return self.session.run(self._values, self._feed([batch] * self._copied.cores))


def equal_on_cores(values: list[list[np.ndarray]]) -> bool:
    """Returns whether the values are the same on all cores."""
    return all(
        np.array_equal(mine, first)
        for core in values
        for mine, first in zip(core, values[0], strict=True)
    )


@contextlib.contextmanager
def deterministic_uniform() -> Iterator[None]:
    """Makes uniform random draws deterministic in a program built while the context is open.

    The n-th draw in one context equals the n-th draw in every other context. To compare two
    programs, build each program in its own context.
    """
    numbers = itertools.count()

    def draw(mesh: mtf.Mesh, shape: Any, **keywords: Any) -> mtf.Tensor:
        del keywords  # for example, the type: numbers must be float32 to be compared with the rate
        return uniform(mesh, mtf.convert_to_shape(shape), next(numbers))

    with compat.replaced("mtf_ops.random_uniform", draw):
        yield


def uniform(mesh: mtf.Mesh, shape: mtf.Shape, number: int) -> mtf.Tensor:
    """Returns float32 numbers from 0 to 1 that depend only on their position and on `number`.

    Args:
      mesh: the mesh of the tensor.
      shape: the shape of the tensor. The order of the dimensions, and the way in which a layout
        splits them, do not change a number.
      number: the index of the draw within the program.
    """
    total = mtf.constant(mesh, number * _GOLDEN_RATIO % 1, mtf.Shape([]), tf.float32)
    for dim in sorted(shape.dims, key=lambda dim: dim.name):
        if dim.name not in _ROWS:
            places = mtf.range(mesh, dim, tf.float32)
            total = mtf.mod(total + places * _dimension_step(dim.name), 1.0)
    return mtf.broadcast(total, shape)


def _dimension_step(name: str) -> float:
    """Returns the step along a dimension: between 0.25 and 0.75, and different for each name."""
    digest = hashlib.sha256(name.encode()).digest()
    return 0.25 + 0.5 * int.from_bytes(digest[:4], "little") / 2**32
