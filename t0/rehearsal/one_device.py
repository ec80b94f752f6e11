"""The run's steps by our own loop on one device of this machine, to compare the cores' with.

    with OneDevice.open(run) as device:                  # after gin has been parsed
        device.load(pod.variables())
        device.step(batch).loss

Model, loss, optimizer and schedule are those that `t5_mesh_transformer` trains with when it runs
without `--tpu`; mesh and layout are those of one device. Types are the configured ones.
"""

import contextlib
import dataclasses
import types
from collections.abc import Iterator, Mapping

import numpy as np

from t0.compat import mtf
from t0.compat import tf1 as tf
from t0.mesh.gather_embedding import bind_gather_embedding
from t0.mesh.pod_run import PodRun
from t0.rehearsal.draws import draws_by_place
from t0.training.checkpointing import Checkpoints, Keep
from t0.training.graph import build
from t0.training.loop import one_step, session_config
from t0.training.options import TrainingSpec


@dataclasses.dataclass(frozen=True)
class DeviceStep:
    """The loss of a step, and its gradients before any clipping: their norm, and each by name."""

    loss: float
    gradient_norm: float
    gradients: Mapping[str, np.ndarray]


class OneDevice:
    """Our training step in a session of its own.

    Args:
      run: the run on a slice.
      features: names of the batch's features.
    """

    def __init__(self, run: PodRun, features: tuple[str, ...]) -> None:
        spec = training_spec(run)
        bind_gather_embedding(spec.mesh_shape, spec.layout_rules)
        with draws_by_place():
            self._graph = build(
                spec,
                features=features,
                seed=0,
                activations=run.variable_dtype.activation_dtype,
                validates=False,
            )
        self.session = tf.Session(graph=self._graph.graph, config=session_config(spec.mesh_devices))
        with self._graph.graph.as_default():
            variables = {v.op.name: v for v in tf.global_variables()}
            wider = {name: pieces[0] for name, pieces in self._graph.slices.items()}
            self._read = {n: v.read_value() for n, v in (variables | wider).items()}
            self._gradients = self._graph.gradients()
            self._initialise = tf.global_variables_initializer()
            self._fill = {name: (v.initializer, v.initial_value) for name, v in variables.items()}

    @classmethod
    @contextlib.contextmanager
    def open(cls, run: PodRun, features: tuple[str, ...]) -> Iterator["OneDevice"]:
        """Builds the step, and closes its session at the end."""
        device = cls(run, features)
        with device.session:
            yield device

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Fills variables by name; those that only one side has keep their initial values."""
        self.session.run(self._initialise)
        pairs = [(self._fill[name], x) for name, x in values.items() if name in self._fill]
        self.session.run([op for (op, _), _ in pairs], {tensor: x for (_, tensor), x in pairs})
        self.session.run(self._graph.to_slices)

    def step(self, batch: Mapping[str, np.ndarray]) -> DeviceStep:
        """Takes one training step."""
        fed = {tensor: batch[name] for name, tensor in self._graph.features.items()}
        gradients = self.session.run(self._gradients, fed)  # first: the step changes the weights
        values = one_step(self.session, self._graph, batch)
        return DeviceStep(values["loss"], values["gradient_square"] ** 0.5, gradients)

    def restore(self, checkpoint: str) -> None:
        """Restores a checkpoint as a run does that goes on from it."""
        Checkpoints("", self._graph, self.session, Keep()).restore(checkpoint)

    def variables(self) -> dict[str, np.ndarray]:
        """Returns every variable by name, in the slices' type; slots of the optimizer included."""
        self.session.run(self._graph.to_masters)
        return self.session.run(self._read)


def training_spec(run: PodRun) -> TrainingSpec:
    """Returns what our loop trains on one device for a run on a slice."""
    return TrainingSpec.from_estimator_arguments(
        model_type=run.model_type,
        vocabulary=types.SimpleNamespace(vocab_size=run.vocabulary_size),
        mesh_shape=mtf.Shape([]),
        layout_rules=run.layout_rules,
        mesh_devices=None,
        model_dir="",
        batch_size=run.batch_sequences,
        sequence_length=run.sequence_length,
        learning_rate_schedule=run.learning_rate_schedule,
        optimizer=run.optimizer,
        variable_filter=run.variable_filter,
    )
