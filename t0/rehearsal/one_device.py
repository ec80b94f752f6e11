"""Runs training steps in our own loop on one device, for a comparison with a pod's cores.

    with OneDevice.open(run, pod.features) as device:    # parse gin first
        device.load(pod.variables().values)
        device.step(batch).loss

Model, loss, optimizer, schedule and types are the same as when `t5_mesh_transformer` trains without
`--tpu`. Mesh and layout are for one device. `score_choices` scores choices with a checkpoint and
our scorer. `measure_perplexity` measures the perplexity with a checkpoint and our held-out loss.
"""

import contextlib
import dataclasses
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from t0.compat import mtf
from t0.compat import tf1 as tf
from t0.evaluation.mesh_model import Placement, build_model, restore_variables
from t0.evaluation.scorer import MeshScorer
from t0.mesh.gather_embedding import bind_gather_embedding
from t0.mesh.pod_run import PodRun
from t0.rehearsal.virtual_pod import deterministic_uniform
from t0.training.checkpointing import Checkpoints, Keep
from t0.training.graph import TrainingSpec, build, build_held_out
from t0.training.losses import PARTS
from t0.training.mesh_session import one_step, session_config


@dataclasses.dataclass(frozen=True)
class DeviceStep:
    """The results of one step. The gradients and their norm are measured before clipping."""

    loss: float
    gradient_norm: float
    gradients: Mapping[str, np.ndarray]


class OneDevice:
    """Runs our training step in its own TensorFlow session.

    Args:
      run: the run on a slice.
      features: the names of the features of a batch.
    """

    def __init__(self, run: PodRun, features: tuple[str, ...]) -> None:
        spec = training_spec(run)
        bind_gather_embedding(spec.mesh_shape, spec.layout_rules)
        with deterministic_uniform():
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
        """Builds the training step in a session, which is closed when the context ends."""
        device = cls(run, features)
        with device.session:
            yield device

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Sets each variable to its value in `values`; if that is missing, to its initial value."""
        self.session.run(self._initialise)
        pairs = [(self._fill[name], x) for name, x in values.items() if name in self._fill]
        self.session.run([op for (op, _), _ in pairs], {tensor: x for (_, tensor), x in pairs})
        self.session.run(self._graph.to_slices)

    def step(self, batch: Mapping[str, np.ndarray]) -> DeviceStep:
        """Runs one training step."""
        feed = {tensor: batch[name] for name, tensor in self._graph.features.items()}
        # Gradients come first, because the step changes the weights.
        gradients = self.session.run(self._gradients, feed)
        values = one_step(self.session, self._graph, batch)
        return DeviceStep(values["loss"], values["gradient_square"] ** 0.5, gradients)

    def restore(self, checkpoint: str) -> None:
        """Restores a checkpoint in the same way as a resumed run does."""
        Checkpoints("", self._graph, self.session, Keep()).restore(checkpoint)

    def variables(self) -> dict[str, np.ndarray]:
        """Returns name -> value of all variables and optimizer slots, in the type of the slices."""
        self.session.run(self._graph.to_masters)
        return self.session.run(self._read)


def training_spec(run: PodRun) -> TrainingSpec:
    """Returns the spec with which our loop trains on one device as `run` does on a slice."""
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


def build_for_one_device(run: PodRun) -> tuple[Any, mtf.VariableDType, Placement]:
    """Returns the run's model for one device, its types and its placement.

    A `MeshScorer` or a `MeshGenerator` takes them as its first arguments.
    """
    vocabulary = types.SimpleNamespace(vocab_size=run.vocabulary_size)
    model, _, placement = build_model(
        {
            "vocabulary": vocabulary,
            "model_type": run.model_type,
            "mesh_shape": mtf.Shape([]),
            "layout_rules": run.layout_rules,
            "mesh_devices": None,
        }
    )
    return model, run.variable_dtype, placement


def score_choices(run: PodRun, prefix: str, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the log-likelihoods of choices with a checkpoint, float32 [inputs, choices], in nats.

    Args:
      run: the run on a slice.
      prefix: the path of the checkpoint.
      inputs: the inputs [inputs, length].
      targets: their choices [inputs, choices, length].
    """
    with contextlib.closing(MeshScorer(*build_for_one_device(run))) as scorer:
        scorer.restore(prefix)
        return scorer.log_likelihoods(inputs, targets)


class Perplexity(NamedTuple):
    """The perplexity of a model on a batch.

    Attributes:
      nats_per_token: the mean cross entropy of the target tokens, in nats. The perplexity is the
        exponential of this number.
      accuracy: the fraction of target tokens that are correctly predicted.
      tokens: the number of target tokens, including EOS.
    """

    nats_per_token: float
    accuracy: float
    tokens: float


def measure_perplexity(run: PodRun, prefix: str, rows: Mapping[str, np.ndarray]) -> Perplexity:
    """Measures a checkpoint's perplexity on one batch.

    Args:
      run: the run on a slice.
      prefix: the path of the checkpoint.
      rows: "inputs" and "targets" int32 [sequences, length], not packed.
    """
    spec = training_spec(run)
    bind_gather_embedding(spec.mesh_shape, spec.layout_rules)
    held_out = build_held_out(
        spec, features=tuple(rows), activations=run.variable_dtype.activation_dtype
    )
    with tf.Session(graph=held_out.graph) as session:
        restore_variables(session, prefix)
        session.run(held_out.to_slices)
        feed = {tensor: rows[name] for name, tensor in held_out.features.items()}
        values = session.run(held_out.values, feed).tolist()
    sums = dict(zip(("loss", *PARTS), values, strict=True))
    tokens = sums["tokens"]
    return Perplexity(sums["nll"] / tokens, sums["correct"] / tokens, tokens)
