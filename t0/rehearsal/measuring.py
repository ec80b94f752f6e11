"""Perplexity by the pod's program on virtual cores, and by our measuring on one device.

    with ReadingCores.open(run, "perplexity_eval") as cores:
        measured = measure(run, cores, "/models/tiny/model.ckpt-5", rows)
        measured.pod.nats_per_token, measured.device.nats_per_token

Mode `perplexity_eval` of Mesh TensorFlow has each core compute the cross entropy of every target
token; the hosts average the first core's. Ours sums on the device (`t0/training/graph.py`).
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from t0.compat import tf1 as tf
from t0.mesh.gather_embedding import bind_gather_embedding
from t0.mesh.pod_run import PodRun
from t0.rehearsal.one_device import training_spec
from t0.rehearsal.reading_cores import ReadingCores, equal_on_cores
from t0.scoring.mesh_model import restore_variables
from t0.training.graph import build_held_out
from t0.training.losses import PARTS


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """What was measured over a batch.

    Attributes:
      nats_per_token: the mean cross entropy of a target token; perplexity is its exponential.
      correct: target tokens that were predicted.
      tokens: target tokens, EOS included.
    """

    nats_per_token: float
    correct: float
    tokens: float


@dataclasses.dataclass(frozen=True)
class Measured:
    """The perplexity of both sides, and whether every core has the same."""

    pod: Perplexity
    device: Perplexity
    equal_on_cores: bool

    @property
    def difference(self) -> float:
        """The relative difference of nats per token; infinite where other tokens were counted."""
        if self.pod.tokens != self.device.tokens:
            return float("inf")
        apart = abs(self.pod.nats_per_token - self.device.nats_per_token)
        return apart / self.device.nats_per_token

    @property
    def accuracy_difference(self) -> float:
        """The difference of token accuracies, of 1."""
        return abs(self.pod.correct - self.device.correct) / max(1.0, self.device.tokens)


def measure(
    run: PodRun, cores: ReadingCores, prefix: str, rows: Mapping[str, np.ndarray]
) -> Measured:
    """Measures a checkpoint's perplexity on one batch.

    Args:
      run: the run on a slice.
      cores: the programs of mode "perplexity_eval".
      prefix: the checkpoint.
      rows: "inputs" and "targets" int32 [sequences, length], not packed.
    """
    cores.restore(prefix)
    values = cores.values(rows)
    _, entropy, predictions, labels, weights = values[0]
    theirs = Perplexity(
        nats_per_token=float(np.sum(entropy * weights, dtype=np.float64) / weights.sum()),
        correct=float(((predictions == labels) * weights).sum()),
        tokens=float(weights.sum()),
    )
    return Measured(theirs, _on_one_device(run, prefix, rows), equal_on_cores(values))


def _on_one_device(run: PodRun, prefix: str, rows: Mapping[str, np.ndarray]) -> Perplexity:
    spec = training_spec(run)
    bind_gather_embedding(spec.mesh_shape, spec.layout_rules)
    held_out = build_held_out(
        spec, features=tuple(rows), activations=run.variable_dtype.activation_dtype
    )
    with tf.Session(graph=held_out.graph) as session:
        restore_variables(session, prefix)
        session.run(held_out.to_slices)
        fed = {tensor: rows[name] for name, tensor in held_out.features.items()}
        values = session.run(held_out.values, fed).tolist()
    parts = dict(zip(("loss", *PARTS), values, strict=True))
    return Perplexity(parts["nll"] / parts["tokens"], parts["correct"], parts["tokens"])
