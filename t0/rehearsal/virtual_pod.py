"""A slice of a TPU pod on this machine: every core's program, its slices and the hosts' variables.

    with VirtualPod.open(run) as pod:                    # after gin has been parsed
        pod.initialise()
        pod.step([batch] * cores).losses                   # one for each core
        pod.variables().values["shared/embedding"]        # joined from the cores' slices

Hosts hold a master of each variable, which checkpoints hold, too; each core holds a slice of it, by
the layout. Cores at the same place of a layout hold replicas, which must stay equal.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import mtf
from t0.compat import tf1 as tf
from t0.mesh.lowering import Lowered, lower
from t0.mesh.pod_run import PodRun
from t0.rehearsal.draws import draws_by_place
from t0.rehearsal.virtual_cores import Copied, copy_program

# Type -> the most that sums in another order may differ by, as a share of the largest value.
ROUNDING = {"float32": 1e-5, "bfloat16": 2**-6}


@dataclasses.dataclass(frozen=True)
class Joined:
    """Tensors of the mesh, joined from the cores' slices.

    Attributes:
      values: name -> the whole tensor.
      unequal: the names of tensors whose replicas differ between cores.
    """

    values: Mapping[str, np.ndarray]
    unequal: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class PodStep:
    """What the cores computed in one training step.

    Attributes:
      losses: float32 [cores], each core's loss.
      gradients: the gradient of each trained variable.
      features: the batch, joined from the parts that the cores took of it.
    """

    losses: np.ndarray
    gradients: Joined
    features: Joined


@dataclasses.dataclass(frozen=True)
class _Gradients:
    """An optimizer's class that also keeps the gradients that it is given."""

    optimizer: Any
    kept: dict[str, mtf.Tensor] = dataclasses.field(default_factory=dict)

    def __call__(self, **arguments: Any) -> Any:
        made = self.optimizer(**arguments)
        published = made.apply_grads

        def apply_grads(gradients: Any, variables: Any) -> Any:
            pairs = zip(gradients, variables, strict=True)
            self.kept.update({v.name: g for g, v in pairs if g is not None})
            return published(gradients, variables)

        made.apply_grads = apply_grads
        return made


class VirtualPod:
    """The cores' training programs in one session.

    Args:
      lowered: the program of a core, with every core's slices.
      gradients: variable name -> its gradient, as a tensor of the mesh.
    """

    def __init__(self, lowered: Lowered, gradients: Mapping[str, mtf.Tensor]) -> None:
        train, loss = lowered.fetches
        self.features = feature_names(lowered)
        taken = _taken_features(lowered, self.features)
        with lowered.graph.as_default():
            slices = {
                tensor: lowered.lowering.tensors[tensor].to_laid_out_tensor().one_slice
                for tensor in [*gradients.values(), *taken.values()]
            }
            saver = tf.get_collection(tf.GraphKeys.SAVERS)[0].as_saver_def()
            host = _host_operations(lowered, saver)
            fill = {v.op.name: (v.initializer, v.initial_value) for v in tf.global_variables()}
        copied = copy_program(
            lowered,
            program=[train, loss, *slices.values()],
            host=[*host.values(), *(tensor for _, tensor in fill.values())],
        )
        self._file_name = saver.filename_tensor_name
        self._host = {name: op.name for name, op in host.items()}
        self._fill = {name: (op.name, tensor.name) for name, (op, tensor) in fill.items()}
        self.draws = copied.draws
        self._copied = copied
        self._losses = _of_cores(copied, loss.name)
        self._train = _of_cores(copied, train.name)
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.import_graph_def(copied.graph_def, name="")
        self._gradients, self._taken = (
            _Tensors(lowered, {n: _of_cores(copied, slices[x].name) for n, x in of.items()}, of)
            for of in (gradients, taken)
        )
        self._variables = _variables(lowered, self.graph)
        self.session = tf.Session(graph=self.graph, config=as_written())

    @classmethod
    @contextlib.contextmanager
    def open(cls, run: PodRun) -> Iterator["VirtualPod"]:
        """Builds the cores' programs of a training run, and closes their session at the end."""
        gradients = _Gradients(run.optimizer)
        with draws_by_place():
            lowered = lower(dataclasses.replace(run, optimizer=gradients), every_slice=True)
        pod = cls(lowered, gradients.kept)
        with pod.session:
            yield pod

    def initialise(self) -> None:
        """Fills the masters at random as the configured initialisers do, and then the slices."""
        self._run_on_host("initialise")
        self._run_on_host("to_slices")

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Fills masters from `values`, by name, and then the slices."""
        pairs = [(self._fill[name], value) for name, value in values.items()]
        self.session.run([op for (op, _), _ in pairs], {tensor: x for (_, tensor), x in pairs})
        self._run_on_host("to_slices")

    def step(self, batches: Sequence[Mapping[str, np.ndarray]]) -> PodStep:
        """Takes one training step.

        Args:
          batches: what each core is fed, the global batch: feature -> int32 [sequences, length].
        """
        fed = fed_to_cores(self._copied, self.features, batches)
        losses, gradients, taken, _ = self.session.run(
            [self._losses, self._gradients.names, self._taken.names, self._train], fed
        )
        return PodStep(
            np.array(losses), self._gradients.joined(gradients), self._taken.joined(taken)
        )

    def variables(self) -> Joined:
        """Returns every variable by name, in the slices' type; slots of the optimizer included."""
        found = self._variables.joined(self.session.run(self._variables.names))
        return Joined(self._variables.unstacked(found.values), found.unequal)

    def save(self, prefix: str) -> None:
        """Writes a checkpoint as the hosts do: slices to masters, and the run's saver."""
        self._run_on_host("to_masters")
        self._run_on_host("save", {self._file_name: prefix})

    def restore(self, prefix: str) -> None:
        """Reads a checkpoint as the hosts do: the run's saver, and masters to slices."""
        self._run_on_host("restore", {self._file_name: prefix})
        self._run_on_host("to_slices")

    def _run_on_host(self, name: str, fed: Mapping[str, str] | None = None) -> None:
        self.session.run(self.graph.get_operation_by_name(self._host[name]), fed)


class _Tensors:
    """Tensors of the mesh, each with the names of its slices, in the order of physical cores."""

    def __init__(
        self, lowered: Lowered, names: Mapping[str, list[str]], of: Mapping[str, Any]
    ) -> None:
        self._mesh_impl = lowered.mesh_impl
        self._shapes = {name: x.shape for name, x in of.items()}
        self._stacked = {n: getattr(x, "original_names", None) for n, x in of.items()}
        self.names = dict(names)

    def joined(self, slices: Mapping[str, Sequence[np.ndarray]]) -> Joined:
        found = {name: self._join(self._shapes[name], slices[name]) for name in self.names}
        return Joined(
            {name: whole for name, (whole, _) in found.items()},
            tuple(sorted(name for name, (_, equal) in found.items() if not equal)),
        )

    def unstacked(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the variables that Mesh TensorFlow keeps in one slice, each by its name."""
        single: dict[str, np.ndarray] = {}
        for name, value in values.items():
            stacked = self._stacked[name]
            single |= zip(stacked, value, strict=True) if stacked else {name: value}
        return single

    def _join(self, shape: mtf.Shape, slices: Sequence[np.ndarray]) -> tuple[np.ndarray, bool]:
        whole = np.zeros(shape.to_integer_list, slices[0].dtype)
        first: dict[tuple[int, ...], np.ndarray] = {}
        equal = True
        for physical, piece in enumerate(slices):
            begin = tuple(self._mesh_impl.slice_begin(shape, self._mesh_impl.p2l(physical)))
            known = first.setdefault(begin, piece)
            equal = equal and replicas_equal(known, piece)
            whole[tuple(slice(b, b + n) for b, n in zip(begin, known.shape, strict=True))] = known
        return whole, equal


def replicas_equal(first: np.ndarray, second: np.ndarray) -> bool:
    """Returns whether two cores have the same value of a tensor.

    Integers are equal bit for bit. Floats may differ by rounding: here every core's sums are shared
    out among this machine's threads anew, while the cores of a TPU take the same order.
    """
    if first.tobytes() == second.tobytes():
        return True
    rounding = ROUNDING.get(first.dtype.name)
    if rounding is None:
        return False
    a, b = first.astype(np.float64), second.astype(np.float64)
    return bool(np.max(np.abs(a - b)) <= rounding * np.max(np.abs(a)))  # False for nan, too


def _variables(lowered: Lowered, graph: tf.Graph) -> _Tensors:
    names = {}
    with graph.as_default():
        for variable, laid_out in lowered.lowering.variables.items():
            slices = laid_out.laid_out_tensor.one_slice._vars
            handles = [graph.get_tensor_by_name(piece.handle.name) for piece in slices]
            names[variable.name] = [
                tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.slice_dtype).name
                for handle in handles
            ]
    of = {variable.name: variable for variable in lowered.lowering.variables}
    return _Tensors(lowered, names, of)


def _taken_features(lowered: Lowered, names: Sequence[str]) -> dict[str, mtf.Tensor]:
    """Returns feature -> the tensor of the mesh that the layout has split."""
    taken: dict[str, mtf.Tensor] = {}
    for op in lowered.lowering.graph.operations:
        name = op.inputs[0].operation.name if op.inputs else ""
        if name in names:
            taken.setdefault(name, op.outputs[0])
    return taken


def _host_operations(lowered: Lowered, saver: Any) -> dict[str, Any]:
    of_slices = [v.initializer for v in tf.get_collection("TPU_VAR")]
    masters = [v.initializer for v in tf.global_variables()]
    return {
        "initialise": tf.group(*masters, *of_slices),
        "to_slices": lowered.lowering.copy_masters_to_slices(),
        "to_masters": lowered.lowering.copy_slices_to_masters(),
        "save": lowered.graph.get_operation_by_name(saver.save_tensor_name.partition(":")[0]),
        "restore": lowered.graph.get_operation_by_name(saver.restore_op_name),
    }


def feature_names(lowered: Lowered) -> tuple[str, ...]:
    """Returns the names of the features that a core's program is fed."""
    return tuple(op.name for op in lowered.graph.get_operations() if op.type == "Placeholder")


def fed_to_cores(
    copied: Copied, features: Sequence[str], batches: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Returns what a session is fed so that each core gets its batch."""
    return {
        copied.name(f"{name}:0", core): batch[name]
        for core, batch in enumerate(batches)
        for name in features
        if name in copied.of_each_core
    }


def _of_cores(copied: Copied, name: str) -> list[str]:
    return [copied.name(name, core) for core in range(copied.cores)]


def as_written(config: Any = None) -> Any:
    """Returns a session's settings under which TensorFlow runs the graph without rewriting it.

    Args:
      config: the `tf.ConfigProto` to change; None for a new one.
    """
    config = tf.ConfigProto() if config is None else config
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1  # neither folds nor joins nodes
    return config
